"""What is wrong with the plan rather than with the service: a refused request, evidence in another place.

Decides when a report means nothing, and which hints go with one that does.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

from outlive.probe.findings import Finding
from outlive.probe.plan import Behaviour, Plan
from outlive.probe.tape import of_kind
from outlive.probe.target import Running, Started

CHECKPOINTS = {"langgraph-sqlite", "langgraph-postgres"}


def unusable(plan: Plan, finding: Finding, service: Started | Running) -> str | None:
    """Why nothing can be compared: a client was refused, or an undisturbed one got nothing whole."""
    view, stayed = finding.trace.views[0], finding.trace.scenario.behaviour is Behaviour.STAY
    request = f"{plan.request.method} {plan.request.path}"
    words = service.log().rstrip() if isinstance(service, Started) else ""
    said = f"\nThe server's last words:\n{words}" if words else ""
    if view.status is None and stayed:
        how = f" ({view.how})" if view.how.startswith("broken") else ""
        return f"{request}: no answer within {plan.patience:g} s{how}.{said}"
    if view.status is not None and view.status >= 400:
        return f"{request} is refused with {view.status}: {_first(view.chunks)}{said}"
    if view.status is not None and view.status >= 300:
        where = view.headers.get("location", "nowhere")
        return f"{request} is redirected with {view.status} to {where}: name that path instead."
    if stayed and view.how.startswith("broken"):
        return f"{request}: the answer broke off although the client stayed ({view.how}).{said}"
    return None


def _first(chunks: Sequence[tuple[float, str]]) -> str:
    return chunks[0][1].strip() if chunks else "no body."


def notes(plan: Plan, found: Sequence[Finding], where: pathlib.Path) -> Iterator[str]:
    """Hints about evidence that has nothing to say."""
    for source in plan.evidence:
        path = where / str(source.settings.get("path", "."))
        if not path.exists():
            yield f"{path} does not exist: is it where the service writes? ({source.kind})"
    if any(source.kind in CHECKPOINTS for source in plan.evidence):
        yield from _other_threads(found)


def _other_threads(found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        started = of_kind(finding.trace.happenings, "node.start")
        threads = {happening["thread"] for happening in started} - {""}
        if threads and not any(finding.trace.thread in thread for thread in threads):
            yield (
                f"The service ran on thread {sorted(threads)[0]!r}, not on the probe's: put {{thread}} where "
                "the request says which thread it is, or its checkpoints are not found."
            )
            return
