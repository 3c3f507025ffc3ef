"""What an application does with whole threads: list, copy, delete them, read their states and change one.

Decides what is checked before the record is asked, and that a state is changed by a run of its own: it holds
the thread meanwhile, its checkpoint is fenced, and the record says that it was.  It is a part of
``runtime.Outlive``, which has the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from outlive import agents, artifacts, deletion, encoding, errors, lease, names, observation, policy, signals
from outlive import tree as trees
from outlive.agents.positions import Moment, Place, Positions, Remembers
from outlive.deletion import Deleted
from outlive.model import Offer, Run, Submission, Thread, Verdict
from outlive.states import Reason, State
from outlive.store import checkpoints, moves, reads, searching, wakeup

MOST = 1000
"""Threads, states or checkpoints that one look returns."""
UPDATE = "outlive.update"
"""The agent of the runs that change a state.  No worker drives it: whoever makes one sees it to its end."""
_NOT_CHANGED = json.dumps({"code": "update_failed", "message": "The state was not changed."})
_POLICY = policy.job(on_busy="reject", on_torn="restart", recovery="stop", max_losses=0)
_WORK: set[asyncio.Task[Any]] = set()
"""Updates under way: a loop holds its tasks only weakly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Updated:
    """Where a changed state is, which run changed it, and where the thread stands then."""

    run_id: str
    place: Place
    position: str | None

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {"run_id": self.run_id, "checkpoint": self.place.public(), "position": self.position}


class Threads(observation.Observation):
    """The part of an ``Outlive`` that is about threads."""

    registry: agents.Registry
    signals: signals.Signals
    artifact_root: artifacts.Root | None
    _keeper: lease.Keeper

    async def threads(self, *, tenant: str = "", limit: int = 50, before: str | None = None) -> list[Thread]:
        """Return up to ``limit`` threads (1 to 1000), newest first, older than the one named ``before``."""
        _check_limit(limit)
        names.check_name("before", before)
        return await self.store.read(reads.threads(tenant, limit=limit, before=before))

    # ------------------------------------------------------------ states

    async def state(
        self, name: str, *, tenant: str = "", place: Place | None = None, agent: str | None = None
    ) -> Moment:
        """Return the state of a thread at its newest checkpoint, or at ``place``, its subgraphs' too.

        ``agent`` names whose graph reads it; else that of the thread's newest run does.  Raises
        ``NotFound``, and ``InvalidInput`` if that agent keeps no states.
        """
        thread = await self.thread(name, tenant=tenant)
        reader = await self._reader(thread, tenant, agent)
        return await reader.moment(thread.thread_id, _checked(place))

    async def history(
        self,
        name: str,
        *,
        tenant: str = "",
        limit: int = 10,
        before: Place | None = None,
        agent: str | None = None,
    ) -> list[Moment]:
        """Return up to ``limit`` states (1 to 1000), newest first, older than the checkpoint ``before``.

        ``before`` also names the subgraph whose states are meant.  Raises as ``state`` does.
        """
        _check_limit(limit)
        thread = await self.thread(name, tenant=tenant)
        reader = await self._reader(thread, tenant, agent)
        return await reader.moments(thread.thread_id, _checked(before), limit)

    async def tree(self, name: str, *, tenant: str = "", limit: int = MOST) -> trees.Tree:
        """Return a thread's newest ``limit`` checkpoints as a tree, with the runs that wrote them.

        Only of checkpoints beside the runs; those of a saver elsewhere are not in it.  Raises ``NotFound``.
        """
        _check_limit(limit)
        thread = await self.thread(name, tenant=tenant)
        runs = await self.runs(tenant=tenant, thread=name, limit=1000)
        return trees.grown(thread, runs, await self.store.read(checkpoints.marks(thread.thread_id, limit)))

    async def update_state(
        self,
        name: str,
        values: Any,
        *,
        tenant: str = "",
        as_node: str | None = None,
        place: Place | None = None,
        agent: str | None = None,
    ) -> Updated:
        """Write a state behind the newest checkpoint, or behind ``place`` as a fork, as if ``as_node`` had.

        A run of its own does it and is in the lists: ``outlive.update``.  Raises ``NotFound``,
        ``ThreadBusy`` while a run is live on the thread, ``InvalidInput`` for what the graph does not take.
        Once begun it is finished even if the caller is cancelled.
        """
        thread = await self.thread(name, tenant=tenant)
        reader = await self._reader(thread, tenant, agent)
        told = {"as_node": as_node, "place": place.public() if place else None, "agent": _named(reader)}

        async def change(run: Run) -> Place:
            metadata = {"run_id": run.run_id, "thread_id": thread.thread}
            return await reader.changed(run.claim, _checked(place), values, as_node, metadata)

        return await _apart(self._changed(thread, tenant, reader, told, change))

    async def rollback_thread(self, name: str, *, tenant: str = "", agent: str | None = None) -> Updated:
        """Take back what was left part-way on a thread, as ``on_torn=rollback`` does, without a message.

        A checkpoint from before it becomes the newest one, and its effects are undone; nothing is deleted.
        A run of ``outlive.update`` does it.  Raises as ``update_state`` does.
        """
        thread = await self.thread(name, tenant=tenant)
        reader = await self._reader(thread, tenant, agent)

        async def take_back(run: Run) -> Place:
            await reader.taken_back(run)
            return (await reader.moment(thread.thread_id, Place())).place or Place()

        told = {"rollback": True, "agent": _named(reader)}
        return await _apart(self._changed(thread, tenant, reader, told, take_back))

    async def import_thread(
        self,
        name: str,
        agent: str,
        write: Callable[[Run], Awaitable[None]],
        *,
        tenant: str = "",
        source: str = "",
    ) -> Updated | None:
        """Make a thread of checkpoints that ``write`` writes under the run that it is given.

        None if there is such a thread, unless an import of it was cut off: then it is written again, and what
        is there already stays as it is.  Raises ``NotFound`` (agent), and what ``write`` raises: then there
        is no such thread.
        """
        names.check_name("thread", name)
        known = self.registry[agent]
        if not isinstance(known, Remembers):
            raise errors.InvalidInput("That agent keeps no states.", field="agent")
        made = searching.make(self._local.new_id(), tenant, name, {"graph_id": agent})
        if not await self.store.write(made) and not await self._cut_off(name, tenant):
            return None
        thread = await self.thread(name, tenant=tenant)

        async def bring(run: Run) -> Place:
            await write(run)
            return (await known.moment(thread.thread_id, Place())).place or Place()

        told = {"import": source, "agent": agent}
        try:
            return await _apart(self._changed(thread, tenant, known, told, bring))
        except errors.ThreadBusy:
            return None  # somebody else imports it just now
        except Exception:
            await self.delete_thread(name, tenant=tenant, force=True)
            raise

    async def _cut_off(self, name: str, tenant: str) -> bool:
        """Say whether a thread is what an import that died has left: it alone has been there."""
        runs = await self.runs(tenant=tenant, thread=name, limit=2)
        ended = [run for run in runs if run.state in (State.ABANDONED, State.FAILED)]
        return bool(runs) and runs == ended and all("import" in json.loads(run.input) for run in runs)

    async def _changed(
        self,
        thread: Thread,
        tenant: str,
        reader: Remembers,
        told: dict[str, Any],
        change: Callable[[Run], Awaitable[Place]],
    ) -> Updated:
        """Change a thread's state under the fence of a run that holds it meanwhile."""
        async with self._holding(thread, tenant, told) as held:
            written = await change(held.run)
            position = await reader.position(thread.thread_id) if isinstance(reader, Positions) else None
            output = encoding.encode(written.public()).text
            held.verdict = Verdict(state=State.SUCCEEDED, output=output, position=position)
        return Updated(run_id=held.run.run_id, place=written, position=position.value if position else None)

    async def _reader(self, thread: Thread, tenant: str, agent: str | None) -> Remembers:
        if agent is None:
            for run in await self.runs(tenant=tenant, thread=thread.thread, limit=50):
                found = json.loads(run.input).get("agent") if run.agent == UPDATE else run.agent
                if found in self.registry.names:
                    agent = found
                    break
        known = self._only_reader() if agent is None else self.registry[agent]
        if not isinstance(known, Remembers):
            raise errors.InvalidInput("The agent of this thread keeps no states.", field="agent")
        return known

    def _only_reader(self) -> agents.Agent:
        """Of a copy, on which nothing has run, nobody says whose it is."""
        found = [one for name in self.registry.names if isinstance(one := self.registry[name], Remembers)]
        if len(found) != 1:
            raise errors.InvalidInput(
                "Nothing has run on this thread that tells which agent reads it.",
                hint="Name the agent.",
                field="agent",
            )
        return found[0]

    @asynccontextmanager
    async def _holding(self, thread: Thread, tenant: str, told: dict[str, Any]) -> AsyncIterator[_Held]:
        """Hold a thread by a run that only this call drives; it ends with the verdict set meanwhile."""
        since = self._local.monotonic()
        run = await self._begun(thread, tenant, told)
        held = _Held(run=run, claim=self._keeper.hold(run.claim, since))
        try:
            yield held
        finally:
            self._keeper.release(held.claim)
            await self.store.write(moves.settle(run.claim, held.verdict, run.last_seq))
            told_of = (wakeup.run_topic(run.run_id), wakeup.thread_topic(run.thread_id))
            self.store.announce(wakeup.QUEUE, *told_of)

    async def _begun(self, thread: Thread, tenant: str, told: dict[str, Any]) -> Run:
        token, run_id = self._local.new_id(), self._local.new_id()
        offer = Offer(worker="", claim_token=token, lease=self._keeper.timing.lease, agents=(UPDATE,))
        new = Submission(
            run_id=run_id,
            tenant=tenant,
            agent=UPDATE,
            input=json.dumps(told),
            fingerprint=run_id,
            policy=_POLICY,
            thread=thread.thread,
        )
        submitted = await self.store.write(moves.submit(new, offer))
        if not submitted.claimed:  # another update waits; nobody would ever drive this one
            await self.store.write(moves.stop(run_id, tenant, Reason.DISPLACED))
            raise errors.ThreadBusy(run_id=run_id)
        return submitted.run

    # ------------------------------------------------------------ copying and deleting

    async def copy_thread(self, name: str, to: str | None = None, *, tenant: str = "") -> Thread:
        """Copy a thread's checkpoints, its subgraphs' too, to a new thread, whose record says so.

        Its runs, events and effects are not copied.  ``to`` None is a new name.  Raises ``NotFound``,
        ``Conflict`` if there is a thread ``to``, and ``InvalidInput`` if the graph keeps them elsewhere.
        """
        names.check_name("to", to)
        if to == "":
            raise errors.InvalidInput("to is empty.", field="to")
        source = await self.thread(name, tenant=tenant)
        for run in await self.runs(tenant=tenant, thread=name, limit=50):
            if run.agent in self.registry.names and getattr(self.registry[run.agent], "elsewhere", False):
                raise errors.InvalidInput("A saver of the graph's own has these checkpoints.", field="thread")
        target_id = self._local.new_id()
        target = to or self._local.new_id()
        return await self.store.write(checkpoints.copy(source, tenant, target_id, target))

    async def delete_thread(self, name: str, *, tenant: str = "", force: bool = False) -> Deleted:
        """Delete a thread: its runs, events, checkpoints, large bodies and files, and not its effects.

        Live runs are ended by it, as stopped, and what their executors send later is refused.  A message to
        the same name later makes a new thread.  Raises ``NotFound``, also the second time, and
        ``ThreadUnsettled`` while the outcome of an effect is open or one is still to be undone, unless
        ``force``.
        """
        found = await self.thread(name, tenant=tenant)
        return await self.deletion().delete(found.thread, found.thread_id, force=force)

    def deletion(self) -> deletion.Deletion:
        """Return what deletes threads here."""
        known = [self.registry[name] for name in self.registry.names]
        files = self.artifact_root
        return deletion.Deletion(self.store, happenings=self.signals, files=files, agents=known)


async def _apart(work: Coroutine[Any, Any, Updated]) -> Updated:
    """Finish ``work`` even if the caller goes away: a run that nobody ends would keep its thread busy."""
    task = asyncio.get_running_loop().create_task(work)
    _WORK.add(task)
    task.add_done_callback(_WORK.discard)
    return await asyncio.shield(task)


@dataclass(kw_only=True, slots=True)
class _Held:
    """A thread that is held by a run: what becomes of the run if nothing else is said."""

    run: Run
    claim: lease.Held
    verdict: Verdict = field(default_factory=lambda: Verdict(state=State.FAILED, error=_NOT_CHANGED))


def _named(reader: Remembers) -> str | None:
    return getattr(reader, "name", None)


def _checked(place: Place | None) -> Place:
    found = place or Place()
    names.check_name("checkpoint_id", found.checkpoint_id)
    names.check_name("namespace", found.namespace)
    return found


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise errors.InvalidInput(f"limit must be between 1 and {MOST}.", field="limit")
