"""What happens to the bookings: the scenarios, each over real processes, sockets and signals.

Decides the accidents and when they happen, always after something that a client received or a process said.
What must hold afterwards is ``checker``'s to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import looks, stage
from demo.stage import Child, Stage, StageError
from demo.wire import STREAM, Exchange, Received, Request

LEASE = 3.0
"""Seconds after which a frozen process loses its runs.  A killed one loses them sooner, by its token."""
CLICKS = 6
INTO_NOTIFY = 0.3
"""Seconds from the charge's chunk to the accident: notify works for 1.5."""

Tell = Callable[[str, str], None]


class Milestones:
    """What one scenario has to wait for in others that run beside it."""

    def __init__(self, names: Collection[str]) -> None:
        self._left = set(names)
        self._all_reached = asyncio.Event()
        self.reached("")

    def reached(self, name: str) -> None:
        """Note that one is reached."""
        self._left.discard(name)
        if not self._left:
            self._all_reached.set()

    async def wait(self) -> None:
        """Wait until none is left."""
        await self._all_reached.wait()


@dataclass(kw_only=True, slots=True)
class Play:
    """What every scenario needs."""

    stage: Stage
    servers: dict[str, Child]
    provider: Child
    tell: Tell
    before_kill: Milestones

    @property
    def transcripts(self) -> Path:
        """The folder of the clients' transcripts."""
        return self.stage.folder / "transcripts"

    def exchange(self, client: str, server: str, path: str, **asked: Any) -> Exchange:
        """One request of a client: a POST if it has a body."""
        method = "POST" if "body" in asked else "GET"
        url = self.servers[server].url
        return Exchange(self.transcripts, client, Request(url=url, method=method, path=path, **asked))

    async def submit(self, client: str, server: str, body: dict[str, Any]) -> str:
        """Make a run without watching it; returns its id."""
        exchange = self.exchange(client, server, "/runs", body=body, headers={"Accept": "application/json"})
        async with exchange:
            answer = await exchange.json()
        if exchange.status != 201:
            raise StageError(f"{client} was answered {exchange.status}: {answer}")
        return str(answer["run_id"])

    @asynccontextmanager
    async def watching(
        self, client: str, server: str, run_id: str, after: str = ""
    ) -> AsyncGenerator[AsyncGenerator[Received, None], None]:
        """Attach to a run, behind the cursor ``after``."""
        headers = {"Accept": STREAM} | ({"Last-Event-ID": after} if after else {})
        exchange = self.exchange(client, server, f"/runs/{run_id}/events", headers=headers)
        async with exchange, aclosing(exchange.events()) as events:
            yield events


def booking(thread: str, on_disconnect: str) -> dict[str, Any]:
    """The body that books under the number ``thread``, on a thread of that name."""
    return {
        "agent": "booking",
        "thread": thread,
        "input": {"booking": thread, "steps": []},
        "on_disconnect": on_disconnect,
    }


def errand(thread: str, *, seconds: float, silent: bool = False) -> dict[str, Any]:
    """The body that sends the courier; a second one on the same thread is refused."""
    return {
        "agent": "courier",
        "thread": thread,
        "input": {"seconds": seconds, "silent": silent},
        "on_disconnect": "continue",
        "on_busy": "reject",
    }


async def until_step(events: AsyncGenerator[Received, None], step: str) -> None:
    """Receive up to the report of ``step``; raises ``StageError`` if it never comes."""
    async for event in events:
        if event.step == step:
            return
    raise StageError(f"The stream ended before {step} was reported.")


async def until_event(events: AsyncGenerator[Received, None], kind: str) -> None:
    """Receive up to the next event of this kind; raises ``StageError`` if it never comes."""
    async for event in events:
        if event.event == kind:
            return
    raise StageError(f"The stream ended before another {kind} event.")


async def to_the_end(events: AsyncGenerator[Received, None]) -> str:
    """Receive everything that is left; returns the id of the last event."""
    last = ""
    async for event in events:
        last = event.id
    return last


# ---------------------------------------------------------------- 1, 2 and 3: the client leaves


async def leaves(play: Play, thread: str, on_disconnect: str) -> tuple[str, str]:
    """Book, leave after the second chunk; returns the run and the last event's id."""
    body = booking(thread, on_disconnect)
    headers = {"Accept": STREAM, "Idempotency-Key": f"intent-{thread}"}
    exchange = play.exchange(f"{thread}.guest", "front", "/runs", body=body, headers=headers)
    async with exchange, aclosing(exchange.events()) as events:
        await until_step(events, "charge")
        exchange.leave()
    play.tell(thread, "the client left after the second chunk")
    return exchange.last_id.partition(":")[0], exchange.last_id


async def ended(play: Play, client: str, run_id: str) -> dict[str, Any]:
    """Ask for the record until the run has ended; asking is not watching."""
    async with asyncio.timeout(stage.BOUND):
        while True:
            exchange = play.exchange(client, "front", f"/runs/{run_id}")
            async with exchange:
                record: dict[str, Any] = await exchange.json()
            if record["state"] not in ("queued", "running"):
                return record
            await asyncio.sleep(0.1)


async def again(play: Play, thread: str, on_disconnect: str) -> None:
    """Send the same intent with the same key, and stay."""
    headers = {"Accept": STREAM, "Idempotency-Key": f"intent-{thread}"}
    body = booking(thread, on_disconnect)
    exchange = play.exchange(f"{thread}.again", "front", "/runs", body=body, headers=headers)
    async with exchange, aclosing(exchange.events()) as events:
        await to_the_end(events)
    play.tell(thread, f"the same intent again: {exchange.headers.get('outlive-admitted')}")


async def cancelled(play: Play) -> None:
    """1 and 3: under ``cancel`` the run stops; the same intent goes on from where it stood."""
    thread = "1-cancel"
    run_id, _ = await leaves(play, thread, "cancel")
    record = await ended(play, f"{thread}.clerk", run_id)
    play.tell(thread, f"the run is {record['state']} ({record['reason']})")
    await again(play, thread, "cancel")


async def continued(play: Play) -> None:
    """2 and 3: under ``continue`` the run ends unseen; the client comes back for the rest."""
    thread = "2-continue"
    run_id, cursor = await leaves(play, thread, "continue")
    record = await ended(play, f"{thread}.clerk", run_id)
    play.tell(thread, f"the run {record['state']} unseen")
    async with play.watching(f"{thread}.guest", "front", run_id, after=cursor) as events:
        await to_the_end(events)
    play.tell(thread, "the client came back for the rest")
    await again(play, thread, "continue")


# ---------------------------------------------------------------- 4: the worker is killed


async def killed(play: Play) -> None:
    """4: SIGKILL hits a worker that drives one booking in notify and another one in charge."""
    # Otherwise this worker might take over what freezes elsewhere, and take it along.
    await play.before_kill.wait()
    run_id = await play.submit("4-notify.guest", "second", booking("4-notify", "continue"))
    async with asyncio.TaskGroup() as clients:
        clients.create_task(_stays(play, "4-notify.stays", run_id))
        clients.create_task(_is_cut(play, "4-notify.cut", run_id))
        async with play.watching("4-notify.guest", "front", run_id) as events:
            await until_step(events, "charge")
            cut = await play.submit("4-charge.guest", "second", booking("4-charge", "continue"))
            clients.create_task(_stays(play, "4-charge.stays", cut))
            await play.provider.says("effect charge 4-charge")
            await play.stage.kill(play.servers["second"])
            play.tell("4-notify", "the worker was killed during notify")
            play.tell("4-charge", "the worker was killed between the charge and its answer")
            await until_event(events, "attempt")
            play.tell("4-notify", "another worker took over")
            await to_the_end(events)
    play.tell("4-notify", "both attempts and one end were received")
    play.tell("4-charge", "both attempts and one end were received")


async def _stays(play: Play, client: str, run_id: str) -> None:
    async with play.watching(client, "front", run_id) as events:
        await to_the_end(events)


async def _is_cut(play: Play, client: str, run_id: str) -> None:
    """Watch through the server that dies, then go on at another one."""
    async with play.watching(client, "second", run_id) as events:
        last = await to_the_end(events)
    async with play.watching(client, "front", run_id, after=last) as events:
        await to_the_end(events)


# ---------------------------------------------------------------- 5: the worker freezes, and thaws too late


async def frozen(play: Play, server: str, bodies: Collection[dict[str, Any]]) -> None:
    """5: SIGSTOP during notify, takeover, SIGCONT: what comes late must be refused.

    The first of ``bodies`` is the booking, the others are errands under way at the same moment.
    """
    threads = [body["thread"] for body in bodies]
    child = play.servers[server]
    async with AsyncExitStack() as open_:
        sent = {}
        for body in bodies:
            run_id, events = await _sent(play, open_, server, body)
            await (
                until_step(events, "charge") if body["agent"] == "booking" else until_event(events, "chunk")
            )
            sent[run_id] = events
        await asyncio.sleep(INTO_NOTIFY)
        await play.stage.freeze(child)
        _tell_all(play, threads, f"its worker is frozen; the lease runs out in {LEASE:g} s")
        play.before_kill.reached(server)
        for events in sent.values():
            await until_event(events, "attempt")
        play.stage.thaw(child)
        _tell_all(play, threads, "another worker took over; the first one thaws")
        for run_id in sent:
            await child.says(rf"(LeaseLost|RunEnded) run_id={run_id}|run_id={run_id} .*write=verdict")
        for events in sent.values():
            await to_the_end(events)
    _tell_all(play, threads, "both attempts and one end were received")


async def _sent(
    play: Play, open_: AsyncExitStack, server: str, body: dict[str, Any]
) -> tuple[str, AsyncGenerator[Received, None]]:
    client = f"{body['thread']}.guest"
    run_id = await play.submit(client, server, body)
    return run_id, await open_.enter_async_context(play.watching(client, "front", run_id))


def _tell_all(play: Play, threads: Collection[str], words: str) -> None:
    for thread in threads:
        play.tell(thread, words)


async def suspended(play: Play) -> None:
    """The frozen worker as it is: at its thaw it may doubt itself in time, or be refused."""
    await frozen(play, "frozen", [booking("5-frozen", "continue")])


async def sure(play: Play) -> None:
    """A frozen worker that never doubts itself: only the fences stand between it and the record."""
    bodies = [
        booking("5-checkpoint", "continue"),
        errand("5-event", seconds=1.5),
        errand("5-verdict", seconds=1.5, silent=True),
    ]
    await frozen(play, "sure", bodies)


# ---------------------------------------------------------------- 6: two clicks at once


async def clicked(play: Play) -> None:
    """6: one thread gets several messages in the same instant, through two processes."""
    thread = "6-clicks"
    together = asyncio.Barrier(CLICKS)
    servers = ["front", "second"] * (CLICKS // 2)
    clicks = [_click(play, f"{thread}.{n}", server, together) for n, server in enumerate(servers, 1)]
    taken = [run_id for run_id in await asyncio.gather(*clicks) if run_id]
    play.tell(thread, f"{CLICKS} messages in one instant: {len(taken)} taken")
    play.before_kill.reached("clicks")
    await asyncio.gather(*(_stays(play, f"{thread}.watcher-{n}", run) for n, run in enumerate(taken, 1)))


async def _click(play: Play, client: str, server: str, together: asyncio.Barrier) -> str:
    body = errand("6-clicks", seconds=0.5)
    await together.wait()
    exchange = play.exchange(client, server, "/runs", body=body, headers={"Accept": "application/json"})
    async with exchange:
        answer = await exchange.json()
    return str(answer["run_id"]) if exchange.status == 201 else ""


Scenario = Callable[[Play], Coroutine[Any, Any, None]]
SCENARIOS: dict[str, Scenario] = {
    "cancel": cancelled,
    "continue": continued,
    "killed": killed,
    "frozen": suspended,
    "sure": sure,
    "clicks": clicked,
}


async def perform(
    folder: Path,
    names: Collection[str],
    tell: Tell,
    *,
    alterations: tuple[str, ...],
    provider: tuple[str, ...],
) -> None:
    """Perform the named scenarios side by side; raises ``StageError`` if that cannot be done."""
    (folder / "transcripts").mkdir()
    async with Stage(folder, alterations) as the_stage:
        tell("", "starting the provider and the servers")
        await the_stage.migrate()
        seller = await the_stage.provider("--slow", "4-charge", *provider)
        servers = await _start_servers(the_stage, names)
        before_kill = Milestones({"frozen", "sure", "clicks"} & set(names))
        play = Play(stage=the_stage, servers=servers, provider=seller, tell=tell, before_kill=before_kill)
        with looks.Looks(the_stage.database, folder / "looks.json"):
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(SCENARIOS[name](play))
        tell("", "ending the servers")


async def _start_servers(the_stage: Stage, names: Collection[str]) -> dict[str, Child]:
    starting = {"front": the_stage.serve("front")}
    if {"killed", "clicks"} & set(names):
        starting["second"] = the_stage.serve("second", slots=CLICKS // 2)
    if "frozen" in names:
        starting["frozen"] = the_stage.serve("frozen", slots=1, lease=LEASE)
    if "sure" in names:
        starting["sure"] = the_stage.serve("sure", slots=3, lease=LEASE, alteration="sure")
    children = await asyncio.gather(*starting.values())
    return dict(zip(starting, children, strict=True))
