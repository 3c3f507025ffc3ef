"""Can a sweep over checkpoints tell an abandoned thread from one that waits, or works?"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from outlive.lab.experiment import Bench, Experiment, Measured

BREAKPOINT = "approve"


class State(TypedDict):
    """What was done."""

    steps: Annotated[list[str], operator.add]


class TornSaver(InMemorySaver):
    """Fails to write one checkpoint, as a cut does: the pending writes are there, the checkpoint is not."""

    failing = False

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        if self.failing:
            raise ConnectionError("cut")
        return await super().aput(*args, **kwargs)


def _graph(saver: Any, gate: asyncio.Event, **options: Any) -> Any:
    def plan(state: State) -> dict[str, list[str]]:
        del state
        if isinstance(saver, TornSaver):
            saver.failing = True
        return {"steps": ["plan"]}

    async def work(state: State) -> dict[str, list[str]]:
        del state
        await gate.wait()
        return {"steps": ["work"]}

    def approve(state: State) -> dict[str, list[str]]:
        del state
        return {"steps": [str(interrupt("well?")) if options.get("ask") else "approve"]}

    builder: Any = StateGraph(State)
    for name, node in (("plan", plan), (BREAKPOINT, approve), ("work", work)):
        builder.add_node(name, node)
    for before, after in zip(
        (START, "plan", BREAKPOINT, "work"), ("plan", BREAKPOINT, "work", END), strict=True
    ):
        builder.add_edge(before, after)
    stops = {name: value for name, value in options.items() if name != "ask"}
    return builder.compile(checkpointer=saver, **stops)


async def _threads() -> Mapping[str, tuple[Any, bool]]:
    """For each kind of thread its snapshot, and whether it is really abandoned."""
    snapshots: dict[str, tuple[Any, bool]] = {}
    for name, options, abandoned in (
        ("finished", {}, False),
        ("interrupt()", {"ask": True}, False),
        ("interrupt_before", {"interrupt_before": [BREAKPOINT]}, False),
        ("interrupt_after", {"interrupt_after": [BREAKPOINT]}, False),
        ("cut inside a checkpoint write", {}, True),
    ):
        gate = asyncio.Event()
        gate.set()
        saver = TornSaver() if name.startswith("cut") else InMemorySaver()
        graph = _graph(saver, gate, **options)
        with contextlib.suppress(ConnectionError):
            await graph.ainvoke({"steps": []}, _config(), durability="sync")
        snapshots[name] = (await graph.aget_state(_config()), abandoned)
    async with _running() as graph:
        snapshots["running on another worker"] = (await graph.aget_state(_config()), False)
    snapshots["abandoned by a disconnect"] = (await graph.aget_state(_config()), True)
    return snapshots


@contextlib.asynccontextmanager
async def _running() -> AsyncIterator[Any]:
    """A graph with a run in the middle of a node; the run is cut at the end."""
    graph = _graph(InMemorySaver(), asyncio.Event())
    task = asyncio.create_task(graph.ainvoke({"steps": []}, _config(), durability="sync"))
    while (await graph.aget_state(_config())).next != ("work",):  # noqa: ASYNC110  (LangGraph tells nobody)
        await asyncio.sleep(0.005)
    try:
        yield graph
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _config() -> Any:
    return {"configurable": {"thread_id": "t"}}


def _sweeps(name: str, snapshot: Any) -> dict[str, bool]:
    """What sweeps of growing care call abandoned."""
    unfinished = bool(snapshot.next)
    asked = any(task.interrupts for task in snapshot.tasks)
    at_breakpoint = BREAKPOINT in snapshot.next
    leased = name.startswith("running")
    return {
        "next is not empty": unfinished,
        "and nobody was asked": unfinished and not asked,
        "and not at a breakpoint": unfinished and not asked and not at_breakpoint,
        "and no lease": unfinished and not asked and not at_breakpoint and not leased,
    }


def _play(bench: Bench) -> Measured:
    bench.plan(1)
    rows: list[Mapping[str, object]] = []
    wrong: dict[str, list[str]] = {}
    for name, (snapshot, abandoned) in asyncio.run(_threads()).items():
        found = _sweeps(name, snapshot)
        for sweep, says in found.items():
            wrong.setdefault(sweep, []).extend([name] if says is not abandoned else [])
        shown = {sweep: "abandoned" if says else "-" for sweep, says in found.items()}
        rows.append(
            {"thread": name, "next": ", ".join(snapshot.next) or "-", "truly abandoned": abandoned, **shown}
        )
    bench.step()
    rows.append({"thread": "wrong about", **{sweep: ", ".join(names) for sweep, names in wrong.items()}})
    held = wrong["and no lease"] == ["interrupt_after", "cut inside a checkpoint write"]
    return Measured(ok=held and len(wrong["next is not empty"]) > 3, rows=rows)


EXPERIMENT = Experiment(
    name="pauses",
    title="Interrupts, static breakpoints and running threads in a sweep for abandoned ones",
    asserts="Every exclusion is needed; all of them misjudge `interrupt_after` and a cut write.",
    play=_play,
)
