"""The report as tables for a terminal. Shows; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outlive.probe import platform as platforms
from outlive.probe.client import View
from outlive.probe.evidence import outlive_api
from outlive.probe.findings import Finding, Platform
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
    if report.unusable is not None:
        console.print(f"The probe of {report.target} is of no use.", style="red", markup=False)
        console.print(report.unusable, markup=False, highlight=False)
        return
    console.print(_scenarios(report))
    if any(facts for _, facts in platform_rows(report.findings)):
        console.print(_platforms(report))
    for finding in report.findings:
        _say(console, finding.trace.scenario.name, finding.verdict, "bold")
    for name, reason in report.skipped.items():
        _say(console, name, [f"skipped: {reason}"], "dim")
    for note in report.notes:
        _say(console, "hint", [note], "magenta")
    if report.platform:
        console.print(_facts("what server and framework do with the probe's own handler", report.platform))
    if report.behind_nginx:
        console.print(_behind_nginx(report))


def _say(console: Console, name: str, sentences: Sequence[str], style: str) -> None:
    """A name in the margin and its sentences beside it."""
    margin = Table.grid(padding=(0, 2))
    margin.add_column(width=16, justify="right", style=style)
    margin.add_column(overflow="fold")
    for number, sentence in enumerate(sentences):
        margin.add_row(name if number == 0 else "", escape(sentence))
    console.print(margin, highlight=False)


def _scenarios(report: Report) -> Table:
    versions = " · ".join(f"{name} {version}" for name, version in report.versions.items())
    spec = report.asgi.get("spec_version", "not announced") if report.asgi else "not seen"
    table = Table(title=escape(f"{report.target} · {report.server} · ASGI spec {spec}"), caption=versions)
    for heading in ("scenario", "outcome", "client saw", "executed", "on record", "failures"):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        table.add_row(*_row(finding))
    return table


def _row(finding: Finding) -> tuple[str, ...]:
    outcome = finding.outcome
    return (
        finding.trace.scenario.name,
        f"[{COLOURS[outcome]}]{outcome.value}[/]" if outcome else "-",
        escape(clients(finding)),
        escape(counted(finding)),
        escape(on_record(finding)),
        ", ".join(failure.value for failure in finding.failures) or "-",
    )


def clients(finding: Finding) -> str:
    """What each client got, and how its connection ended."""
    return "; ".join(_client(view) for view in finding.trace.views)


def _client(view: View) -> str:
    status = f"{view.status}, " if view.status != 200 and view.status is not None else ""
    return f"{status}{view.count} chunk{'s' * (view.count != 1)}, {view.how}"


#: The questions about one request, in the order in which they are answered; only those are shown that some
#: scenario has an answer to.
QUESTIONS = (
    "cancelled after",
    "with",
    "steps after close",
    "await in finally",
    "background task",
    "yield dependency",
    "left open",
    "is_disconnected()",
)


def platform_rows(findings: Sequence[Finding]) -> list[tuple[str, Mapping[str, str]]]:
    """For each scenario in which somebody left: what server and framework did, by question."""
    return [(f.trace.scenario.name, _answers(f.platform)) for f in findings if f.trace.left is not None]


def _answers(platform: Platform) -> dict[str, str]:
    finished = {None: "", True: "finished", False: "cut off"}[platform.finally_finished]
    left = [f"{name}: {error or 'cleanly'}" for name, error in platform.dependencies.items()]
    answers = {
        "cancelled after": "" if platform.time_to_cancel is None else f"{platform.time_to_cancel:.2f} s",
        "with": platform.exception or "",
        "steps after close": "" if platform.steps_after_close is None else str(platform.steps_after_close),
        "await in finally": finished,
        "background task": "ran" if platform.background_ran else "",
        "yield dependency": ", ".join(left),
        "left open": ", ".join(platform.generators_left),
        "is_disconnected()": _polled(platform),
    }
    return {question: answer for question, answer in answers.items() if answer}


def _polled(platform: Platform) -> str:
    early, late = platform.polls_true_while_connected, platform.polls_false_after_leaving
    lies = [f"True {early} times while connected"] * bool(early) + [f"False {late} times after"] * (late > 1)
    return ", ".join(lies) or ("true" if platform.polled else "")


def _platforms(report: Report) -> Table:
    rows = platform_rows(report.findings)
    asked = [question for question in QUESTIONS if any(question in answers for _, answers in rows)]
    table = Table(title="what server and framework did with the request of the client that left")
    for heading in ("scenario", *asked):
        table.add_column(heading, overflow="fold")
    for name, answers in rows:
        table.add_row(name, *(escape(answers.get(question, "-")) for question in asked))
    return table


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


def _behind_nginx(report: Report) -> Table:
    headings, rows = platforms.matrix(report.behind_nginx)
    if not rows:
        return _facts("behind nginx", report.behind_nginx)
    table = Table(title="behind nginx: the probe's own handler (platform) and the service's")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _facts(title: str, facts: object) -> Table:
    table = Table(title=title)
    table.add_column("question")
    table.add_column("answer", overflow="fold")
    for name, value in platforms.rows(facts if isinstance(facts, dict) else {}):
        table.add_row(escape(name), escape(value))
    return table
