"""Writes `states.md` from the table of moves: ``python docs/generate.py``. A test holds the page current."""

from __future__ import annotations

import pathlib

from outlive import states

PAGE = pathlib.Path(__file__).parent / "states.md"
_HEAD = """# States and moves

Made by `python docs/generate.py` from `outlive.states`; a test holds it current.

A run is queued, then running, then ended. Whatever ended stays as it is, for ever.

"""
_MEANINGS = {
    states.State.QUEUED: "on record, waiting for a worker, for its thread or for its time",
    states.State.RUNNING: "a worker holds it, for as long as its lease lasts",
    states.State.SUCCEEDED: "its agent came to its own end",
    states.State.WAITING: "its agent waits for a person; the answer is a new run",
    states.State.FAILED: "its agent raised",
    states.State.STOPPED: "it was stopped, and `reason` says by whom or what",
    states.State.ABANDONED: "its executors were lost, more often than its policy allows",
}
_REASONS = {
    states.Reason.REQUESTED: "somebody asked",
    states.Reason.DISCONNECT: "nobody watched for the grace that its policy gives",
    states.Reason.DISPLACED: "a newer message took its place",
    states.Reason.TIMEOUT: "the attempt took longer than `run_timeout`",
    states.Reason.LOST: "its executor was lost",
}


def states_page() -> str:
    """Return the whole page."""
    parts = (_diagram(), _table_of_states(), _table_of_reasons(), _table_of_moves(), _FENCE)
    return _HEAD + "\n\n".join(parts) + "\n"


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for source, target, moves in _arrows():
        lines.append(f"    {source} --> {target}: {', '.join(moves)}")
    lines += [f"    {state.value} --> [*]" for state in states.State if state.terminal]
    return "\n".join([*lines, "```"])


def _arrows() -> list[tuple[str, str, list[str]]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for rule in states.RULES:
        for target in _in_order(rule.targets):
            moves = arrows.setdefault((_name(rule.source, "[*]"), target.value), [])
            if rule.move.value not in moves:
                moves.append(rule.move.value)
    return [(source, target, moves) for (source, target), moves in arrows.items()]


def _table_of_states() -> str:
    rows = [
        f"| `{state.value}` | {'yes' if state.terminal else ''} | {_MEANINGS[state]} |"
        for state in states.State
    ]
    return "\n".join(["| state | ended | meaning |", "|---|---|---|", *rows])


def _table_of_reasons() -> str:
    rows = [f"| `{reason.value}` | {_REASONS[reason]} |" for reason in states.Reason]
    return "\n".join(["| reason of a stop | meaning |", "|---|---|", *rows])


def _table_of_moves() -> str:
    head = [
        "| move | from | to | who | what must hold in its transaction | epoch |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(_row, states.RULES)])


def _row(rule: states.Rule) -> str:
    targets = " · ".join(f"`{state.value}`" for state in _in_order(rule.targets))
    guards = " · ".join(guard.value for guard in states.Guard if guard in rule.guards)
    source = "-" if rule.source is None else f"`{rule.source.value}`"
    epoch = f"+{rule.epoch}" if rule.epoch else "as it is"
    return f"| `{rule.move.value}` | {source} | {targets} | {rule.who.value} | {guards} | {epoch} |"


def _in_order(found: frozenset[states.State]) -> list[states.State]:
    return [state for state in states.State if state in found]


def _name(state: states.State | None, nothing: str) -> str:
    return nothing if state is None else state.value


_FENCE = """The epoch counts executors. Every write of one carries its epoch and its claim token, and checks
them in the statement that writes. A process that was frozen, cut off or replaced therefore changes nothing
when it comes back: what it tries is refused and counted. The lease only decides when somebody else may take
over."""


if __name__ == "__main__":
    PAGE.write_text(states_page(), encoding="utf-8")
