"""The same behaviour under every ASGI server: real processes, real sockets, clients that leave."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import collections
import contextlib
import dataclasses
import inspect
import json
import os
import pathlib
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import httpx
import httpx_sse
import pytest
import sse_clients

from outlive.http import sse

GRACE = 3  # seconds that a server gives its requests at the end
BOUND = 15.0  # seconds; only a failure waits for it
HERE = pathlib.Path(__file__).parent
APP = "sse_app:app"
SERVERS = {
    "uvicorn-h11": [
        "uvicorn",
        "--http",
        "h11",
        "--fd",
        "{fd}",
        "--timeout-graceful-shutdown",
        "{grace}",
        APP,
    ],
    "uvicorn-httptools": [
        "uvicorn",
        "--http",
        "httptools",
        "--fd",
        "{fd}",
        "--timeout-graceful-shutdown",
        "{grace}",
        APP,
    ],
    "granian": [
        "granian",
        "--interface",
        "asgi",
        "--port",
        "{port}",
        "--workers-kill-timeout",
        "{grace}",
        APP,
    ],
    "hypercorn": ["hypercorn", "--workers", "0", "--bind", "fd://{fd}", "--graceful-timeout", "{grace}", APP],
    # Left alone, it cancels a request three seconds after its client left. What ends here sooner, we ended.
    "gunicorn": [
        *("gunicorn", "-k", "asgi", "--bind", "fd://{fd}", "--graceful-timeout", "{grace}"),
        *("--asgi-disconnect-grace-period", "120", "--no-control-socket", APP),
    ],
}
# Some releases of Python 3.12 and 3.13 lack two things in the call by which gunicorn writes: flow control and
# a look at whether the connection is lost already. A busy stream then grows without end, or breaks the loop.
WRITELINES = inspect.getsource(
    asyncio.selector_events._SelectorSocketTransport.writelines  # type: ignore[attr-defined]
)
WRITELINES_WORK = sys.version_info < (3, 12) or all(
    part in WRITELINES for part in ("_maybe_pause_protocol", "_conn_lost")
)
FAULTS = re.compile(
    r"Traceback|never retrieved|ignored GeneratorExit|destroyed but|never awaited|Exception in ASGI"
)


@dataclasses.dataclass
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]
    evidence: int
    log: pathlib.Path
    rest: bytes = b""
    seen: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def wait(self, what: str, times: int = 1) -> None:
        """Until the application told it this often."""
        deadline = time.monotonic() + BOUND
        while self.seen[what] < times:
            ready, _, _ = select.select([self.evidence], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                pytest.fail(f"{self.name}: no {what!r}; told {dict(self.seen)}\n{self.log.read_text()}")
            *lines, self.rest = (self.rest + os.read(self.evidence, 65_536)).split(b"\n")
            self.seen.update(line.decode() for line in lines)

    def connect(self) -> socket.socket:
        deadline = time.monotonic() + BOUND
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=BOUND)
            except ConnectionRefusedError:  # only granian opens its own socket
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                threading.Event().wait(0.02)

    def ask(self, path: str, method: str = "GET", headers: str = "") -> socket.socket:
        connection = self.connect()
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        return connection

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    read = b""
    while wanted not in read:
        piece = connection.recv(65_536)
        assert piece, f"the connection ended before {wanted!r}: {read!r}"
        read += piece
    return read


def read_to_end(connection: socket.socket) -> bytes:
    read = b""
    while piece := connection.recv(65_536):
        read += piece
    return read


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def needs_backpressure(server: Server) -> None:
    if server.name == "gunicorn" and not WRITELINES_WORK:
        pytest.skip("this release of Python has a writelines() that neither waits nor stops")


@contextlib.contextmanager
def running(name: str) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.mkfifo(directory / "evidence")
        evidence = os.open(directory / "evidence", os.O_RDWR)  # also for writing, so that it has no end
        stack.callback(os.close, evidence)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        port, fd = listener.getsockname()[1], listener.fileno()
        if name == "granian":
            listener.close()
        command = [part.format(port=port, fd=fd, grace=GRACE) for part in SERVERS[name]]
        log = directory / "log"
        environment = os.environ | {
            "SSE_EVIDENCE": str(directory / "evidence"),
            "SSE_PAYLOADS": json.dumps(sse_clients.PAYLOADS),
            "PYTHONPATH": str(HERE),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                pass_fds=[] if name == "granian" else [fd],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,
            )
        server = Server(name=name, port=port, process=process, evidence=evidence, log=log)
        stack.callback(end, process)
        server.wait("started -")
        yield server


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(BOUND)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(BOUND)


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(request.param) as started:
        yield started
        end(started.process)
        assert FAULTS.findall(started.log.read_text()) == []


@pytest.fixture
def tag(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)


@pytest.fixture(params=["", "/wrapped"], ids=["bare", "middleware"])
def prefix(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


@pytest.mark.parametrize("kind", ["silent", "busy"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["FIN", "RST"])
def test_a_client_that_leaves_has_its_source_closed(
    server: Server, prefix: str, kind: str, leave: object, tag: str
) -> None:
    if kind == "busy":
        needs_backpressure(server)
    connection = server.ask(f"{prefix}/stream/{kind}/{tag}")
    read_until(connection, b"id: r:1\n\n")
    (reset if leave is reset else socket.socket.close)(connection)
    server.wait(f"disconnect {tag}")
    assert server.seen[f"closed {tag}"] == 1
    assert server.seen[f"background {tag}"] == 0


def test_a_client_that_leaves_before_the_answer_leaves_nothing_open(
    server: Server, prefix: str, tag: str
) -> None:
    for _ in range(20):
        reset(server.ask(f"{prefix}/stream/silent/{tag}"))
    httpx.get(server.url("/release/marker"))
    server.wait("released marker", server.seen["released marker"] + 1)  # whatever began, began before this
    server.wait(f"closed {tag}", server.seen[f"began {tag}"])


def test_a_connection_serves_the_next_request_after_a_stream(server: Server, prefix: str, tag: str) -> None:
    with httpx.Client() as client:
        for number in range(1, 4):
            answer = client.get(server.url(f"{prefix}/stream/payloads/{tag}"))
            assert answer.status_code == 200
            server.wait(f"complete {tag}", number)
            server.wait(f"background {tag}", number)


def test_S16_every_payload_arrives_exactly(server: Server, prefix: str, tag: str) -> None:
    with httpx.Client() as client:
        url = server.url(f"{prefix}/stream/payloads/{tag}")
        with httpx_sse.connect_sse(client, "GET", url) as source:
            events = list(source.iter_sse())
            assert source.response.headers["cache-control"] == "no-store, no-transform"
            assert source.response.headers["x-accel-buffering"] == "no"
            assert "content-length" not in source.response.headers
        raw = client.post(url).content
    expected = [(payload, f"r:{number}") for number, payload in enumerate(sse_clients.PAYLOADS)]
    assert [(json.loads(event.data), event.id) for event in events] == expected
    assert [(data, cursor) for data, _, cursor in sse_clients.read_by_langgraph_sdk(raw)] == expected


def test_heartbeats_are_silent_and_leave_the_source_waiting(server: Server, prefix: str, tag: str) -> None:
    collected = b""
    with (
        httpx.Client() as client,
        httpx.Client() as other,
        client.stream("GET", server.url(f"{prefix}/stream/silent/{tag}?heartbeat=0.02")) as answer,
    ):
        for piece in answer.iter_bytes():
            collected += piece
            if collected.endswith(sse.HEARTBEAT * 3):
                other.get(server.url(f"{prefix}/release/{tag}"))
    assert [event.data for event in sse_clients.read_by_httpx_sse(collected)] == ["1", "2"]
    server.wait(f"complete {tag}")


def test_HEAD_starts_nothing(server: Server, prefix: str, tag: str) -> None:
    answer = httpx.head(server.url(f"{prefix}/stream/silent/{tag}"))
    assert (answer.status_code, answer.content) == (200, b"")
    server.wait(f"head {tag}")
    assert server.seen[f"began {tag}"] == 0
    assert server.seen[f"background {tag}"] == 0


def test_a_reader_that_takes_nothing_is_cut_off(server: Server, tag: str) -> None:
    needs_backpressure(server)
    connection = server.ask(f"/stream/busy/{tag}?send_timeout=0.2")
    server.wait(f"slow {tag}")
    assert server.seen[f"closed {tag}"] == 1
    read = read_to_end(connection)
    assert b"event: error" not in read
    assert not read.endswith(b"0\r\n\r\n")
    connection.close()


def test_a_stream_rotates_with_a_hint(server: Server, prefix: str, tag: str) -> None:
    answer = httpx.get(server.url(f"{prefix}/stream/silent/{tag}?rotate_after=0.05"))
    assert answer.content == b"data: 1\nid: r:1\n\nretry: 250\n"
    server.wait(f"rotate {tag}")
    assert server.seen[f"closed {tag}"] == 1


@pytest.mark.parametrize("name", list(SERVERS))
def test_S17_an_error_is_a_status_before_the_first_byte_and_an_event_after_it(name: str) -> None:
    with running(name) as server:
        for prefix in ("", "/wrapped"):
            answer = httpx.get(server.url(f"{prefix}/stream/refused/a?first_frame_timeout=5"))
            assert answer.status_code == 500
            assert "secret" not in answer.text
            answer = httpx.get(server.url(f"{prefix}/stream/failing/a"))
            assert answer.status_code == 200
            _, event = sse_clients.read_by_httpx_sse(answer.content)
            assert event.event == "error"
            assert "secret" not in answer.text
        server.wait("error a", 4)
        assert server.seen["closed a"] == 4
        assert server.seen["background a"] == 0


@pytest.mark.parametrize("name", list(SERVERS))
def test_S09_a_signal_ends_20_idle_streams_and_a_stuck_one_and_then_the_server(name: str) -> None:
    with running(name) as server, contextlib.ExitStack() as stack:
        idle = [server.ask(f"{'/wrapped' * (n % 2)}/stream/silent/idle") for n in range(20)]
        stuck = server.ask("/stream/busy/stuck")
        for connection in (*idle, stuck):
            stack.callback(connection.close)
        for connection in idle:
            read_until(connection, b"id: r:1\n\n")
        server.wait("began stuck")
        server.process.terminate()
        for connection in idle:
            read = read_to_end(connection)
            assert b"retry: 250\n" in read
            assert read.endswith(b"0\r\n\r\n")
        server.wait("shutdown idle", 20)
        server.wait("shutdown stuck")
        assert (server.seen["closed idle"], server.seen["closed stuck"]) == (20, 1)
        if name == "hypercorn":
            stuck.close()  # from Python 3.12 on it waits for every socket, whatever its time-out says
        # uvicorn raises the signal again once it is done.
        assert server.process.wait(BOUND) in (0, -signal.SIGTERM)
