"""What else clients and operators do: resets, half-closes, vanishing, double clicks, signals."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from outlive import probe
from probe import plans

CLIENTS = ("stay", "leave-rst", "leave-half-close", "leave-early", "double-click", "reconnect")
SIGNALS = ("stay", "sigterm", "sigkill")


COUNTED = ("stay", "slow", *(["leave-vanish"] if sys.platform == "linux" else []))
LEAKS = {"app": "counting:create()", "fail_on": (probe.Failure.LEAKS,)}
PLANS: Mapping[str, Callable[[pathlib.Path], probe.Plan]] = {
    "clients": lambda d: plans.booking(d, "inline", *CLIENTS, quiet=0.4),
    "signals": lambda d: plans.booking(d, "inline", *SIGNALS, quiet=0.4),
    "counted": lambda _: plans.counting("/counted", *COUNTED, pause=0.4, quiet=0.4),
    "leaking": lambda _: plans.counting("/leaking", "stay", "leave", **LEAKS),
}
pytestmark = pytest.mark.timeout(180)

Scenarios = dict[str, dict[str, Any]]


@pytest.fixture
def inline(played: Callable[[str], probe.Report]) -> Scenarios:
    """All of them on the inline handler."""
    reports = [played(name).as_json() for name in ("clients", "signals")]
    assert [report["skipped"] for report in reports] == [{}, {}]
    return {scenario["name"]: scenario for report in reports for scenario in report["scenarios"]}


@pytest.fixture
def counted(played: Callable[[str], probe.Report]) -> Scenarios:
    """Some of them on a short stream."""
    return {scenario["name"]: scenario for scenario in played("counted").as_json()["scenarios"]}


@pytest.mark.parametrize("way", ["leave-rst", "leave-half-close"])
def test_a_reset_and_half_a_close_count_as_leaving(inline: Scenarios, way: str) -> None:
    assert inline[way]["outcome"] == "stops"
    assert inline[way]["platform"]["exception"] == "CancelledError"


def test_leaving_before_the_first_chunk_leaves_nothing_done(inline: Scenarios) -> None:
    early = inline["leave-early"]
    assert early["clients"][0]["chunks"] == []
    assert early["clients"][0]["ended"] == "left by fin"
    assert early["outcome"] in {"stops", "partial"}  # by the clock: the first node may just have been done
    assert early["executed"].get("finish") is None


def test_a_double_click_charges_twice_and_forks_the_thread(inline: Scenarios) -> None:
    double = inline["double-click"]
    assert double["executed"]["charge"] == 2
    assert double["repeated"] == ["charge"]
    assert {"duplicate-effects", "forks"} <= set(double["failures"])
    assert double["recorded"]["steps_on_head"].count("charge") == 1


def test_a_client_that_reconnects_by_posting_again_is_charged_again(
    inline: Scenarios,
) -> None:
    assert inline["reconnect"]["verdict"][0] == "A client that reconnects by itself repeats: charge."
    assert inline["reconnect"]["outcome"] is None  # who is back at once does not see what becomes of the run


def test_uvicorn_waits_for_an_open_stream_at_sigterm(inline: Scenarios) -> None:
    terminated = inline["sigterm"]
    assert terminated["server_exit"]["in_time"] is True
    assert terminated["outcome"] == "completes"
    assert terminated["clients"][0]["ended"] == "complete"


def test_a_killed_server_leaves_the_thread_torn_and_the_next_message_repeats(
    inline: Scenarios,
) -> None:
    killed = inline["sigkill"]
    assert killed["outcome"] == "stops"
    assert killed["clients"][0]["ended"].startswith("broken")
    assert killed["recorded_before_return"]["position"] == "torn"
    assert killed["repeated"] == ["charge"]
    assert killed["picked_up_and_finished"] is False
    assert killed["executed"]["finish"] == 1  # the restarted service served the returning user


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a socket drop what arrives")
def test_a_client_that_vanishes_without_a_fin_is_not_missed(counted: Scenarios) -> None:
    vanished = counted["leave-vanish"]
    assert vanished["outcome"] == "completes"
    assert vanished["platform"]["exception"] is None
    assert len(vanished["clients"][0]["chunks"]) == 2
    assert counted["stay"]["clients"][0]["last_event_id"] == "5"


def test_a_reader_that_pauses_gets_everything(counted: Scenarios) -> None:
    assert len(counted["slow"]["clients"][0]["chunks"]) == 6


def test_an_upstream_that_nobody_closes_is_a_leak(played: Callable[[str], probe.Report]) -> None:
    report = played("leaking")
    left = report.as_json()["scenarios"][1]
    assert left["platform"]["generators_left"] == ["_numbers (still open)"]
    assert report.exit_code(plans.counting("/leaking", **LEAKS)) == 2
