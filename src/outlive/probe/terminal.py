"""The report as tables for a terminal. Shows; decides nothing."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from outlive.probe import platform as platforms
from outlive.probe.evidence import outlive_api
from outlive.probe.findings import Finding
from outlive.probe.plan import Outcome
from outlive.probe.report import Report

COLOURS = {
    Outcome.STOPS: "yellow",
    Outcome.COMPLETES: "cyan",
    Outcome.PARTIAL: "red",
    Outcome.UNCLEAR: "magenta",
}


def show(report: Report, console: Console) -> None:
    """Print the whole report."""
    console.print(_scenarios(report))
    for finding in report.findings:
        for number, sentence in enumerate(finding.verdict):
            bullet = f"[bold]{finding.trace.scenario.name:>16}[/]" if number == 0 else " " * 16
            console.print(f"{bullet}  {sentence}", highlight=False)
    for name, reason in report.skipped.items():
        console.print(f"[dim]{name:>16}  skipped: {reason}[/]", highlight=False)
    for title, facts in (("platform", report.platform), ("behind nginx", report.behind_nginx)):
        if facts:
            console.print(_facts(title, facts))


def _scenarios(report: Report) -> Table:
    versions = " · ".join(f"{name} {version}" for name, version in report.versions.items())
    spec = report.asgi.get("spec_version", "not announced") if report.asgi else "not seen"
    table = Table(title=f"{report.target} · {report.server} · ASGI spec {spec}", caption=versions)
    for heading in ("scenario", "outcome", "client saw", "executed", "on record", "cancelled", "failures"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        table.add_row(*_row(finding))
    return table


def _row(finding: Finding) -> tuple[str, ...]:
    outcome = finding.outcome
    return (
        finding.trace.scenario.name,
        f"[{COLOURS[outcome]}]{outcome.value}[/]" if outcome else "-",
        "; ".join(f"{len(view.chunks)} chunks, {view.how}" for view in finding.trace.views),
        counted(finding),
        on_record(finding),
        cancelled(finding),
        ", ".join(failure.value for failure in finding.failures) or "-",
    )


def counted(finding: Finding) -> str:
    """What executed, with counts above one, and what was cut."""
    done = [name if count == 1 else f"{name} x{count}" for name, count in finding.executed.items()]
    cut = [f"{name} (cut)" for name in finding.in_flight]
    if not done and finding.progress is not None:
        return f"{finding.progress.at_end.total()} {finding.progress.witness}"
    return ", ".join(done + cut) or "-"


def on_record(finding: Finding) -> str:
    """Position, checkpoints and forks, as they were when the client came back, then at the end."""
    records = [record for record in (finding.at_return, finding.record) if record is not None]
    runs = [run for found in finding.trace.at_end for run in outlive_api.runs_of(found)]
    if runs:
        return ", ".join(runs)
    return (
        " → ".join(
            f"{record.position.value}{' at ' + ', '.join(record.next) if record.next else ''}"
            f" ({len(record.checkpoints)} checkpoints, {record.forks} forks)"
            for record in records
        )
        or "-"
    )


def cancelled(finding: Finding) -> str:
    """When and with what the handler was cancelled."""
    platform = finding.platform
    if platform.time_to_cancel is None:
        return "-"
    return f"{platform.exception} after {platform.time_to_cancel:.2f} s"


def _facts(title: str, facts: object) -> Table:
    table = Table(title=title)
    table.add_column("question")
    table.add_column("answer", overflow="fold")
    for name, value in platforms.rows(facts if isinstance(facts, dict) else {}):
        table.add_row(name, value)
    return table
