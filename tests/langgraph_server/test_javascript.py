"""The protocol's clients in JavaScript, against `outlive serve`: the SDK, its hook for React, the newer hook.

What they are put through is written in JavaScript, where they are at home: see the files in ``js``.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from client import node_programs
from client.node_programs import Done

HERE = pathlib.Path(__file__).parent / "js"
FILES = sorted(path.name for path in HERE.glob("*.test.mjs"))


@pytest.fixture(scope="module")
def begun() -> Iterator[dict[str, Future[Done]]]:
    """The files of tests, all of them at once: most of their time they wait."""
    node = node_programs.node()
    if not (HERE / "node_modules" / "@langchain").exists():
        pytest.skip("the clients in JavaScript are not installed: make test installs them with npm")
    with ThreadPoolExecutor(len(FILES)) as threads:
        yield {
            name: threads.submit(node_programs.run, HERE, node, *node_programs.TEST, name, within=110)
            for name in FILES
        }


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FILES)
def test_clients_in_javascript(begun: dict[str, Future[Done]], name: str) -> None:
    node_programs.all_pass(begun[name].result())
