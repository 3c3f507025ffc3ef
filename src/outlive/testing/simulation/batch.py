"""Many seeds, in several processes: what they found, how long they took, what they covered."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from outlive.testing.simulation import coverage
from outlive.testing.simulation.checker import Violation
from outlive.testing.simulation.simulate import simulate

CHUNK = 10
"""Seeds that one process gets at a time."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """What some seeds came to.  ``virtual`` and ``spent`` are seconds: simulated, and of the wall's clock."""

    first: int = 0
    seeds: int = 0
    virtual: float = 0.0
    spent: float = 0.0
    commits: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    covered: coverage.Coverage = field(default_factory=Counter)
    violations: list[tuple[int, Violation]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what others came to; the wall's clock is the caller's."""
        self.seeds += other.seeds
        self.virtual += other.virtual
        self.commits += other.commits
        self.faults += other.faults
        self.covered += other.covered
        self.violations = sorted([*self.violations, *other.violations], key=lambda found: found[0])

    @property
    def per_minute(self) -> float:
        """Seeds per minute of the wall's clock."""
        return self.seeds * 60 / self.spent if self.spent else 0.0


def run(seeds: Sequence[int]) -> Tally:
    """Simulate some seeds, here."""
    tally = Tally()
    for seed in seeds:
        result = simulate(seed)
        tally.seeds += 1
        tally.virtual += result.history.ended_at
        tally.commits += len(result.history.commits)
        tally.faults.update(span.fault for span in result.history.faults)
        tally.covered += coverage.cover(result.history)
        tally.violations += [(seed, violation) for violation in result.violations]
    gc.collect()  # the simulation itself lets nothing be collected
    return tally


def run_many(first: int, *, count: int | None, seconds: float | None, processes: int = 2) -> Iterator[Tally]:
    """Yield the tally so far, again and again, until ``count`` seeds are done or ``seconds`` have passed.

    Seeds are taken in order from ``first``.  Raises ``ValueError`` if neither bound is given.
    """
    if count is None and seconds is None:
        raise ValueError("say how many seeds, or for how many seconds")
    began, tally = time.monotonic(), Tally(first=first)
    chunks = _chunks(first, count)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=spawn, initializer=gc.freeze) as pool:
        going = {pool.submit(run, chunk) for chunk in itertools.islice(chunks, 2 * processes)}
        while going:
            done, going = concurrent.futures.wait(going, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                tally.add(future.result())
            tally.spent = time.monotonic() - began
            if seconds is None or tally.spent < seconds:
                going |= {pool.submit(run, chunk) for chunk in itertools.islice(chunks, len(done))}
            yield tally


def _chunks(first: int, count: int | None) -> Iterator[Sequence[int]]:
    """Ranges of seeds, for ever if no count is given."""
    starts = itertools.count(first, CHUNK) if count is None else range(first, first + count, CHUNK)
    for start in starts:
        end = start + CHUNK if count is None else min(start + CHUNK, first + count)
        yield range(start, end)
