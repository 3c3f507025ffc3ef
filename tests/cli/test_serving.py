"""Servers and workers as processes of their own: what they serve, and how they end."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from cli import support

LISTENS = r"listening on (\S+)"
STREAM = {"Accept": "text/event-stream"}
DRAIN = 8.0


class Stream:
    """An open stream of events, read line by line."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200
        self._lines = response.iter_lines()

    def next(self, count: int) -> list[Event]:
        """The next so many events."""
        return list(itertools.islice(self._events(), count))

    def rest(self) -> list[Event]:
        """Every event up to the end of the run; anything else at the end is an error."""
        return list(self._events())

    def last_words(self) -> list[str]:
        """Every line up to the end of the body, which raises unless it is a proper one."""
        return list(self._lines)

    def _events(self) -> Iterator[Event]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if line:
                name, _, text = line.partition(": ")
                fields[name] = text
                continue
            seq = int(fields["id"].rpartition(":")[2])
            yield Event(seq=seq, kind=fields["event"], data=json.loads(fields["data"])["data"])
            fields = {}
        assert not fields


class Event(NamedTuple):
    """One of them."""

    seq: int
    kind: str
    data: Any


class Client:
    """A client of one server."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def create(self, agent: str, input: Any, **headers: str) -> dict[str, Any]:  # noqa: A002
        """Make a run, or find it."""
        answer = self.http.post("/runs", json={"agent": agent, "input": input}, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        made: dict[str, Any] = answer.json()
        return made

    @contextlib.contextmanager
    def follow(self, run_id: str, after: int = 0) -> Iterator[Stream]:
        """An open stream of a run's events."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": f"{run_id}:{after}"}
        with self.http.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
            yield Stream(response)


@contextlib.contextmanager
def serving(database: str, target: str, *options: str) -> Iterator[tuple[support.Process, Client]]:
    """A server while this lasts, and a client of it."""
    with (
        support.running("serve", target, "-d", database, "--port", "0", *options) as process,
        httpx.Client(base_url=process.says(LISTENS), timeout=support.WITHIN) as http,
    ):
        yield process, Client(http)


# ------------------------------------------------------------ what can be served


def test_a_compiled_graph_is_served_as_it_is_under_a_preset(sqlite_path: str) -> None:
    with serving(f"sqlite:///{sqlite_path}", "served:graph", "--policy", "chat") as (process, client):
        assert "on_disconnect=cancel" in process.says("agent graph: .*")
        asked = {"agent": "graph", "input": {"n": 1}, "thread": "t"}
        with client.http.stream("POST", "/runs", json=asked, headers=STREAM) as response:
            end = Stream(response).rest()[-1]
        assert (end.kind, end.data["state"]) == ("end", "succeeded")
        assert client.http.get("/threads/t").json()["runs"][0]["output"] == {"n": 2}
        for method, path, status, code in (
            ("GET", "/nonsense", 404, "not_found"),
            ("GET", "/runs/nobody", 404, "not_found"),
            ("DELETE", "/runs", 405, "method_not_allowed"),
        ):
            answer = client.http.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["content-type"] == "application/problem+json"
        assert "/runs/{run_id}/events" in client.http.get("/openapi.json").json()["paths"]
        process.signal(signal.SIGINT)
        assert process.ended() == 0


def test_a_server_without_slots_leaves_the_work_to_a_worker(here: support.Here, database: str) -> None:
    with serving(database, "served:plain", "--policy", "job", "--slots", "0") as (server, client):
        made = client.create("plain", "hello", **{"Idempotency-Key": "k"})
        assert made["state"] == "queued"
        with (
            client.follow(made["run_id"]) as stream,
            support.running("worker", "served:plain", "--policy", "job", "-d", database) as worker,
        ):
            worker.says("working on plain")
            followed = here("runs", "follow", made["run_id"], "--json", "-d", database)
            assert followed.code == 0
            seen = stream.rest()
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        assert [json.loads(line)["data"] for line in followed.out.splitlines()] == [
            event.data for event in seen
        ]
        assert [event.data for event in seen if event.kind == "chunk"] == ["hello"]
        again = client.create("plain", "hello", **{"Idempotency-Key": "k"})
        assert (again["run_id"], again["admitted"]) == (made["run_id"], "replayed")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


# ------------------------------------------------------------ the end


@pytest.mark.invariant("I12")
def test_S09_a_signal_ends_every_stream_at_once_and_another_process_goes_on(
    here: support.Here, database: str, gate: support.Gate
) -> None:
    with (
        contextlib.ExitStack() as viewers,
        serving(database, "served:both", "--drain", str(DRAIN)) as (first, client),
    ):
        runs = [client.create("gated", gate.port)["run_id"] for _ in range(3)]
        flood = client.create("flood", 60)["run_id"]
        gate.arrive(3)
        idle = [viewers.enter_context(client.follow(runs[number % 3])) for number in range(20)]
        for stream in idle:
            assert [event.data for event in stream.next(2)] == [{"epoch": 1}, ["before", 1]]
        with client.follow(flood) as reading:
            reading.next(61)  # all that it has
        viewers.enter_context(_reading_nothing(client, flood))
        follower = viewers.enter_context(support.running("runs", "follow", runs[0], "-d", database))
        follower.says(r'chunk \["before",1\]')
        first.signal(signal.SIGTERM)
        for stream in idle:
            assert stream.last_words() == ["retry: 250"]
        assert gate.left()
        assert first.ended(within=DRAIN) == 0
        assert "Traceback" not in first.said
        listed = json.loads(here("runs", "list", "--json", "-d", database).out)
        assert {run["run_id"]: (run["state"], run["losses"]) for run in listed} == dict.fromkeys(
            [*runs, flood], ("queued", 0)
        )
        with serving(database, "served:both") as (second, other):
            _go_on(other, gate, runs)
            assert here("runs", "stop", flood, "-d", database).code == 0
            second.signal(signal.SIGTERM)
            assert second.ended() == 0
        assert follower.ended() == 0
        assert follower.said.count(" chunk ") == 3
        assert '"state":"succeeded"' in follower.said.splitlines()[-1]


@contextlib.contextmanager
def _reading_nothing(client: Client, run_id: str) -> Iterator[None]:
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(support.WITHIN)
        stuck.connect((client.http.base_url.host, client.http.base_url.port))
        stuck.sendall(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert stuck.recv(4, socket.MSG_PEEK) == b"HTTP"  # it is being answered, and takes nothing of it
        yield


def _go_on(client: Client, gate: support.Gate, runs: list[str]) -> None:
    """Another process has the runs, and clients go on after the last event that they had."""
    gate.arrive(3)
    gate.open()
    for run_id in runs:
        with client.follow(run_id, after=2) as stream:
            rest = stream.rest()
        assert [event.seq for event in rest] == [3, 4, 5, 6]
        assert [event.data for event in rest[:3]] == [{"epoch": 2}, ["before", 2], ["after", 2]]
        assert (rest[3].kind, rest[3].data["state"]) == ("end", "succeeded")


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)], ids=["serve", "worker"])
def test_a_signal_during_the_start_is_not_lost(sqlite_path: str, command: tuple[str, ...]) -> None:
    name, *options = command
    with support.running(name, "served:impatient", "-d", f"sqlite:///{sqlite_path}", *options) as process:
        assert process.ended() == 0


def test_following_is_interrupted_without_harm_to_the_run(here: support.Here, sqlite_path: str) -> None:
    database = f"sqlite:///{sqlite_path}"
    with serving(database, "served:both") as (_, client):
        run_id = client.create("flood", 1)["run_id"]
        with support.running("runs", "follow", run_id, "-d", database) as follower:
            follower.says(" chunk ")
            follower.signal(signal.SIGINT)
            assert follower.ended() == 130
        assert "Traceback" not in follower.said
        assert json.loads(here("runs", "show", run_id, "--json", "-d", database).out)["state"] == "running"


def test_an_address_that_others_can_reach_is_refused_unless_that_is_said(
    here: support.Here, tmp_path: object
) -> None:
    everywhere = ("serve", "served:gated", "--host", "0.0.0.0", "--port", "0", "-d", f"sqlite:///{tmp_path}")
    refused = here(*everywhere)
    assert refused.code == 2
    assert "can be reached from other machines, and nobody is authenticated" in refused.err
    allowed = here(*everywhere, "--allow-anyone")
    assert allowed.code == 3  # it got as far as the database, which is a directory
