"""What proxies, phones and slow readers do to a stream, and what none of it may do to a run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import json
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

import fastapi
import httpx
import native_service
import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from native_service import STREAM, WITHIN
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware

import outlive
from outlive import effects, large, policy, runtime, signals
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import sse
from outlive.probe import nginx
from outlive.testing import hearing
from outlive.testing.postgres import PostgresServer

_names = itertools.count(1)
CUT_BY_NGINX = 1.0
"""Seconds of silence after which the proxy drops a connection."""
behind_nginx = pytest.mark.skipif(nginx.binary() is None, reason=nginx.ABSENT)


@dataclass(kw_only=True)
class Served:
    """A service of this page's agents, and the gate at which they wait."""

    outlive: outlive.Outlive
    url: str
    gate: asyncio.Event
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def client(self, url: str | None = None) -> httpx.AsyncClient:
        """Somebody's browser."""
        return httpx.AsyncClient(base_url=url or self.url, timeout=WITHIN)

    async def left(self) -> None:
        """Wait until all that is under way about viewers is on record."""
        while tasks := set(self.outlive.presence._tasks):
            await asyncio.wait(tasks, timeout=WITHIN)

    async def ended(self, run_id: str) -> dict[str, Any]:
        """A run at its end, which nobody watches for it."""
        async with asyncio.timeout(WITHIN), contextlib.aclosing(self.outlive.follow(run_id)) as events:
            async for _ in events:
                pass
        return (await self.outlive.run(run_id)).public()


@contextlib.asynccontextmanager
async def serving(
    database: str, *agents: Any, heartbeat: float | None = 15.0, middlewares: int = 0, **options: Any
) -> AsyncIterator[Served]:
    """A service with as many middlewares that wrap each request in a task group; it leaves nothing behind."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def silent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "before"
        begun.set()
        await gate.wait()
        yield "after"

    own = [
        outlive.agent("keeps", policy=policy.job(on_busy="enqueue"))(silent),
        outlive.agent("cancels", policy=policy.chat(grace=0.5))(silent),
    ]
    served = outlive.Outlive(database, [*own, *agents], **options)
    app = fastapi.FastAPI()
    for _ in range(middlewares):
        app.add_middleware(BaseHTTPMiddleware, dispatch=_pass_on)
    app.include_router(outlive.router(served, heartbeat=heartbeat))
    async with served, native_service.listening(app) as port:
        yield Served(outlive=served, url=f"http://127.0.0.1:{port}", gate=gate, begun=begun)
        gate.set()
    assert served.presence._viewers == {}
    assert served._worker.driving == {}
    assert served.store.hub._waiters == {}


async def _pass_on(request: fastapi.Request, call_next: Any) -> Any:
    return await call_next(request)


@pytest.fixture
def database(lasting_database: str) -> str:
    """A database of each kind, which other tests have used."""
    return lasting_database


@pytest.fixture
def through(request: pytest.FixtureRequest) -> str:
    """A name of a thread that no other test has."""
    return f"{request.node.name}-{next(_names)}"


async def lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    """The lines of a stream; a connection that is cut ends them."""
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        async for line in response.aiter_lines():
            yield line


async def until(seen: AsyncGenerator[str, None], enough: Any) -> list[str]:
    """Lines until they are enough, or the stream's end."""
    found: list[str] = []
    async for line in seen:
        found.append(line)
        if enough(found):
            break
    return found


# ------------------------------------------------------------ proxies


@contextlib.asynccontextmanager
async def impatient(origin: str) -> AsyncIterator[str]:
    """The URL of a proxy that drops a connection which is silent for too long."""
    proxy = nginx.proxy(origin, f"proxy_read_timeout {CUT_BY_NGINX:.0f}s;")
    url = await asyncio.to_thread(proxy.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(proxy.__exit__, None, None, None)


@behind_nginx
@pytest.mark.parametrize("agent", ["keeps", "cancels"])
async def test_S04_a_silent_agent_behind_a_proxy_is_kept_by_heartbeats(database: str, agent: str) -> None:
    async with (
        serving(database, heartbeat=CUT_BY_NGINX / 4) as served,
        impatient(served.url) as url,
        served.client(url) as http,
        http.stream("POST", "/runs", json={"agent": agent}, headers=STREAM) as response,
        contextlib.aclosing(lines(response)) as seen,
    ):
        beats = await until(seen, lambda found: found.count(":") == 9)  # past the proxy's patience
        assert beats.count(":") == 9
        served.gate.set()
        rest = await until(seen, lambda found: "event: end" in found)
        assert "event: end" in rest
        run = await served.ended(response.headers["outlive-run"])
    assert (run["state"], run["reason"]) == ("succeeded", None)


@behind_nginx
async def test_S04_a_connection_that_a_proxy_cut_is_gone_on_with_by_its_cursor(database: str) -> None:
    async with (
        serving(database, heartbeat=None) as served,
        impatient(served.url) as url,
        served.client(url) as http,
    ):
        async with http.stream("POST", "/runs", json={"agent": "keeps"}, headers=STREAM) as response:
            first = [line async for line in lines(response)]
        assert "event: end" not in first
        served.gate.set()
        ids = [line for line in first if line.startswith("id: ")]
        run_id = response.headers["outlive-run"]
        back = {"Last-Event-ID": ids[-1].removeprefix("id: ")} | STREAM
        async with http.stream("GET", f"/runs/{run_id}/events", headers=back) as response:
            rest = [line async for line in lines(response)]
        run = await served.ended(run_id)
    assert run["state"] == "succeeded"
    seqs = [int(line.rpartition(":")[2]) for line in (*first, *rest) if line.startswith("id: ")]
    assert seqs == list(range(1, run["last_seq"] + 1))


@behind_nginx
async def test_S04_nobody_coming_back_stops_a_run_after_its_grace_and_says_so(database: str) -> None:
    async with serving(database, heartbeat=None) as served:
        async with impatient(served.url) as url, served.client(url) as http:
            body = {"agent": "cancels"}
            async with http.stream("POST", "/runs", json=body, headers=STREAM) as response:
                cut = [line async for line in lines(response)]
            assert "event: end" not in cut
            run = await served.ended(response.headers["outlive-run"])
        watched = (await served.outlive.evidence(run["run_id"])).public(
            await served.outlive.run(run["run_id"])
        )
    assert (run["state"], run["reason"]) == ("stopped", "disconnect")
    assert watched["left_because"] == "disconnect"
    assert run["ended_at"] >= watched["left_at"] + 0.5


# ------------------------------------------------------------ a tab that sleeps


class Trip(TypedDict, total=False):
    """What was booked, and what was decided."""

    booked: str
    decided: str


def approval(gate: asyncio.Event, begun: asyncio.Event, calls: list[str]) -> LangGraphAgent:
    """A booking that is an effect, then a question, then what was decided."""

    async def book(state: Trip, config: RunnableConfig) -> Trip:
        begun.set()
        await gate.wait()

        async def call() -> str:
            calls.append("booked")
            return "seat 7"

        return {"booked": await effects.once("book", key=config["metadata"]["run_id"], call=call)}

    def ask(state: Trip) -> Trip:
        return {"decided": interrupt({"approve": state["booked"]})}

    builder = StateGraph(Trip)
    builder.add_node("book", book)
    builder.add_node("ask", ask)
    builder.add_edge(START, "book")
    builder.add_edge("book", "ask")
    builder.add_edge("ask", END)
    return LangGraphAgent("trip", builder.compile(), policy=policy.job())


@pytest.mark.parametrize("restarts", [False, True])
async def test_S05_a_question_that_came_up_while_nobody_watched_is_there_and_can_be_answered(
    database: str, restarts: bool, through: str
) -> None:
    gate, begun, calls = asyncio.Event(), asyncio.Event(), list[str]()
    agent = approval(gate, begun, calls)
    body = {"agent": "trip", "input": {}, "thread": through}
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(database, agent))
        async with (
            served.client() as phone,
            phone.stream("POST", "/runs", json=body, headers=STREAM) as response,
        ):
            await asyncio.wait_for(begun.wait(), WITHIN)
            run_id = response.headers["outlive-run"]
        gate.set()
        run = await served.ended(run_id)
        assert (run["state"], run["position"]) == ("waiting", "waiting")
        if restarts:
            await stack.aclose()
            served = await stack.enter_async_context(serving(database, approval(gate, begun, calls)))
        async with served.client() as laptop:
            thread = (await laptop.get(f"/threads/{through}")).json()
            assert (thread["position"], thread["left_by"]) == ("waiting", run_id)
            shown = (await laptop.get(f"/runs/{run_id}")).json()
            assert [asked["value"] for asked in shown["output"]["__interrupt__"]] == [{"approve": "seat 7"}]
            answer = body | {"input": {"command": {"resume": "yes"}}}
            made = (await laptop.post("/runs", json=answer)).json()
            ended = await served.ended(made["run_id"])
    assert ended["output"] == {"booked": "seat 7", "decided": "yes"}
    assert calls == ["booked"]


# ------------------------------------------------------------ context

WHOSE: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody")


async def test_S13_a_generator_that_is_cut_resets_its_context_where_it_set_it(database: str) -> None:
    seen: dict[str, list[str]] = {}
    opened, reset = [asyncio.Event(), asyncio.Event()], list[str]()

    @outlive.agent("spans", policy=policy.chat(grace=0))
    async def spans(context: outlive.Context) -> AsyncGenerator[Any, None]:
        name = context.input["name"]
        token = WHOSE.set(name)
        try:
            for number in range(3):
                yield number
                seen.setdefault(name, []).append(WHOSE.get())
            opened[context.input["place"]].set()
            await asyncio.Event().wait()
        finally:
            WHOSE.reset(token)  # raises in any other context than the one that set it
            reset.append(name)

    async def remember(request: fastapi.Request, call_next: Any) -> Any:
        token = WHOSE.set(request.headers["whose"])
        try:
            return await call_next(request)
        finally:
            WHOSE.reset(token)

    served = outlive.Outlive(database, [spans])
    heard = hearing.Hearing(served.signals)
    app = fastapi.FastAPI()
    app.add_middleware(BaseHTTPMiddleware, dispatch=remember)
    app.include_router(outlive.router(served))
    async with served, native_service.listening(app) as port, contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}"))
        runs = []
        for place, name in enumerate(("ann", "bob")):
            body = {"agent": "spans", "input": {"name": name, "place": place}}
            asked = http.stream("POST", "/runs", json=body, headers=STREAM | {"whose": f"tab-{name}"})
            response = await stack.enter_async_context(asked)
            runs.append(response.headers["outlive-run"])
        for one in opened:
            await asyncio.wait_for(one.wait(), WITHIN)
        await stack.aclose()  # both leave in the middle of a span
        for run_id in runs:
            async with asyncio.timeout(WITHIN), contextlib.aclosing(served.follow(run_id)) as events:
                async for _ in events:
                    pass
            assert (await served.run(run_id)).reason == "disconnect"
    assert seen == {"ann": ["ann"] * 3, "bob": ["bob"] * 3}
    assert sorted(reset) == ["ann", "bob"]
    assert heard.all(signals.CleanupFailed) == []


# ------------------------------------------------------------ slow readers and large events


def stalled(url: str, run_id: str) -> socket.socket:
    """A client that asks for a stream, and reads nothing of it."""
    address = httpx.URL(url)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.connect((address.host, address.port))
    one.sendall(
        f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    return one


async def test_S14_readers_that_stall_are_cut_off_come_back_and_hold_nothing_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sse.EventStream.__init__.__kwdefaults__ or {}, "send_timeout", 0.5)
    go = asyncio.Event()

    @outlive.agent("floods", policy=policy.job())
    async def floods(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "first"
        await go.wait()
        for number in range(2000):
            yield f"{number:05}" + "x" * 8000

    async with serving(database, floods) as served, served.client() as http:
        run_id = (await http.post("/runs", json={"agent": "floods"})).json()["run_id"]
        tabs = [await asyncio.to_thread(stalled, served.url, run_id) for _ in range(20)]
        viewers = served.outlive.presence._viewers
        async with asyncio.timeout(WITHIN):
            while len(viewers) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0)
        go.set()
        async with http.stream("GET", f"/runs/{run_id}/events", headers=STREAM) as response:
            healthy = [line async for line in lines(response) if line.startswith("id: ")]
        run = await served.ended(run_id)
        async with asyncio.timeout(WITHIN):
            while viewers:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await served.left()
        evidence = (await served.outlive.evidence(run_id)).public(await served.outlive.run(run_id))
        got = await asyncio.to_thread(_rest_of, tabs[0])
        cursor = (
            [line for line in got.split("\n") if line.startswith("id: ")][-2].strip().removeprefix("id: ")
        )
        back = STREAM | {"Last-Event-ID": cursor}
        async with http.stream("GET", f"/runs/{run_id}/events", headers=back) as response:
            rest = [line async for line in lines(response) if line.startswith("id: ")]
        for tab in tabs:
            tab.close()
    assert run["state"] == "succeeded"
    assert len(healthy) == run["last_seq"]
    assert "event: end" not in got
    assert (evidence["viewers"], evidence["watching"]) == (21, 0)
    assert len(rest) == run["last_seq"] - int(cursor.rpartition(":")[2]) > 1000


def _rest_of(tab: socket.socket) -> str:
    """What a stalled client has in its buffers."""
    tab.settimeout(WITHIN)
    received = b""
    with contextlib.suppress(OSError):
        while part := tab.recv(65536):
            received += part
    return received.decode()


LINE = 128 * 1024
"""Bytes at which the line readers of common clients give up."""


async def test_S15_no_line_of_a_stream_is_longer_than_clients_read_and_nothing_is_lost(
    database: str,
) -> None:
    sizes = (10_000, 100_000, 125_000, 1_000_000, 5_000_000)

    @outlive.agent("large", policy=policy.job())
    async def large_one(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for size in sizes:
            yield "x" * size
        yield "y" * (large.MAX_EVENT_BYTES + 1)
        yield outlive.Outcome(output="z" * 1_000_000)

    async with serving(database, large_one) as served, served.client() as http:
        read: list[Any] = []
        async with http.stream("POST", "/runs", json={"agent": "large"}, headers=STREAM) as response:
            run_id = response.headers["outlive-run"]
            async for line in lines(response):
                assert len(line) < LINE
                if line.startswith("data: "):
                    read.append(json.loads(line.removeprefix("data: ")))
        whole = []
        for chunk in [
            one["data"] for one in read if not (isinstance(one["data"], dict) and "state" in one["data"])
        ]:
            if isinstance(chunk, dict) and "ref" in chunk:
                fetched = (await http.get(chunk["ref"])).json()["data"]
                assert chunk["bytes"] == len(json.dumps(fetched))
                chunk = fetched  # noqa: PLW2901
            whole.append(chunk)
        run = await served.ended(run_id)
    texts = [one for one in whole if isinstance(one, str)]
    assert [len(text) for text in texts] == list(sizes)
    placeholders = [one for one in whole if isinstance(one, dict) and one.get("$outlive") == "placeholder"]
    assert [str(large.MAX_EVENT_BYTES + 3) in one["why"] for one in placeholders] == [True]
    assert run["output"] == "z" * 1_000_000


# ------------------------------------------------------------ connections and locks


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Any:
    """A migrated database of this test's own."""
    dsn = postgres_server.create_database()
    runtime.migrate(dsn)
    yield dsn
    postgres_server.drop_database(dsn)


def _held(dsn: str) -> tuple[int, int, int]:
    """How many connections there are, how many idle in a transaction, and how many locks are waited for."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            """SELECT count(*) FILTER (WHERE backend_type = 'client backend'),
                count(*) FILTER (WHERE state LIKE 'idle in transaction%'),
                (SELECT count(*) FROM pg_locks WHERE locktype IN ('transactionid', 'tuple') AND NOT granted)
            FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        ).fetchone()
    assert row is not None
    return row


BODY = b'{"agent": "cancels"}'


@pytest.mark.invariant("I13")
async def test_S26_three_hundred_requests_that_are_cut_leave_no_connection_and_no_lock(postgres: str) -> None:
    chance = random.Random(26)
    asked = (
        b"GET /runs HTTP/1.1\r\nHost: x\r\n\r\n",
        b'POST /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 38\r\n\r\n{"agent": "cancels", "thread": "busy"}',
        b"POST /runs HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Length: 20\r\n\r\n" + BODY,
    )
    async with serving(postgres, middlewares=1, slots=8) as served:
        port = httpx.URL(served.url).port

        async def cut(request: bytes, after: float) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            with contextlib.suppress(TimeoutError, ConnectionError):
                await asyncio.wait_for(reader.read(-1), after)
            writer.transport.abort()

        for _ in range(20):
            await asyncio.gather(*(cut(chance.choice(asked), chance.uniform(0, 0.05)) for _ in range(15)))
        served.gate.set()
        async with asyncio.timeout(WITHIN):
            while await served.outlive.runs(state=outlive.State.RUNNING, limit=1):
                pass
            while await served.outlive.runs(state=outlive.State.QUEUED, limit=1):
                pass
        async with served.client() as http:
            assert (await http.get("/ready")).status_code == 200
        async with asyncio.timeout(WITHIN):
            while served.outlive.store._pool.lent:  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0)
        connections, idle_in_transaction, waiting = await asyncio.to_thread(_held, postgres)
        most = served.outlive.store._pool._pool.max_size  # type: ignore[attr-defined]
    assert connections <= most + 4  # the keeper's, the listener's and the token's are beside the pool's
    assert (idle_in_transaction, waiting) == (0, 0)


@pytest.mark.invariant("I13")
async def test_S26_a_hundred_idle_streams_hold_no_connection_of_the_pool(postgres: str) -> None:
    async with serving(postgres) as served, contextlib.AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=200)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=served.url, timeout=WITHIN, limits=limits)
        )
        run_id = (await http.post("/runs", json={"agent": "keeps"})).json()["run_id"]
        for _ in range(100):
            stream = http.stream("GET", f"/runs/{run_id}/events", headers=STREAM)
            await stack.enter_async_context(stream)
        assert len(served.outlive.presence._viewers) == 100
        answers = await asyncio.gather(*(http.get(f"/runs/{run_id}") for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        connections, idle_in_transaction, _ = await asyncio.to_thread(_held, postgres)
        most = served.outlive.store._pool._pool.max_size  # type: ignore[attr-defined]
        assert connections <= most + 4
        assert idle_in_transaction == 0


async def test_a_connection_that_died_while_nobody_used_it_costs_no_run(postgres: str) -> None:
    async with serving(postgres) as served, served.client() as http:
        run_id = (await http.post("/runs", json={"agent": "keeps"})).json()["run_id"]
        await asyncio.wait_for(served.begun.wait(), WITHIN)
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        served.gate.set()
        run = await served.ended(run_id)
    assert (run["state"], run["losses"]) == ("succeeded", 0)


async def test_a_service_whose_database_is_away_at_its_start_says_that_it_is_not_ready(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    served = outlive.Outlive(f"postgresql://postgres@127.0.0.1:{port}/none", [])
    app = fastapi.FastAPI()
    app.include_router(outlive.router(served))
    with pytest.raises(outlive.errors.StoreUnavailable):
        async with served:
            pass
    async with native_service.listening(app) as listens, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{listens}"
        assert (await http.get(f"{url}/ready")).status_code == 503
        assert (await http.post(f"{url}/runs", json={"agent": "keeps"})).status_code in (404, 503)


# ------------------------------------------------------------ middleware, late viewers, browsers


@pytest.mark.parametrize("middlewares", [0, 1, 2])
@pytest.mark.parametrize(("agent", "state"), [("keeps", "succeeded"), ("cancels", "stopped")])
async def test_middleware_changes_nothing_of_what_a_leaving_client_means(
    database: str, agent: str, state: str, middlewares: int
) -> None:
    async with serving(database, middlewares=middlewares) as served:
        async with (
            served.client() as http,
            http.stream("POST", "/runs", json={"agent": agent}, headers=STREAM) as response,
        ):
            await asyncio.wait_for(served.begun.wait(), WITHIN)
        if state == "succeeded":
            served.gate.set()
        run = await served.ended(response.headers["outlive-run"])
    assert (run["state"], run["reason"]) == (state, "disconnect" if state == "stopped" else None)


@pytest.mark.parametrize("middlewares", [0, 1, 2])
async def test_a_background_task_runs_behind_a_whole_stream_and_not_behind_a_cut_one(
    middlewares: int,
) -> None:
    ran, go = list[str](), asyncio.Event()
    app = fastapi.FastAPI()
    for _ in range(middlewares):
        app.add_middleware(BaseHTTPMiddleware, dispatch=_pass_on)
    closed = asyncio.Queue[sse.Close]()

    @app.get("/{name}")
    async def stream(name: str) -> Any:
        async def frames() -> AsyncGenerator[bytes, None]:
            yield sse.frame(data="1")
            if name == "cut":
                await go.wait()
            yield sse.frame(data="2")

        async def done() -> None:
            ran.append(name)

        return sse.EventStream(frames(), background=BackgroundTask(done), on_close=closed.put)

    async with native_service.listening(app) as port, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}"
        assert (await http.get(f"{url}/whole")).text.count("data:") == 2
        assert await asyncio.wait_for(closed.get(), WITHIN) is sse.Close.COMPLETE
        async with http.stream("GET", f"{url}/cut") as response:
            await anext(response.aiter_lines())
        left = await asyncio.wait_for(closed.get(), WITHIN)
        go.set()
    assert left in (sse.Close.DISCONNECT, sse.Close.CANCELLED)
    assert ran == ["whole"]


async def test_a_viewer_who_comes_long_after_the_last_one_left_gets_everything(database: str) -> None:
    async with serving(database) as served, served.client() as http:
        async with http.stream("POST", "/runs", json={"agent": "keeps"}, headers=STREAM) as response:
            await asyncio.wait_for(served.begun.wait(), WITHIN)
        run_id = response.headers["outlive-run"]
        await served.outlive.presence.close()  # nobody is remembered here any more
        async with http.stream("GET", f"/runs/{run_id}/events", headers=STREAM) as response:
            assert response.status_code == 200
            served.gate.set()
            seen = [line async for line in lines(response) if line.startswith("event: ")]
    assert seen == ["event: attempt", "event: chunk", "event: chunk", "event: end"]


async def test_a_browsers_six_connections_are_enough_for_any_number_of_runs_of_a_thread(
    database: str, through: str
) -> None:
    """A page that follows a thread needs one connection, however many of its runs are under way."""
    async with serving(database) as served:
        limits = httpx.Limits(max_connections=6)
        async with httpx.AsyncClient(base_url=served.url, timeout=WITHIN, limits=limits) as browser:
            body = {"agent": "keeps", "thread": through}
            made = [(await browser.post("/runs", json=body)).json()["run_id"] for _ in range(10)]
            async with browser.stream("GET", f"/threads/{through}/events", headers=STREAM) as response:
                served.gate.set()
                ends = 0
                async for line in lines(response):
                    ends += line == "event: end"
                    if ends == len(made):
                        break
                assert (await browser.get(f"/runs/{made[-1]}")).json()["state"] == "succeeded"
