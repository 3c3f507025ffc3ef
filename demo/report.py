"""How the outcome is shown: one table for people, one document for programs.

Decides nothing about what holds: that is ``checker``'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from demo.checker import Finding
from demo.evidence import Call, Connection, Evidence, Run

TITLES = {
    "1-cancel": "1  the client leaves; policy: cancel",
    "2-continue": "2  the client leaves, comes back; policy: continue",
    "4-notify": "4  SIGKILL hits the worker in notify",
    "4-charge": "4  SIGKILL between a charge and its answer",
    "5-frozen": "5  the worker freezes in notify and thaws after the takeover",
    "5-checkpoint": "5  such a worker, sure of itself: its late checkpoint",
    "5-event": "5  such a worker, sure of itself: its late event",
    "5-verdict": "5  such a worker, sure of itself: its late verdict",
    "6-clicks": "6  several messages in one instant, two processes",
}
AGAIN = "3  the same intent again"
CLOSED = {"client": "left", "server": "to the end", "cut": "cut off", "never": "open"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One scenario: what was executed, what is on record, what clients received."""

    thread: str
    scenario: str
    executed: str
    recorded: str
    received: str
    broken: tuple[str, ...]


def rows(found: Evidence, findings: Sequence[Finding]) -> list[Row]:
    """One row per scenario; the same intent again is a scenario of its own."""
    made = []
    for thread in (name for name in TITLES if name in found.threads):
        connections = [c for c in found.connections if c.thread == thread and c.streamed]
        again = [c for c in connections if c.client.endswith(".again")]
        runs = found.on(thread)
        split = len(runs) - 1 if len(runs) > 1 and again else len(runs)
        after = runs[split].created_at / 1000 if split < len(runs) else float("inf")
        calls = [call for call in found.calls if call.booking == thread]
        broken = tuple(one.code for one in findings if any(where == thread for where, _ in one.violations))
        first, later = [c for c in calls if c.at < after], [c for c in calls if c.at >= after]
        others = [c for c in connections if c not in again]
        made.append(_row(thread, TITLES[thread], (first, runs[:split], others), broken))
        if again:
            made.append(_row(thread, AGAIN, (later, runs[split:] or runs, again), broken))
    return made


def _row(
    thread: str,
    scenario: str,
    told: tuple[Sequence[Call], Sequence[Run], Sequence[Connection]],
    broken: tuple[str, ...],
) -> Row:
    calls, runs, connections = told
    return Row(
        thread=thread,
        scenario=scenario,
        executed=_executed(calls),
        recorded="\n".join(map(_recorded, runs)),
        received="\n".join(map(_received, connections)),
        broken=broken,
    )


def _executed(calls: Iterable[Call]) -> str:
    calls = list(calls)
    asked = Counter(call.step for call in calls if call.what == "request")
    had = Counter(call.step for call in calls if call.what == "effect")
    steps = [step for step, effects in had.items() for _ in range(effects)]
    repeated = [f"{step}: calls {times}, effects {had[step]}" for step, times in asked.items() if times > 1]
    return "\n".join([" ".join(steps) or "-", *repeated])


def _recorded(run: Run) -> str:
    state = f"{run.state} ({run.reason})" if run.reason else run.state
    attempts = len(run.of_kind("attempt"))
    how = [state, *([f"{attempts} attempts"] if attempts > 1 else [])]
    steps = " ".join(event.step for event in run.events if event.step)
    return ", ".join(how) + (f": {steps}" if steps else "")


def _received(connection: Connection) -> str:
    numbers = [seen.seq for seen in connection.seen]
    name = connection.client.partition(".")[2]
    return f"{name}: {numbers[0]}-{numbers[-1]}, {CLOSED[connection.closed]}"


def held(findings: Iterable[Finding]) -> bool:
    """Say whether everything holds."""
    return not any(finding.violations for finding in findings)


def show(console: Console, made: Iterable[Row], findings: Sequence[Finding]) -> None:
    """Print the table, then what was checked."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False)
    for column in ("scenario", "executed (provider)", "recorded (database)", "received (clients)", "verdict"):
        table.add_column(column, overflow="fold")
    for row in made:
        verdict = f"[red]{' '.join(row.broken)}[/]" if row.broken else "[green]holds[/]"
        table.add_row(row.scenario, row.executed, row.recorded, row.received, verdict)
    console.print(table)
    checks = Table.grid(padding=(0, 1))
    for finding in findings:
        mark = (
            "[red]broken[/]" if finding.violations else "[green]holds[/]" if finding.facts else "[dim]idle[/]"
        )
        checks.add_row(mark, finding.code, finding.sentence, f"[dim]{finding.facts} looked at[/]")
        for thread, words in finding.violations:
            checks.add_row("", "", f"[red]{thread}: {words}[/]", "")
    console.print(checks)


def document(made: Iterable[Row], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "held": held(findings),
        "scenarios": [asdict(row) for row in made],
        "checks": [asdict(finding) for finding in findings],
    }
