"""The command line: from options and files to plans, and from reports to exit codes."""

from __future__ import annotations

import json
import pathlib
import textwrap
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from outlive import probe
from outlive.cli.probe import probe_app
from outlive.probe import target
from probe import plans

runner = CliRunner()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service that somebody else started: the probe has no recorder in it."""
    with target.opened(probe.Target(app="counting:app", directory=plans.SERVICES)) as service:
        yield service.url


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, url: str) -> list[str]:
    """The running service, and a plan by which little quiet is enough."""
    plan = tmp_path_factory.mktemp("hasty") / "plan.toml"
    plan.write_text("[target]\napp = 'instead:app'\n[probe]\nquiet = 0.1\n", encoding="utf-8")
    return [url, "--plan", str(plan)]


def test_a_running_service_is_probed_from_outside(hasty: list[str]) -> None:
    result = runner.invoke(probe_app, [*hasty, "--get", "/counted", "--scenario", "sigterm", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["scenarios"][0]["clients"][0]["chunks"]) == 6
    assert "did not start" in report["skipped"]["sigterm"]


def test_not_what_was_expected_is_exit_code_1_and_the_page_is_written(
    url: str, hasty: list[str], tmp_path: pathlib.Path
) -> None:
    page = tmp_path / "report.html"
    arguments = [
        *hasty,
        "--get",
        "/counted",
        "--scenario",
        "leave",
        "--expect",
        "completes",
        "--html",
        str(page),
    ]
    result = runner.invoke(probe_app, [*arguments, "--endpoint", f"{url}/nothing"])
    assert result.exit_code == 1, result.output
    assert "leave" in result.stdout
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Name a target"),
        (["x:app", "--scenario", "dance"], "no scenario 'dance'"),
        (["x:app", "--fail-on", "boredom"], "boredom"),
        (["nowhere:app"], "No module named 'nowhere'"),
        (["ftp://x"], "begins with http"),
        (["x:app", "--sql", "SELECT 1"], "A query is 'database::SELECT ...'"),
        (["x:app", "--effect-log", "file:first"], "--effect-log is file"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_exit_code_3(arguments: list[str], words: str) -> None:
    result = runner.invoke(probe_app, arguments)
    assert result.exit_code == 3
    assert words in result.output


def test_a_file_says_all_that_options_say(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        textwrap.dedent("""
            [target]
            app = "service:app"
            server = "granian"
            directory = "src"
            environment = { DATABASE = "x.db" }
            [request]
            path = "/chat/{thread}"
            json = { text = "{message}" }
            messages = ["hello", "are you there?"]
            [[evidence]]
            kind = "langgraph-sqlite"
            path = "x.db"
            [probe]
            scenarios = ["stay", "leave-rst"]
            after_chunks = 3
            effects = ["charge"]
            expect = "stops"
            fail_on = ["forks"]
        """),
        encoding="utf-8",
    )
    plan = probe.from_toml(path)
    assert plan.target.server is probe.Server.GRANIAN
    assert plan.target.directory == tmp_path / "src"
    assert plan.request.body == '{"text": "{message}"}'
    assert plan.scenarios[1].leaving is probe.Leaving.RST
    assert plan.scenarios[1].after_chunks == 3
    assert plan.evidence == (probe.Source(kind="langgraph-sqlite", settings={"path": "x.db"}),)
    assert (plan.expect, plan.fail_on) == (probe.Outcome.STOPS, (probe.Failure.FORKS,))


def test_options_win_over_the_file(tmp_path: pathlib.Path, url: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"[target]\nurl = '{url}'\n[request]\nmethod = 'GET'\npath = '/nowhere'\n"
        "[probe]\nscenarios = ['stay']\nexpect = 'stops'\npatience = 50\nquiet = 0.1\n",
        encoding="utf-8",
    )
    arguments = ["--plan", str(plan), "--get", "/plain", "--scenario", "leave", "--patience", "5", "--json"]
    result = runner.invoke(probe_app, [*arguments, "--expect", "unclear", "--fail-on", "forks, leaks"])
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(result.stdout)["scenarios"]] == ["stay", "leave"]


def test_a_request_that_is_refused_is_exit_code_3_with_the_refusal(hasty: list[str]) -> None:
    result = runner.invoke(probe_app, [*hasty, "--get", "/nowhere", "--fail-on", "forks"])
    assert result.exit_code == 3
    assert "GET /nowhere is refused with 404" in result.stdout


def test_evidence_may_be_the_services_own_paths_and_files_where_it_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "service.py").write_text(
        "import sqlite3\nfrom counting import app\n"
        "with sqlite3.connect('own.db') as c: c.execute('CREATE TABLE charges (name)')\n",
        encoding="utf-8",
    )
    options = ["--directory", str(tmp_path), "--env", f"PYTHONPATH={plans.SERVICES}", "--get", "/counted"]
    evidence = ["--endpoint", "/plain", "--sql", "own.db::SELECT count(*) FROM charges"]
    evidence += ["--sql-effects", "own.db::SELECT name FROM charges", "--checkpoints", "absent.db"]
    result = runner.invoke(
        probe_app, ["service:app", *options, *evidence, "--scenario", "stay", "--patience", "5", "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    (stayed,) = report["scenarios"]
    answers = {name.rpartition("/")[2]: value for name, value in stayed["facts"]["http"].items()}
    assert answers["plain"]["after"] == {"status": 200, "body": {"done": True}}
    assert stayed["facts"]["sql"] == {"SELECT count(*) FROM charges": [["0"]]}
    assert stayed["effects"] == {"sql": {}}
    assert report["server"].startswith("uvicorn 0.")
    assert [note.partition(" does")[0] for note in report["notes"]] == [str(tmp_path / "absent.db")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[target", "TOML"),
        ("[targets]\napp = 'x'", "unknown table 'targets'"),
        ("[target]\napp = 'x'\nurl = 'http://x'", "exactly one"),
        ("[target]\napp = 'x'\n[probe]\nexpect = 'joy'", "joy"),
        ("[target]\napp = 'x'\n[probe]\npatiance = 3", "patiance"),
    ],
)
def test_a_file_that_is_wrong_is_told_where(tmp_path: pathlib.Path, text: str, words: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(probe.PlanError, match=words):
        probe.from_toml(path)
