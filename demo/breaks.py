"""The six ways in which the demonstration can be broken, to see that it notices.

Decides what each takes away, which scenarios show it, and which check must fail then.  How it is done is in
``alterations``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """One way to break it.

    ``alterations`` are applied in every server, ``provider`` are options of the provider's, ``scenarios``
    show it, and ``noticed_by`` are checks of which at least one must fail then.
    """

    says: str
    scenarios: tuple[str, ...]
    noticed_by: tuple[str, ...]
    alterations: tuple[str, ...] = ()
    provider: tuple[str, ...] = ()


BREAKS: dict[str, Break] = {
    "no-unique-index": Break(
        says="the index that allows one running run per thread is dropped, and what admits a message reads"
        " outside of the transaction that acts on it (SQLite's single writer would hide the loss otherwise)",
        scenarios=("clicks",),
        noticed_by=("one-running",),
        alterations=("stale-admission", "no-unique-index"),
    ),
    "no-epoch-in-fence": Break(
        says="the fence of the checkpoints compares neither epoch nor claim token",
        scenarios=("sure",),
        noticed_by=("no-fork",),
        alterations=("no-epoch-in-fence",),
    ),
    "publish-before-commit": Break(
        says="events are shown to viewers before they are committed",
        scenarios=("cancel",),
        noticed_by=("commit-first",),
        alterations=("publish-before-commit",),
    ),
    "settle-by-id-only": Break(
        says="a verdict is written to the run with that id, whoever holds it",
        scenarios=("sure",),
        noticed_by=("stale-silent",),
        alterations=("settle-by-id-only",),
    ),
    "no-key-at-provider": Break(
        says="the provider ignores idempotency keys",
        scenarios=("killed",),
        noticed_by=("one-effect",),
        provider=("--no-keys",),
    ),
    "no-resume": Break(
        says="a run that is taken up again begins at START",
        scenarios=("killed",),
        noticed_by=("no-repeat",),
        alterations=("no-resume",),
    ),
}
CONTROLS: dict[str, Break] = {
    "stale-admission": Break(
        says="what admits a message reads outside of the transaction that acts on it; the index is there",
        scenarios=("clicks",),
        noticed_by=(),
        alterations=("stale-admission",),
    ),
}
"""What must not break anything: the proof that it is the index that holds in ``no-unique-index``."""
