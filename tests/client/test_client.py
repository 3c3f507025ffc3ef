"""The client for browsers and Node: its types, and its own tests in Node and in a real browser.

Those are written in JavaScript, where they can use what the client is for: see the files beside this one.
"""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from client import node_programs
from client.node_programs import Done
from outlive import policy
from outlive.http import native

HERE = pathlib.Path(__file__).parent
MODULE = HERE.parents[1] / "src" / "outlive" / "client" / "outlive.js"
TOOLS = HERE / "node_modules"
IN_A_BROWSER = "browser.test.mjs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_run = functools.partial(node_programs.run, HERE)


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def begun(node: str) -> Iterator[dict[str, Future[Done]]]:
    """The tests in JavaScript, all of them at once: most of their time they wait."""
    files = {path.name for path in HERE.glob("*.test.mjs")} - {IN_A_BROWSER}
    options = (node, *node_programs.TEST, "--test-concurrency=3")
    browser = {"BROWSER_FOR_TESTS": _browser() or ""}
    with ThreadPoolExecutor(2) as threads:
        begun = {"node": threads.submit(_run, *options, *sorted(files), within=100)}
        if _browser() and (TOOLS / "playwright-core").exists():
            begun["browser"] = threads.submit(_run, *options, IN_A_BROWSER, within=100, **browser)
        yield begun


@pytest.fixture(scope="module")
def node() -> str:
    """Node, if it is new enough."""
    return node_programs.node()


def _tool(name: str) -> pathlib.Path:
    if not (TOOLS / name).exists():
        pytest.skip(f"{name} is not installed: make test installs it with npm into {TOOLS.name}")
    return TOOLS / name


def test_the_types_are_right_and_tell_callers_what_is_wrong(node: str) -> None:
    compiler = _tool("typescript") / "bin" / "tsc"
    done = _run(node, str(compiler), "--project", str(HERE / "tsconfig.json"))
    assert done.code == 0, done.said


@pytest.mark.timeout(120)
def test_the_client_in_node(begun: dict[str, Future[Done]]) -> None:
    node_programs.all_pass(begun["node"].result())


@pytest.mark.timeout(120)
def test_the_client_in_a_browser(begun: dict[str, Future[Done]]) -> None:
    _tool("playwright-core")
    if _browser() is None:
        pytest.skip("no Chromium is installed: make test installs Debian's, as root")
    node_programs.all_pass(begun["browser"].result())


def test_the_declared_types_are_those_of_the_module(node: str, tmp_path: pathlib.Path) -> None:
    compiler = _tool("typescript") / "bin" / "tsc"
    project = ("--project", str(HERE / "declarations.json"), "--outDir", str(tmp_path))
    done = _run(node, str(compiler), *project)
    assert done.code == 0, done.said
    written, kept = tmp_path / "outlive.d.ts", MODULE.with_suffix(".d.ts")
    assert written.read_text() == kept.read_text(), "run: npm run --prefix tests/client types"


def test_the_type_of_a_request_is_that_of_the_router() -> None:
    (request,) = re.findall(r"@typedef \{\{(agent: .*?)\}\} NewRun", MODULE.read_text(), re.DOTALL)
    fields = dict(re.findall(r"(\w+)\??: ([^,]+(?:<[^>]*>)?)", request))
    assert fields.keys() == native.NewRun.model_fields.keys()
    kinds = {
        "on_disconnect": policy.OnDisconnect,
        "on_busy": policy.OnBusy,
        "on_torn": policy.OnTorn,
    }
    for name, kind in kinds.items():
        assert set(re.findall(r'"(\w+)"', fields[name])) == {member.value for member in kind}


def test_every_code_and_every_setting_of_the_client_is_documented() -> None:
    page = (HERE.parents[1] / "docs" / "client.md").read_text()
    codes = set(re.findall(r'\bcode: "(\w+)"', MODULE.read_text()))
    (options,) = re.findall(r"@typedef \{\{(url: .*?)\}\} Options", MODULE.read_text(), re.DOTALL)
    settings = set(re.findall(r"(\w+): ", options))
    assert len(codes) > 6
    assert len(settings) > 8
    assert {word for word in codes | settings if f"`{word}`" not in page} == set()


def test_the_module_needs_nothing() -> None:
    source = MODULE.read_text()
    assert not re.search(r"^\s*import\b|\bimport\(|\brequire\(", source, re.MULTILINE)
    assert max(map(len, source.splitlines())) <= 120
