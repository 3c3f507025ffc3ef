"""What the experiments share: the command, the report, statistics, seeds."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from outlive import lab
from outlive.cli.lab import lab_app
from outlive.lab import experiments
from outlive.lab.experiment import Bench, Experiment, Measured, Unavailable, interval
from outlive.probe import PlanError

runner = CliRunner()


def test_the_command_prints_json_and_writes_a_report(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "lab.html"
    result = runner.invoke(lab_app, ["undeclared", "pauses", "--quick", "--json", "--html", str(page)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(one["name"], one["ok"]) for one in found] == [("undeclared", True), ("pauses", True)]
    assert found[0]["rows"][1]["receipt in the result"] == "ch_123"
    assert "interrupt_after" in page.read_text(encoding="utf-8")


def test_the_command_prints_a_table_for_people(tmp_path: pathlib.Path) -> None:
    result = runner.invoke(lab_app, ["undeclared", "--html", str(tmp_path / "lab.html")])
    assert result.exit_code == 0
    assert "ch_123" in result.stdout
    assert "held" in result.stdout


def test_an_unknown_experiment_is_named_before_anything_is_played() -> None:
    result = runner.invoke(lab_app, ["undeclared", "tea"])
    assert result.exit_code == 3
    assert "'tea'" in result.output
    assert runner.invoke(lab_app, ["--list"]).stdout.split() == lab.names()


def _experiment(name: str, outcome: bool | None) -> Experiment:
    def play(bench: Bench) -> Measured:
        bench.plan(1)
        if outcome is None:
            raise Unavailable("no such thing here")
        bench.step()
        return Measured(
            ok=outcome, rows=[{"number": bench.random.random(), "trials": bench.trials(full=9, quick=3)}]
        )

    return Experiment(name=name, title=name, asserts="nothing", play=play)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the real experiments: one that holds, one that does not, one that cannot be played."""
    made = (_experiment("good", True), _experiment("bad", False), _experiment("absent", None))
    monkeypatch.setattr(experiments, "ALL", made)


@pytest.mark.usefixtures("three")
def test_what_did_not_hold_is_an_exit_code_and_what_cannot_be_played_is_not(tmp_path: pathlib.Path) -> None:
    page = str(tmp_path / "lab.html")
    assert runner.invoke(lab_app, ["good", "absent", "--html", page]).exit_code == 0
    assert runner.invoke(lab_app, ["bad", "--html", page]).exit_code == 1
    results = list(lab.run())
    assert [result.ok for result in results] == [True, False, None]
    assert "no such thing here" in lab.render(results)


@pytest.mark.usefixtures("three")
def test_a_lab_that_is_interrupted_keeps_what_was_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Bench) -> Measured:
        raise KeyboardInterrupt

    last = Experiment(name="last", title="last", asserts="nothing", play=interrupted)
    monkeypatch.setattr(experiments, "ALL", (*experiments.ALL, last))
    page = tmp_path / "lab.html"
    assert runner.invoke(lab_app, ["--html", str(page)]).exit_code != 0
    assert [f'<h2 id="{name}">' in page.read_text(encoding="utf-8") for name in ("good", "last")] == [
        True,
        False,
    ]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("failure", [PlanError("it did not start"), KeyError("it did not start")])
def test_an_experiment_that_breaks_did_not_hold_and_loses_no_other(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def broken(_: Bench) -> Measured:
        raise failure

    breaking = Experiment(name="b", title="b", asserts="b", play=broken)
    monkeypatch.setattr(experiments, "ALL", (breaking, *experiments.ALL[:1]))
    result, other = lab.run()
    assert (result.ok, other.ok) == (False, True)
    assert "it did not start" in lab.render([result])


def test_a_report_that_cannot_be_written_is_said_before_anything_is_played(tmp_path: pathlib.Path) -> None:
    result = runner.invoke(lab_app, ["undeclared", "--html", str(tmp_path / "nowhere" / "lab.html")])
    assert result.exit_code == 3
    assert result.stdout == ""


@pytest.mark.usefixtures("three")
def test_a_seed_decides_and_trials_are_as_asked() -> None:
    def row(options: lab.Options) -> Mapping[str, object]:
        return next(lab.run(["good"], options)).rows[0]

    assert row(lab.Options(seed=1)) == row(lab.Options(seed=1)) != row(lab.Options(seed=2))
    asked = (lab.Options(), lab.Options(quick=True), lab.Options(quick=True, trials=7))
    assert [row(options)["trials"] for options in asked] == [9, 3, 7]


@pytest.mark.usefixtures("three")
def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    list(lab.run(["good"], lab.Options(), lambda *step: told.append(step)))
    assert told == [("good", 0, 1), ("good", 1, 1)]


def test_a_count_comes_with_its_interval() -> None:
    assert interval(5, 10) == "5 of 10 (24% to 76%)"
    assert interval(0, 3) == "0 of 3 (0% to 56%)"
    assert interval(3, 3) == "3 of 3 (44% to 100%)"
