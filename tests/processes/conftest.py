"""Processes that die or freeze leave a sound record behind, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import record


@pytest.fixture
def database(database: str) -> Iterator[str]:
    """The URL of a database whose record is checked when the test is over."""
    yield database
    assert record.faults(database) == []
