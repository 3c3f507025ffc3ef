"""The client for browsers and Node: its types, and its own tests in Node and in a real browser.

Those are written in JavaScript, where they can use what the client is for: see the files beside this one.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
MODULE = HERE.parents[1] / "src" / "outlive" / "client" / "outlive.js"
TOOLS = HERE / "node_modules"
IN_A_BROWSER = "browser.test.mjs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SUMMARY = re.compile(r"^\S+ (tests|pass|skipped|todo) (\d+)$", re.MULTILINE)


def _run(*command: str, within: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable, "NO_COLOR": "1"}
    environment |= {"BROWSER_FOR_TESTS": _browser() or ""}
    return subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=within, check=False
    )


def _browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def node() -> str:
    """Node, if it is new enough."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed; the client's tests need Node 20 or newer")
    version = _run(found, "--version", within=20).stdout.strip()
    if int(version[1:].partition(".")[0]) < 20:
        pytest.skip(f"Node is too old: {version}; the client's tests need Node 20 or newer")
    return found


def _tool(name: str) -> pathlib.Path:
    if not (TOOLS / name).exists():
        pytest.skip(f"{name} is not installed: make test installs it with npm into {TOOLS.name}")
    return TOOLS / name


def test_the_types_are_right_and_tell_callers_what_is_wrong(node: str) -> None:
    compiler = _tool("typescript") / "bin" / "tsc"
    done = _run(node, str(compiler), "--project", str(HERE / "tsconfig.json"), within=50)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_the_client_in_node(node: str) -> None:
    files = {path.name for path in HERE.glob("*.test.mjs")} - {IN_A_BROWSER}
    _all_pass(node, *sorted(files))


@pytest.mark.timeout(120)
def test_the_client_in_a_browser(node: str) -> None:
    _tool("playwright-core")
    if _browser() is None:
        pytest.skip("no Chromium is installed: make test installs Debian's, as root")
    _all_pass(node, IN_A_BROWSER)


def _all_pass(node: str, *files: str) -> None:
    """Run files together: most of their time they wait."""
    options = ("--test", "--test-force-exit", "--test-concurrency=3", "--test-reporter=spec")
    done = _run(node, *options, *files, within=110)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-5_000:]}"
    counted = {name: int(number) for name, number in SUMMARY.findall(done.stdout)}
    assert counted["tests"] == counted["pass"] > 0, counted
    assert (counted["skipped"], counted["todo"]) == (0, 0)


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
