"""Every test of effects has a provider, and leaves a sound record and nothing armed behind."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from core import record
from outlive import failpoints, runtime
from outlive.effects import asking, defining
from outlive.testing.paying import Paying


@pytest.fixture
def database(database: str) -> Iterator[str]:
    """The URL of a database whose record is checked when the test is over."""
    yield database
    assert record.faults(database) == []


@pytest.fixture
def sqlite_url(sqlite_path: pathlib.Path) -> Iterator[str]:
    """Like `database`, for what no kind of store can make a difference to."""
    runtime.migrate(f"sqlite:///{sqlite_path}")
    yield f"sqlite:///{sqlite_path}"
    assert record.faults(f"sqlite:///{sqlite_path}") == []


@pytest.fixture
def paying(tmp_path: pathlib.Path) -> Iterator[Paying]:
    """A provider that honours keys."""
    with Paying(tmp_path) as provider:
        yield provider


@pytest.fixture
def forgetful(tmp_path: pathlib.Path) -> Iterator[Paying]:
    """A provider that ignores keys."""
    with Paying(tmp_path, "--no-keys") as provider:
        yield provider


@pytest.fixture(autouse=True)
def _nothing_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture(autouse=True)
def _declared_here() -> Iterator[None]:
    """What other tests' modules declare at their tops is none of a test's, and the other way round."""
    before = dict(defining.DECLARED), dict(asking.UNDO)
    defining.DECLARED.clear()
    asking.UNDO.clear()
    yield
    defining.DECLARED.clear()
    defining.DECLARED.update(before[0])
    asking.UNDO.clear()
    asking.UNDO.update(before[1])
