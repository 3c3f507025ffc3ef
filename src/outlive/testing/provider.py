"""A payment provider in a process of its own, and the witness of what was really executed.

Decides nothing about runs.  Its idempotency keys work as Stripe documents them: the same key with the same
parameters gets the first answer again, also if that was an error; while the first is still worked on it gets
409; with other parameters 400; and a key is forgotten after a while.  Every request and every effect is a
line in its own log, written before anybody is answered.

``POST /OPERATION`` with a JSON object has an effect.  ``GET /OPERATION?reference=R`` lists the effects whose
body has that ``reference`` (or ``booking``): what a look-up asks.  ``POST /_script`` with ``{"operation",
"behaviours"}`` says how the next requests of an operation shall go, see ``Behaviour``; ``POST /_release``
lets what hangs go on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
import urllib.parse
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SLOW = 30.0
"""Seconds that the first answer takes for the booking named by ``--slow``: its effect is there at once."""
KEY_TTL = 86400.0
"""Seconds for which a key is known, unless ``--key-ttl`` says otherwise."""
LONGEST_HANG = 60.0

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """How one request goes.

    ``before`` seconds pass before the effect, and ``after`` seconds until the answer, which stands by then,
    is sent; ``hang`` works on after the effect until ``/_release``.  ``lose``: the connection breaks before
    the effect.  ``hang_up``: it breaks after it.  ``status``: answered without an effect; from 500 on, with.
    """

    before: float = 0.0
    after: float = 0.0
    hang: bool = False
    lose: bool = False
    hang_up: bool = False
    status: int = 200


@dataclass(slots=True)
class _Known:
    """What is known of a key."""

    parameters: str
    since: float
    answer: tuple[int, Body] | None = None


@dataclass
class Ledger:
    """The keys that were seen, the effects, and the log.  Any number of threads may call it."""

    log: Path
    honours_keys: bool = True
    key_ttl: float = KEY_TTL
    quiet: bool = False
    scripted: dict[str, deque[Behaviour]] = field(default_factory=lambda: defaultdict(deque))
    released: threading.Event = field(default_factory=threading.Event)
    _known: dict[str, _Known] = field(default_factory=dict)
    _effects: list[Body] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._file = self.log.open("a", buffering=1, encoding="utf-8")

    def arrive(self, step: str, key: str, body: Body, about: Body) -> tuple[int, Body, bool] | None:
        """Note a request; returns the answer that its key has already, or None if it is to be executed."""
        parameters = json.dumps([step, body], sort_keys=True)
        with self._lock:
            self._write("request", about)
            known = self._known.get(key) if key and self.honours_keys else None
            if known is None or time.time() - known.since > self.key_ttl:
                if key:
                    self._known[key] = _Known(parameters, time.time())
                return None
            if known.parameters != parameters:
                return 400, _error("idempotency_error", "The key was used with other parameters."), False
            if known.answer is None:
                return 409, _error("idempotency_key_in_use", "The first request is still worked on."), False
            self._write("replayed", about)
            return (*known.answer, True)

    def execute(self, about: Body) -> None:
        """Have the effect."""
        with self._lock:
            self._effects.append(about)
            self._write("effect", about)

    def answered(self, key: str, status: int, answer: Body) -> None:
        """Keep the answer for whoever comes with this key again."""
        with self._lock:
            if key in self._known:
                self._known[key].answer = (status, answer)

    def executed(self, step: str, reference: str) -> list[Body]:
        """The effects of a step for a reference."""
        with self._lock:
            return [each for each in self._effects if each["step"] == step and reference in _names(each)]

    def script(self, step: str, behaviours: list[Body]) -> None:
        """Say how the next requests of a step shall go."""
        with self._lock:
            self.scripted[step].extend(Behaviour(**each) for each in behaviours)

    def next(self, step: str) -> Behaviour | None:
        """How this request shall go, if that was said."""
        with self._lock:
            return self.scripted[step].popleft() if self.scripted[step] else None

    def _write(self, what: str, fields: Body) -> None:
        self._file.write(json.dumps({"at": time.time(), "what": what, **fields}) + "\n")
        if not self.quiet:
            sys.stderr.write(f"{what} {fields['step']} {fields['booking']}\n")


def _names(effect: Body) -> tuple[Any, Any]:
    return effect.get("reference"), effect.get("booking")


def _error(code: str, message: str) -> Body:
    return {"error": {"code": code, "message": message}}


class Provider(ThreadingHTTPServer):
    """The listening socket and what all its threads share."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, ledger: Ledger, *, slow: str = "", work: Body | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.slow = {slow} if slow else set()
        self.work = work or {}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Execute a step, or repeat the answer that its key got before."""
        step = self.path.removeprefix("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        ledger = self.server.ledger
        if step == "_script":
            ledger.script(body["operation"], body["behaviours"])
            self._answer(200, {})
        elif step == "_release":
            ledger.released.set()
            self._answer(200, {})
        else:
            self._operation(step, body)

    def _operation(self, step: str, body: Body) -> None:
        ledger, key = self.server.ledger, self.headers["Idempotency-Key"] or ""
        caller = int(self.headers["Caller"] or 0)
        about = {"booking": body.get("reference"), **body, "step": step, "caller": caller, "key": key}
        before = ledger.arrive(step, key, body, about)
        if before is not None:
            status, answer, replayed = before
            self._answer(status, answer | ({"replayed": True} if replayed else {}))
            return
        how = ledger.next(step) or self._usual(step, about)
        time.sleep(how.before)
        if how.lose:
            ledger._known.pop(key, None)
            self._break()
            return
        answer = {**about, "replayed": False} if how.status == 200 else _error("declined", "No.")
        if how.status == 200 or how.status >= 500:
            ledger.execute(about)
        if how.hang:
            ledger.released.wait(LONGEST_HANG)
        ledger.answered(key, how.status, answer)
        time.sleep(how.after)
        if how.hang_up:
            self._break()
        else:
            self._answer(how.status, answer)

    def _usual(self, step: str, about: Body) -> Behaviour:
        work = float(self.server.work.get(step, 0.0))
        booking = about["booking"]
        if booking in self.server.slow and step == "charge":
            self.server.slow.discard(booking)
            return Behaviour(before=work, after=SLOW)
        return Behaviour(before=work, after=work)

    def do_GET(self) -> None:
        """Tell what was executed for a reference."""
        url = urllib.parse.urlsplit(self.path)
        reference = urllib.parse.parse_qs(url.query).get("reference", [""])[0]
        self._answer(200, {"effects": self.server.ledger.executed(url.path.removeprefix("/"), reference)})

    def _answer(self, status: int, body: Body) -> None:
        text = json.dumps(body).encode()
        with contextlib.suppress(OSError):  # whoever asked is gone; the effect stays
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if body.get("replayed"):
                self.send_header("Idempotent-Replayed", "true")
            self.end_headers()
            self.wfile.write(text)
            return
        self.close_connection = True

    def _break(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Nothing: the ledger is the log."""


def main() -> None:
    """Serve until killed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--log", type=Path, required=True, help="File to which requests and effects go.")
    options.add_argument("--port", type=int, default=0, help="0: any free one.")
    options.add_argument("--slow", default="", help="Booking whose first charge is answered very late.")
    options.add_argument("--no-keys", action="store_true", help="Ignore idempotency keys.")
    options.add_argument("--key-ttl", type=float, default=KEY_TTL, help="Seconds for which a key is known.")
    options.add_argument(
        "--work", type=json.loads, default={}, help="JSON: seconds that a step takes, twice."
    )
    options.add_argument("--quiet", action="store_true", help="Say nothing but where it listens.")
    chosen = options.parse_args()
    ledger = Ledger(chosen.log, honours_keys=not chosen.no_keys, key_ttl=chosen.key_ttl, quiet=chosen.quiet)
    with Provider(chosen.port, ledger, slow=chosen.slow, work=chosen.work) as provider:
        sys.stderr.write(f"listening on http://127.0.0.1:{provider.server_port}\n")
        provider.serve_forever()


if __name__ == "__main__":
    main()
