"""The router in an application of its own, behind a real server on a real socket, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import fastapi
import httpx
import httpx_sse

import outlive
from outlive import agents, policy
from outlive.testing.asgi import WITHIN as WITHIN
from outlive.testing.asgi import listening as listening

STREAM = {"Accept": "text/event-stream"}
SECRET = "postgresql://user:secret@db.internal/outlive"


class Received(NamedTuple):
    """One server-sent event."""

    event: str
    id: str
    data: str


Events = AsyncGenerator[Received, None]


@dataclass(kw_only=True)
class Service:
    """What a test holds of a running service: a client of one tenant, and the gates of that tenant's runs."""

    outlive: outlive.Outlive
    port: int
    http: httpx.AsyncClient
    tenant: str
    gates: defaultdict[str, asyncio.Event]

    def gate(self, name: str) -> asyncio.Event:
        """The gate at which runs with the input ``name`` wait."""
        return self.gates[f"{self.tenant}/{name}"]

    @contextlib.asynccontextmanager
    async def as_tenant(self, name: str) -> AsyncIterator[Service]:
        """The same service for another tenant; at the end its gates are open."""
        headers = {"Tenant": name}
        url = f"http://127.0.0.1:{self.port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=WITHIN) as client:
            yield dataclasses.replace(self, http=client, tenant=name)
        for gate in [gate for key, gate in self.gates.items() if key.startswith(f"{name}/")]:
            gate.set()

    async def create(self, agent: str = "echo", input: Any = None, **more: Any) -> dict[str, Any]:  # noqa: A002
        """Make a run and return its record."""
        headers = {"Idempotency-Key": more.pop("key")} if "key" in more else {}
        answer = await self.http.post("/runs", json={"agent": agent, "input": input, **more}, headers=headers)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def ended(self, agent: str = "echo", input: Any = None, **more: Any) -> dict[str, Any]:  # noqa: A002
        """Make a run, wait for its end, and return its record."""
        made = await self.create(agent, input, **more)
        await self.follow(f"/runs/{made['run_id']}/events")
        await self.leavings(made["run_id"])
        record: dict[str, Any] = (await self.http.get(f"/runs/{made['run_id']}")).json()
        return record

    async def leavings(self, run_id: str | None = None) -> None:
        """Wait until every viewer, or every one of this run, has left and is on record as gone.

        A client has the end of a stream before its server knows that it is over.
        """
        viewers = self.outlive.presence._viewers
        async with asyncio.timeout(WITHIN):
            while any(run_id in (None, one.run_id) for one in viewers.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
        while tasks := set(self.outlive.presence._tasks):
            await asyncio.wait(tasks, timeout=WITHIN)

    async def follow(self, path: str, **more: Any) -> list[Received]:
        """Every event of a stream, up to its end."""
        async with self.stream(path, **more) as (_, events):
            return [event async for event in events]

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, method: str = "GET", **more: Any
    ) -> AsyncIterator[tuple[httpx.Response, Events]]:
        """An open stream: its response, and its events as they come."""
        headers = STREAM | more.pop("headers", {})
        async with (
            asyncio.timeout(WITHIN),
            self.http.stream(method, path, headers=headers, **more) as response,
            contextlib.aclosing(_events(response)) as events,
        ):
            yield response, events

    async def raw(self, line: bytes, body: bytes = b"", *headers: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send what no client library would, and read the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            lines = (line + b" HTTP/1.1", b"Host: x", b"Tenant: " + self.tenant.encode(), *headers)
            writer.write(b"\r\n".join((*lines, b"", body)))
            async with asyncio.timeout(WITHIN):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                got = {name.lower(): text for name, _, text in (line.partition(": ") for line in head[1:])}
                length = 0 if line.startswith(b"HEAD ") else int(got.get("content-length", "0"))
                read = await reader.readexactly(length)
            return int(head[0].split()[1]), got, read
        finally:
            writer.close()


async def _events(response: httpx.Response) -> Events:
    assert response.status_code == 200, (await response.aread()).decode()
    async for event in httpx_sse.EventSource(response).aiter_sse():
        yield Received(event=event.event, id=event.id, data=event.data)


async def tenant(request: fastapi.Request) -> str | None:
    """Believe whoever says who it is: how to know better is the application's own affair."""
    return request.headers.get("Tenant")


def _agents(gates: defaultdict[str, asyncio.Event]) -> list[agents.Agent]:
    @outlive.agent("echo", policy=policy.job())
    async def echo(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield context.input
        yield outlive.Outcome(output=context.input)

    @outlive.agent("count", policy=policy.job())
    async def count(context: outlive.Context) -> AsyncGenerator[Any, None]:
        for number in range(context.input):
            yield number

    @outlive.agent("gated", policy=policy.job())
    async def gated(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "before"
        await gates[f"{context.run.tenant}/{context.input}"].wait()
        yield "after"

    @outlive.agent("chat", policy=policy.chat(grace=0))
    async def chat(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield "before"
        await gates[f"{context.run.tenant}/{context.input}"].wait()
        yield "after"

    @outlive.agent("failing", policy=policy.job())
    async def failing(_: outlive.Context) -> AsyncGenerator[Any, None]:
        yield 1
        raise LookupError(SECRET)

    return [echo, count, gated, chat, failing]


@contextlib.asynccontextmanager
async def serving(database: str, **options: Any) -> AsyncIterator[Service]:
    """A service over ``database``; options are the router's and the runtime's.  Its end leaves nothing."""
    routed = {name: options.pop(name) for name in ("body_limit", "rotate", "heartbeat") if name in options}
    prefix = options.pop("prefix", "")
    gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
    served = outlive.Outlive(database, _agents(gates), **options)
    app = fastapi.FastAPI(lifespan=served.lifespan)
    app.include_router(outlive.router(served, tenant=tenant, **routed), prefix=prefix)
    async with listening(app) as port, httpx.AsyncClient() as nobody:
        whole = Service(outlive=served, port=port, http=nobody, tenant="", gates=gates)
        async with whole.as_tenant("ann") as service:
            yield service
    assert served.presence._viewers == {}
    assert served._worker.driving == {}
    assert served.store.hub._waiters == {}


def data(events: list[Received], kind: str = "chunk") -> list[Any]:
    """The data of the events of one kind."""
    return [json.loads(event.data)["data"] for event in events if event.event == kind]


def seqs(events: list[Received]) -> list[int]:
    """The sequence numbers of events, from their ids."""
    return [int(event.id.rpartition(":")[2]) for event in events]


INTERNAL = re.compile(
    r"Traceback|File \"|site-packages|/src/|\.py\b|sqlite|postgres|psycopg|pydantic|NewRun"
    r"|SELECT |INSERT |UPDATE |secret|0x[0-9a-f]{6}",
    re.IGNORECASE,
)


def problem(status: int, headers: Any, body: bytes) -> dict[str, Any]:
    """The parsed body of an error, after everything that holds for each of them."""
    assert 400 <= status < 500 or status == 503, (status, body)
    assert headers["content-type"] == "application/problem+json"
    body.decode("ascii")
    found: dict[str, Any] = json.loads(body)
    assert found["status"] == status
    assert re.fullmatch("[a-z_]+", found["code"])
    assert found["type"] == f"urn:outlive:{found['code']}"
    assert found["title"]
    assert found["hint"]
    assert len(body) < 4000
    assert not INTERNAL.search(found["title"] + found["hint"]), found
    return found


def refused(answer: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    found = problem(answer.status_code, answer.headers, answer.content)
    assert (found["status"], found["code"], found.get("field")) == (status, code, field), found
    return found


async def nothing_was_made(service: Service) -> None:
    assert (await service.http.get("/runs")).json()["runs"] == []
