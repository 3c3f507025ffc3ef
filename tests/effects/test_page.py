"""The page about effects: its code runs as it stands, and its words are those of the code."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import outlive
from core import support as core
from effects import support
from outlive import effects
from outlive.ledger import EffectState, Kind
from outlive.policy import Compensate
from outlive.store import effect_steps
from outlive.testing.paying import Paying

PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "effects.md").read_text()
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(paying: Paying) -> Any:
    """What the page's code defines."""
    made: dict[str, Any] = {"PROVIDER": paying.url, "__name__": "a_service"}
    for code in CODE:
        exec(code, made)  # noqa: S102 - the page's own
    return made


async def test_the_pages_agent_charges_once_though_the_provider_hangs_up(
    sqlite_url: str, paying: Paying, page: Any
) -> None:
    paying.script("charge", {"hang_up": True})
    async with core.serving(sqlite_url, page["book"]) as served, page["http"]:
        stories = [
            await core.story(served, (await served.submit("book", {"booking": "b1"})).run.run_id)
            for _ in range(2)
        ]
    assert [core.data(story) for story in stories] == [[{"paid": "b1"}]] * 2
    assert len(paying.lines()) == 1


async def test_the_pages_declared_effects_are_undone_and_released(
    sqlite_url: str, paying: Paying, page: Any
) -> None:
    async def step(context: outlive.Context) -> Any:
        await page["take_seat"](context.input)
        await page["send_mail"](context.input)
        if context.input == "fails":
            raise ValueError("as the test wants it")

    agent = support.agent(step, compensate="failures")
    async with core.serving(sqlite_url, agent) as served, page["http"]:
        for given in ("fails", "works"):
            run_id = (await served.submit("agent", given)).run.run_id
            await support.ended(served, run_id)
            await support.ended(served, effect_steps.aftermath_id(run_id, run_id))
    assert [(line["step"], line["reference"]) for line in paying.lines()] == [
        ("seat", "fails"),
        ("refund", "fails"),
        ("seat", "works"),
        ("mail", "works"),
    ]


def test_the_pages_words_are_the_codes() -> None:
    table = PAGE[PAGE.index("| state | meaning |") :].split("\n\n", maxsplit=1)[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [state.value for state in EffectState]
    for word in ("failures", "always"):
        assert word in list(Compensate)
    for kind in ("idempotent", "reversible", "deferrable"):
        assert kind in list(Kind)
    for name in re.findall(r"effects\.([A-Z]\w+)", PAGE):
        assert name in effects.__all__
