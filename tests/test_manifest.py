"""The table of promises and failures, and the tests that it speaks of, agree."""

from __future__ import annotations

import re

import pytest

import invariants

TESTS = invariants.collect()
REQUIRED_CASES = {f"S{number:02}" for number in (3, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 21, 27)}
ON = {
    "SQLite": re.compile(r"\bdatabase\b|sqlite|\bon: bench|service"),
    "PostgreSQL": re.compile(r"\bdatabase\b|postgres|own_server|wire|\bon: bench|service"),
}
SENT = {
    "SIGKILL": re.compile(r"\.kill\b|=kill\b|SIGKILL"),
    "SIGSTOP": re.compile(r"\.freeze\b|=freeze\b|SIGSTOP"),
    "SIGCONT": re.compile(r"\.thaw\b|SIGCONT"),
    "SIGTERM": re.compile(r"\.terminate\b|SIGTERM"),
}
WITH_PROCESSES = re.compile(r"^(processes|probe|demo)/|^http/test_sse_servers|^agents/test_langgraph_killed")


def of_case(case: str) -> list[invariants.Test]:
    return [test for test in TESTS if test.case == case]


def with_processes(test: invariants.Test) -> bool:
    return bool(WITH_PROCESSES.search(test.file)) or "subprocess." in test.source


def test_every_test_of_a_promise_names_one_that_is_in_the_table() -> None:
    known = {promise.id for promise in invariants.INVARIANTS}
    assert {name for test in TESTS for name in test.invariants} <= known
    assert [f"I{number}" for number in range(1, 16)] == [promise.id for promise in invariants.INVARIANTS]


@pytest.mark.parametrize("promise", invariants.INVARIANTS, ids=lambda promise: promise.id)
def test_a_promise_has_a_test_or_says_why_it_has_none_yet(promise: invariants.Invariant) -> None:
    guards = [test.name for test in TESTS if promise.id in test.invariants]
    assert guards or promise.not_yet


def test_every_replayed_failure_is_in_the_table_and_every_one_in_the_table_is_replayed() -> None:
    replayed = {test.case for test in TESTS if test.case}
    assert replayed == {case.id for case in invariants.CASES}
    assert replayed >= REQUIRED_CASES


@pytest.mark.parametrize("case", invariants.CASES, ids=lambda case: case.id)
def test_a_failure_is_replayed_where_the_table_says(case: invariants.Case) -> None:
    tests = of_case(case.id)
    sources = "\n".join(test.source for test in tests)
    for store in case.stores:
        assert ON[store].search(sources), f"no test of {case.id} is on {store}"
    for signal in case.signals:
        assert SENT[signal].search(sources), f"no test of {case.id} sends {signal}"
    assert any(map(with_processes, tests)) == case.processes, [test.file for test in tests]


@pytest.mark.parametrize("case", invariants.CASES, ids=lambda case: case.id)
def test_what_the_table_leaves_out_has_a_reason(case: invariants.Case) -> None:
    complete = case.stores == invariants.BOTH and case.processes and case.signals
    assert complete or case.without


def test_what_pytest_has_marked_is_what_the_table_reads(request: pytest.FixtureRequest) -> None:
    """Of the tests that are about to run, which may be all of them."""
    read = {(test.name, name) for test in TESTS for name in test.invariants}
    for item in request.session.items:
        for mark in item.iter_markers("invariant"):
            assert (getattr(item, "originalname", item.name), mark.args[0]) in read


def test_the_page_about_promises_is_current() -> None:
    assert invariants.PAGE.read_text() == invariants.page(), "run: python tests/invariants.py"
