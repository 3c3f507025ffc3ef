"""The demonstration holds, notices each of its breaks, and leaves no process behind however it ends."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest

from demo import breaks, checker, evidence
from demo.evidence import Call, Connection, Event, Evidence, Run
from outlive.testing import process_tree

ROOT = pathlib.Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "demo.run"]
WITHIN = 55.0
Doctor = Callable[[Evidence], Evidence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How one demonstration ended."""

    code: int
    document: dict[str, Any]

    @property
    def broken(self) -> set[str]:
        return {check["code"] for check in self.document["checks"] if check["violations"]}


def demonstrate(*options: str) -> Outcome:
    command = [*COMMAND, "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode in (0, 1), done.stderr
    return Outcome(code=done.returncode, document=json.loads(done.stdout))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder in which the whole demonstration leaves its evidence."""
    return tmp_path_factory.mktemp("evidence")


@pytest.fixture(scope="module")
def performances(request: pytest.FixtureRequest, kept: pathlib.Path) -> Iterator[dict[str, Future[Outcome]]]:
    """Every demonstration that a selected test asks for, two at a time: they mostly wait."""
    options = {"": ["--keep", str(kept)]}
    names = dict.fromkeys(name for item in request.session.items for name in asked_for(item))
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {name: pool.submit(demonstrate, *options.get(name, ["--break", name])) for name in names}


def asked_for(item: pytest.Item) -> list[str]:
    """The break that a test asks for, or nothing for the whole demonstration."""
    if "performances" not in getattr(item, "fixturenames", ()):
        return []
    callspec = getattr(item, "callspec", None)
    return [callspec.params.get("name", "") if callspec else ""]


@pytest.fixture(scope="module")
def whole(performances: dict[str, Future[Outcome]]) -> Outcome:
    """The whole demonstration, performed once."""
    return performances[""].result(WITHIN)


def test_everything_holds_and_nothing_holds_for_want_of_facts(whole: Outcome) -> None:
    assert whole.broken == set()
    assert whole.code == 0
    assert whole.document["held"]
    assert [check["code"] for check in whole.document["checks"] if not check["facts"]] == []


def test_a_client_that_leaves_under_cancel_stops_the_run_and_the_same_intent_goes_on_from_there(
    whole: Outcome, kept: pathlib.Path
) -> None:
    assert whole.code == 0
    cut, rest = evidence.read(kept).on("1-cancel")
    assert (cut.state, cut.reason) == ("stopped", "disconnect")
    assert [event.step for event in cut.events if event.step] == ["plan", "charge"]
    assert rest.continues == cut.run_id
    assert [event.step for event in rest.events if event.step] == ["notify", "finish"]
    assert rest.result["steps"] == ["plan", "charge", "notify", "finish"]


def test_a_client_that_comes_back_by_cursor_gets_the_rest_without_hole_or_repeat(
    whole: Outcome, kept: pathlib.Path
) -> None:
    assert whole.code == 0
    found = evidence.read(kept)
    before, after = (c for c in found.connections if c.client == "2-continue.guest")
    assert (before.closed, after.closed) == ("client", "server")
    received = [seen.seq for connection in (before, after) for seen in connection.seen]
    assert received == [event.seq for event in found.on("2-continue")[0].events]


@pytest.mark.parametrize("thread", ["4-notify", "4-charge", "5-frozen", "5-checkpoint"])
def test_S08_a_lost_worker_is_followed_by_another_one_that_goes_on_from_the_checkpoint(
    thread: str, whole: Outcome, kept: pathlib.Path
) -> None:
    assert whole.code == 0
    (run,) = evidence.read(kept).on(thread)
    kinds = [event.kind for event in run.events]
    assert (kinds.count("attempt"), kinds.count("end"), kinds[-1]) == (2, 1, "end")
    assert run.losses == 1
    assert [event.step for event in run.events if event.step] == ["plan", "charge", "notify", "finish"]


@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_break_is_noticed_by_the_check_that_is_there_for_it(
    name: str, performances: dict[str, Future[Outcome]]
) -> None:
    outcome = performances[name].result(WITHIN)
    assert outcome.code == 1
    assert set(breaks.BREAKS[name].noticed_by) <= outcome.broken


@pytest.mark.parametrize("name", breaks.CONTROLS)
def test_the_index_alone_keeps_two_messages_apart_when_the_queries_are_late(
    name: str, performances: dict[str, Future[Outcome]]
) -> None:
    outcome = performances[name].result(WITHIN)
    assert (outcome.code, outcome.broken) == (0, set())


def test_a_break_that_does_not_exist_is_refused() -> None:
    done = subprocess.run(
        [*COMMAND, "--break", "everything"], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 2
    assert "no-unique-index" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_process_is_left_however_the_demonstration_is_ended(
    number: signal.Signals, code: int, tmp_path: pathlib.Path
) -> None:
    command = [*COMMAND, "--only", "sure", "--keep", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if b"is frozen" in line:
                break
        children = processes_about(tmp_path, besides=running.pid)
        assert len(children) == 4  # the provider, two servers of which one is frozen, and the guard
        running.send_signal(number)
        running.communicate(timeout=WITHIN)
    assert running.returncode == code
    process_tree.wait_gone(children, within=20)


def processes_about(folder: pathlib.Path, *, besides: int) -> list[int]:
    listing = subprocess.run(["ps", "-axwwo", "pid=,args="], check=True, capture_output=True, text=True)
    rows = [line.split(maxsplit=1) for line in listing.stdout.splitlines() if str(folder) in line]
    return [int(pid) for pid, _ in rows if int(pid) != besides]


# ---------------------------------------------------------------- the checker


def broken(found: Evidence) -> set[str]:
    return {finding.code for finding in checker.check(found) if finding.violations}


def run_changed(thread: str, change: Callable[[Run], Run]) -> Doctor:
    def doctor(found: Evidence) -> Evidence:
        return replace(found, runs=tuple(change(run) if run.thread == thread else run for run in found.runs))

    return doctor


def events_changed(thread: str, change: Callable[[tuple[Event, ...]], tuple[Event, ...]]) -> Doctor:
    return run_changed(thread, lambda run: replace(run, events=change(run.events)))


def connection_changed(client: str, change: Callable[[Connection], Connection]) -> Doctor:
    def doctor(found: Evidence) -> Evidence:
        changed = (change(one) if one.client == client and one.seen else one for one in found.connections)
        return replace(found, connections=tuple(changed))

    return doctor


def looked(**seen: dict[str, object]) -> Doctor:
    return lambda found: replace(found, looks=found.looks | seen)


def called(what: str, *, at: float) -> Doctor:
    call = Call(at=at, what=what, step="charge", booking="4-notify", caller=1, key="another")
    return lambda found: replace(found, calls=(*found.calls, call))


def refused_nothing_of(thread: str) -> Doctor:
    # The runs of a scenario without late writes, under the name of one whose have to be refused.
    return run_changed("4-notify", lambda run: replace(run, thread=thread))


def twin(run: Run) -> Run:
    """Another run that was driven while this one was."""
    return replace(run, run_id="twin", events=tuple(replace(event, run_id="twin") for event in run.events))


DOCTORED: list[tuple[str, Doctor]] = [
    ("one-end", events_changed("4-notify", lambda events: events[:-1])),
    ("one-end", events_changed("4-notify", lambda events: (*events, events[-1]))),
    ("one-end", run_changed("4-notify", lambda run: replace(run, state="failed"))),
    ("one-end", looked(torn={"4-notify": "a run was seen as succeeded"})),
    ("nothing-left", run_changed("4-notify", lambda run: replace(run, state="running"))),
    ("no-gap", events_changed("4-notify", lambda events: events[:1] + events[2:])),
    ("no-gap", events_changed("4-notify", lambda events: (replace(events[0], thread_seq=9), *events[1:]))),
    ("one-running", looked(double={"4-notify": 2})),
    ("one-running", lambda found: replace(found, runs=(*found.runs, twin(found.on("4-notify")[0])))),
    ("stale-silent", events_changed("4-notify", lambda events: (*events[:-1], replace(events[-1], epoch=1)))),
    ("no-fork", lambda found: replace(found, children=(*found.children, ("4-notify", "/a", 2)))),
    ("late-refused", refused_nothing_of("5-event")),
    (
        "commit-first",
        connection_changed(
            "4-notify.guest", lambda one: replace(one, seen=tuple(replace(s, at=s.at - 60) for s in one.seen))
        ),
    ),
    ("told-is-kept", connection_changed("4-notify.guest", lambda one: replace(one, seen=one.seen[1:]))),
    (
        "told-is-kept",
        connection_changed(
            "4-notify.guest", lambda one: replace(one, seen=(replace(one.seen[0], data={}), *one.seen[1:]))
        ),
    ),
    ("reaches-end", connection_changed("4-notify.guest", lambda one: replace(one, seen=one.seen[:-1]))),
    ("reaches-end", connection_changed("4-notify.guest", lambda one: replace(one, closed="cut"))),
    ("reaches-end", connection_changed("4-notify.cut", lambda one: replace(one, after=""))),
    ("one-effect", called("effect", at=0.0)),
    ("no-repeat", called("request", at=4e9)),
    (
        "same-account",
        lambda found: replace(found, calls=tuple(call for call in found.calls if call.step != "notify")),
    ),
    ("same-account", run_changed("4-notify", lambda run: replace(run, output='{"steps": ["plan"]}'))),
    ("as-declared", run_changed("4-notify", lambda run: replace(run, reason="lost"))),
    ("as-declared", connection_changed("2-continue.again", lambda one: replace(one, admitted="created"))),
]


@pytest.mark.parametrize(("code", "doctor"), DOCTORED)
def test_a_check_notices_what_it_is_there_for(
    code: str, doctor: Doctor, whole: Outcome, kept: pathlib.Path
) -> None:
    assert whole.code == 0
    assert code in broken(doctor(evidence.read(kept)))


def test_every_check_has_evidence_that_breaks_it() -> None:
    assert {code for code, _ in DOCTORED} == set(checker.CHECKS)
