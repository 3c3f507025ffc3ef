"""Every experiment, with few trials: what it asserts holds here, with these versions."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from outlive import lab
from outlive.probe import nginx

#: Played in every row, on both stores: nothing else tries each durability mode, and each pair of policies.
WHOLE = ("frozen", "threads")

#: Played side by side: most of an experiment is waiting.
TOGETHER = (
    ("shapes",),
    ("cut-writes", "late-write", "kill"),
    ("durability", "modes", "two-messages"),
    ("outlive", "servers"),
    ("effects", "webhooks"),
    ("schedules", "trace"),
    WHOLE,
    ("leaves",),
    ("proxy", "nginx", "cut-effect", "undeclared", "pauses", "cleanup"),
)
#: More than that, on two cores, and what an experiment waits for does not come in its time.
AT_ONCE = 5
pytestmark = pytest.mark.timeout(300)

Results = dict[str, "concurrent.futures.Future[dict[str, lab.Result]]"]


@pytest.fixture(scope="module")
def playing(request: pytest.FixtureRequest) -> Iterator[Results]:
    wanted = {_parameters(item).get("name") for item in request.session.items}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        futures: Results = {}
        for names in TOGETHER:
            chosen = [name for name in names if name in wanted]
            if chosen:
                futures |= dict.fromkeys(chosen, pool.submit(_played, chosen))
        yield futures


def _parameters(item: Any) -> dict[str, Any]:
    found: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return found if item.module.__name__ == __name__ else {}


def _played(names: list[str]) -> dict[str, lab.Result]:
    trials = 1 if "shapes" not in names else None
    options = lab.Options(quick=tuple(names) != WHOLE, trials=trials, seed=4)
    return {result.name: result for result in lab.run(names, options)}


@pytest.mark.parametrize("name", [name for names in TOGETHER for name in names])
def test_what_an_experiment_asserts_holds(playing: Results, name: str) -> None:
    result = playing[name].result(timeout=290)[name]
    if name in {"proxy", "nginx"} and nginx.binary() is None:
        assert (result.ok, result.skipped) == (None, nginx.ABSENT)
        pytest.skip(nginx.ABSENT)
    assert result.ok is True, result.as_json()["rows"]
    assert result.rows
    for figure in result.figures:
        ElementTree.fromstring(figure.svg)
    assert set(result.as_json()) >= {"name", "ok", "rows", "figures"}


def test_no_experiment_is_left_out() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(lab.names())
