"""The repository as a stranger gets it: nothing of one machine in it, and the two commands are there."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parent.parent
TARGETS = ("help", "setup", "demo", "test", "lint", "simulate", "bench", "serve", "clean")
# Bracketed so that this file does not find itself.
OF_ONE_MACHINE = re.compile(r"(?<![\w.:/-])/([r]oot|[h]ome|[U]sers|[w]ork|[t]mp/helpers)/")
REGISTRIES = re.compile(
    r"[p]ypi\.(org|python)|[p]ythonhosted|[n]pmjs|[d]eb\.debian|[p]roxy\.golang|[i]ndex-url|[f]ind-links"
)


def tracked() -> list[pathlib.Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout, so there is no list of tracked files")
    # Not `git` as its owner: a checkout that belongs to someone else is still readable.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=30)
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    return found


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def make(*arguments: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_tracked_file_names_a_directory_of_one_machine() -> None:
    assert matches(OF_ONE_MACHINE) == []


def test_no_tracked_file_names_the_host_of_a_registry() -> None:
    assert matches(REGISTRIES) == []


def test_the_patterns_find_what_they_are_for() -> None:
    assert OF_ONE_MACHINE.search("path = '" + "/".join(["", "home", "ann", "x"]))
    assert REGISTRIES.search("https://" + "pypi" + ".org/simple")
    assert not OF_ONE_MACHINE.search("https://example.org" + "/".join(["", "home", "x"]))


def test_make_help_lists_every_target_with_a_sentence() -> None:
    listed = re.findall(r"^ +make ([a-z]+) +\S", make("help"), re.MULTILINE)
    assert sorted(listed) == sorted(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_how_to_reach(target: str) -> None:
    make("--dry-run", target)


def test_CI_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "if ! make test; then" in script.read_text().splitlines()


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in lines)
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def requirements() -> list[Requirement]:
    project = pyproject()["project"]
    assert isinstance(project, dict)
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [wanted for group in groups for text in group if (wanted := Requirement(text)).name != "outlive"]


def test_every_requirement_is_a_range_that_holds_its_pinned_version() -> None:
    pinned = pins()
    for wanted in requirements():
        assert wanted.url is None
        assert not any(clause.operator == "===" for clause in wanted.specifier)
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), str(wanted)


def test_no_file_and_no_function_of_the_package_is_too_long_to_read() -> None:
    too_long = []
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if text.count("\n") > 400:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines, at most 400")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > 60:
                    too_long.append(
                        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines, at most 60"
                    )
    assert too_long == []
