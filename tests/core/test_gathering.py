"""Tokens that are gathered lose nothing: what is recorded is, joined, what the model said, in its order."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from outlive import gathering


@dataclass(frozen=True)
class Item:
    """A token of the message ``of``, or (None) something else."""

    of: str | None
    text: str
    last: bool = False
    shown: str = ""


class Texts:
    """Joins texts; those of a message named ``odd`` cannot be joined."""

    def key(self, chunk: Item) -> Hashable | None:
        return chunk.of

    def last(self, chunk: Item) -> bool:
        return chunk.last

    def join(self, chunks: Sequence[Item]) -> Item:
        assert len({chunk.of for chunk in chunks}) == 1
        if chunks[0].of == "odd":
            raise TypeError("not to be joined")
        return Item(of=chunks[0].of, text="".join(chunk.text for chunk in chunks))

    def snapshot(self, whole: Item, *, complete: bool) -> Item:
        return Item(of=whole.of, text=whole.text, shown="complete" if complete else "partial")


ITEMS = st.builds(
    Item, of=st.sampled_from(["a", "b", "odd", None]), text=st.text("xyz", min_size=1, max_size=3)
)
STEPS = st.lists(st.tuples(ITEMS, st.floats(0, 0.3), st.booleans()), max_size=60)
EVERY = 0.25


def played(
    one: gathering.Gathering[Item], steps: list[tuple[Item, float, bool]], *, complete: bool
) -> tuple[list[Item], list[float]]:
    """What is recorded of these items, with a commit after some of them, and when."""
    now, got, times = 0.0, list[Item](), list[float]()
    for item, wait, commit in steps:
        now += wait
        got += one.feed(item, now)
        if commit:
            got += one.due(now)
        times += [now] * (len(got) - len(times))
    got += one.rest(complete=complete)
    assert not one.waiting
    return got, times + [now] * (len(got) - len(times))


def text_of(items: list[Item], of: str | None) -> str:
    return "".join(item.text for item in items if item.of == of)


@given(steps=STEPS, complete=st.booleans())
def test_what_is_chunked_is_joined_what_the_model_said(
    steps: list[tuple[Item, float, bool]], complete: bool
) -> None:
    got, _ = played(gathering.Chunked(Texts()), steps, complete=complete)
    said = [item for item, _, _ in steps]
    for of in ("a", "b", "odd", None):
        assert text_of(got, of) == text_of(said, of)
    assert "".join(item.text for item in got) == "".join(item.text for item in said)  # across messages, too
    assert [item for item in got if item.of is None] == [item for item in said if item.of is None]


@given(steps=STEPS)
def test_a_message_without_interruption_between_two_commits_is_one_event(
    steps: list[tuple[Item, float, bool]],
) -> None:
    tokens = [Item(of="a", text=item.text) for item, _, _ in steps]
    got, _ = played(gathering.Chunked(Texts()), [(token, 0.0, False) for token in tokens], complete=True)
    assert len(got) == (1 if tokens else 0)


def test_what_waits_is_bounded() -> None:
    one = gathering.Chunked(Texts())
    got = [out for _ in range(1000) for out in one.feed(Item(of="a", text="x"), 0.0)]
    assert {len(item.text) for item in got} == {gathering.MOST_JOINED}
    assert len(one.rest(complete=True)[0].text) <= gathering.MOST_JOINED


@given(steps=STEPS, complete=st.booleans())
def test_snapshots_grow_and_the_last_one_is_what_the_model_said(
    steps: list[tuple[Item, float, bool]], complete: bool
) -> None:
    got, times = played(gathering.Snapshots(Texts(), every=EVERY), steps, complete=complete)
    said = [item for item, _, _ in steps]
    for of in ("a", "b"):
        shown = [item for item in got if item.of == of]
        assert all(later.text.startswith(item.text) for item, later in itertools.pairwise(shown))
        assert (shown[-1].text if shown else "") == text_of(said, of)
        assert [item.shown for item in shown[:-1]] == ["partial"] * len(shown[:-1])
        if shown:
            assert shown[-1].shown == ("complete" if complete else "partial")
    odd = [item for item in got if item.of == "odd" and item.shown][-1:]  # then it turned out to be odd
    odd += [item for item in got if item.of == "odd" and not item.shown]
    assert text_of(odd, "odd") == text_of(said, "odd")
    assert text_of(got, None) == text_of(said, None)
    assert len(times) == len(got)


@given(waits=st.lists(st.floats(0.001, 0.3), max_size=60))
def test_a_message_is_shown_no_more_often_than_was_said(waits: list[float]) -> None:
    steps = [(Item(of="a", text="x"), wait, True) for wait in waits]
    got, times = played(gathering.Snapshots(Texts(), every=EVERY), steps, complete=True)
    partial = [at for item, at in zip(got, times, strict=True) if item.shown == "partial"]
    assert all(later - at >= EVERY for at, later in itertools.pairwise(partial))
    if waits:
        assert partial[0] == waits[0]  # the first token is shown at once


def test_a_message_that_its_provider_ends_is_complete_at_once() -> None:
    one = gathering.Snapshots(Texts(), every=EVERY)
    assert one.feed(Item(of="a", text="x"), 0.0) == []
    assert one.feed(Item(of="a", text="y", last=True), 0.0) == [Item(of="a", text="xy", shown="complete")]
    assert one.rest(complete=True) == []
