"""Torn threads of a database of ours: its runs tell which they are, its ledger what was executed.

What is done about one is a run, without a message: so it is claimed, fenced and on record like any other, and
of two sweeps one finds the thread busy.  Whoever takes one back has its effects undone as well.
"""

from __future__ import annotations

from typing import Any

from outlive import errors, runtime
from outlive.agents.positions import Place, Remembers
from outlive.effects.desk import Desk
from outlive.ledger import EXECUTED, EffectState
from outlive.model import millis
from outlive.states import Position, State
from outlive.store.script import Steps, script, statement
from outlive.torn import Apply, Done, Provider, Record, Report, Seen, Torn

MOST = 1000


@script(reads=True)
def torn(older_than: float) -> Steps[list[dict[str, Any]]]:
    """Return up to 1000 threads that nobody owns and that were left torn so many seconds ago."""
    rows = yield statement("torn_threads", older_ms=millis(older_than), limit=MOST)
    return [dict(row) for row in rows]


async def look(service: runtime.Outlive, *, older_than: float, threads: tuple[str, ...] = ()) -> Report:
    """Report the torn threads of an open service's database; whoever's tenant they are."""
    found: list[Torn] = []
    left_out: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    for row in await service.store.read(torn(older_than)):
        if threads and row["thread"] not in threads:
            continue
        if row["agent"] not in service.registry.names:
            left_out["another agent's"] = left_out.get("another agent's", 0) + 1
            continue
        try:
            one = await _one(service, row)
        except errors.StateUnreadable as failure:
            unreadable[row["thread"]] = str(failure.__cause__ or failure)
            continue
        if isinstance(one, str):
            left_out[one] = left_out.get(one, 0) + 1
        else:
            found.append(one)
    return Report(torn=tuple(found), left_out=left_out, unreadable=unreadable)


async def _one(service: runtime.Outlive, row: dict[str, Any]) -> Torn | str:
    agent = service.registry[row["agent"]]
    if not isinstance(agent, Remembers):
        return "keeps no states"
    moment = await agent.moment(row["thread_id"], Place())
    if moment.position is not Position.TORN:
        return moment.position.value
    effects = await Desk(service.store).of_thread(row["thread_id"], limit=100)
    seen = [
        Seen(
            name=one.name,
            key=one.key,
            provider=_provider(one.known),
            record=Record.RAN,
            why="ask it, or settle",
        )
        for one in effects
        if one.compensates is None and one.known is not EffectState.INTENDED
    ]
    return Torn(
        thread=row["thread"],
        tenant=row["tenant"],
        age=row["age_ms"] / 1000,
        head=moment.place.checkpoint_id if moment.place else None,
        next=moment.next,
        seen=tuple(seen),
        run_id=row["run_id"],
        agent=row["agent"],
        guarded=True,
    )


def _provider(known: EffectState) -> Provider:
    if known in EXECUTED:
        return Provider.EXECUTED
    return Provider.UNTOLD if known in (EffectState.UNKNOWN, EffectState.STARTED) else Provider.NOT_EXECUTED


async def see_to(service: runtime.Outlive, one: Torn, wanted: Apply) -> Done:
    """Have one thread seen to, and wait for it."""
    tenant, agent = one.tenant or "", str(one.agent)
    rules = service.registry[agent].policy.but(on_busy="reject", on_disconnect="continue")
    try:
        if wanted is not Apply.RESUME:
            taken = await service.rollback_thread(one.thread, tenant=tenant, agent=agent)
            return Done(thread=one.thread, done=True, said="taken back", run_id=taken.run_id)
        submitted = await service.submit(agent, None, thread=one.thread, tenant=tenant, policy=rules)
    except (errors.ThreadBusy, errors.ThreadLeft) as refused:
        return Done(thread=one.thread, done=False, said=refused.message, run_id=refused.run_id)
    run = await service.result(submitted.run.run_id, tenant=one.tenant)
    done = run.state in (State.SUCCEEDED, State.WAITING)
    return Done(thread=one.thread, done=done, said=f"{wanted.value}: {run.state}", run_id=run.run_id)
