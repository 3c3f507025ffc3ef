"""What a serving process shows its operator: a scrape, one line per happening, what policies cost."""

from __future__ import annotations

import json
import logging
import pathlib
import re
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import outlive
from cli import support
from core import support as core
from outlive import logs, runtime, signals

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=support.WITHIN) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_metrics_are_answered_on_a_port_of_their_own(command: str, sqlite_path: pathlib.Path) -> None:
    database = f"sqlite:///{sqlite_path}"
    runtime.migrate(database)
    port = ("--port", "0") if command == "serve" else ()
    given = (command, "served:both", "-d", database, *port, "--metrics-port", "0")
    with support.running(*given, "--log-format", "json") as process:
        page = _get(process.says(r"metrics on (\S+)"))
        assert "outlive_slots{" in page
        assert "outlive_database_answers 1.0" in page
        if command == "serve":
            address = process.says(r"listening on (\S+)")
            with pytest.raises(urllib.error.HTTPError, match="404"):
                _get(f"{address}/metrics")


def test_traces_that_nobody_records_are_refused(here: support.Here, sqlite_path: pathlib.Path) -> None:
    database = f"sqlite:///{sqlite_path}"
    runtime.migrate(database)
    answer = here("worker", "served:both", "-d", database, "--traces", "on")
    assert answer.code == 2
    assert "nothing is there that records them" in answer.err


def test_traces_go_to_the_provider_that_the_agents_module_sets(sqlite_path: pathlib.Path) -> None:
    database = f"sqlite:///{sqlite_path}"
    runtime.migrate(database)
    given = ("serve", "traced:agent", "-d", database, "--port", "0", "--traces", "on")
    with support.running(*given) as process:
        address = process.says(r"listening on (\S+)")
        body = json.dumps({"agent": "agent"}).encode()
        request = urllib.request.Request(
            f"{address}/runs", body, {"Content-Type": "application/json", "traceparent": PARENT}
        )
        with urllib.request.urlopen(request, timeout=support.WITHIN):
            pass
        assert process.says(r"span run.attempt (\S+)") == PARENT.split("-")[1]


def test_a_cost_that_there_is_is_printed_for_people_and_programs(
    here: support.Here, sqlite_path: pathlib.Path
) -> None:
    database = f"sqlite:///{sqlite_path}"
    runtime.migrate(database)
    assert json.loads(here("policy-cost", "-d", database, "--json").out) == []
    assert "after the last viewer" in here("policy-cost", "-d", database).out


@pytest.fixture
def migrated(sqlite_path: pathlib.Path) -> str:
    """The URL of an empty database."""
    runtime.migrate(f"sqlite:///{sqlite_path}")
    return f"sqlite:///{sqlite_path}"


SECRET = "the customer's own words"


class _Lines(logging.Handler):
    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logged() -> Any:
    logger, handler = logging.getLogger("outlive"), _Lines(logs.Json())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


async def test_the_life_of_a_run_is_one_line_per_happening_and_no_payload(
    migrated: str, logged: list[str]
) -> None:
    @core.job("agent")
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        yield SECRET
        raise ValueError(SECRET)

    async with core.serving(migrated, agent) as served:
        heard = core.heard(served)
        run = (await served.submit("agent", SECRET, thread="t", metadata={"of": SECRET})).run
        await heard.of(signals.RunEnded)
    lines = [json.loads(line) for line in logged]
    assert [line["event"] for line in lines] == ["RunClaimed", "RunSubmitted", "RunEnded"]
    assert {line["run_id"] for line in lines} == {run.run_id}
    assert {line["thread_id"] for line in lines} == {run.thread_id}
    assert {line["epoch"] for line in lines} == {1}
    assert lines[2]["state"] == "failed"
    assert lines[2]["error"] == "ValueError"
    assert SECRET not in "".join(logged)


async def test_payloads_are_logged_where_somebody_has_asked_for_them(
    migrated: str, logged: list[str]
) -> None:
    @core.job("agent")
    async def agent(context: outlive.Context) -> AsyncGenerator[Any, None]:
        if context.input == "fail":
            raise ValueError(SECRET)
        yield outlive.Outcome(output="x" * (2 * signals.LONGEST))

    async with core.serving(migrated, agent) as served:
        served.signals.payloads = True
        heard = core.heard(served)
        for given in ("fail", "work"):
            run = (await served.submit("agent", given)).run
            await heard.of(signals.RunEnded, run_id=run.run_id)
    told = [one for one in map(json.loads, logged) if one["event"] == "RunPayload"]
    assert [(one["what"], one["text"]) for one in told if one["what"] == "input"] == [
        ("input", '"fail"'),
        ("input", '"work"'),
    ]
    (error,) = [one["text"] for one in told if one["what"] == "error"]
    assert SECRET in error
    (output,) = [one["text"] for one in told if one["what"] == "output"]
    assert len(output) == signals.LONGEST


def test_a_line_of_text_says_the_same_and_stays_one_line() -> None:
    record = logging.LogRecord("outlive", logging.INFO, "", 0, "x", (), None)
    record.event = "RunEnded"
    record.happening = {"run_id": "r", "error": 'two\nlines "quoted"', "reason": None}
    text = logs.Text().format(record)
    assert re.fullmatch(r'\S+ INFO RunEnded run_id=r error="two\\nlines \\"quoted\\""', text)


def test_of_an_exception_the_class_and_the_place_are_logged_and_not_its_words() -> None:
    try:
        raise ValueError("".join(["the customer's", " own words"]))
    except ValueError as failure:
        record = logging.LogRecord(
            "other", logging.ERROR, "", 0, "it failed", (), (ValueError, failure, failure.__traceback__)
        )
    said = logs.Json().format(record)
    assert json.loads(said)["exception"] == "ValueError"
    assert "test_watched.py" in said
    assert SECRET not in said
