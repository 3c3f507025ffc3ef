"""Writes `states.md`, `settings.md`, `metrics.md`: ``python docs/generate.py``. Tests hold them current."""

from __future__ import annotations

import pathlib

from outlive import settings, states
from outlive.metrics import definitions

PAGE = pathlib.Path(__file__).parent / "states.md"
SETTINGS = pathlib.Path(__file__).parent / "settings.md"
METRICS = pathlib.Path(__file__).parent / "metrics.md"
_HEAD = """# States and moves

Made by `python docs/generate.py` from `outlive.states`; a test holds it current.

A run is queued, then running, then ended. Whatever ended stays as it is, for ever.

"""
_MEANINGS = {
    states.State.QUEUED: "on record, waiting for a worker, for its thread or for its time",
    states.State.RUNNING: "a worker holds it, for as long as its lease lasts",
    states.State.SUCCEEDED: "its agent came to its own end",
    states.State.WAITING: "its agent waits for a person; the answer is a new run",
    states.State.FAILED: "its agent raised",
    states.State.STOPPED: "it was stopped, and `reason` says by whom or what",
    states.State.ABANDONED: "its executors were lost, more often than its policy allows",
}
_REASONS = {
    states.Reason.REQUESTED: "somebody asked",
    states.Reason.DISCONNECT: "nobody watched for the grace that its policy gives",
    states.Reason.DISPLACED: "a newer message took its place",
    states.Reason.TIMEOUT: "the attempt took longer than `run_timeout`, or its agent said nothing for"
    " `silence_timeout`",
    states.Reason.LOST: "its executor was lost",
}


def states_page() -> str:
    """Return the whole page."""
    parts = (_diagram(), _table_of_states(), _table_of_reasons(), _table_of_moves(), _FENCE)
    return _HEAD + "\n\n".join(parts) + "\n"


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for source, target, moves in _arrows():
        lines.append(f"    {source} --> {target}: {', '.join(moves)}")
    lines += [f"    {state.value} --> [*]" for state in states.State if state.terminal]
    return "\n".join([*lines, "```"])


def _arrows() -> list[tuple[str, str, list[str]]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for rule in states.RULES:
        for target in _in_order(rule.targets):
            moves = arrows.setdefault((_name(rule.source, "[*]"), target.value), [])
            if rule.move.value not in moves:
                moves.append(rule.move.value)
    return [(source, target, moves) for (source, target), moves in arrows.items()]


def _table_of_states() -> str:
    rows = [
        f"| `{state.value}` | {'yes' if state.terminal else ''} | {_MEANINGS[state]} |"
        for state in states.State
    ]
    return "\n".join(["| state | ended | meaning |", "|---|---|---|", *rows])


def _table_of_reasons() -> str:
    rows = [f"| `{reason.value}` | {_REASONS[reason]} |" for reason in states.Reason]
    return "\n".join(["| reason of a stop | meaning |", "|---|---|", *rows])


def _table_of_moves() -> str:
    head = [
        "| move | from | to | who | what must hold in its transaction | epoch |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, states.RULES)])


def _row(rule: states.Rule) -> str:
    targets = " · ".join(f"`{state.value}`" for state in _in_order(rule.targets))
    guards = " · ".join(guard.value for guard in states.Guard if guard in rule.guards)
    source = "-" if rule.source is None else f"`{rule.source.value}`"
    epoch = f"+{rule.epoch}" if rule.epoch else "as it is"
    return f"| `{rule.move.value}` | {source} | {targets} | {rule.who.value} | {guards} | {epoch} |"


def _in_order(found: frozenset[states.State]) -> list[states.State]:
    return [state for state in states.State if state in found]


def _name(state: states.State | None, nothing: str) -> str:
    return nothing if state is None else state.value


_FENCE = """The epoch counts executors. Every write of one carries its epoch and its claim token, and checks
them in the statement that writes. A process that was frozen, cut off or replaced therefore changes nothing
when it comes back: what it tries is refused and counted. The lease only decides when somebody else may take
over."""

_SETTINGS = """# Settings

Made by `python docs/generate.py` from `outlive.settings`; a test holds it current.

`outlive serve`, `outlive worker`, `outlive migrate` and the commands that look at a database read the same
settings. A flag comes before the environment, the environment before the file, the file before the default.
The file is `outlive.toml` in the working directory, or what `--config` or `OUTLIVE_CONFIG` names:

```toml
database = "postgresql://user@host/name"
slots = 16
auth = "keys"

[agent_limits.assistant]
running = 20
per_minute = 60
```

In the environment a setting is called `OUTLIVE_` and its name in capitals: `OUTLIVE_SLOTS=16`. An
empty variable sets nothing.

`outlive settings` prints every value and where it came from, and takes the same flags; `--json` is for
programs. Passwords and keys are masked in it. A value that cannot be used is refused before anything is
started, by exit code 2 and one line that names the setting, where the value came from and what is allowed. A
name in the file, or a flag, that is no setting is refused; a variable that only begins like one is named by
`outlive settings` and by `outlive doctor`, and ignored.

"""
_SETTINGS_END = """An application that makes its own `outlive.Outlive` reads none of these; it passes
arguments of the same meaning.
"""


def settings_page() -> str:
    """Return the whole page."""
    head = ["| setting | default | allowed | decides | flag |", "|---|---|---|---|---|"]
    table = "\n".join([*head, *map(_setting, settings.Settings.model_fields)])
    return f"{_SETTINGS}{table}\n\n{_SETTINGS_END}"


def _setting(name: str) -> str:
    field = settings.Settings.model_fields[name]
    shape = settings.Settings.model_json_schema()["properties"][name]
    default = settings.show(field.get_default(call_default_factory=True))
    flag = "no flag" if name in settings.NO_FLAG else f"`{settings.flag(name)}`"
    return f"| `{name}` | {default} | {_allowed(shape)} | {field.description} | {flag} |"


def _allowed(shape: dict[str, object]) -> str:
    choices = shape.get("anyOf")
    if isinstance(choices, list):
        return ", or ".join(_allowed(choice) for choice in choices)
    if isinstance(values := shape.get("enum"), list):
        return ", ".join(f"`{value}`" for value in values)
    words = {"integer": "whole number", "number": "number", "boolean": "yes or no", "null": "none"}
    word = words.get(str(shape.get("type")), "table" if shape.get("type") == "object" else "text")
    word = "text, by commas" if shape.get("type") == "array" else word
    least, most = shape.get("minimum"), shape.get("maximum")
    bounds = [f"from {least:g}" if isinstance(least, int | float) else ""]
    bounds += [f"to {most:g}" if isinstance(most, int | float) and most < 1e6 else ""]
    return " ".join(filter(None, [word, *bounds]))


_METRICS = """# Metrics

Made by `python docs/generate.py` from `outlive.metrics.definitions`; a test holds it current, and another
reads of each the exact number that it must have moved by.

`pip install 'outlive[metrics]'`, then `outlive serve --metrics-port 9464` or `outlive worker
--metrics-port 9464`: Prometheus scrapes `http://127.0.0.1:9464/metrics`.

- **Who may see it.** It is a port of its own, on this machine only unless `metrics_host` says otherwise,
  and nobody is authenticated there: choose an address that only Prometheus reaches. The service's own
  port has no such route, so a proxy in front of it cannot expose one.
- **What a scrape costs.** A thread of its own answers, so a loop that stands still is seen and not waited
  for. However many scrape, the database is asked one small statement in 5 seconds, and one about costs in
  60. If it does not answer within 3 seconds, `outlive_database_answers` is 0 and what is marked *shared*
  is left out.
- **Several processes.** Each serves its own port and counts what happened in it; sum those over
  `instance`. What is marked *shared* is read from the database and the same in all: take it once, by
  `max`. A port that is taken is refused at the start; with `0` a free one is taken and printed.
- **In an application of your own:** `outlive.metrics.Metrics(outlive)` within its `async with`, then
  `async with metrics.served(9464)`, or a route that returns `await metrics.page()`; who may see that is
  yours to say.

`python bench/scrape.py` measures what ten scrapes a second cost twenty streams of one process, and prints
ratios of alternating rounds. Twice, on a busy machine: 0.97 and 1.04 of the time, 1.09 and 1.14 of the CPU
without them. A scrape took 5 to 6 ms at the median, 27 to 65 ms at the 99th percentile, in the process that
also ran the agents and the viewers.

`ops/grafana-dashboard.json` is a dashboard over these, `ops/alerts.yml` are rules; a test checks both
against the names and labels below.

"""
_METRICS_END = """## What leaving costs

`outlive policy-cost` reads from the record, over all processes, what runs worked after their last viewer
had left and what was thrown away by stops, per agent and by how they ended; `--hours`, `--json`. Read it
before you choose `on_disconnect`: the rows `stopped disconnect` are what *cancel* threw away, what others
worked unwatched is what *continue* cost. Runs that nobody ever watched are in neither. Seconds are of the
wall, from a run's first start to its end; chunks that retention has taken away are not counted any more.

## The log

Logs and metrics listen to the same closed list, `outlive.signals`. Each happening is one line on stderr,
with its name as `event` and its fields: `run_id`, `thread_id` and `epoch` where it is of a run that is
submitted, claimed, stopped, handed back, swept or ended. `log_format = "json"` makes each line one JSON
object; `log_level = "warning"` leaves out what is in order. No line of a happening holds what a run was
given, yielded or returned; of a failed agent there is the class of what it raised. Where the database fails,
the `error` is in its own words. What else is logged names an exception's class and where it was raised, not
its text.

`log_payloads = true` adds a line `RunPayload` with what a run was given, returned, or failed with, up to 8192
characters of each. Then the log holds whatever customers write and models answer, and the texts of exceptions
with whatever secrets are in them, readable to whoever reads logs, for as long as those are kept, and deleting
a thread does not delete it there. It is for a developer's machine, or an hour's search. In an application:
`outlive.signals.payloads = True`.

In an application of your own the logger is `outlive`, each record has `event` and `happening`, and
`outlive.logs.Json` is the formatter.

## What they cannot say

`outlive_event_lag_seconds` compares the database's clock with the process's: on two machines it is as
exact as their clocks. It is measured where Outlive's own streams hand an event to the server, not where a
client reads it, and streams of the LangGraph protocol are not in it. `outlive_loop_lag_seconds` is the
longest since the last scrape; two scrapers share it. `node` is the function that held the loop when that
was noticed.
"""


def metrics_page() -> str:
    """Return the whole page."""
    head = ["| metric | kind | labels | counts |", "|---|---|---|---|"]
    table = "\n".join([*head, *map(_metric, definitions.METRICS)])
    return f"{_METRICS}{table}\n\n{_METRICS_END}"


def _metric(metric: definitions.Metric) -> str:
    name = metric.exported[0] if metric.kind is not definitions.Kind.HISTOGRAM else metric.name
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    shared = " *Shared.*" if metric.shared else ""
    return f"| `{name}` | {metric.kind.value} | {labels} | {metric.meaning}{shared} |"


if __name__ == "__main__":
    PAGE.write_text(states_page(), encoding="utf-8")
    SETTINGS.write_text(settings_page(), encoding="utf-8")
    METRICS.write_text(metrics_page(), encoding="utf-8")
