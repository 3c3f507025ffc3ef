"""Sees to one torn thread of somebody's checkpoint database, as a run of ours.

So there is a record of what was done, what is undone goes through the ledger and is undone once, and no two
see to one thread: our own database lets one run hold it, and the checkpoint database's lock keeps out whoever
uses another.  Whatever was reported before is looked at again under that lock.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, assert_never

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from outlive import agents, effects, errors, policy
from outlive.agents.position import Graph, position_of, stands
from outlive.effects import asking, defining
from outlive.effects.aftermath import UNDONE
from outlive.policy import RunPolicy
from outlive.states import Position
from outlive.torn import Apply, Done, Provider, Record, Seen, Torn, foreign, looking, provider

AGENT = "outlive.sweep"


def _rules() -> RunPolicy:
    """Who died over a thread has left it torn: the next sweep finds it again."""
    return policy.job(on_torn="restart", recovery="stop", max_losses=0, on_unknown="fail")


@dataclass(frozen=True, slots=True)
class Sweep:
    """The agent that sees to threads of one checkpoint database.  Its input names thread, head and action."""

    url: str
    graph: Graph
    nodes: Mapping[str, str]
    policy: RunPolicy = field(default_factory=_rules)
    name: str = AGENT
    drains: bool = False

    def thread(self, thread: str) -> str:
        """Return the name under which our own database knows a thread of that one."""
        which = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        named = f"sweep/{which}/{thread}"
        return named if len(named) <= 512 else f"sweep/{which}/{hashlib.sha256(thread.encode()).hexdigest()}"

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """See to the thread; the outcome says what was done, or why nothing was."""
        thread, wanted = str(context.input["thread"]), Apply(context.input["apply"])
        async with foreign.worked_on(self.url, thread) as opened:
            if not opened.held:
                yield _over(thread, "somebody else is at it", done=False)
                return
            work = _Work(looking.over(self.graph, opened.saver), opened.saver, thread)
            found = await work.again(self.nodes, context.input["head"])
            why = found if isinstance(found, str) else found.refusal(wanted)
            if isinstance(found, str) or why is not None:
                yield _over(thread, str(why), done=False)
                return
            async with aclosing(_done(work, found, wanted)) as steps:
                async for step in steps:
                    yield step


async def _done(work: _Work, found: Torn, wanted: Apply) -> AsyncGenerator[agents.Yielded, None]:
    match wanted:
        case Apply.RESUME:
            async with aclosing(work.resumed()) as items:
                async for item in items:
                    yield agents.Chunk(mode="updates", data=item)
            position, _ = await stands(work.graph, looking.address(work.thread))
            yield _over(work.thread, f"resumed: {position}", done=True)
        case Apply.ROLLBACK:
            await work.take_back()
            yield _over(work.thread, "taken back", done=True)
        case Apply.COMPENSATE:
            undone = await work.undo(found)
            await work.take_back()
            yield _over(work.thread, f"undone: {', '.join(undone) or 'nothing'}; taken back", done=True)
        case _ as unknown:
            assert_never(unknown)


def _declared(one: Seen) -> dict[str, Any]:
    """What was declared with an effect, which is how it was seen at all."""
    return defining.DECLARED[one.name].options


def _over(thread: str, said: str, *, done: bool) -> agents.Outcome:
    return agents.Outcome(output=Done(thread=thread, done=done, said=said).public())


@dataclass(frozen=True, slots=True)
class _Work:
    """One thread that this process holds."""

    graph: Graph
    saver: BaseCheckpointSaver[Any]
    thread: str

    async def again(self, nodes: Mapping[str, str], head: str | None) -> Torn | str:
        """Look at it once more, now that nobody else works on it; say what has changed if it has."""
        position, state = await stands(self.graph, looking.address(self.thread))
        if state.config["configurable"].get("checkpoint_id") != head:
            return "it has moved on"
        if position is not Position.TORN:
            return f"it is {position} by now"
        records = await looking.recorded(self.graph, self.thread, state)
        seen = await provider.asked(state.values, records, nodes, "")
        return Torn(thread=self.thread, age=0.0, head=head, next=tuple(state.next), seen=tuple(seen))

    async def resumed(self) -> AsyncGenerator[Any, None]:
        """Run what is left, and nothing else, with each step's checkpoint written before the next begins."""
        items = self.graph.astream(
            None, looking.address(self.thread), stream_mode="updates", durability="sync"
        )
        async with aclosing(items) as stream:  # type: ignore[type-var]
            async for item in stream:
                yield item

    async def undo(self, found: Torn) -> list[str]:
        """Have what this turn executed undone, the last first, and each once, also after a crash."""
        wanted = [one for one in found.seen if one.provider is Provider.EXECUTED]
        wanted = [one for one in wanted if one.record is not Record.ABSENT]
        missing = [one.name for one in wanted if _declared(one)["compensate"] is None]
        if missing:
            raise errors.Misconfigured(
                f"Nothing here undoes {', '.join(missing)}; nothing was undone.",
                hint="Declare it with effects.effect(..., compensate=...), or roll back and see to it.",
            )
        wanted.sort(key=lambda one: one.record is Record.LEFT, reverse=True)
        for one in wanted:
            await self._undo(one, found.head)
        return [one.name for one in wanted]

    async def _undo(self, one: Seen, head: str | None) -> None:
        options = _declared(one)
        executed = asking.Executed(
            name=one.name,
            key=one.key,
            generation=1,
            provider_key=one.provider_key,
            inputs=one.inputs,
            result=one.result,
        )
        await effects.once(
            one.name + UNDONE,
            key=[one.key, self.thread, head or ""],
            call=lambda: asking.in_thread_or_coroutine(options["compensate"], executed),
            key_ttl=options["key_ttl"],
            again_after_failure=True,
        )

    async def take_back(self) -> None:
        """Make a checkpoint from before this turn the newest one, as a fork; nothing is deleted."""
        target = await self._clean()
        step = (target.metadata.get("step", -1) + 1) if target else -2
        checkpoint = copy.copy(target.checkpoint) if target else empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=step))
        checkpoint["ts"] = datetime.now(UTC).isoformat()
        config: Any = looking.address(self.thread)
        if target is not None:
            config["configurable"]["checkpoint_id"] = target.checkpoint["id"]
        metadata: Any = {"source": "fork", "step": step, "parents": {}}
        await self.saver.aput(config, checkpoint, metadata, {})

    async def _clean(self) -> CheckpointTuple | None:
        """Find the newest checkpoint behind which nothing was left open, on the way back from the head."""
        found = await self.saver.aget_tuple(looking.address(self.thread))
        while found is not None:
            state = await self.graph.aget_state(found.config, subgraphs=True)
            if await position_of(self.graph, state) is Position.CLEAN:
                return found
            found = await self.saver.aget_tuple(found.parent_config) if found.parent_config else None
        return None
