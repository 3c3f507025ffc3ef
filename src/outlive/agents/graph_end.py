"""How a graph ended, gathered from its stream: with an output, or paused with questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive import agents
from outlive.agents.position import Graph
from outlive.states import State

INTERRUPT = "__interrupt__"


class Ending:
    """Takes in the stream of one call; the modes ``values`` and ``updates`` must be among its items."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values: Any = None
        self._interrupts: list[Any] = []
        self._paused = False

    def see(self, namespace: tuple[str, ...], mode: str, data: Any) -> None:
        """Take in one item of the stream."""
        if namespace:
            return
        if mode == "values":
            self._values = _without_interrupts(data)
        elif mode == "updates" and isinstance(data, dict) and INTERRUPT in data:
            self._paused = True
            self._interrupts.extend(data[INTERRUPT] or ())

    def outcome(self) -> agents.Outcome:
        """Return how the graph ended, given that it ended by itself."""
        if self._paused:
            return waiting(self._graph, self._values, self._interrupts)
        return agents.Outcome(output=_output(self._graph, self._values))


def waiting(graph: Graph, values: Any, interrupts: Sequence[Any]) -> agents.Outcome:
    """Return the outcome of a pause: the values so far, and the questions under ``__interrupt__``."""
    output = _output(graph, values)
    shown = output if isinstance(output, dict) else {}
    return agents.Outcome(output={**shown, INTERRUPT: list(interrupts)}, state=State.WAITING)


def _output(graph: Graph, values: Any) -> Any:
    """Return of the streamed ``values`` what the graph declares as its output."""
    if isinstance(graph.stream_channels_asis, str) or not isinstance(values, dict):
        return values
    if isinstance(graph.output_channels, str):
        return values.get(graph.output_channels)
    return {key: value for key, value in values.items() if key in graph.output_channels}


def _without_interrupts(values: Any) -> Any:
    if isinstance(values, dict) and INTERRUPT in values:
        return {key: value for key, value in values.items() if key != INTERRUPT}
    return values
