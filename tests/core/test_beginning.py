"""A runtime that cannot begin leaves nothing behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from outlive import runtime, worker


async def test_a_runtime_that_cannot_begin_leaves_no_thread(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: worker.Worker) -> None:
        raise OSError("no token today")

    monkeypatch.setattr(worker.Worker, "begin", refuse)
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="no token today"):
        await runtime.Outlive(f"sqlite:///{sqlite_path}", []).__aenter__()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if name.startswith("outlive")] == []
