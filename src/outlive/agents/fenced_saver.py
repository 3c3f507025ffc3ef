"""Checkpoints under the fence: LangGraph's own savers, writing only while their run is still held.

Decides when a checkpoint write counts: with proof of the claim, in the same transaction, and to its end once
begun, whatever happens to the task that asked for it.  Where checkpoints live is in ``saver_sqlite`` and
``saver_postgres``; how they look is LangGraph's affair.

One saver serves one attempt and is bound to its claim by object: nothing in a client's config can rebind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import ERROR, ERROR_SOURCE_NODE
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from outlive import errors, signals
from outlive.model import Claim
from outlive.store import Transactions, steps
from outlive.store.script import Statement, Steps, script, statement

T = TypeVar("T")

WRITE_BUDGET = 10.0
"""Seconds for which a checkpoint write is tried again while the database fails."""
SETTLE_SECONDS = 2 * WRITE_BUDGET
"""Seconds within which every write that has begun is over: its tries, and the last of them."""
TURNS = 20
"""More turns of the event loop than lie between the end of a write and the start of one behind it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of LangGraph's saver interface, named by its synchronous method."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Checkpoints(Protocol):
    """A place where checkpoints live."""

    async def write(self, call: Call, serde: SerializerProtocol, claim: Claim) -> Any:
        """Make a writing call, unless ``claim`` no longer stands; raises ``Fenced``, ``StoreUnavailable``."""
        ...

    async def read(self, call: Call, serde: SerializerProtocol) -> Any:
        """Make a reading call; ``list`` gives a list.  Raises ``StoreUnavailable``."""
        ...

    def next_version(self, current: Any) -> Any:
        """Return the channel version that follows ``current``, as this place spells versions."""
        ...


def proof(claim: Claim) -> Statement:
    """The statement that gives a row, and keeps the run from being taken, if ``claim`` stands."""
    return statement("check_fence", run_id=claim.run_id, epoch=claim.epoch, claim_token=claim.claim_token)


@script()
def hold(claim: Claim) -> Steps[None]:
    """Prove that ``claim`` still stands, until this transaction ends; raises ``Fenced``."""
    if not (yield proof(claim)):
        raise errors.Fenced(steps.LATE, run_id=claim.run_id)


@dataclass(slots=True)
class _Writes:
    """What an attempt has written: shared by the copies that LangGraph makes of a saver."""

    begun: set[asyncio.Task[Any]] = field(default_factory=set)
    refused: bool = False


class FencedSaver(BaseCheckpointSaver[Any]):
    """A saver for one attempt; with ``claim`` None it only reads.

    A refused write raises ``Fenced`` and is signalled.  A write that has begun outlives the cancellation of
    its caller: await ``settled`` before anything is concluded from the thread's state.  Synchronous methods
    are for other threads than the event loop's.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        claim: Claim | None,
        happenings: signals.Signals,
        *,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._checkpoints = checkpoints
        self._claim = claim
        self._happenings = happenings
        self._writes = _Writes()
        self._loop = asyncio.get_running_loop()

    @property
    def refused(self) -> bool:
        """True once a write was refused: the run belongs to somebody else."""
        return self._writes.refused

    def check(self) -> None:
        """Raise ``Fenced`` if a write was refused, also where a node swallowed the error."""
        if self._claim is not None and self._writes.refused:
            raise errors.Fenced(steps.LATE, run_id=self._claim.run_id)

    async def settled(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until every write that has begun is over, at most ``seconds``, even if cancelled meanwhile."""
        waiting = self._loop.create_task(_until_quiet(self._writes.begun, seconds))
        cut: asyncio.CancelledError | None = None
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError as cancelled:
                cut = cancelled
        if left := waiting.result():
            run_id = self._claim.run_id if self._claim else ""
            error = f"{left} checkpoint writes did not end within {seconds:g} s"
            self._happenings.emit(signals.CleanupFailed(run_id=run_id, error=error))
        if cut is not None:
            raise cut

    # ------------------------------------------------------------ writes

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint."""
        stored: RunnableConfig = await self._write(Call("put", (config, checkpoint, metadata, new_versions)))
        return stored

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what one task of a step wrote."""
        await self._write(Call("put_writes", (config, _returned(writes), task_id, task_path)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints and writes."""
        await self._write(Call("delete_thread", (thread_id,)))

    async def _write(self, call: Call) -> Any:
        if self._claim is None:
            raise errors.Fenced("This saver only reads.", hint="Write through the saver of a claimed run.")
        return await self._on_loop(self._begin(call, self._claim))

    async def _begin(self, call: Call, claim: Claim) -> Any:
        # A cancelled await would tear the write: LangGraph awaits it in the task that a stop cancels.
        task = self._loop.create_task(self._refusable(call, claim))
        self._writes.begun.add(task)
        task.add_done_callback(self._writes.begun.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unheard)
            raise

    def _unheard(self, task: asyncio.Task[Any]) -> None:
        """Look at a write whose caller is gone: that it failed must not be for nobody to know."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, errors.Fenced):
            run_id = self._claim.run_id if self._claim else ""
            error = f"a checkpoint could not be written: {failure!r}"
            self._happenings.emit(signals.CleanupFailed(run_id=run_id, error=error))

    async def _refusable(self, call: Call, claim: Claim) -> Any:
        try:
            return await self._checkpoints.write(call, self.serde, claim)
        except errors.Fenced:
            self._writes.refused = True
            self._happenings.emit(
                signals.StaleWriteRefused(
                    run_id=claim.run_id, epoch=claim.epoch, write=signals.Write.CHECKPOINT
                )
            )
            raise

    # ------------------------------------------------------------ reads

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that ``config`` names, or the thread's latest."""
        found: CheckpointTuple | None = await self._read(Call("get_tuple", (config,)))
        return found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first; all are read before the first is yielded."""
        for found in await self._list(config, filter=filter, before=before, limit=limit):
            yield found

    async def _list(self, config: RunnableConfig | None, **asked: Any) -> list[CheckpointTuple]:
        found: list[CheckpointTuple] = await self._read(Call("list", (config,), asked))
        return found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what rebuilds the channels that store only their changes."""
        asked = {"config": config, "channels": channels}
        found: Mapping[str, DeltaChannelHistory] = await self._read(
            Call("get_delta_channel_history", (), asked)
        )
        return found

    async def _read(self, call: Call) -> Any:
        return await self._on_loop(self._checkpoints.read(call, self.serde))

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the channel version that follows ``current``."""
        return self._checkpoints.next_version(current)

    # ------------------------------------------------------------ from other threads and loops

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` on the saver's own loop: a node in a thread may run a loop of its own."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        if _running_loop() is self._loop:
            work.close()
            raise errors.Misconfigured(
                "A graph's synchronous method was called on the event loop, which it would block.",
                hint="Await the asynchronous one (ainvoke, aget_state), or call it from a synchronous node.",
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Like ``aput``, from another thread."""
        return self._from_thread(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Like ``aput_writes``, from another thread."""
        self._from_thread(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Like ``adelete_thread``, from another thread."""
        self._from_thread(self.adelete_thread(thread_id))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Like ``aget_tuple``, from another thread."""
        return self._from_thread(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Like ``alist``, from another thread."""
        return iter(self._from_thread(self._list(config, filter=filter, before=before, limit=limit)))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Like ``aget_delta_channel_history``, from another thread."""
        return self._from_thread(self.aget_delta_channel_history(config=config, channels=channels))


class Elsewhere:
    """Checkpoints in a saver that is not on the run's own database.

    Best effort: the claim is proven just before a write, not with it, so an executor that loses its run
    between the two still writes one checkpoint too many.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], store: Transactions) -> None:
        self._saver = saver
        self._store = store

    async def write(self, call: Call, serde: SerializerProtocol, claim: Claim) -> Any:
        """See ``Checkpoints``; ``serde`` is the saver's own affair."""
        await self._store.write(hold(claim), budget=WRITE_BUDGET)
        return await acall(self._saver, call)

    async def read(self, call: Call, serde: SerializerProtocol) -> Any:
        """See ``Checkpoints``."""
        return await acall(self._saver, call)

    def next_version(self, current: Any) -> Any:
        """See ``Checkpoints``."""
        return self._saver.get_next_version(current, None)


async def acall(saver: BaseCheckpointSaver[Any], call: Call) -> Any:
    """Make ``call`` with the asynchronous method of that name."""
    answer = getattr(saver, f"a{call.name}")(*call.args, **call.kwargs)
    if call.name == "list":
        return [found async for found in answer]
    return await answer


def _returned(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Leave out what a task wrote before it failed, for instance in its conditional edge.

    LangGraph takes it on a resume for all that the task had to write: what the edge would have chosen is
    never run.
    """
    channels = {channel for channel, _ in writes}
    if ERROR not in channels or ERROR_SOURCE_NODE in channels:
        return writes
    return [write for write in writes if write[0] in WRITES_IDX_MAP]


async def _until_quiet(begun: set[asyncio.Task[Any]], seconds: float) -> int:
    """Wait until no write is under way and none follows; returns how many still are after ``seconds``.

    LangGraph queues checkpoints behind one another and, cancelled while it waits for them at its end, leaves
    them to themselves: the next one begins a few turns after the last.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    turns = 0
    while turns < TURNS:
        turns += 1
        if begun:
            turns = 0
            await asyncio.wait(begun, timeout=max(0.0, give_up - loop.time()))
            if begun and loop.time() >= give_up:
                return len(begun)
        await asyncio.sleep(0)
    return 0


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
