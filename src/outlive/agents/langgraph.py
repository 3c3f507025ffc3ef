"""Makes an agent of a LangGraph graph.

Decides where the graph's checkpoints go, what of its stream is recorded, and how it stops and drains.  What
it is called with is in ``graph_call``, how it ended in ``graph_end``; what follows is ``execution``'s.

Every attempt at a run, and every continuation of the same intent, calls the graph with one run id, the
chain's: LangGraph then resumes from the chain's last checkpoint instead of starting over with the input.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphDrained
from langgraph.store.base import TTLConfig

from outlive import agents, errors, failpoints, signals
from outlive.agents import (
    beside,
    fenced_saver,
    graph_call,
    graph_end,
    graph_stream,
    items,
    message_tokens,
    moments,
    prelude,
)
from outlive.agents.cuttable import NodeCut, cuttable
from outlive.agents.position import Graph, stands
from outlive.agents.position import Position as Position
from outlive.agents.serde import Faithful
from outlive.agents.undeclared import Undeclared
from outlive.gathering import Chunked, Gathering, Snapshots, Tokens
from outlive.model import Claim
from outlive.policy import OnTorn, RunPolicy
from outlive.states import State

MODES = ("updates", "values", "messages", "custom")


@dataclass(frozen=True, kw_only=True, slots=True)
class Savers:
    """Makes the savers of one agent's attempts."""

    checkpoints: fenced_saver.Checkpoints
    happenings: signals.Signals
    serde: SerializerProtocol | None = None

    def saver(self, claim: Claim | None) -> fenced_saver.FencedSaver:
        """Return a saver bound to ``claim``; None: one that only reads."""
        return fenced_saver.FencedSaver(self.checkpoints, claim, self.happenings, serde=self.serde)


class LangGraphAgent(moments.Remembering):
    """An agent whose runs are runs of a compiled graph, which is used as a copy and never changed.

    Each item of the graph's stream becomes a chunk: ``data`` as LangGraph gives it, ``mode`` the stream mode,
    followed for a subgraph by its namespace (``updates|node:task|inner:task``).  ``modes`` are the ones that
    are recorded; ``subgraphs`` False leaves the subgraphs' items out.

    ``input``, ``config`` and ``context`` make the graph's input, its config and its runtime context of the
    run; by default they are the run's input (``{"command": {"resume": value}}`` answers an interrupt) and
    the entries ``config`` and ``context`` of the run's metadata.

    ``tokens`` says how the chunks of the mode ``messages`` are recorded: ``"single"``, an event for each;
    ``"chunked"``, those of one message that come while others are committed joined to one; ``"snapshots"``,
    the message so far every ``snapshot_every`` seconds at most as an item of ``messages/partial``, and whole
    as one of ``messages/complete``.

    ``checkpointer`` ``"fenced"`` keeps checkpoints beside the runs, written under the fence; ``"own"`` uses
    the graph's own saver, which the fence can protect only as best it can.  ``serde`` replaces the
    serialiser of checkpoints, which is LangGraph's but does not take a dict for an object.

    A graph that was compiled without a store has one beside the runs, a different one for each tenant, whose
    items live as ``store_ttl`` says (LangGraph's own terms, in minutes).
    """

    drains = True
    """It stops after the running step, with that step's checkpoint written."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        *,
        policy: RunPolicy,
        modes: Sequence[str] = MODES,
        subgraphs: bool = True,
        tokens: Literal["single", "chunked", "snapshots"] = "single",
        snapshot_every: float = 0.25,
        input: graph_call.Make | None = None,  # noqa: A002 - LangGraph's name
        config: graph_call.Make | None = None,
        context: graph_call.Make | None = None,
        checkpointer: Literal["fenced", "own"] = "fenced",
        serde: SerializerProtocol | None = None,
        store_ttl: TTLConfig | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self.graph = graph
        self._graph = cuttable(graph)
        self.modes = frozenset(modes)
        self._subgraphs = subgraphs
        self._tokens = _tokens(tokens)
        self._snapshot_every = snapshot_every
        self._maker = graph_call.Maker(input=input, config=config, context=context)
        self._own = _own_saver(name, graph) if checkpointer == "own" else None
        self._serde = serde or (self._own.serde if self._own else Faithful())
        self._savers: Savers | None = None
        self._memory: items.Keeping | None = None
        self._store_ttl = store_ttl
        self._store: Any = None

    # ------------------------------------------------------------ binding

    async def bind(self, store: Any, happenings: signals.Signals) -> None:
        """Take ``store``, which must be open, for this agent's checkpoints.  Called once, before any run.

        Raises ``SchemaMismatch`` if PostgreSQL lacks the checkpoint tables; SQLite gets them here.
        """
        self._store = store
        if self._own is not None:
            checkpoints: fenced_saver.Checkpoints = fenced_saver.Elsewhere(self._own, store)
        else:
            checkpoints = await beside.checkpoints(store)
        self._savers = Savers(checkpoints=checkpoints, happenings=happenings, serde=self._serde)
        self._memory = await beside.memory(store)

    def items(self, tenant: str) -> items.Items:
        """Return the long-term memory of a tenant, the same for all graphs on one database."""
        if self._memory is None:
            raise _unbound(self.name)
        return items.Items(self._memory, tenant, self._store_ttl)

    def _saver(self, claim: Claim | None) -> fenced_saver.FencedSaver:
        if self._savers is None:
            raise _unbound(self.name)
        return self._savers.saver(claim)

    def _with(self, saver: fenced_saver.FencedSaver) -> Graph:
        # Not ``graph.copy``: it forgets which types the graph's checkpoints may hold.
        graph = copy.copy(self._graph)
        graph.checkpointer = saver
        return graph

    # ------------------------------------------------------------ reading

    @property
    def reading(self) -> Graph:
        """The graph over its checkpoints, to read states by internal thread id; it cannot write."""
        return self._with(self._saver(None))

    async def position(self, thread_id: str) -> Position:
        """Tell where a thread stands, by its internal id."""
        position, _ = await stands(self.reading, {"configurable": {"thread_id": thread_id}})
        return position

    def answers(self, given: Any) -> bool:
        """Say whether an input is ``{"command": {"resume": value}}``."""
        return graph_call.is_answer(given)

    def goes_on(self, given: Any) -> bool:
        """Say whether an input is nothing, or a command that answers no question."""
        return given is None or (graph_call.is_command(given) and not graph_call.is_answer(given))

    # ------------------------------------------------------------ running

    def gathering(self) -> Gathering[agents.Chunk] | None:
        """Return what gathers the tokens of one attempt."""
        match self._tokens:
            case Tokens.SINGLE:
                return None
            case Tokens.CHUNKED:
                return Chunked(message_tokens.MessageTokens())
            case Tokens.SNAPSHOTS:
                return Snapshots(message_tokens.MessageTokens(), every=self._snapshot_every)
            case _ as unknown:
                assert_never(unknown)

    async def stream(self, context: agents.Context) -> AsyncGenerator[agents.Yielded, None]:
        """Drive one attempt.  Every checkpoint write that has begun is over before this generator is."""
        saver = self._saver(context.claim)
        graph = self._with(saver)
        graph.store = graph.store or self.items(context.run.tenant)
        undeclared = Undeclared(graph)
        call = self._maker.call(context, undeclared)
        if call.ignored:
            named = ", ".join(call.ignored)
            yield agents.Note(
                code="config_ignored", message=f"Not the caller's to set, and ignored: {named}."
            )
        driven = _Driven(
            graph=graph,
            context=context,
            saver=saver,
            undeclared=undeclared,
            modes=self.modes | call.modes,
            subgraphs=self._subgraphs,
        )
        _stopping_at(graph, call)
        cut = context.run.thread_position in prelude.CUT or prelude.takes_back(context.run)
        if cut and call.begins and call.fork is None:
            async with aclosing(self._before(driven, call)) as items:
                async for item in items:
                    yield item
                    if isinstance(item, agents.Drained):
                        return
        call = await graph_call.forked(graph, context, call)
        ready: graph_call.Call | agents.Outcome = call
        if context.attempt > 1 or context.run.continues is not None:
            ready = await graph_call.taken_up(graph, context, call)
        if isinstance(ready, agents.Outcome):
            yield ready
            return
        async with aclosing(driven.items(ready)) as items:
            async for item in items:
                yield item

    async def _before(self, driven: _Driven, call: graph_call.Call) -> AsyncGenerator[agents.Yielded, None]:
        """Do first what the run's policy says about a thread that was left part-way."""
        first = prelude.Prelude(
            graph=driven.graph, context=driven.context, maker=self._maker, store=self._store
        )
        left = await first.look()
        if left is None:
            return
        declared = await first.policy(left)
        match declared:
            case OnTorn.RESUME:
                yield prelude.note(declared, left)
                finishing = await first.finishing(left, driven.undeclared)
                async with aclosing(_finishing(driven.items(finishing), left)) as items:
                    async for item in items:
                        if not isinstance(item, agents.Outcome):
                            yield item
                        elif item.state is State.WAITING:
                            raise errors.ThreadWaiting(run_id=driven.context.run.left_by)
            case OnTorn.RESTART:
                executed = await first.executed(left)
                yield prelude.note(declared, left, executed + await first.close_calls())
            case OnTorn.ROLLBACK:
                detail = await first.executed(left)
                await first.take_back(left)
                yield prelude.note(declared, left, detail)
            case OnTorn.REJECT:
                raise first.refusal(left)
            case _ as unknown:
                assert_never(unknown)
        failpoints.reach("prelude.over")


async def _finishing(
    items: AsyncGenerator[agents.Yielded, None], left: prelude.Left
) -> AsyncGenerator[agents.Yielded, None]:
    """Tell a failure of what was begun earlier from one of the message, which was not taken then."""
    async with aclosing(items):
        try:
            async for item in items:
                yield item
        except errors.OutliveError:
            raise
        except Exception as failure:
            raise errors.FinishingFailed(run_id=left.chain) from failure


@dataclass(frozen=True, kw_only=True, slots=True)
class _Driven:
    """One attempt's graph, to be called once or, behind a prelude, twice."""

    graph: Graph
    context: agents.Context
    saver: fenced_saver.FencedSaver
    undeclared: Undeclared
    modes: frozenset[str]
    subgraphs: bool

    async def items(self, call: graph_call.Call) -> AsyncGenerator[agents.Yielded, None]:
        """Call the graph; the last item says how it ended."""
        ending = graph_end.Ending(self.graph)
        last: agents.Outcome | agents.Drained | None = None
        try:
            async with aclosing(self._stream(call)) as items:
                async for namespace, mode, data in items:
                    ending.see(namespace, mode, data)
                    for shown, value in self._recorded(mode, data):
                        if self.subgraphs or not namespace:
                            yield agents.Chunk(mode="|".join((shown, *namespace)), data=value)
                    for note in self.undeclared.take():
                        yield note
        except GraphDrained:
            last = agents.Drained()
        except NodeCut:
            raise asyncio.CancelledError from None
        finally:
            await self.saver.settled()
        self.saver.check()
        for note in self.undeclared.take():
            yield note
        yield last or ending.outcome()

    def _stream(self, call: graph_call.Call) -> AsyncGenerator[graph_stream.Item, None]:
        control = graph_stream.Control(self.context, self.saver)
        durability = self.context.run.policy.durability
        return graph_stream.items(self.graph, call, durability=durability, control=control, modes=self.modes)

    def _recorded(self, mode: str, data: Any) -> Iterator[tuple[str, Any]]:
        if mode in self.modes:
            yield mode, data
        if mode == "checkpoints" and graph_call.REFS in self.modes:
            yield graph_call.REFS, graph_call.reference(data)


def _stopping_at(graph: Graph, call: graph_call.Call) -> None:
    """Have the graph stop where this call wants it to; whoever reads where it stands then knows of it too."""
    if call.before:
        graph.interrupt_before_nodes = call.before
    if call.after:
        graph.interrupt_after_nodes = call.after


def _tokens(given: str) -> Tokens:
    try:
        return Tokens(given)
    except ValueError:
        raise errors.Misconfigured(
            f"tokens is {given!r}.", hint=f"It is one of: {', '.join(Tokens)}."
        ) from None


def _unbound(name: str) -> errors.NotReady:
    return errors.NotReady(
        f"Agent {name!r} is bound to no store.", hint="Call bind() with an open store first."
    )


# ---------------------------------------------------------------- where checkpoints live


def _own_saver(name: str, graph: Graph) -> BaseCheckpointSaver[Any]:
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise errors.Misconfigured(
            f"The graph of agent {name!r} has no checkpointer of its own.",
            hint="Compile it with one, or leave checkpointer out to keep checkpoints beside the runs.",
        )
    return graph.checkpointer
