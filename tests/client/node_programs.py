"""Programs in JavaScript, run by tests: Node if it is new enough, and what its own tests came to."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

TEST = ("--test", "--test-force-exit", "--test-reporter=spec")
"""Node's options to run files of tests."""
_SUMMARY = re.compile(r"^\S+ (tests|pass|skipped|todo) (\d+)$", re.MULTILINE)


class Done(NamedTuple):
    """How a program ended, and what it said."""

    code: int
    said: str


def run(folder: pathlib.Path, *command: str, within: float = 50, **environment: str) -> Done:
    """Run a program in a folder, and end all that it started if it takes longer."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHON": sys.executable, "NO_COLOR": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        said += f"\nnot done within {within} s"
    return Done(process.returncode, said)


def node() -> str:
    """Return Node; skips the test if there is none, or an old one."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed; the tests of clients in JavaScript need Node 20 or newer")
    version = run(pathlib.Path.cwd(), found, "--version").said.strip()
    if int(version[1:].partition(".")[0]) < 20:
        pytest.skip(f"Node is too old: {version}; the tests of clients in JavaScript need Node 20 or newer")
    return found


def all_pass(done: Done) -> None:
    """Assert that there were tests, that all of them passed, and that none was left out."""
    assert done.code == 0, done.said[-20_000:]
    counted = {name: int(number) for name, number in _SUMMARY.findall(done.said)}
    assert counted["tests"] == counted["pass"] > 0, counted
    assert (counted["skipped"], counted["todo"]) == (0, 0)
