"""Reading the recorder's tape while the service writes it, and what the lines on it add up to.

It decides when a service has become quiet. What the happenings mean for a user is decided in `findings`.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: How often the tape is looked at while waiting. Seconds.
LOOK = 0.02


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One line of the tape. `t` is CLOCK_MONOTONIC, in seconds."""

    t: float
    pid: int
    kind: str
    request: str | None
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Tape:
    """The file that the recorder appends to."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        path.touch()
        self._read = 0
        self._rest = b""
        self.happenings: list[Happening] = []

    def catch_up(self) -> list[Happening]:
        """Read what is new; returns all happenings so far, in the order in which they were written."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self.happenings += [_happening(json.loads(line)) for line in lines]
        return self.happenings

    def since(self, mark: int) -> list[Happening]:
        """What was written after this many happenings."""
        return self.catch_up()[mark:]

    def mark(self) -> int:
        """Where the tape is now."""
        return len(self.catch_up())

    def wait(self, condition: Callable[[Sequence[Happening]], bool], seconds: float, mark: int = 0) -> bool:
        """Wait until the condition holds for what was written since the mark; False: not in time."""
        until = time.monotonic() + seconds
        while not condition(self.since(mark)):
            if time.monotonic() > until:
                return False
            time.sleep(LOOK)
        return True

    def settle(
        self, mark: int, *, quiet: float, patience: float, alive: Callable[[], bool], clients: str = ""
    ) -> bool:
        """Wait until nothing of ours runs any more and nothing was written for `quiet` seconds.

        `clients` is how the names of the clients begin whose requests count; what an earlier scenario left
        running does not. Returns False when the service was still at it after `patience` seconds.
        """

        def still(happenings: Sequence[Happening]) -> bool:
            own = of_clients(happenings, clients)
            newest = own[-1].t if own else 0.0
            return not (alive() and busy(own)) and time.monotonic() - newest > quiet

        return self.wait(still, patience, mark)


def _happening(line: dict[str, Any]) -> Happening:
    known = {name: line.pop(name) for name in ("t", "pid", "kind", "request")}
    return Happening(**known, fields=line)


def busy(happenings: Sequence[Happening]) -> bool:
    """Whether a request, a node or a background task has begun and not ended."""
    going: Counter[tuple[object, ...]] = Counter()
    for happening in happenings:
        what, _, moment = happening.kind.partition(".")
        if what in {"request", "node", "background"} and moment in {"start", "end"}:
            key = (what, happening.pid, happening.request, happening.fields.get("task"))
            going[key] += 1 if moment == "start" else -1
    return any(count > 0 for count in going.values())


def of_clients(happenings: Sequence[Happening], prefix: str) -> list[Happening]:
    """Those that belong to the requests of one scenario, whose clients' names begin so, or to no request."""
    requests = {
        h.request for h in of_kind(happenings, "request.start") if (h["client"] or "").startswith(prefix)
    }
    return [h for h in happenings if (owner := _owner(h)) is None or owner in requests]


def _owner(happening: Happening) -> str | None:
    # A generator is collected wherever the collector happens to run: it belongs to who began it.
    collected = happening.kind.startswith("generator.")
    return happening.fields.get("of", happening.request) if collected else happening.request


def of_kind(happenings: Sequence[Happening], *kinds: str) -> Iterator[Happening]:
    """Those of these kinds."""
    return (h for h in happenings if h.kind in kinds)
