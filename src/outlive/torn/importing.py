"""Brings threads of somebody's checkpoint database here: every checkpoint, and what was left of their tasks.

Decides the order, the oldest first, so that what was cut off can be gone on with.  Nothing in the other
database is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from outlive import errors, runtime
from outlive.agents.langgraph import LangGraphAgent
from outlive.model import Run
from outlive.torn import foreign


@dataclass(frozen=True, kw_only=True, slots=True)
class Brought:
    """What became of one thread.  ``position`` is where it stands; None: it was not brought now."""

    thread: str
    said: str
    checkpoints: int = 0
    position: str | None = None

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "thread": self.thread,
            "said": self.said,
            "checkpoints": self.checkpoints,
            "position": self.position,
        }


async def bring(
    service: runtime.Outlive, url: str, agent: LangGraphAgent, *, tenant: str, threads: tuple[str, ...] = ()
) -> list[Brought]:
    """Bring the threads of a database, or these of them, to the agent; those that are here already stay."""
    async with foreign.looked_at(url) as opened:
        names = [head.thread_id for head in opened.heads]
        wanted = [name for name in names if not threads or name in threads]
        return [await _one(service, opened, name, agent, tenant) for name in wanted]


async def _one(
    service: runtime.Outlive, opened: foreign.Opened, thread: str, agent: LangGraphAgent, tenant: str
) -> Brought:
    try:
        found = [one async for one in opened.saver.alist({"configurable": {"thread_id": thread}})]
        found.sort(key=lambda one: one.checkpoint["id"])
        made = await service.import_thread(
            thread, agent.name, lambda run: _write(agent, run, found), tenant=tenant, source="checkpoints"
        )
    except errors.Unavailable:
        raise
    except Exception as failure:  # one thread that cannot be read must not keep the others from coming
        why = getattr(failure, "message", None) or type(failure).__name__
        return Brought(thread=thread, said=f"cannot be brought: {why}")
    if made is None:
        return Brought(thread=thread, said="is here already")
    return Brought(thread=thread, said="brought", checkpoints=len(found), position=made.position)


async def _write(agent: LangGraphAgent, run: Run, found: Sequence[CheckpointTuple]) -> None:
    saver = agent.writing(run.claim)
    for one in found:
        where = one.config["configurable"]
        address: Any = {"thread_id": run.thread_id, "checkpoint_ns": where.get("checkpoint_ns", "")}
        parent = (one.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        before: Any = {**address, "checkpoint_id": parent} if parent else address
        versions = one.checkpoint["channel_versions"]
        await saver.aput({"configurable": before}, one.checkpoint, one.metadata, versions)
        here: Any = {"configurable": {**address, "checkpoint_id": one.checkpoint["id"]}}
        writes = sorted(one.pending_writes or (), key=lambda each: each[0])
        for task_id, group in groupby(writes, key=lambda each: each[0]):
            await saver.aput_writes(here, [(channel, value) for _, channel, value in group], task_id)
    await saver.settled()
    saver.check()
