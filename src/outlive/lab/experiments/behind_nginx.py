"""What becomes of a declared policy behind nginx, for clients that leave and for clients that stay?"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.lab import stage
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable
from outlive.probe import nginx, plan, target
from outlive.probe.client import Call, Client
from outlive.probe.plan import Leaving

APP = "outlive.lab.services.slow:app"
CACHE = "proxy_cache cache; proxy_cache_valid any 1m; proxy_cache_lock on; proxy_cache_lock_timeout 30s;"
IGNORING = "proxy_ignore_client_abort on"

#: Each nginx on the way, from the origin outwards.
ROUTES: Mapping[str, tuple[str, ...]] = {
    "direct": (),
    "defaults": ("",),
    IGNORING: (f"{IGNORING};",),
    "proxy_cache": (CACHE,),
    "proxy_read_timeout 3s": ("proxy_read_timeout 3s;",),
    "two hops": ("", ""),
    "two hops, HTTP/1.1 between": ("", 'proxy_http_version 1.1; proxy_set_header Connection "";'),
}
QUICK = ("defaults", IGNORING)

#: Between two hops nginx speaks HTTP/1.0 unless told otherwise, and then holds small events back.
HELD_BACK = ("two hops",)

#: A client leaves after two events, or when it has had none for so long. Seconds; the run takes five.
STAYS = 1.5
PROMPT = 2.0

#: Nothing here takes longer. Seconds.
PATIENCE = 30.0


@dataclass(frozen=True, kw_only=True)
class Stay:
    """How a client fared that came back whenever it was cut off: where its events came from, and when."""

    run: str
    connections: int
    seqs: tuple[int, ...]
    first: float


def _play(bench: Bench) -> Measured:
    if nginx.binary() is None:
        raise Unavailable(nginx.ABSENT)
    names = QUICK if bench.options.quick else tuple(ROUTES)
    bench.plan(len(names))
    rows: list[Mapping[str, object]] = []
    directory = bench.place("slow")
    directory.mkdir(parents=True)
    environment = {stage.OUTLIVE_VARIABLE: f"sqlite:///{directory / 'outlive.db'}"}
    with target.opened(plan.Target(app=APP, directory=directory, environment=environment)) as origin:
        for name in names:
            with _through(origin.url, ROUTES[name]) as url:
                rows.append({"configuration": name, **_row(origin.url, url, prompt=name not in HELD_BACK)})
            bench.step()
    return Measured(ok=all(row["as asserted"] for row in rows), rows=rows)


@contextlib.contextmanager
def _through(origin: str, hops: tuple[str, ...]) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        url = origin
        for options in hops:
            url = stack.enter_context(nginx.proxy(url, options))
        yield url


def _row(origin: str, url: str, *, prompt: bool) -> Mapping[str, object]:
    cancelled, seconds = _leave(origin, url, "cancel")
    continued, _ = _leave(origin, url, "continue")
    stay = _stay(url)
    stayed, last = _end(origin, stay.run)
    once = stay.seqs == tuple(range(1, last + 1))
    outcomes = (cancelled, continued, stayed) == ("stopped (disconnect)", "succeeded", "succeeded")
    return {
        "leaves under cancel": f"{cancelled}, {seconds:.1f} s later",
        "leaves under continue": continued,
        "stays under cancel": stayed,
        "connections": stay.connections,
        "events": "each once" if once else repr(stay.seqs),
        "first event after": f"{stay.first:.2f} s",
        "as asserted": outcomes and once and (stay.first < PROMPT) is prompt,
    }


def _leave(origin: str, url: str, policy: str) -> tuple[str, float]:
    client = Client(_creation(url, policy), "leaves")
    try:
        client.send()
        client.read(chunks=2, seconds=STAYS)
        client.leave(Leaving.FIN)
    finally:
        client.close()
    began = time.monotonic()
    how, _ = _end(origin, _newest(origin))
    return how, time.monotonic() - began


def _stay(url: str) -> Stay:
    """Read a run to its end through one connection after another."""
    call, connections, seqs, first = _creation(url, "cancel"), 0, list[int](), 0.0
    until = time.monotonic() + PATIENCE
    run = ""
    while time.monotonic() < until:
        client = Client(call, "stays")
        try:
            client.send()
            client.read(seconds=PATIENCE)
        finally:
            client.close()
        connections += 1
        texts = [text for _, text in client.view.chunks]
        if client.view.chunks and not first:
            first = client.view.chunks[0][0] - client.view.started
        seqs += [int(_field(text, "id").rpartition(":")[2]) for text in texts if _field(text, "id")]
        run = run or _run_of(client)
        if any(_field(text, "event") == "end" for text in texts):
            break
        call = Call(
            url=f"{url}/runs/{run}/events",
            method="GET",
            headers={"accept": "text/event-stream", "last-event-id": f"{run}:{seqs[-1]}"},
            body=b"",
        )
    return Stay(run=run, connections=connections, seqs=tuple(seqs), first=first)


def _creation(url: str, policy: str) -> Call:
    body = json.dumps({"agent": "slow", "on_disconnect": policy}).encode()
    return Call(url=f"{url}/runs", method="POST", headers={"accept": "text/event-stream"}, body=body)


def _run_of(client: Client) -> str:
    return (client.view.last_event_id or "").rpartition(":")[0]


def _field(text: str, name: str) -> str:
    lines = [line.partition(": ") for line in text.splitlines()]
    return next((value for field, _, value in lines if field == name), "")


def _newest(origin: str) -> str:
    return str(_asked(f"{origin}/runs?limit=1")["runs"][0]["run_id"])


def _end(origin: str, run: str) -> tuple[str, int]:
    """Ask the origin for the run's record until it has ended; how it ended, and its last event."""
    until = time.monotonic() + PATIENCE
    while True:
        found = _asked(f"{origin}/runs/{run}")
        if found["state"] not in ("queued", "running"):
            how = f"{found['state']} ({found['reason']})" if found["reason"] else str(found["state"])
            return how, int(found["last_seq"])
        if time.monotonic() > until:
            return f"still {found['state']}", 0
        time.sleep(0.1)


def _asked(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


EXPERIMENT = Experiment(
    name="nginx",
    title="The same policies behind nginx",
    asserts="What is declared, each event once; two hops hold events back unless they speak HTTP/1.1.",
    play=_play,
)
