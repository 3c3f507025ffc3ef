"""What server and framework do on a disconnect, seen on the probe's own canary beside the probed application.

The same questions as for the application's own handler, with answers that do not depend on it. Behind nginx
the canary's stream is left once per configuration of the proxy.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outlive.probe import nginx
from outlive.probe.client import Call, Client
from outlive.probe.inject import canary
from outlive.probe.inject.wrap import CLIENT_HEADER
from outlive.probe.plan import Leaving
from outlive.probe.tape import Happening, of_kind
from outlive.probe.target import Running, Started

#: A stream of the canary that was not cut is at its end after this. Seconds.
FULL = canary.STEP * canary.STEPS + 2.0

NOT_STARTED = "not measured: the service was not started by the probe"


def facts(service: Started | Running, *, grace: float) -> Mapping[str, object]:
    """Ask every question that this platform can be asked."""
    if not isinstance(service, Started):
        return {"skipped": NOT_STARTED}
    found: dict[str, object] = {"stream": _left(service, "/stream")}
    found["is_disconnected"] = {"alone": _polled(service, "/poll"), "watched": _watched(service)}
    found["is_disconnected"]["behind_middleware"] = _polled(service, "/middleware/poll")  # type: ignore[index]
    found["yield_dependency"] = _dependency(service)
    found["native_sse"] = _native(service)
    found["sigterm"] = _told_to_go(service, grace)
    return found


def behind_nginx(service: Started | Running) -> Mapping[str, object]:
    """Leave the canary's stream through a proxy; says why not where there is no nginx."""
    if not isinstance(service, Started):
        return {"skipped": NOT_STARTED}
    if nginx.binary() is None:
        return {"skipped": nginx.ABSENT}
    found: dict[str, object] = {"direct": _left(service, "/stream")}
    for name, options in nginx.CONFIGURATIONS.items():
        with nginx.proxy(service.url, options) as url:
            found[name] = _left(service, "/stream", url=url)
    return found


def _left(
    service: Started, path: str, *, url: str | None = None, how: Leaving = Leaving.FIN
) -> dict[str, object]:
    """Leave after two chunks, and tell what the generator, its clean-up and the background task did."""
    seen, left = _visit(service, path, _after_two(how), url=url)
    steps = [h for h in of_kind(seen, "canary.step") if h.t > left]
    cut = next(of_kind(seen, "stream.throw"), None)
    return {
        "time_to_cancel": round(cut.t - left, 2) if cut else None,
        "exception": cut["error"] if cut else None,
        "steps_after_close": len(steps),
        "finally_await_finished": any(of_kind(seen, "canary.finally.end")),
        "background_task_ran": any(of_kind(seen, "canary.background")),
    }


def _polled(service: Started, path: str) -> str:
    """Whether a handler that polls learns that its client has left."""
    seen, left = _visit(service, path, _while_waiting)
    polls = list(of_kind(seen, "poll"))
    early = [h for h in polls if h["answer"] and h.t < left]
    if early:
        return f"True while connected ({len(early)} times)"
    first = next((h.t - left for h in polls if h["answer"]), None)
    return "never True" if first is None else f"True {first:.2f} s after leaving"


def _watched(service: Started) -> str:
    """Whether a poll beside a streaming response disturbs a client that stays."""
    views: list[Client] = []

    def stay(client: Client) -> None:
        client.read(seconds=FULL)
        views.append(client)

    seen, _ = _visit(service, "/watched", stay)
    true = sum(1 for h in of_kind(seen, "poll") if h["answer"])
    got = views[0].view.count
    return f"{got} of 5 chunks reached a client that stayed; True {true} times"


def _dependency(service: Started) -> str:
    seen, _ = _visit(
        service,
        "/fastapi/dependency",
        _after_two(Leaving.FIN),
    )
    left = next(of_kind(seen, "canary.dependency"), None)
    if left is None:
        return "absent"
    return f"left with {left['error']}" if left["error"] else "left cleanly (a commit would commit)"


def _native(service: Started) -> str:
    """FastAPI's own server-sent events, with the producer ahead of a reader that stops reading and leaves."""

    def stall(client: Client) -> None:
        client.read(chunks=2, seconds=FULL)
        time.sleep(canary.STEP * 2)
        client.leave(Leaving.FIN)

    seen, left = _visit(service, "/fastapi/native", stall, small=True)
    closed = next(of_kind(seen, "canary.native.closed"), None)
    collected = any(of_kind(seen, "generator.collected"))
    if closed is None:
        left_open = any(h["name"].endswith("native") for h in of_kind(seen, "generator.idle"))
        return "the generator stays open: only the garbage collector will close it" if left_open else "absent"
    how = "by the garbage collector" if collected else "explicitly"
    return f"closed {how} {max(closed.t - left, 0):.2f} s after leaving"


def _told_to_go(service: Started, grace: float) -> dict[str, object]:
    """SIGTERM with an open stream: whether the server goes, and what the generator gets. Starts it again."""
    mark = service.recorder.mark()
    client = _client(service, "/stream")
    try:
        client.send()
        client.read(chunks=2, seconds=FULL)
        told = time.monotonic()
        service.signal(signal.SIGTERM)
        exited = service.wait_for_exit(grace)
        seconds = time.monotonic() - told
    finally:
        service.stop()
        client.close()
    seen = service.recorder.since(mark)
    service.start()
    cut = next(of_kind(seen, "stream.throw"), None)
    return {
        "exits": f"after {seconds:.2f} s" if exited else f"not within {grace:g} s",
        "exception": cut["error"] if cut else None,
        "steps_after_signal": len([h for h in of_kind(seen, "canary.step") if h.t > told]),
        "finally_await_finished": any(of_kind(seen, "canary.finally.end")),
    }


def _after_two(how: Leaving) -> Callable[[Client], None]:
    def leave(client: Client) -> None:
        client.read(chunks=2, seconds=FULL)
        client.leave(how)

    return leave


def _while_waiting(client: Client) -> None:
    client.wait_for_head(canary.STEP)
    client.leave(Leaving.FIN)


def _visit(
    service: Started,
    path: str,
    leave: Callable[[Client], None],
    *,
    url: str | None = None,
    small: bool = False,
) -> tuple[Sequence[Happening], float]:
    mark = service.recorder.mark()
    client = _client(service, path, url=url, small=small)
    try:
        client.send()
        leave(client)
        left = client.view.left or time.monotonic()
        service.recorder.settle(mark, quiet=canary.STEP * 3, patience=FULL, alive=service.alive)
    finally:
        client.close()
    return service.recorder.since(mark), left


def _client(service: Started, path: str, *, url: str | None = None, small: bool = False) -> Client:
    name = f"canary{path}"
    headers = {CLIENT_HEADER.decode(): name}
    call = Call(url=(url or service.url) + canary.PREFIX + path, method="GET", headers=headers, body=b"")
    return Client(call, name, receive_buffer=4096 if small else None)


def rows(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as lines of a table."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from rows(value, f"{prefix}{name} · ")
        else:
            yield f"{prefix}{name}".replace("_", " "), "not seen" if value is None else _shown(value)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None | [] | {} | "":
            return "-"
        case float():
            return f"{value:.2f} s"
        case _:
            return str(value)


def matrix(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of what was seen behind nginx: a row per handler and configuration.

    Columns that say nothing anywhere are left out.
    """
    seen = {
        (handler, configuration): {name: _shown(value) for name, value in facts.items()}
        for handler, told in found.items()
        if isinstance(told, Mapping)
        for configuration, facts in told.items()
        if isinstance(facts, Mapping)
    }
    names = dict.fromkeys(name for facts in seen.values() for name in facts)
    telling = [name for name in names if {facts.get(name, "-") for facts in seen.values()} - {"-", "0", "no"}]
    rows = [[*place, *(facts.get(name, "-") for name in telling)] for place, facts in seen.items()]
    return ["handler", "nginx", *(name.replace("_", " ") for name in telling)], rows
