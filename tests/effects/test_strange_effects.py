"""Effects with strange keys, results and failures: what was executed is kept, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from typing import Any

import pytest

import outlive
from core import support as core
from effects import support
from outlive import State, agents, effects, encoding, errors
from outlive.effects import asking


@dataclasses.dataclass(frozen=True)
class Place:
    """Something that may be a key in Python."""

    row: int


class Order(str, enum.Enum):  # noqa: UP042 - a StrEnum's text is its value already
    """Text that says something else than it holds."""

    FIRST = "o1"


class Number(enum.IntEnum):
    """A whole number with a name."""

    SEVEN = 7


@pytest.mark.invariant("I9")
@pytest.mark.parametrize("value", [{((1, 2), 3): "x"}, {Place(1): "x"}, {(1, (2, (3,))): {(4, (5,)): 6}}])
async def test_a_result_with_keys_that_JSON_has_no_form_for_is_kept_once_it_was_executed(
    sqlite_url: str, value: Any
) -> None:
    async def step(context: outlive.Context) -> Any:
        first = await effects.once("look", key="k", call=lambda: value)
        return first == await effects.once("look", key="k", call=lambda: pytest.fail("it ran again"))

    async with core.serving(sqlite_url, support.agent(step)) as served:
        story = await core.story(served, (await served.submit("agent", "b1")).run.run_id)
    assert core.data(story) == [True]
    assert support.rows(sqlite_url) == [("look", "k", 1, "done")]


def test_tuples_in_tuples_are_keys_again_when_they_are_read_back() -> None:
    value = {((1, 2), 3): "x", (4, (5, (6,))): "y"}
    assert agents.restored(encoding.encode(value).text) == value


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
async def test_a_call_in_a_thread_that_wants_to_end_the_process_ends_its_own_run_alone(
    sqlite_url: str, end: type[BaseException]
) -> None:
    def call() -> Any:
        raise end

    async def step(context: outlive.Context) -> Any:
        return await asyncio.to_thread(effects.once_in_thread, "charge", key="k", call=call)

    async with core.serving(sqlite_url, support.agent(step, on_unknown="fail")) as served:
        run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert end.__name__ in str(run.error_detail)
    assert support.rows(sqlite_url) == [("charge", "k", 1, "unknown")]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_effect_that_wants_itself_by_way_of_another_is_told_so(
    sqlite_url: str, in_thread: bool
) -> None:
    def wanting(*names: str) -> Any:
        def blocking() -> Any:
            return effects.once_in_thread(names[0], key="k", call=wanting(*names[1:]))

        async def waiting() -> Any:
            return await effects.once(names[0], key="k", call=wanting(*names[1:]))

        return blocking if in_thread else waiting

    async def step(context: outlive.Context) -> Any:
        first = wanting("charge", "mail", "charge", "never")
        return await (asyncio.to_thread(first) if in_thread else first())

    async with core.serving(sqlite_url, support.agent(step, on_unknown="fail")) as served:
        run = await support.ran(served, "b1")
    assert run.state is State.FAILED
    assert "The effect charge wants itself" in str(run.error_detail)


@pytest.mark.invariant("I9")
def test_a_key_is_what_it_holds_whatever_its_class_says() -> None:
    assert asking.key_text(Order.FIRST) == asking.key_text("o1") == "o1"
    assert asking.key_text(Number.SEVEN) == asking.key_text(7) == "7"


def test_a_key_of_thousands_of_digits_is_refused_by_name() -> None:
    with pytest.raises(errors.InvalidInput) as refusal:
        asking.key_text(10**5000)
    assert refusal.value.field == "key"
