"""A small payment provider in a process of its own, and the witness of what was really executed.

Decides nothing about runs.  ``POST /<step>`` with ``{"booking": ...}`` has an effect, once per
``Idempotency-Key``; the same key again gets the first answer again.  Every request and every effect is a line
in its own log, written before anybody is answered.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHARGING = 0.15
"""Seconds from a charge's request to its effect, and again from there to the answer."""
SLOW = 30.0
"""Seconds that the first answer takes for the booking named by ``--slow``: its effect is there at once."""


class Ledger:
    """The keys that were seen, and the log.  Any number of threads may call it."""

    def __init__(self, log: Path, *, honours_keys: bool) -> None:
        self._log = log.open("a", buffering=1, encoding="utf-8")
        self._honours_keys = honours_keys
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def note(self, what: str, **fields: Any) -> None:
        """Write one line to the log and to whoever started us."""
        with self._lock:
            self._write(what, fields)

    def execute(self, key: str, **fields: Any) -> bool:
        """Have the effect; False if this key has had it already."""
        with self._lock:
            if self._honours_keys and key in self._seen:
                self._write("replayed", fields)
                return False
            self._seen.add(key)
            self._write("effect", fields)
            return True

    def _write(self, what: str, fields: dict[str, Any]) -> None:
        self._log.write(json.dumps({"at": time.time(), "what": what, **fields}) + "\n")
        sys.stderr.write(f"{what} {fields['step']} {fields['booking']}\n")


class Provider(ThreadingHTTPServer):
    """The listening socket and what all its threads share."""

    daemon_threads = True

    def __init__(self, port: int, ledger: Ledger, slow: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.slow = {slow}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Execute a step, or repeat the answer that its key got before."""
        step = self.path.removeprefix("/")
        booking = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["booking"]
        about = {"step": step, "booking": booking, "caller": int(self.headers["Caller"])}
        self.server.ledger.note("request", **about)
        work = CHARGING if step == "charge" else 0.0
        time.sleep(work)
        fresh = self.server.ledger.execute(self.headers["Idempotency-Key"], **about)
        time.sleep(SLOW if step == "charge" and self._first_of_the_slow(booking) else work)
        self._answer({"step": step, "booking": booking, "replayed": not fresh})

    def _first_of_the_slow(self, booking: str) -> bool:
        slow = booking in self.server.slow
        self.server.slow.discard(booking)
        return slow

    def _answer(self, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        try:
            self.wfile.write(text)
        except OSError:
            self.close_connection = True  # whoever asked is gone; the effect stays

    def log_message(self, *_: object) -> None:
        """Nothing: the ledger is the log."""


def main() -> None:
    """Serve until killed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--log", type=Path, required=True, help="File to which requests and effects go.")
    options.add_argument("--port", type=int, default=0, help="0: any free one.")
    options.add_argument("--slow", default="", help="Booking whose first charge is answered very late.")
    options.add_argument("--no-keys", action="store_true", help="Ignore idempotency keys.")
    chosen = options.parse_args()
    ledger = Ledger(chosen.log, honours_keys=not chosen.no_keys)
    with Provider(chosen.port, ledger, chosen.slow) as provider:
        sys.stderr.write(f"listening on http://127.0.0.1:{provider.server_port}\n")
        provider.serve_forever()


if __name__ == "__main__":
    main()
