"""``make bench``: measures Outlive beside what one would write without it, on both stores, and prints tables.

Decides the exit code: 0 if everything could be measured, whatever came out; 3 if not; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import library, servers
from bench.processes import BrokenError
from bench.report import Report
from outlive import runtime
from outlive.agents import saver_postgres
from outlive.testing.postgres import PostgresServer

RESULTS = Path(__file__).parent / "results" / "latest.json"
STORES = ("SQLite", "PostgreSQL")
SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "2GB"}
"""PostgreSQL as it is deployed, rather than as small as tests want it; durable in every way."""


class Progress:
    """Says what is being measured, and since when."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def tell(self, words: str) -> None:
        """Say it."""
        self._console.print(f"{self.seconds:5.0f} s  {words}", highlight=False)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began


def main() -> None:
    """Measure, show, write."""
    chosen = _options()
    console = Console(width=None if sys.stdout.isatty() else 140)
    progress = Progress(console)
    report = Report(tables=[_machine()])
    try:
        for store in chosen.store or STORES:
            with _databases(store) as (place, library_database):
                asyncio.run(_measure(place, library_database, chosen, report, progress.tell))
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenError, TimeoutError, BaseExceptionGroup) as failure:
        sys.stderr.write(f"The benchmark could not be carried out: {failure!r}\n")
        sys.exit(3)
    report.show(console)
    report.write(chosen.results)
    console.print(f"{progress.seconds:.0f} s; figures in {chosen.results}", highlight=False)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="make bench", description=__doc__)
    options.add_argument("--quick", action="store_true", help="Less of everything: for a look, not a figure.")
    options.add_argument("--store", nargs="+", choices=STORES, help="Only these stores.")
    options.add_argument("--only", choices=("servers", "library"), help="Only what goes through this.")
    options.add_argument("--results", type=Path, default=RESULTS, help="Where the figures are written.")
    return options.parse_args()


async def _measure(
    place: servers.Place, database: str, chosen: argparse.Namespace, report: Report, tell: servers.Tell
) -> None:
    if chosen.only != "library":
        await servers.measure(place, servers.QUICK if chosen.quick else servers.FULL, report, tell)
    if chosen.only != "servers":
        amount = library.QUICK if chosen.quick else library.FULL
        await library.measure(place.name, database, amount, report, tell)


@contextmanager
def _databases(store: str) -> Iterator[tuple[servers.Place, str]]:
    """Make three empty databases: for the bare handler, for Outlive behind HTTP, and for the library."""
    if store == "SQLite":
        with tempfile.TemporaryDirectory(prefix="outlive-bench-") as folder:
            bare, ours, alone = (f"sqlite:///{folder}/{name}.db" for name in ("bare", "ours", "library"))
            runtime.migrate(ours)
            runtime.migrate(alone)
            yield servers.Place(name=store, bare=bare, ours=ours), alone
        return
    with PostgresServer(settings=SETTINGS) as server:
        bare, ours, alone = (server.create_database() for _ in range(3))
        for database in (ours, alone):
            runtime.migrate(database)
        saver_postgres.setup_postgres(ours)
        yield servers.Place(name=store, bare=bare, ours=ours, server=server.pid), alone


def _machine() -> Table:
    table = Table(title="Machine", title_justify="left", show_header=False)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    table.add_row("processors", f"{os.cpu_count()}, load {load} at the start")
    table.add_row("Python", f"{platform.python_implementation()} {platform.python_version()}")
    table.add_row("fsync of 4 KiB", f"{_fsync() * 1e3:.2f} ms")
    return table


def _fsync(count: int = 50) -> float:
    """Seconds of one durable write where the databases are."""
    with tempfile.TemporaryFile() as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        return (time.perf_counter() - began) / count


if __name__ == "__main__":
    main()
