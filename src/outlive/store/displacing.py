"""A run that takes another's place, as steps of the transaction that makes it.

Decides what becomes of the displaced run, and where in its thread's queue the new one stands.  Whether
a message displaces anything is ``admission``'s to say; the thread's row is locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive.model import Run, Verdict
from outlive.states import Reason, State
from outlive.store import steps
from outlive.store.script import Steps, statement


def displace(run_ids: Sequence[str]) -> Steps[tuple[Run, ...]]:
    """Ask runs to stop as displaced; one in the queue ends at once.  Returns them as they are then."""
    displaced: list[Run] = []
    for run_id in run_ids:
        run = yield from steps.known(run_id)
        if run.state is State.QUEUED:
            verdict = Verdict(state=State.STOPPED, reason=Reason.DISPLACED)
            yield from steps.finish(run, verdict, source=State.QUEUED)
        else:
            yield statement("request_stop", run_id=run_id, reason=Reason.DISPLACED.value)
        displaced.append((yield from steps.known(run_id)))
    return tuple(displaced)


def place(thread_id: str, displaced: Sequence[Run]) -> Steps[dict[str, Any]]:
    """Return where the new run stands, before all who wait, and whose place it takes.

    Of several, that is the one which had begun: the others were to take its place themselves.
    """
    head = yield statement("head_of_thread", thread_id=thread_id)
    taken = next((run for run in displaced if run.epoch), displaced[0] if displaced else None)
    if taken is None:
        return {"pos": head[0]["pos"]}
    # One that has not begun was to take the place of another itself.
    inherited = None if taken.epoch else taken.displaces
    return {"pos": head[0]["pos"], "displaces": inherited or taken.run_id}
