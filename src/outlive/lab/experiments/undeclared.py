"""What becomes of a key that a node returns and the state does not declare?"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from outlive.lab.experiment import Bench, Experiment, Measured


class Without(TypedDict):
    """A state that forgot the receipt."""

    steps: Annotated[list[str], operator.add]


class With(Without):
    """A state that did not."""

    receipt: str


def _charge(state: Any) -> dict[str, object]:
    del state
    return {"steps": ["charge"], "receipt": "ch_123"}


def _play(bench: Bench) -> Measured:
    bench.plan(2)
    rows = []
    for schema in (Without, With):
        builder: Any = StateGraph(schema)
        builder.add_node("charge", _charge)
        builder.add_edge(START, "charge")
        builder.add_edge("charge", END)
        graph = builder.compile(checkpointer=InMemorySaver())
        error, values = _invoke(graph)
        rows.append(
            {
                "state declares receipt": schema is With,
                "error": error,
                "receipt in the result": values.get("receipt", "-"),
                "steps": ", ".join(values.get("steps", ())),
            }
        )
        bench.step()
    held = rows[0]["error"] == "-" and [row["receipt in the result"] for row in rows] == ["-", "ch_123"]
    return Measured(ok=held, rows=rows)


def _invoke(graph: Any) -> tuple[str, dict[str, Any]]:
    try:
        return "-", graph.invoke({"steps": []}, {"configurable": {"thread_id": "t"}})
    except ValueError as exc:
        return repr(exc), {}


EXPERIMENT = Experiment(
    name="undeclared",
    title="A returned key that the state does not declare",
    asserts="It is dropped without an error; a declared one is kept.",
    play=_play,
)
