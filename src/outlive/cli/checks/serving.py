"""What stands between an agent and its viewers: the ASGI server, and whatever proxies are in front of it."""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from outlive.cli import checks
from outlive.probe import servers
from outlive.probe.plan import Server

APPLICATION = "outlive.cli.checks.leaving:app"
STARTS_WITHIN = 15.0
HEARS_WITHIN = 4.0
APART = 0.4
"""Seconds between the first and the last piece of a drip that nobody held back; it takes twice as long."""


def server(which: Server) -> checks.Finding:
    """Start an ASGI server, leave in the middle of a stream, and see what it does."""
    name = f"ASGI server {which.value}"
    if not servers.installed(which):
        return checks.skip(name, "Not installed.")
    version = importlib.metadata.version(which.value)
    try:
        with _running(which) as port:
            return _judged(name, version, *_leave(port))
    except OSError as failure:
        return checks.fail(name, f"{version} does not serve here: {failure}.", "Start it by hand to see why.")


def _judged(name: str, version: str, left: float, seen: dict[str, Any]) -> checks.Finding:
    announced = f"{version} announces ASGI {seen.get('spec_version', '?')}"
    told = seen.get("told_at")
    cancelled = seen.get("cancelled_at")
    if told is None and cancelled is None:
        found = f"{announced} and did not say within {HEARS_WITHIN:g} s that the client had left."
        return checks.fail(name, found, "Use another server: nobody's leaving would be noticed.")
    parts = [f"says so after {max(0.0, told - left):.1f} s" if told else "does not say so"]
    parts += [
        f"cancels the request after {max(0.0, cancelled - left):.1f} s" if cancelled else "cancels nothing"
    ]
    return checks.ok(name, f"{announced}; when a client leaves it {' and '.join(parts)}.")


@contextlib.contextmanager
def _running(which: Server) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [sys.executable, *servers.command(which, APPLICATION, port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _await_start(process, port)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a group of its own: some servers have workers
        process.wait()


def _await_start(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until:
        if process.poll() is not None:
            raise OSError(f"it ended with exit code {process.returncode}")
        with contextlib.suppress(OSError):
            _ask(port)
            return
        time.sleep(0.05)
    raise OSError(f"it did not begin within {STARTS_WITHIN:g} s")


def _ask(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    with contextlib.closing(connection):
        connection.request("GET", "/seen")
        told: dict[str, Any] = json.loads(connection.getresponse().read())
        return told


def _leave(port: int) -> tuple[float, dict[str, Any]]:
    with socket.create_connection(("127.0.0.1", port), timeout=HEARS_WITHIN) as client:
        client.sendall(b"GET /leave HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while b":\n\n" not in received:
            if not (piece := client.recv(4096)):
                raise OSError("it closed the stream")
            received += piece
    left = time.time()
    until = time.monotonic() + HEARS_WITHIN
    seen = _ask(port)
    while time.monotonic() < until and "cancelled_at" not in seen:
        time.sleep(0.1)
        seen = _ask(port)
    return left, seen


# ------------------------------------------------------------ proxies


def proxy(url: str | None) -> checks.Finding:
    """Ask a running service, through whatever is in front of it, for something that comes in pieces."""
    if url is None:
        return checks.skip("proxy", "Give --url with the address that clients use.")
    try:
        first, last, headers = _drip(url)
    except (OSError, http.client.HTTPException, ValueError) as failure:
        return checks.fail(
            "proxy", f"{url} cannot be asked: {failure}.", "Give the address of a running service."
        )
    if "content-encoding" in headers:
        do = "Do not compress text/event-stream: events wait until enough of them are there."
        return checks.warn("proxy", f"The stream is compressed ({headers['content-encoding']}).", do)
    if last - first < APART:
        do = (
            "Let it speak HTTP/1.1 to what is behind it and buffer nothing; nginx: proxy_http_version 1.1;"
            ' proxy_set_header Connection ""; proxy_buffering off;'
        )
        return checks.fail("proxy", "Something holds a stream back until it has ended.", do)
    return checks.ok("proxy", f"Pieces arrive as they are sent, the first after {first * 1000:.0f} ms.")


def _drip(url: str) -> tuple[float, float, dict[str, str]]:
    """Return when the first and when the last piece came, in seconds after the request, and the headers."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=10)
    with contextlib.closing(connection):
        began = time.monotonic()
        path = f"{parts.path.rstrip('/')}/health/drip"
        connection.request(
            "GET", path, headers={"Accept-Encoding": "gzip, br", "Accept": "text/event-stream"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"{path} answers {answer.status}")
        arrived = []
        while answer.read1(65_536):
            arrived.append(time.monotonic() - began)
        if not arrived:
            raise ValueError("the stream was empty")
        return arrived[0], arrived[-1], {name.lower(): text for name, text in answer.getheaders()}
