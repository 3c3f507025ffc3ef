"""Counts what a limit bounds, inside the transaction that makes the run.

Decides whether one more run fits.  Several processes cannot both take the last place: a subject's submits
count one after another.  The lock comes after the thread's, the agents' after the principals', so that no two
submits wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outlive import limits
from outlive.model import Row
from outlive.store.script import Steps, statement


def check(quotas: Sequence[limits.Quota]) -> Steps[None]:
    """Raise ``LimitReached`` unless one more run of each subject fits; its lock is held from now on."""
    for quota in quotas:
        yield statement("enter_quota", subject=quota.subject)
        yield statement("forget_uses", subject=quota.subject)
        back = max((quota.limits.per_minute or 1) - 1, 0)
        counted = (yield statement("count_uses", subject=quota.subject, back=back))[0]
        _fits(quota, counted)


def note(quotas: Sequence[limits.Quota], run_id: str) -> Steps[None]:
    """Count a run that was made."""
    for quota in quotas:
        yield statement("note_use", subject=quota.subject, run_id=run_id)


UNTIL_ONE_ENDS = 5
"""Seconds: nobody knows when a run will be over."""


def _fits(quota: limits.Quota, counted: Row) -> None:
    for kind in limits.Kind:
        bound = getattr(quota.limits, kind.value)
        if bound is not None and counted[kind.value] >= bound:
            late = kind is limits.Kind.PER_MINUTE
            wait = math.ceil(counted["free_in_ms"] / 1000) if late else UNTIL_ONE_ENDS
            raise limits.refusal(quota, kind, bound, max(1, wait))
