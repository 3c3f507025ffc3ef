"""Every test here gets an open store of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agents import bench


@pytest.fixture
async def on(database: str) -> AsyncIterator[bench.Bench]:
    """A bench over a database that only this test uses: once in each kind of store."""
    async with bench.opened(database) as opened:
        yield opened
