"""``make demo``: performs the scenarios, then checks what they left behind.

Decides the exit code: 0 if everything holds, 1 if the checker found that something does not, 2 for a wrong
option, 3 if the demonstration itself could not be carried out, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from demo import checker, evidence, report, scenarios
from demo.breaks import BREAKS, CONTROLS, Break
from demo.stage import StageError

WHOLE = 120.0
"""Seconds after which the demonstration gives itself up."""


class Progress:
    """Shows how far each scenario is: lines that move on a terminal, one line per step elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._words: dict[str, str] = {}
        self._live: Live | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it for the length of a ``with`` block."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, transient=True, get_renderable=self._table) as self._live:
            yield

    def tell(self, thread: str, words: str) -> None:
        """Note what has just happened."""
        self._words[thread] = words
        if self._live is None:
            self._console.print(f"{self._seconds():5.1f} s  {thread:<13} {words}", highlight=False)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _table(self) -> Table:
        table = Table(box=None, title=f"{self._seconds():.0f} s", title_justify="left")
        for thread, words in sorted(self._words.items()):
            table.add_row(thread, words)
        return table


def main() -> None:
    """Perform, check, show, and exit with what that came to."""
    chosen = _options()
    console = Console(quiet=chosen.json, stderr=False, width=None if sys.stdout.isatty() else 160)
    broken = {**BREAKS, **CONTROLS}.get(chosen.broken) if chosen.broken else None
    names = chosen.only or (broken.scenarios if broken else tuple(scenarios.SCENARIOS))
    if broken:
        console.print(f"[bold]Broken on purpose[/]: {broken.says}.", highlight=False)
    with contextlib.ExitStack() as kept:
        folder = chosen.keep or Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="outlive-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        _perform(console, folder, names, broken)
        sys.exit(_conclude(chosen, console, folder, broken, time.monotonic() - began))


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="make demo", description=__doc__)
    options.add_argument("--break", dest="broken", choices=["", *BREAKS, *CONTROLS], default="")
    options.add_argument(
        "--only", nargs="+", choices=tuple(scenarios.SCENARIOS), help="Only these scenarios."
    )
    options.add_argument("--keep", type=Path, help="An empty folder for the evidence.")
    options.add_argument("--json", action="store_true", help="Print one JSON document and nothing else.")
    return options.parse_args()


def _perform(console: Console, folder: Path, names: Collection[str], broken: Break | None) -> None:
    progress = Progress(console)
    try:
        with progress.shown():
            asyncio.run(_bounded(folder, names, progress.tell, broken))
    except KeyboardInterrupt:
        sys.exit(130)
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
    except (StageError, TimeoutError, BaseExceptionGroup) as failure:
        for line in _reasons(failure):
            sys.stderr.write(f"The demonstration could not be carried out: {line}\n")
        sys.exit(3)


async def _bounded(folder: Path, names: Collection[str], tell: scenarios.Tell, broken: Break | None) -> None:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with asyncio.timeout(WHOLE):
        await scenarios.perform(
            folder,
            names,
            tell,
            alterations=broken.alterations if broken else (),
            provider=broken.provider if broken else (),
        )


def _reasons(failure: BaseException) -> list[str]:
    if isinstance(failure, BaseExceptionGroup):
        return [line for inner in failure.exceptions for line in _reasons(inner)]
    return [str(failure) if isinstance(failure, StageError) else repr(failure)]


def _conclude(
    chosen: argparse.Namespace, console: Console, folder: Path, broken: Break | None, seconds: float
) -> int:
    found = evidence.read(folder)
    findings = checker.check(found)
    made = report.rows(found, findings)
    holds = report.held(findings)
    empty = [finding.code for finding in findings if not finding.facts]
    if empty and not (broken or chosen.only):
        sys.stderr.write(f"The demonstration could not be carried out: nothing shown of {', '.join(empty)}\n")
        return 3
    if chosen.json:
        sys.stdout.write(json.dumps(report.document(made, findings) | {"seconds": round(seconds, 1)}) + "\n")
        return 0 if holds else 1
    report.show(console, made, findings)
    outcome = "[green]Everything holds[/]" if holds else "[red]Not everything holds[/]"
    console.print(f"\n{outcome}; {found.looks['looks']} looks in between; {seconds:.0f} s.", highlight=False)
    if broken and broken.noticed_by and holds:
        console.print("[red]The break went unnoticed.[/]")
    return 0 if holds else 1


if __name__ == "__main__":
    main()
