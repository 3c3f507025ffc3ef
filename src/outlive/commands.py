"""Path 1: submit and stop.

Decides what is checked before the record is asked, and who hears of it afterwards; whether a message may
become a run is ``admission``'s to say, inside the transaction.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from outlive import agents, encoding, errors, names, notifications, seams, signals, spans
from outlive.agents import restored
from outlive.agents.positions import Asks, Positions
from outlive.limits import Quota
from outlive.model import Admitted, Offer, Run, Stop, StopOutcome, Submission, Submitted
from outlive.names import LONGEST_NAME as LONGEST_NAME
from outlive.names import check_name as check_name
from outlive.policy import OnBusy, RunPolicy
from outlive.states import Reason
from outlive.store import Store, moves, standings, wakeup

T = TypeVar("T")
LOOKS = 4
"""How often a submit looks at a thread whose standing changes each time."""


class Starter(Protocol):
    """Where a submit finds a free slot: this process's worker, or nothing in a pure API process."""

    def offer(self, agent: str | None = None) -> Offer | None:
        """Reserve a slot."""
        ...

    def withdraw(self, offer: Offer) -> None:
        """Give it back."""
        ...

    def start(self, run: Run, offer: Offer, since: float) -> None:
        """Drive the run that took it."""
        ...


class Commands:
    """Submit and stop, for any number of callers."""

    def __init__(
        self,
        store: Store,
        registry: agents.Registry,
        *,
        starter: Starter | None,
        happenings: signals.Signals,
        local: seams.Seams = seams.REAL,
        viewer_lease: float = 15.0,
        limited: Callable[[str, str, str], tuple[Quota, ...]] = lambda *_: (),
        told: Callable[[str, str, str | None], str | None] = notifications.refuse,
    ) -> None:
        """``limited`` names the quotas of a tenant, a principal and an agent.

        ``told`` names who is told of a run's end, given its tenant, its agent and the address that its
        request names.
        """
        self._store = store
        self._registry = registry
        self._starter = starter
        self._signals = happenings
        self._local = local
        self._viewer_lease = viewer_lease
        self._limited = limited
        self._to_be_told = told
        self._tasks: set[asyncio.Task[Any]] = set()

    async def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the word that every caller looks for
        *,
        thread: str | None = None,
        key: str | None = None,
        tenant: str = "",
        policy: RunPolicy | None = None,
        not_before: float | None = None,
        metadata: dict[str, Any] | None = None,
        viewer: str | None = None,
        principal: str = "",
        webhook: str | None = None,
        run_id: str | None = None,
        traceparent: str | None = None,
    ) -> Submitted:
        """Make a run, or find the one that already answers this intent.

        ``key`` is the idempotency key: the same key with the same agent, thread and input is the same run.
        ``viewer`` names a subscription that counts as watching from the first moment.  Once begun, the
        submit finishes even if the caller is cancelled.  ``principal`` tells callers of one tenant apart, for
        limits.  ``webhook`` is a URL that is told of the run's end; of a run that is there already, those are
        told that were named when it was made.  ``run_id`` is for who repeats a submit after its own death:
        it was minted and kept before the first, and at most one run of that id is made.  ``traceparent`` is
        the request's, in whose trace the run is; it is ignored where a span is current, or if it is none.

        Raises ``NotFound`` (agent), ``InvalidInput``, ``KeyConflict``, ``ThreadBusy``, ``ThreadLeft``,
        ``NothingToAnswer``, ``LimitReached``, ``StoreUnavailable``.
        """
        known = self._registry[agent]  # also when a policy is given: nobody would drive the run
        _check_names(thread=thread, key=key, tenant=tenant, viewer=viewer)
        positioned = isinstance(known, Positions)
        declared = policy or known.policy
        _check_displacing(declared, not_before, positioned=positioned)
        new = Submission(
            run_id=run_id or self._local.new_id(),
            tenant=tenant,
            agent=agent,
            input=exact("input", input),
            fingerprint=encoding.fingerprint([agent, thread, input]),
            policy=declared,
            thread=thread,
            key=key,
            not_before=not_before,
            viewer=viewer,
            viewer_lease=self._viewer_lease,
            quotas=self._limited(tenant, principal, agent),
            metadata=exact("metadata", metadata or {}),
            positioned=positioned,
            answers=isinstance(known, Positions) and known.answers(input),
            checked=not isinstance(known, Asks),
            goes_on=isinstance(known, Positions) and known.goes_on(input),
            notify=self._to_be_told(tenant, agent, webhook),
            traceparent=names.traceparent(traceparent),
        )
        return await self._apart(self._traced(new))

    async def _traced(self, new: Submission) -> Submitted:
        with self._signals.during(spans.Submitting(agent=new.agent, traceparent=new.traceparent)) as span:
            if span.traceparent is not None:
                new = dataclasses.replace(new, traceparent=span.traceparent)
            made = await self._submit(new)
            told = {"run_id": made.run.run_id, "thread_id": made.run.thread_id}
            span.say(admitted=made.admitted.value, **told)
            return made

    async def _submit(self, new: Submission) -> Submitted:
        offer = self._starter.offer(new.agent) if self._starter else None
        since = self._local.monotonic()
        started = False
        try:
            submitted = await self._recorded(new, offer)
            if offer is not None and submitted.claimed and self._starter is not None:
                self._starter.start(submitted.run, offer, since)
                started = True
        finally:
            if offer is not None and not started and self._starter is not None:
                self._starter.withdraw(offer)
        self._told(submitted)
        return submitted

    async def _recorded(self, new: Submission, offer: Offer | None) -> Submitted:
        """Make the run in the cheapest way that can be; what is in its way, ``submit`` sees to."""
        simple = new.thread is None and not new.quotas
        if simple and (begun := await self._store.write(moves.begin(new, offer))) is not None:
            return begun
        for _ in range(LOOKS):
            try:
                return await self._store.write(moves.submit(new, offer))
            except standings.Unlooked as unlooked:
                found = await self._positions(new).position(unlooked.thread_id)
                await self._store.write(standings.looked(unlooked.thread_id, found))
            except standings.Unchecked as unchecked:
                await self._asking(new).check_answer(unchecked.thread_id, restored(new.input))
                new = dataclasses.replace(new, checked=True)
        # Each time a run had begun on the thread and was lost meanwhile.
        raise errors.StoreUnavailable("Where the thread stands is not known yet.")

    def _positions(self, new: Submission) -> Positions:
        known = self._registry[new.agent]
        assert isinstance(known, Positions)  # nobody else is asked to look
        return known

    def _asking(self, new: Submission) -> Asks:
        known = self._registry[new.agent]
        assert isinstance(known, Asks)
        return known

    def _told(self, submitted: Submitted) -> None:
        run = submitted.run
        if submitted.admitted not in (Admitted.CREATED, Admitted.CONTINUED):
            return
        for displaced in submitted.displaced:
            self._stopped(displaced, Reason.DISPLACED)
        self._signals.emit(
            signals.RunSubmitted(
                run_id=run.run_id,
                agent=run.agent,
                claimed=submitted.claimed,
                thread_id=run.thread_id,
                epoch=run.epoch,
            )
        )
        self._signals.show(run.run_id, input=run.input)
        if not submitted.claimed:
            self._store.announce(wakeup.QUEUE)

    async def stop(self, run_id: str, *, tenant: str | None = "", reason: Reason = Reason.REQUESTED) -> Stop:
        """Ask a run to stop and say what that found: ``stopped``, ``requested`` or ``already``.

        ``requested`` is not ``stopped``: the run ends when its executor lets go, or its lease expires.
        Raises ``NotFound``, ``StoreUnavailable``.
        """
        check_name("run_id", run_id)
        answer = await self._apart(self._store.write(moves.stop(run_id, tenant, reason)))
        if answer.outcome is not StopOutcome.ALREADY:
            self._stopped(answer.run, reason)
        return answer

    def _stopped(self, run: Run, reason: Reason) -> None:
        """Tell its executor and its viewers, and of one that has ended whoever sends notifications."""
        told: dict[str, Any] = {"run_id": run.run_id, "thread_id": run.thread_id, "epoch": run.epoch}
        self._signals.emit(signals.StopRequested(**told, reason=reason))
        if run.state.terminal:  # it had not begun: nobody else tells of its end
            self._signals.emit(signals.RunEnded(**told, state=run.state, reason=run.reason))
        thread = wakeup.thread_topic(run.thread_id)
        self._store.announce(wakeup.STOP, wakeup.QUEUE, wakeup.run_topic(run.run_id), thread)
        if run.state.terminal and run.notify:
            self._store.announce(wakeup.OUTBOX)

    async def _apart(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish ``work`` even if the caller goes away: a half-known submit is a run nobody drives."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Wait for submits in flight."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=10.0)


def exact(field: str, value: Any) -> str:
    """Return a value as JSON text; raises ``InvalidInput`` for what that cannot hold."""
    encoded = encoding.encode(value)
    if encoded.placeholders:
        first = encoded.placeholders[0]
        raise errors.InvalidInput(f"{field} cannot be kept exactly: {first.type}: {first.why}.", field=field)
    return encoded.text


def _check_names(**texts: str | None) -> None:
    for field, text in texts.items():
        check_name(field, text)
    for field in ("thread", "key"):
        if texts[field] == "":  # what a client sends that forgot it, and every such client sends the same
            raise errors.InvalidInput(f"{field} is empty.", field=field)


def _check_displacing(policy: RunPolicy, not_before: float | None, *, positioned: bool) -> None:
    if policy.on_busy.displaces and not_before is not None:
        raise errors.InvalidInput(
            "A message for later cannot displace what runs now.",
            hint="Leave not_before out, or send it with on_busy=enqueue.",
            field="not_before",
        )
    if policy.on_busy is OnBusy.ROLLBACK and not positioned:
        raise errors.InvalidInput(
            "This agent keeps nothing between its runs that could be taken back.",
            hint="Use on_busy=interrupt.",
            field="on_busy",
        )
