"""The recorder's tape: whose happenings count, and how many lines a stream of very many items makes."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

from outlive.probe.inject import tape as writing
from outlive.probe.tape import Happening, Tape, busy, of_clients


def _happening(kind: str, request: str, client: str | None = None, t: float = 0.0) -> Happening:
    return Happening(t=t, pid=1, kind=kind, request=request, fields={"client": client})


def test_the_end_of_an_earlier_request_does_not_stand_for_the_end_of_this_one() -> None:
    mine = _happening("request.start", "2")
    assert busy([_happening("request.end", "1"), mine])
    assert not busy([mine, _happening("request.end", "2")])


def test_what_an_earlier_client_left_running_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    tape = Tape(tmp_path / "tape")
    lines = [("request.start", "1", "early/0"), ("request.start", "2", "late/0"), ("request.end", "2", None)]
    with tape.path.open("w", encoding="utf-8") as file:
        for kind, request, client in lines:
            line = {"t": 0.0, "pid": 1, "kind": kind, "request": request, "client": client}
            file.write(json.dumps(line) + "\n")
    limits = {"quiet": 0.0, "patience": 0.1}
    assert tape.settle(0, **limits, alive=lambda: True, clients="late")
    assert not tape.settle(0, **limits, alive=lambda: True, clients="early")


def test_a_generator_that_is_collected_later_is_not_the_leak_of_who_runs_then() -> None:
    started = [_happening("request.start", "1", "early/0"), _happening("request.start", "2", "late/0")]
    collected = Happening(t=0.0, pid=1, kind="generator.collected", request="2", fields={"of": "1"})
    assert collected in of_clients([*started, collected], "early")
    assert collected not in of_clients([*started, collected], "late")


def test_of_very_many_items_the_later_ones_share_a_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(writing.PATH_VARIABLE, str(tmp_path / "tape"))
    monkeypatch.setattr(writing, "_descriptor", None)
    often = writing.Often("item")
    for _ in range(1500):
        often.note(stream="s")
    os.close(writing._open())
    happenings = Tape(tmp_path / "tape").catch_up()
    assert len(happenings) == 510
    assert sum(h.fields.get("times", 1) for h in happenings) == 1500
