"""What a run's events become on a thread's tape, where no server is needed to tell."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from outlive.agents.graph_call import REFS
from outlive.http.langgraph.tape import Shown, Tape
from outlive.model import Event, EventKind

HUMAN = {"type": "human", "id": "h", "content": "hello"}
RUN = "0" * 32


def events(*said: tuple[EventKind, str | None, Any]) -> Iterator[Event]:
    """The events of one run."""
    for seq, (kind, mode, data) in enumerate(said, start=1):
        epoch = sum(earlier is EventKind.ATTEMPT for earlier, *_ in said[:seq])
        payload = json.dumps(data)
        yield Event(
            run_id=RUN,
            seq=seq,
            thread_seq=seq,
            epoch=epoch,
            kind=kind,
            mode=mode,
            payload=payload,
            created_at=0,
        )


ATTEMPT: tuple[EventKind, None, Any] = (EventKind.ATTEMPT, None, {})


def chunk(mode: str, data: Any) -> tuple[EventKind, str, Any]:
    """One chunk of a run."""
    return EventKind.CHUNK, mode, data


def end(state: str) -> tuple[EventKind, None, Any]:
    """The end of a run."""
    return EventKind.END, None, {"state": state, "reason": None, "error": None}


def word(message: str, content: str) -> tuple[EventKind, str, Any]:
    """A word of a message of the graph itself."""
    return chunk("messages", [{"type": "AIMessageChunk", "id": message, "content": content}, {}])


def shown(*said: tuple[EventKind, str | None, Any]) -> list[Shown]:
    """What the events of a run become."""
    tape = Tape(run_id=RUN, graph="chat")
    return list(itertools.chain.from_iterable(tape.of(event) for event in events(*said)))


def states(found: list[Shown]) -> list[list[str]]:
    """The messages of each state that is shown."""
    return [
        [message["content"] for message in one.data["messages"]] for one in found if one.method == "values"
    ]


BEGUN = (ATTEMPT, chunk("values", {"messages": [HUMAN]}), word("a", "one "), word("a", "two "))


def test_what_a_lost_attempt_said_is_taken_back_when_the_next_one_begins() -> None:
    found = shown(*BEGUN, ATTEMPT, word("b", "three"))
    assert states(found) == [["hello"], ["hello", "one two "], ["hello"]]
    said = [one.data["event"] for one in found if one.method == "messages"]
    assert [each for each in said if each.startswith("message-")] == [
        "message-start",
        "message-finish",
        "message-start",
    ]


@pytest.mark.parametrize("state", ["stopped", "failed", "abandoned"])
def test_what_no_state_will_have_is_taken_back_at_an_end_without_a_result(state: str) -> None:
    assert states(shown(*BEGUN, end(state))) == [["hello"], ["hello", "one two "], ["hello"]]


@pytest.mark.parametrize("state", ["succeeded", "waiting"])
def test_what_was_said_stays_when_a_run_ends_as_it_should(state: str) -> None:
    assert states(shown(*BEGUN, end(state))) == [["hello"]]


def test_what_a_state_has_is_never_taken_back() -> None:
    answered = chunk("values", {"messages": [HUMAN, {"type": "ai", "id": "a", "content": "one two "}]})
    assert states(shown(*BEGUN, answered, ATTEMPT, end("failed"))) == [["hello"], ["hello", "one two "]]


def test_something_is_numbered_above_the_end_for_clients_that_wait_for_it() -> None:
    found = shown(*BEGUN, chunk(REFS, {"id": "c"}), end("succeeded"))
    assert [one.method for one in found[-2:]] == ["lifecycle", "checkpoints"]
    assert found[-1].seq > found[-2].seq
    assert found[-1].data == {"id": "c"}
