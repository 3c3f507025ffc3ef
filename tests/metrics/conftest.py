"""Every test of metrics leaves a sound record behind, whatever it did."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from core import record
from outlive import failpoints, runtime


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


@pytest.fixture(autouse=True)
def _nothing_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()
