"""The protocol's clients in JavaScript, against `outlive serve`: the SDK, its hook for React, the newer hook.

What they are put through is written in JavaScript, where they are at home: see the files in ``js``.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from client import node_programs
from client.node_programs import Done
from outlive import runtime
from outlive.testing.postgres import PostgresServer

HERE = pathlib.Path(__file__).parent / "js"
FILES = sorted(path.name for path in HERE.glob("*.test.mjs"))
TOLD = "cut_three_times.mjs"
PAGE = HERE.parents[2] / "docs" / "langgraph.md"


@pytest.fixture(scope="module")
def node() -> str:
    """Node, with the clients installed."""
    if not (HERE / "node_modules" / "@langchain").exists():
        pytest.skip("the clients in JavaScript are not installed: make test installs them with npm")
    return node_programs.node()


@pytest.fixture(scope="module")
def begun(node: str) -> Iterator[dict[str, Future[Done]]]:
    """The files of tests, some of them at once: much of their time they wait."""
    commands = {name: (*node_programs.TEST, name) for name in FILES} | {TOLD: (TOLD,)}
    with ThreadPoolExecutor(3) as threads:
        yield {
            name: threads.submit(node_programs.run, HERE, node, *command, within=150)
            for name, command in commands.items()
        }


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", FILES)
def test_clients_in_javascript(begun: dict[str, Future[Done]], name: str) -> None:
    node_programs.all_pass(begun[name].result())


@pytest.mark.timeout(200)
def test_the_session_of_the_documentation_is_one_that_was_had(begun: dict[str, Future[Done]]) -> None:
    done = begun[TOLD].result()
    assert done.code == 0, done.said
    (shown,) = re.findall(rf"{re.escape(TOLD)}` prints it:\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ids = re.compile(r"\b[0-9a-f]{8}\b")
    assert ids.sub("id", done.said) == ids.sub("id", shown)


@pytest.mark.timeout(200)
def test_the_sdk_in_javascript_over_postgresql(node: str, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    runtime.migrate(url)
    command = (node, *node_programs.TEST, "sdk.test.mjs")
    node_programs.all_pass(node_programs.run(HERE, *command, within=110, DATABASE=url))
    postgres_server.drop_database(url)
