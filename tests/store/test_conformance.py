"""Every store keeps every promise; and the checks can tell a store that does not."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlive import states
from outlive.model import Claim, Renewed
from outlive.store import Store
from outlive.store.script import Script
from outlive.store.sqlite import SqliteStore
from outlive.testing import check_store, conformance
from outlive.testing.store_checks.bench import Backdoor
from store import support


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two stores on one database, and a way behind their backs."""

    one: Store
    two: Store
    door: Backdoor


@contextlib.asynccontextmanager
async def in_a_file(path: pathlib.Path) -> AsyncIterator[Pair]:
    factory = support.sqlite_factory(path)
    async with factory() as one, factory() as two:
        yield Pair(one, two, support.sqlite_backdoor(path))


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[Pair]:
    async with support.opened(SqliteStore(":memory:")) as store:
        yield Pair(store, store, support.memory_backdoor(store))


@contextlib.asynccontextmanager
async def in_postgresql(dsn: str) -> AsyncIterator[Pair]:
    factory = support.postgres_factory(dsn)
    async with factory() as one, factory() as two:
        yield Pair(one, two, support.postgres_backdoor(dsn))


@pytest.fixture(scope="module", params=["file", "memory", "postgresql"])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """One pair of stores for all checks of a kind of database."""
    if request.param == "postgresql":
        made = in_postgresql(request.getfixturevalue("shared_dsn"))
    elif request.param == "memory":
        made = in_memory()
    else:
        made = in_a_file(tmp_path_factory.mktemp("conformance") / "outlive.db")
    async with made as stores:
        yield stores


@pytest.mark.parametrize("check", conformance.CHECKS, ids=str)
async def test_a_store_keeps_this_promise(check: conformance.Check, pair: Pair) -> None:
    (await conformance.run_check(check, pair.one, pair.two, backdoor=pair.door)).raise_for_failure()


async def test_all_checks_run_over_one_pair_of_stores_and_report(sqlite_path: pathlib.Path) -> None:
    report = await check_store(support.sqlite_factory(sqlite_path))
    report.raise_for_failures()
    assert len(report.results) == len(conformance.CHECKS)
    assert {result.message for result in report.skipped} == {"needs a backdoor to the database"}
    assert str(report).startswith(
        f"{len(conformance.CHECKS)} checks, 0 failed, {len(report.skipped)} skipped"
    )


def test_every_guard_of_every_move_has_a_check() -> None:
    checked = {pair for check in conformance.CHECKS for pair in check.guards}
    assert checked == {(rule.move, guard) for rule in states.RULES for guard in rule.guards}


def test_every_check_is_a_sentence_with_a_name_of_its_own() -> None:
    names = [check.name for check in conformance.CHECKS]
    assert len(set(names)) == len(names)
    assert [check.name for check in conformance.CHECKS if not check.sentence.endswith(".")] == []


class _ForgetfulStore(SqliteStore):
    """Renews whatever it is asked for, and forgets what it appends."""

    def renew(self, claims: Any, lease: float) -> list[Renewed]:
        return [_standing(claim) for claim in claims]

    async def write(self, script: Script[Any], *, budget: float = 10.0) -> Any:
        if script.name == "append":
            return None
        return await super().write(script, budget=budget)


def _standing(claim: Claim) -> Renewed:
    return Renewed(run_id=claim.run_id, epoch=claim.epoch, stop_requested=False, stop_reason=None)


async def test_a_store_that_breaks_its_promises_is_reported(sqlite_path: pathlib.Path) -> None:
    report = await check_store(lambda: support.opened(_ForgetfulStore(sqlite_path)))
    failed = {result.check.name for result in report.failed}
    assert {"a_wrong_epoch_or_token_moves_nothing", "append_stores_events_in_order"} <= failed
    assert "stop_ends_a_queued_run_at_once" not in failed
    with pytest.raises(AssertionError, match="a_wrong_epoch_or_token_moves_nothing"):
        report.raise_for_failures()
    with pytest.raises(AssertionError, match="Neither the right token"):
        next(
            r for r in report.failed if r.check.name == "a_wrong_epoch_or_token_moves_nothing"
        ).raise_for_failure()
