"""Carry out one scenario: the client's moves, the signals, the waiting, and the reading of evidence.

It decides when something is done and what is collected, never what it means.
"""

from __future__ import annotations

import concurrent.futures
import json
import signal
import string
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from outlive.probe import tape as tapes
from outlive.probe.client import Call, Client, View
from outlive.probe.evidence import Evidence, Found
from outlive.probe.inject.wrap import CLIENT_HEADER
from outlive.probe.plan import Behaviour, Leaving, Plan, PlanError, Scenario
from outlive.probe.tape import Happening
from outlive.probe.target import Running, Started

#: A client that leaves before the first chunk gives the server this long to have begun. Seconds.
BEGUN = 0.25


@dataclass(kw_only=True)
class Trace:
    """What happened in one scenario, unjudged. Times are CLOCK_MONOTONIC seconds."""

    scenario: Scenario
    thread: str
    started: float = 0.0
    left: float | None = None
    returned: float | None = None
    ended: float = 0.0
    views: list[View] = field(default_factory=list)
    happenings: Sequence[Happening] = ()
    at_leaving: list[Found] = field(default_factory=list)
    before_return: list[Found] = field(default_factory=list)
    at_end: list[Found] = field(default_factory=list)
    settled: bool = True
    exit_seconds: float | None = None
    exited: bool | None = None


class Stage:
    """One target with its evidence, on which scenarios are played one after another."""

    def __init__(
        self,
        plan: Plan,
        target: Started | Running,
        evidence: Sequence[Evidence],
        *,
        url: str | None = None,
    ) -> None:
        """`url` is where the clients go when that is not the target itself but something in front of it."""
        self._plan = plan
        self._target = target
        self._url = url or target.url
        self._evidence = evidence
        self._held: list[Client] = []
        self._mark = 0
        self._settle_from = 0

    def play(self, scenario: Scenario) -> Trace:
        """Carry the scenario out on a thread of its own. Raises `PlanError` where that is impossible."""
        trace = Trace(scenario=scenario, thread=f"probe-{scenario.name}-{uuid.uuid4().hex[:8]}")
        self._mark = self._settle_from = self._target.tape.mark() if self._target.tape else 0
        for evidence in self._evidence:
            evidence.begin(trace.thread)
        trace.started = time.monotonic()
        try:
            self._act(trace)
        finally:
            self._release()
        trace.at_end = self._read(trace.thread)
        trace.ended = time.monotonic()
        if self._target.tape:
            trace.happenings = tapes.of_clients(self._target.tape.since(self._mark), trace.thread)
        return trace

    def _act(self, trace: Trace) -> None:
        match trace.scenario.behaviour:
            case Behaviour.STAY:
                self._stay(trace, message=0)
            case Behaviour.LEAVE:
                self._leave(trace)
            case Behaviour.SLOW:
                self._slow(trace)
            case Behaviour.RETURN:
                self._leave(trace)
                self._come_back(trace)
            case Behaviour.RECONNECT:
                self._leave(trace, wait=False)
                trace.returned = time.monotonic()
                self._stay(trace, message=0, after=trace.views[0])
            case Behaviour.DOUBLE_CLICK:
                self._double_click(trace)
            case Behaviour.SIGTERM:
                self._signal(trace, signal.SIGTERM)
            case Behaviour.SIGKILL:
                self._signal(trace, signal.SIGKILL)
            case _:
                assert_never(trace.scenario.behaviour)

    def _stay(self, trace: Trace, *, message: int, after: View | None = None) -> None:
        client = self._client(trace, message, after=after)
        client.send()
        if client.read(seconds=self._plan.patience):
            client.leave(Leaving.FIN)  # no end in sight: what was seen until now is what there is to compare
        self._settle(trace)

    def _leave(self, trace: Trace, *, wait: bool = True) -> None:
        client = self._client(trace, 0)
        client.send()
        self._read_until_leaving(client, trace.scenario)
        trace.at_leaving = self._read(trace.thread, effects_only=True)
        client.leave(trace.scenario.leaving)
        trace.left = client.view.left
        if wait:
            self._settle(trace)

    def _read_until_leaving(self, client: Client, scenario: Scenario) -> None:
        if scenario.after_seconds is not None:
            client.read(seconds=scenario.after_seconds)
        elif scenario.after_chunks == 0:
            client.wait_for_head(BEGUN)
        else:
            client.read(chunks=scenario.after_chunks, seconds=self._plan.patience)
            time.sleep(scenario.linger)

    def _slow(self, trace: Trace) -> None:
        client = self._client(trace, 0, receive_buffer=4096)
        client.send()
        client.read(chunks=trace.scenario.after_chunks, seconds=self._plan.patience)
        time.sleep(self._plan.pause)
        client.read(seconds=self._plan.patience)
        self._settle(trace)

    def _come_back(self, trace: Trace) -> None:
        trace.before_return = self._read(trace.thread)
        trace.returned = time.monotonic()
        self._stay(trace, message=1)

    def _double_click(self, trace: Trace) -> None:
        clients = [self._client(trace, 0), self._client(trace, 0)]

        def click(client: Client) -> None:
            client.send()
            client.read(seconds=self._plan.patience)

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            try:
                list(pool.map(click, clients))
            except BaseException:
                self._release()  # nobody shall wait for the answers any more
                raise
        self._settle(trace)

    def _signal(self, trace: Trace, number: signal.Signals) -> None:
        target = self._target
        if not isinstance(target, Started):
            raise PlanError("A service that the probe did not start gets no signals.")
        client = self._client(trace, 0)
        client.send()
        self._read_until_leaving(client, trace.scenario)
        trace.at_leaving = self._read(trace.thread, effects_only=True)
        trace.left = time.monotonic()
        target.signal(number)
        trace.exited = target.wait_for_exit(self._plan.grace)
        trace.exit_seconds = round(time.monotonic() - trace.left, 3)
        target.stop()
        client.read(seconds=1.0)
        self._settle_from = target.recorder.mark()  # what the dead processes had begun never ends on the tape
        target.start()
        self._come_back(trace)

    def _client(
        self, trace: Trace, message: int, *, after: View | None = None, receive_buffer: int | None = None
    ) -> Client:
        name = f"{trace.thread}/{len(trace.views)}"
        headers = {CLIENT_HEADER.decode(): name}
        if after is not None and after.last_event_id is not None:
            headers["last-event-id"] = after.last_event_id
        call = filled(self._plan, self._url, trace.thread, message, headers)
        client = Client(call, name, receive_buffer=receive_buffer)
        trace.views.append(client.view)
        self._held.append(client)
        return client

    def _settle(self, trace: Trace) -> None:
        tape = self._target.tape
        if tape is None:
            trace.settled &= self._stable(trace.thread)
            return
        trace.settled &= tape.settle(
            self._settle_from,
            quiet=self._plan.quiet,
            patience=self._plan.patience,
            alive=self._target.alive,
            clients=trace.thread,
        )

    def _stable(self, thread: str) -> bool:
        """Without a recorder: wait until the evidence has not changed for a few looks."""
        until, same, last = time.monotonic() + self._plan.patience, 0.0, self._read(thread)
        while time.monotonic() < until:
            time.sleep(self._plan.quiet / 2)
            now = self._read(thread)
            same, last = (same + 1, now) if now == last else (0, now)
            if same >= 6:
                return True
        return False

    def _read(self, thread: str, *, effects_only: bool = False) -> list[Found]:
        found = [evidence.read(thread) for evidence in self._evidence]
        hasty = effects_only and self._target.tape is not None
        return [item for item in found if item.effects is not None] if hasty else found

    def _release(self) -> None:
        for client in self._held:
            client.close()
        self._held.clear()


def filled(plan: Plan, url: str, thread: str, message: int, headers: Mapping[str, str]) -> Call:
    """The request with its placeholders filled in. The nonce is the same for the same message."""
    values = {"thread": thread, "message": plan.request.messages[message], "nonce": f"{thread}-{message}"}
    body = _fill(plan.request.body or "", {k: json.dumps(v)[1:-1] for k, v in values.items()})
    own = {name.lower(): _fill(value, values) for name, value in plan.request.headers.items()}
    if body.startswith(("{", "[")):
        own.setdefault("content-type", "application/json")
    path = _fill(plan.request.path, {k: urllib.parse.quote(v, safe="") for k, v in values.items()})
    # What no request line may hold is quoted; what is quoted already stays as it is.
    path = urllib.parse.quote(path, safe=string.punctuation)
    return Call(url=url + path, method=plan.request.method, headers={**own, **headers}, body=body.encode())


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def effects_of(found: Sequence[Found]) -> Counter[str] | None:
    """The effects that all evidence together names, or None where no evidence is about effects."""
    counts = [Counter(item.effects) for item in found if item.effects is not None]
    return sum(counts, Counter()) if counts else None
