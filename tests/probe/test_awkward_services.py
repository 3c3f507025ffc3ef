"""Services that do not start, do not answer, or answer nonsense; and a probe that is ended in the middle."""

from __future__ import annotations

import json
import os
import pathlib
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from outlive import probe
from outlive.probe import pieces, target
from outlive.probe.client import Call, Client
from probe import plans

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The awkward service, running already: no recorder."""
    with target.opened(probe.Target(app="awkward:app", directory=plans.SERVICES)) as service:
        yield service.url


def _report(url: str, path: str, *scenarios: str, patience: float = 1.0) -> probe.Report:
    plan = probe.Plan(
        target=probe.Target(url=url),
        request=probe.Request(method="GET", path=path),
        scenarios=probe.scenarios(scenarios or ("stay", "leave")),
        patience=patience,
        quiet=0.05,
    )
    report = probe.run(plan)
    probe.render(report)
    json.dumps(report.as_json())
    if report.unusable is not None:
        assert report.exit_code(plan) == 3
        assert len(report.findings) == 1  # nothing else is worth its time
    return report


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/failing", "GET /failing is refused with 500"),
        ("/nowhere", "GET /nowhere is refused with 404: Not Found"),
        ("/moved", "redirected with 307 to /elsewhere"),
        ("/breaking", "the answer broke off although the client stayed"),
        ("/silent", "GET /silent: no answer within 1 s."),
    ],
)
def test_a_request_that_gets_no_whole_answer_makes_the_probe_useless(url: str, path: str, words: str) -> None:
    assert words in (_report(url, path).unusable or "")


def test_the_servers_last_words_say_why_a_started_service_fails() -> None:
    plan = plans.counting("/failing", "stay", "leave", app="awkward:app", quiet=0.1)
    report = probe.run(plan)
    assert "RuntimeError: no luck [red]today[/red]" in (report.unusable or "")
    assert report.exit_code(plan) == 3


def test_a_stream_without_an_end_is_stopped_by_leaving() -> None:
    report = probe.run(
        plans.counting("/endless", "stay", "leave", app="awkward:app", patience=1.0, quiet=0.3)
    )
    stayed, left = report.as_json()["scenarios"]
    assert stayed["clients"][0]["count"] > 2
    assert left["outcome"] == "stops"
    assert "without an end" in " ".join(left["verdict"])


def test_an_event_without_an_end_is_read_in_bounded_memory(url: str) -> None:
    stayed = _report(url, "/unseparated", "stay").findings[0].trace.views[0]
    assert stayed.how == "left by fin"
    assert stayed.status == 200


def test_bytes_that_are_no_text_are_chunks_and_can_be_shown(url: str) -> None:
    stayed, left = _report(url, "/binary").as_json()["scenarios"]
    assert stayed["clients"][0]["ended"] == "complete"
    assert stayed["clients"][0]["count"] >= 5
    assert left["clients"][0]["count"] == 2


def test_a_huge_chunk_is_read_a_part_at_a_time(url: str) -> None:
    view = _report(url, "/huge", "stay").findings[0].trace.views[0]
    assert (view.how, view.count) == ("complete", 8)
    assert all(len(text) <= 200 for _, text in view.chunks)


def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(probe.PlanError, match=r"takes no connection: .*refused"):
        _report("http://127.0.0.1:1", "/")
    with pytest.raises(probe.PlanError, match="begins with http"):
        probe.Target(url="ftp://127.0.0.1")


def _said(words: bytes) -> Iterator[str]:
    """The address of somebody who answers every connection with these words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(words)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.fixture
def chatty() -> Iterator[str]:
    """Something that is no HTTP server."""
    yield from _said(b"SSH-2.0-nonsense\r\n\r\n")


@pytest.fixture
def early() -> Iterator[str]:
    """A server that says something before its answer, which has no body."""
    yield from _said(
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\nserver: s\r\n\r\n"
    )


def test_a_port_that_speaks_no_http_is_told_as_such(chatty: str) -> None:
    assert "no HTTP: 'SSH-2.0-nonsense'" in (_report(f"http://{chatty}", "/").unusable or "")
    with pytest.raises(probe.PlanError, match=r"takes no connection: .*SSL"):
        _report(f"https://{chatty}", "/")


def test_hints_come_before_the_answer_and_no_content_is_none(early: str) -> None:
    report = _report(f"http://{early}", "/", "stay")
    view = report.findings[0].trace.views[0]
    assert (view.status, view.count, view.how) == (204, 0, "complete")
    assert report.server == "running service (s)"


def test_a_tls_service_with_a_certificate_of_its_own(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    options = ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    try:
        subprocess.run([*command, *options], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("openssl is not here to make a certificate")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_tls, args=(listener, served))
        thread.start()
        at = f"https://localhost:{listener.getsockname()[1]}"
        with pytest.raises(probe.PlanError, match="SSL_CERT_FILE"):
            _report(at, "/", "stay")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert _report(at, "/", "stay").findings[0].trace.views[0].chunks[0][1] == "hello"
        thread.join(10)


def _serve_tls(listener: socket.socket, served: ssl.SSLContext) -> None:
    """Two connections: one by a client that does not trust us, and one that gets an answer."""
    for _ in range(2):
        connection, _ = listener.accept()
        try:
            with served.wrap_socket(connection, server_side=True) as secured:
                secured.recv(65536)
                secured.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        except OSError:
            connection.close()


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("awkward:nothing", "has no attribute 'nothing'"),
        ("awkward:number", "awkward:number is no ASGI application, but of type int"),
        ("stuck:app", "it did not serve within 1 s and wrote nothing"),
    ],
)
def test_an_application_that_does_not_start_is_told_with_the_servers_words(app: str, words: str) -> None:
    plan = probe.Plan(target=probe.Target(app=app, directory=plans.SERVICES, start_within=1.0))
    if app != "stuck:app":
        plan = probe.Plan(target=probe.Target(app=app, directory=plans.SERVICES))
    with pytest.raises(probe.PlanError, match=words):
        probe.run(plan)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(probe.PlanError, match="cannot be started in"):
        probe.run(probe.Plan(target=probe.Target(app="x:app", directory=tmp_path / "nowhere")))


def test_a_port_that_somebody_else_took_is_not_mistaken_for_the_service(monkeypatch: Any) -> None:
    free = target._free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(target, "_free_port", lambda: next(ports, None) or free())
        with target.opened(probe.Target(app="counting:app", directory=plans.SERVICES)) as service:
            assert service.url != f"http://127.0.0.1:{taken.getsockname()[1]}"
            client = Client(Call(url=f"{service.url}/plain", method="GET", headers={}, body=b""), "c")
            client.send()
            assert client.read(seconds=20) is False
            client.close()
            assert client.view.status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_probe_that_is_ended_in_the_middle_leaves_no_process(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    pidfile = tmp_path / "pid"
    os.mkfifo(pidfile)  # reading it waits for the service
    arguments = ["probe", "awkward:app", "--directory", str(plans.SERVICES), "--get", "/endless"]
    arguments += ["--env", f"PIDFILE={pidfile}", "--patience", "100"]
    command = [sys.executable, "-c", "from outlive.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prober:
        service = os.pidfd_open(int(pidfile.read_text(encoding="utf-8")))
        try:
            prober.send_signal(number)
            assert prober.wait(30) in {130, 1, -number}
            assert select.select([service], [], [], 30)[0], "the service still runs"
        finally:
            os.close(service)


@pytest.mark.parametrize(
    ("content_type", "body", "chunks"),
    [
        ("text/event-stream", "data: 1\r\n\r\n: beat\r\n\r\ndata: 2\n\ndata: cut", ["data: 1", "data: 2"]),
        ("text/event-stream", "data: 1\r\rid: 7\rdata: 2\r\r", ["data: 1", "id: 7\ndata: 2"]),
        ("application/x-ndjson", '{"a": 1}\n\n{"b": 2}', ['{"a": 1}', '{"b": 2}']),
        ("application/json", '{"a": "é"}', ['{"a": "é"}']),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_chunks_are_the_same_however_bytes_arrive(
    content_type: str, body: str, chunks: list[str], size: int
) -> None:
    raw = body.encode()
    arriving = (raw[at : at + size] for at in range(0, len(raw), size))
    assert list(pieces.split(arriving, content_type)) == chunks
