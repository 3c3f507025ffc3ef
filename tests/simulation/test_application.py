"""An application simulates its own agents: what it learns, and how a broken promise is told."""

from __future__ import annotations

import asyncio
import operator
import pathlib
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, TypedDict
from unittest import mock

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import outlive
from outlive import agents, errors
from outlive.agents import fenced_saver
from outlive.agents.generator import agent
from outlive.agents.langgraph import LangGraphAgent
from outlive.model import Run
from outlive.testing import PromiseBroken, simulate_agent
from outlive.testing.simulation import application

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "simulation.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Shop:
    """The outside world of an agent: it charges whoever asks, and can look a charge up."""

    def __init__(self) -> None:
        self.charged: Counter[str] = Counter()

    async def blind(self, context: agents.Context) -> AsyncGenerator[Any, None]:
        yield "looking"
        await asyncio.sleep(1.0)
        self.charged[context.run.origin] += 1
        await asyncio.sleep(0.5)
        yield "bought"

    async def careful(self, context: agents.Context) -> AsyncGenerator[Any, None]:
        yield "looking"
        await asyncio.sleep(1.0)
        if not self.charged[context.run.origin]:
            self.charged[context.run.origin] += 1
        yield "bought"

    def check(self, runs: Sequence[Run]) -> None:
        assert all(run.state.terminal for run in runs)
        twice = [origin for origin, times in self.charged.items() if times > 1]
        assert not twice, f"charged twice for {twice[0]}"


def test_an_agent_that_charges_once_per_attempt_is_found_out_with_the_evidence_and_again() -> None:
    shop = Shop()
    with pytest.raises(PromiseBroken) as found:
        simulate_agent(shop.blind, policy=outlive.job(), begin=shop.charged.clear, check=shop.check)
    told, seed = str(found.value), found.value.seed
    assert f"replay it with seeds=[{seed}]" in told
    assert "charged twice for" in told
    evidence = told.split("\n\n")[1]
    assert "attempt]" in evidence  # the second attempt is among the evidence
    assert "→ queued/" in evidence  # and how the first one ended
    assert ">>>" in told
    assert len(found.value.result.plan.ops) <= 4
    with pytest.raises(PromiseBroken) as again:
        simulate_agent(
            shop.blind, policy=outlive.job(), begin=shop.charged.clear, check=shop.check, seeds=[seed]
        )
    assert str(again.value) == told


def test_an_agent_that_looks_its_charge_up_keeps_every_promise() -> None:
    shop = Shop()
    report = simulate_agent(
        shop.careful, policy=outlive.job(), begin=shop.charged.clear, check=shop.check, seeds=20
    )
    assert report.seeds == 20
    assert report.losses > 0
    assert report.ended["succeeded"] > 20
    assert {"kill", "freeze", "shutdown"} <= set(report.faults)


def test_every_input_is_asked_and_every_waiting_run_is_answered() -> None:
    seen: Counter[str] = Counter()

    @agent("asks", policy=outlive.chat(grace=1.0))
    async def asks(context: agents.Context) -> AsyncGenerator[Any, None]:
        seen[context.input] += 1
        state = outlive.State.SUCCEEDED if context.input == "yes" else outlive.State.WAITING
        yield agents.Outcome(state=state)

    report = simulate_agent(asks, inputs=["a", "b", "c"], answer="yes", seeds=10)
    assert set(seen) == {"a", "b", "c", "yes"}
    assert report.ended["waiting"] > 0
    assert report.ended["succeeded"] > 0


class _State(TypedDict, total=False):
    item: str
    log: Annotated[list[str], operator.add]


async def _plan(_: _State) -> _State:
    await asyncio.sleep(0.5)
    return {"log": ["plan"]}


def _look_up(_: _State) -> _State:
    return {"log": ["look up"]}


async def _ask(_: _State) -> _State:
    return {"log": [f"allowed: {interrupt('buy it?')}"]}


async def _buy(_: _State) -> _State:
    await asyncio.sleep(0.5)
    return {"log": ["buy"]}


def _shopping() -> LangGraphAgent:
    builder = StateGraph(_State)
    nodes: dict[str, Any] = {"plan": _plan, "look_up": _look_up, "ask": _ask, "buy": _buy}
    for name, node in nodes.items():
        builder.add_node(name, node)
    for before, after in zip([START, *nodes], [*nodes, END], strict=True):
        builder.add_edge(before, after)
    return LangGraphAgent("shopping", builder.compile(), policy=outlive.job(on_busy="enqueue"))


def test_a_graph_with_its_checkpoints_under_the_fence_keeps_every_promise() -> None:
    report = simulate_agent(
        _shopping,
        inputs=[{"item": "a"}, {"item": "b"}],
        answer={"command": {"resume": True}},
        seeds=[0, 1, 103, 104, 105],
    )
    assert report.losses > 0
    assert report.ended["waiting"] > 0
    assert report.ended["succeeded"] > 0


def test_a_failed_checkpoint_write_that_nobody_hears_of_is_noticed() -> None:
    def nothing(*_: object) -> None:
        """Nobody looks."""

    with (
        mock.patch.object(fenced_saver.FencedSaver, "_unheard", nothing),
        mock.patch.object(application, "SHRINKING", 1),
        pytest.raises(PromiseBroken, match="nobody looked at the failure of FencedSaver"),
    ):
        simulate_agent(
            _shopping, inputs=[{"item": "a"}, {"item": "b"}], answer={"command": {"resume": True}}, seeds=400
        )


def test_a_graph_s_seed_is_the_same_history_but_for_the_ids_that_langgraph_makes() -> None:
    told = []
    for _ in range(2):
        seen: list[str] = []
        simulate_agent(
            _shopping,
            inputs=[{"item": "a"}],
            answer={"command": {"resume": True}},
            seeds=[1],
            check=lambda runs, seen=seen: seen.extend(repr(run) for run in runs),  # type: ignore[misc]
        )
        told.append([re.sub(r'"id":"[0-9a-f]{32}"', "", line) for line in seen])
    assert told[0] == told[1]
    assert len(told[0]) > 3


def test_an_agent_that_is_bound_to_a_store_has_to_be_made_for_each_process() -> None:
    with pytest.raises(errors.Misconfigured, match="each simulated process has its own"):
        simulate_agent(_shopping())


def test_a_function_needs_a_policy_and_an_agent_has_one() -> None:
    shop = Shop()
    with pytest.raises(errors.Misconfigured, match="has no policy"):
        simulate_agent(shop.careful)
    made = agent("careful", policy=outlive.job())(shop.careful)
    with pytest.raises(errors.Misconfigured, match="of its own"):
        simulate_agent(made, policy=outlive.chat())


def test_the_page_s_first_example_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLES[0], str(PAGE), "exec"), {})  # noqa: S102 - the example is ours
    shown = capsys.readouterr().out
    assert "own is broken" in shown
    assert "charged twice for" in shown


def test_the_page_s_second_example_reports_what_a_graph_came_to(capsys: pytest.CaptureFixture[str]) -> None:
    names = {
        "simulate_agent": simulate_agent,
        "LangGraphAgent": LangGraphAgent,
        "outlive": outlive,
        "graph": lambda: _shopping().graph,
    }
    exec(compile(EXAMPLES[1], str(PAGE), "exec"), names)  # noqa: S102 - the example is ours
    assert capsys.readouterr().out.startswith("10 ")
