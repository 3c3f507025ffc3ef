"""Older versions of the Python SDK do as the newest does: a program of the calls all have, run with each.

``make test`` installs each into a directory of its own; one that is not there is skipped.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import outlive
from langgraph_server import graphs, shared_calls

ROOT = Path(__file__).resolve().parents[2]
OLDER = ROOT / ".venv" / "older-sdks"
WITHIN = 50.0
_names = itertools.count(1)


async def came_to(url: str, version: str | None) -> dict[str, Any]:
    """What every call came to for a version of the SDK; None: the newest."""
    path = [] if version is None else [str(OLDER / version)]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, shared_calls.__file__, url, f"older-{next(_names)}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**24,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert child.stdout is not None
    told: dict[str, Any] = {}
    try:
        async with asyncio.timeout(WITHIN):
            async for line in child.stdout:
                told = json.loads(line)
                if "release" in told:
                    graphs.gates[told["release"]].set()
            _, failure = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, failure.decode()
    return told


@pytest.fixture(scope="module")
async def newest(lasting_service: tuple[outlive.Outlive, str]) -> dict[str, Any]:
    """What every call came to for the version that is installed."""
    return await came_to(lasting_service[1], None)


async def test_the_newest_has_what_the_protocol_promises(newest: dict[str, Any]) -> None:
    assert newest["threads"]["gone"] == newest["assistants"]["gone"] == {"status": 404}
    assert newest["threads"]["again"] == {"status": 409}
    assert newest["runs"]["rest is the same"] is True
    assert newest["runs"]["parts"][-1][1]["status"] == "success"
    assert newest["cancels"]["interrupt"]["run"]["status"] == "interrupted"
    assert newest["cancels"]["rollback"]["run"] == {"status": 404}
    crowded = newest["crowded"]
    assert crowded["reject"]["second"] == {"status": 409}
    assert crowded["enqueue"]["first"]["status"] == "success"
    assert crowded["interrupt"]["first"]["status"] == "interrupted"
    assert crowded["rollback"]["first"] == {"status": 404}
    assert len(crowded["enqueue"]["state"]["steps"]) == 6
    assert len(crowded["rollback"]["state"]["steps"]) == 3


@pytest.mark.parametrize("version", ["0.1.70", "0.2.9", "0.3.3"])
async def test_an_older_version_is_answered_as_the_newest_is(
    lasting_service: tuple[outlive.Outlive, str], newest: dict[str, Any], version: str
) -> None:
    if not (OLDER / version / "langgraph_sdk").is_dir():
        pytest.skip(f"langgraph-sdk {version} is not there: `make test` installs it where it can be had")
    older = await came_to(lasting_service[1], version)
    for part, calls in newest.items():
        for name, expected in calls.items():
            assert older[part][name] == expected, (part, name)
