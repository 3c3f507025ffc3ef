"""What a run of a graph does first on a thread that an earlier one has left part-way.

Decides, by the run's ``on_torn``, whether that is finished, taken back, or left behind, before the run's own
call.  Each step can be cut at any point and begun again: how far it has come is told by the thread's newest
checkpoint, which is written under the fence, and by which run wrote it.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from outlive import agents, errors, failpoints
from outlive.agents import repair
from outlive.agents.graph_call import Call, Maker
from outlive.agents.position import Graph, forget_answer, position_of, stands
from outlive.model import Run
from outlive.policy import OnBusy, OnTorn
from outlive.states import Position, State
from outlive.store import Transactions, reads, standings

CUT = (Position.TORN, Position.WAITING, Position.UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What was found: where the thread stands, and whose checkpoint is its newest."""

    position: Position
    chain: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prelude:
    """The first part of one attempt."""

    graph: Graph
    context: agents.Context
    maker: Maker
    store: Transactions

    @property
    def thread(self) -> RunnableConfig:
        """The thread's address."""
        return {"configurable": {"thread_id": self.context.run.thread_id}}

    async def look(self) -> Left | None:
        """Tell what an earlier run has left part-way; None: nothing, or this run's own call has begun."""
        position, state = await stands(self.graph, self.thread)
        chain = _chain(state.metadata)
        if chain in (self.context.run.origin, _repaired(self.context.run)):
            return None
        left = Left(position=position, chain=chain)
        if position is Position.CLEAN:
            # A stop came between the last node and the verdict: the run is stopped, and nothing is left open.
            return left if await self._takes_back(left, ended=State.STOPPED) else None
        return left

    async def policy(self, left: Left) -> OnTorn:
        """Return what is to be done; raises ``ThreadTorn``, ``ThreadWaiting``.

        What was undone at the end of a run cannot be finished: its checkpoints say that it was done.
        """
        run = self.context.run
        declared = run.policy.on_torn
        if await self._takes_back(left):
            return OnTorn.ROLLBACK
        if declared is OnTorn.REJECT or (declared is OnTorn.RESUME and left.position is Position.WAITING):
            raise self.refusal(left)
        if declared is OnTorn.RESUME:
            runs = [await self.run(run_id) for run_id in (run.left_by, left.chain) if run_id]
            if any(found and found.policy.compensates(found.state) for found in runs):
                return OnTorn.ROLLBACK
        return declared

    async def _takes_back(self, left: Left, ended: State | None = None) -> bool:
        """Say whether what was found is of the run that this one has displaced to take it back.

        With ``ended`` only if that run ended so.
        """
        run = self.context.run
        if not takes_back(run):
            return False
        displaced = await self.run(cast("str", run.displaces))
        if displaced is None or ended not in (None, displaced.state):
            return False
        return left.chain == displaced.origin or run.left_by == displaced.run_id

    def refusal(self, left: Left) -> errors.ThreadLeft:
        """The error of a message that must not be let in."""
        kind = errors.ThreadWaiting if left.position is Position.WAITING else errors.ThreadTorn
        return kind(run_id=self.context.run.left_by)

    async def run(self, run_id: str) -> Run | None:
        """Read a run of this thread; None if a checkpoint names one that is not ours."""
        try:
            found = await self.store.read(reads.run(run_id, self.context.run.tenant))
        except errors.NotFound:
            return None
        return found if found.thread_id == self.context.run.thread_id else None

    async def finishing(self, left: Left, *callbacks: Any) -> Call:
        """Return the call that goes on with what was begun, as the run that began it.

        Under its id: a checkpoint of that call with this run's id would make LangGraph take this run's own
        call, and its input, for one more resume.
        """
        await forget_answer(self.graph, self.thread)
        begun = await self.run(left.chain) if left.chain else None
        context = dataclasses.replace(self.context, run=begun) if begun else self.context
        call = self.maker.call(context, *callbacks)
        metadata = {**call.config.get("metadata", {}), "run_id": left.chain or _derived(self.context.run)}
        config = cast("RunnableConfig", {**call.config, "metadata": metadata})
        return dataclasses.replace(call, input=None, config=config, ignored=())

    async def executed(self, left: Left) -> str:
        """Say what the run that is left behind has executed."""
        found = await self.store.read(standings.executed(left.chain)) if left.chain else {}
        named = ", ".join(found.get("executed", ())) or "nothing"
        doubted = ", ".join(found.get("unknown", ()))
        return f"Executed: {named}." + (f" Unknown: {doubted}." if doubted else "")

    async def close_calls(self) -> str:
        """Keep what finished tasks returned, and give calls that were left open a result; say which."""
        closed = await repair.close(self.graph, self.thread, _repaired(self.context.run))
        return f" Closed without a result: {', '.join(closed)}." if closed else ""

    # ------------------------------------------------------------ taking back

    async def take_back(self, left: Left) -> tuple[str, ...]:
        """Make the thread's newest checkpoint one from before what was begun, and have its effects undone.

        Nothing is deleted: the new checkpoint is a fork.  Returns the runs that were taken back.
        """
        target, chains = await self._target(left)
        for chain in chains:
            begun = await self.run(chain)
            if begun is not None:
                await self.store.write(standings.undo(self.context.claim, begun))
        failpoints.reach("prelude.undone")
        await self._fork(target)
        return chains

    async def _target(self, left: Left) -> tuple[CheckpointTuple | None, tuple[str, ...]]:
        """Find the newest checkpoint behind which nothing was left open, on the way back from the head."""
        saver = cast("BaseCheckpointSaver[Any]", self.graph.checkpointer)
        chains: list[str] = []
        leaving = left.chain
        found = await saver.aget_tuple(self.thread)
        while found is not None:
            chain = _chain(found.metadata)
            if chain != leaving:
                state = await self.graph.aget_state(found.config, subgraphs=True)
                if await position_of(self.graph, state) is Position.CLEAN:
                    break
            if chain is not None and chain not in chains:
                chains.append(chain)
            leaving = chain
            found = await saver.aget_tuple(found.parent_config) if found.parent_config else None
        return found, tuple(chains)

    async def _fork(self, target: CheckpointTuple | None) -> None:
        saver = cast("BaseCheckpointSaver[Any]", self.graph.checkpointer)
        step = (target.metadata.get("step", -1) + 1) if target else -2
        checkpoint = copy.copy(target.checkpoint) if target else empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["ts"] = datetime.now(UTC).isoformat()
        metadata: Any = {"source": "fork", "step": step, "parents": {}, "run_id": _derived(self.context.run)}
        config: Any = {"configurable": {**self.thread["configurable"], "checkpoint_ns": ""}}
        if target is not None:
            config["configurable"]["checkpoint_id"] = target.checkpoint["id"]
        await saver.aput(config, checkpoint, metadata, {})


def takes_back(run: Run) -> bool:
    """Say whether a run has displaced another to take it back."""
    return run.policy.on_busy is OnBusy.ROLLBACK and run.displaces is not None


def note(said: OnTorn, left: Left, detail: str = "") -> agents.Note:
    """What the log of the run that comes after says of it."""
    before = f"Run {left.chain} was left part-way"
    match said:
        case OnTorn.RESUME:
            return agents.Note(code="finishing_first", message=f"{before}: it is finished before this one.")
        case OnTorn.RESTART:
            return agents.Note(code="restarted", message=f"{before}: this one starts over. {detail}")
        case OnTorn.ROLLBACK:
            return agents.Note(code="rolled_back", message=f"{before}: it is taken back. {detail}")
        case OnTorn.REJECT:
            raise ValueError("a message that is refused has nothing to say of it")
        case _ as unknown:
            assert_never(unknown)


def _chain(metadata: Any) -> str | None:
    return (metadata or {}).get("run_id")


def _derived(run: Run) -> str:
    """The id under which this run writes what is not of its own call."""
    return f"{run.origin}:before"


def _repaired(run: Run) -> str:
    """The id under which this run closes open calls: the last that it does before its own call."""
    return f"{run.origin}:repaired"
