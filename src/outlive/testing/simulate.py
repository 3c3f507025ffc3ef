"""``python -m outlive.testing.simulate``: many seeds with their progress, or one seed as a timeline.

With ``--fresh`` the seeds are new ones every time; the first is said at once, so that a run that dies can be
repeated.  Exit code 0 if every promise was kept, 1 if one was broken, 2 for a wrong option, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outlive.testing.simulation import as_python, batch, coverage, generate, shrink, simulate, timeline

STYLES = {
    timeline.Kind.VIOLATION: "bold red",
    timeline.Kind.FAULT: "yellow",
    timeline.Kind.COMMIT: "cyan",
    timeline.Kind.EFFECT: "magenta",
}
SHOWN = 20
"""Violations that are listed one by one."""
LINE_EVERY = 15.0
"""Seconds between two lines of progress where there is no terminal for a bar."""
TABLE_WIDTH = 140
"""Columns of text that the table needs; a narrow terminal breaks its lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    try:
        return _one(options, console) if options.seed is not None else _many(options, console)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m outlive.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=_positive, metavar="N", help="simulate N seeds (default: 1000)")
    parser.add_argument("--seconds", type=float, metavar="S", help="simulate for S seconds of real time")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (default: 0)")
    parser.add_argument("--fresh", action="store_true", help="begin at a seed that the clock decides")
    parser.add_argument(
        "--processes",
        type=_positive,
        default=os.cpu_count() or 2,
        metavar="N",
        help="(default: one per core)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--seed", type=int, metavar="N", help="simulate one seed and show what it broke")
    parser.add_argument("--timeline", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--renewals", action="store_true", help="with --timeline: renewals of leases as well")
    parser.add_argument("--shrink", action="store_true", help="with --seed: print the smallest failing plan")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


# ---------------------------------------------------------------- one seed


def _one(options: argparse.Namespace, console: Console) -> int:
    result = simulate(generate(options.seed))
    if options.shrink and result.violations:
        result = shrink(result.plan)
    if options.json:
        console.print_json(json.dumps([_violation(options.seed, broken) for broken in result.violations]))
        return int(bool(result.violations))
    if options.timeline:
        for line in timeline.timeline(result, renewals=options.renewals):
            console.print(str(line), style=STYLES.get(line.kind), markup=False)
    if result.violations:
        console.print(timeline.explain(result), markup=False)
    if options.shrink and result.violations:
        console.print(f"\n{as_python(result.plan)}", markup=False)
    done = f"Seed {options.seed}: {result.history.ended_at:.1f} simulated seconds"
    console.print(f"{done}, {len(result.violations)} violations.")
    return int(bool(result.violations))


# ---------------------------------------------------------------- many


def _many(options: argparse.Namespace, console: Console) -> int:
    count = options.seeds or (None if options.seconds else 1000)
    first = time.time_ns() // 1_000_000 if options.fresh else options.first
    told = Console(stderr=True, highlight=False)
    told.print(f"first seed: {first}")
    tally = batch.Tally()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    next_line = LINE_EVERY
    with Progress(*columns, console=told, disable=options.json or not told.is_terminal) as progress:
        task = progress.add_task("simulating", total=count)
        for tally in batch.run_many(first, count=count, seconds=options.seconds, processes=options.processes):
            progress.update(task, completed=tally.seeds, description=_words(tally))
            if not told.is_terminal and tally.spent >= next_line:
                told.print(f"{tally.seeds:,} seeds in {tally.spent:.0f} s: {_words(tally)}")
                next_line = tally.spent + LINE_EVERY
    if options.json:
        console.print_json(json.dumps(_report(tally)))
    else:
        _print(tally, console)
    return int(bool(tally.violations))


def _words(tally: batch.Tally) -> str:
    words = f"{tally.per_minute:,.0f} seeds/min, {tally.virtual / 3600:.1f} simulated hours"
    return words + (f", {len(tally.violations)} violations" if tally.violations else "")


def _print(tally: batch.Tally, console: Console) -> None:
    console.width = max(console.width, TABLE_WIDTH)
    console.print(_table(tally))
    for move, faults in _empty(tally).items():
        console.print(f"{move} never met: {', '.join(faults)}", markup=False)
    for seed, broken in tally.violations[:SHOWN]:
        console.print(f"seed {seed}: {broken.invariant}: {broken.what}", style="bold red", markup=False)
        console.print(f"  replay: python -m outlive.testing.simulate --seed {seed} --timeline --shrink")
    hours, struck = tally.virtual / 3600, sum(tally.faults.values())
    console.print(
        f"{tally.seeds:,} seeds from {tally.first} on, {hours:.1f} simulated hours, "
        f"{tally.commits:,} commits, {struck:,} faults in {tally.spent:.0f} s: "
        f"{tally.per_minute:,.0f} seeds a minute; {len(tally.violations)} violations."
    )


def _table(tally: batch.Tally) -> Table:
    """Moves by faults."""
    title = "How often a move was committed while a fault was going on"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("move", no_wrap=True)
    for column in coverage.COLUMNS:
        table.add_column(column, justify="right", max_width=9)
    for move in sorted({move for move, _ in tally.covered}):
        table.add_row(move, *(_count(tally.covered[move, column]) for column in coverage.COLUMNS))
    return table


def _count(number: int) -> str:
    return f"{number}" if number else "-"


def _empty(tally: batch.Tally) -> dict[str, list[str]]:
    """The cells of the table that are empty, by move."""
    found: dict[str, list[str]] = {}
    for move, fault in coverage.empty(tally.covered):
        found.setdefault(move, []).append(fault)
    return found


def _report(tally: batch.Tally) -> dict[str, Any]:
    covered: dict[str, dict[str, int]] = {}
    for (move, fault), number in sorted(tally.covered.items()):
        covered.setdefault(move, {})[fault] = number
    return {
        "first": tally.first,
        "seeds": tally.seeds,
        "simulated_seconds": round(tally.virtual, 1),
        "seconds": round(tally.spent, 1),
        "seeds_per_minute": round(tally.per_minute),
        "commits": tally.commits,
        "faults": dict(sorted(tally.faults.items())),
        "covered": covered,
        "never_together": _empty(tally),
        "violations": [_violation(seed, broken) for seed, broken in tally.violations],
    }


def _violation(seed: int, broken: Any) -> dict[str, Any]:
    return {"seed": seed, "invariant": broken.invariant, "what": broken.what, "at": broken.at}


if __name__ == "__main__":
    sys.exit(main())
