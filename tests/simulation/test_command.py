"""The command line of the simulation: a minute of it, what it reports, and how it shows a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any
from unittest import mock

import pytest

from outlive.testing import simulate as command
from outlive.testing.simulation import Violation, agent, batch, coverage
from simulation import bugs

MOVES = {
    "append", "claim", "hand_back", "renew", "begin → queued", "begin → running", "submit → queued",
    "submit → running", "settle → succeeded", "settle → failed", "settle → stopped", "settle → waiting",
    "stop → running", "stop → stopped", "sweep → queued", "sweep → stopped", "sweep → abandoned",
}  # fmt: skip


def simulated(*options: str, seconds: float) -> dict[str, Any]:
    line = [sys.executable, "-m", "outlive.testing.simulate", "--json", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(150)
def test_a_minute_of_bad_days_breaks_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    report = simulated("--seconds", "60", "--fresh", seconds=120)
    with capsys.disabled():  # so that also a run that passed can be repeated
        sys.stdout.write(f"\nsimulated {report['seeds']} seeds from {report['first']} on\n")
    assert report["violations"] == []
    assert report["seeds"] >= 10
    assert report["simulated_seconds"] > report["seeds"]


@pytest.mark.timeout(100)
def test_a_hundred_seeds_try_every_move_and_every_fault() -> None:
    report = simulated("--seeds", "100", seconds=90)
    assert report["seeds"] == 100
    assert set(report["covered"]) == MOVES
    assert {fault for counts in report["covered"].values() for fault in counts} == set(coverage.COLUMNS)


def test_what_never_met_is_named_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    tally = batch.Tally(first=5, seeds=1, covered=Counter({("claim", "calm"): 3, ("append", "kill"): 1}))
    with mock.patch.object(batch, "run_many", return_value=[tally]):
        assert command.main(["--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "append never met: calm, shutdown, freeze," in shown
    assert "claim never met: kill, shutdown, freeze," in shown
    assert "1 seeds from 5 on" in shown


def test_fresh_seeds_are_others_every_time_and_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[int] = []

    def run_many(first: int, **_: Any) -> list[batch.Tally]:
        begun.append(first)
        return [batch.Tally(first=first)]

    with mock.patch.object(batch, "run_many", side_effect=run_many):
        for now in (7, 8):
            with mock.patch("time.time_ns", return_value=now * 1_000_000):
                assert command.main(["--seconds", "1", "--fresh"]) == 0
            assert f"first seed: {now}" in capsys.readouterr().err
    assert begun == [7, 8]


def test_the_seeds_asked_for_are_the_seeds_simulated_each_once() -> None:
    assert [seed for chunk in batch._chunks(7, 25) for seed in chunk] == list(range(7, 32))


def test_a_broken_promise_decides_the_exit_code_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = batch.Tally(seeds=1, violations=[(41, Violation("I3", "two at once"))])
    with mock.patch.object(batch, "run_many", return_value=[tally]):
        assert command.main(["--seeds", "1"]) == 1
    shown = capsys.readouterr().out
    assert "seed 41: I3: two at once" in shown
    assert "--seed 41 --timeline" in shown


def test_a_failing_seed_is_shown_as_a_timeline_and_a_smaller_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with mock.patch.object(agent.StepsAgent, "do", bugs.record_first):
        assert command.main(["--seed", "3", "--timeline", "--shrink"]) == 1
    lines = capsys.readouterr().out.splitlines()
    marked = next(number for number, line in enumerate(lines) if line.startswith(">>>"))
    told = next(number for number, line in enumerate(lines) if line.startswith("I15 is broken"))
    assert any("is recorded as done" in line for line in lines[told:])  # the evidence
    assert "was recorded before it was executed" in lines[marked]
    assert "is recorded as done" in lines[marked - 1]  # the line that shows it
    assert sum("Op(" in line for line in lines) == 1  # one client is enough
    assert not any("Strike(" in line for line in lines)  # and no fault is needed


def test_a_seed_that_breaks_nothing_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "3", "--timeline"]) == 0
    shown = capsys.readouterr().out
    assert "0 violations" in shown
    assert ">>>" not in shown


def test_no_seeds_and_no_seconds_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--seeds", "0"])
    assert ended.value.code == 2
