"""Public example services, run unmodified from the documentation that the installed packages carry.

Nothing of theirs is kept here: the examples are taken out of the packages when the tests run.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import json
import pathlib
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import fastapi
import pytest
from langgraph.func import entrypoint

from outlive import probe

Plan = Callable[[pathlib.Path], probe.Plan]
Played = Callable[[str], probe.Report]
pytestmark = pytest.mark.timeout(180)


def _examples(text: str) -> list[str]:
    return re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL | re.IGNORECASE)


def _readme(distribution: str, containing: str) -> str:
    """The first example of a distribution's description that contains this."""
    metadata = importlib.metadata.metadata(distribution)
    text = str(metadata.get("Description") or metadata.get_payload())  # type: ignore[attr-defined]
    return next(example for example in _examples(text) if containing in example)


def _guide(containing: str) -> str:
    """An example of the guide that comes with FastAPI."""
    guide = pathlib.Path(fastapi.__file__).parent / ".agents/skills/fastapi/references/streaming.md"
    return next(code for code in _examples(guide.read_text(encoding="utf-8")) if containing in code)


# The README's example, with what it leaves to the reader filled in: an agent, and a model without a server.
AG_UI = """
from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
from fastapi import FastAPI
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver

model = FakeListChatModel(responses=["a slow answer of a few words"], sleep=0.02)
graph = create_agent(model, tools=[], checkpointer=InMemorySaver())
app = FastAPI()
add_langgraph_fastapi_endpoint(app, LangGraphAgent(name="agent", graph=graph), "/agent")
"""


# An example of LangGraph is a workflow and no service: these lines stream it.
STREAMED = """
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from workflow import review_workflow

app = FastAPI()


@app.get("/review")
async def review(thread: str):
    async def body():
        config = {"configurable": {"thread_id": thread}}
        async for update in review_workflow.astream("cats", config):
            yield f"data: {update}\\n\\n"

    return StreamingResponse(body(), media_type="text/event-stream")
"""


def _workflow() -> str:
    """LangGraph's own example of tasks with a human's review, from its documentation, to the last line."""
    text = textwrap.dedent(inspect.getdoc(entrypoint) or "")
    return next(
        textwrap.dedent(example)
        for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "review_workflow" in example
    )


def _langgraph(directory: pathlib.Path) -> probe.Plan:
    (directory / "workflow.py").write_text(_workflow(), encoding="utf-8")
    plan = _service(lambda: STREAMED, _get("/review?thread={thread}"), "leave-early")(directory)
    return dataclasses.replace(plan, scenarios=probe.scenarios(("stay", "leave"), chunks=1))


AG_UI_INPUT = {
    "threadId": "{thread}",
    "runId": "{nonce}",
    "state": {},
    "messages": [{"id": "m-{nonce}", "role": "user", "content": "{message}"}],
    "tools": [],
    "context": [],
    "forwardedProps": {},
}


def _service(code: Callable[[], str], request: probe.Request, leave: str, **more: Any) -> Plan:
    def make(directory: pathlib.Path) -> probe.Plan:
        (directory / "service.py").write_text(code(), encoding="utf-8")
        return probe.Plan(
            target=probe.Target(app="service:app", directory=directory),
            request=request,
            scenarios=probe.scenarios(("stay", leave)),
            quiet=0.4,
            **more,
        )

    return make


def _get(path: str) -> probe.Request:
    return probe.Request(method="GET", path=path)


PLANS: Mapping[str, Plan] = {
    "sse-starlette": _service(
        lambda: _readme("sse-starlette", 'Route("/events"'), _get("/events"), "leave", patience=2.5
    ),
    "fastapi-events": _service(lambda: _guide('"/events"'), _get("/events"), "leave-early"),
    "fastapi": _service(
        lambda: _readme("fastapi", '@app.get("/items/{item_id}")'), _get("/items/5?q=x"), "leave-early"
    ),
    "starlette": _service(lambda: _readme("starlette", "homepage"), _get("/"), "leave-early"),
    "uvicorn": _service(lambda: _readme("uvicorn", "async def app("), _get("/"), "leave-early"),
    "langgraph": _langgraph,
    "ag-ui": _service(
        lambda: AG_UI, probe.Request(path="/agent", body=json.dumps(AG_UI_INPUT)), "leave", patience=15.0
    ),
}


def _scenarios(report: probe.Report) -> Any:
    found = report.as_json()["scenarios"]
    assert all(client["status"] == 200 for one in found for client in one["clients"])
    return found


def test_sse_starlettes_quick_start_stops_at_once(played: Played) -> None:
    stayed, left = _scenarios(played("sse-starlette"))
    assert "Event 0" in stayed["clients"][0]["chunks"][0]
    assert left["outcome"] == "stops"
    assert left["platform"]["generators_left"] == []
    assert left["platform"]["time_to_cancel"] is not None


def test_fastapis_native_events_are_counted_as_they_are_produced(played: Played) -> None:
    stayed, left = _scenarios(played("fastapi-events"))
    assert [c.split("\n")[0] for c in stayed["clients"][0]["chunks"]] == ["event: status", "event: progress"]
    # Both events are there at once, so how many were produced by the time of leaving is a race.
    assert left["steps"]["complete"] == {"item": 2}
    assert left["outcome"] in {"stops", "partial", "completes"}


def test_fastapis_first_example_is_done_before_anybody_can_leave(played: Played) -> None:
    stayed, left = _scenarios(played("fastapi"))
    assert json.loads(stayed["clients"][0]["chunks"][0])["item_id"] == 5
    assert left["outcome"] == "completes"


def test_starlettes_first_example_is_done_before_anybody_can_leave(played: Played) -> None:
    stayed, left = _scenarios(played("starlette"))
    assert json.loads(stayed["clients"][0]["chunks"][0]) == {"hello": "world"}
    assert left["outcome"] == "completes"


def test_uvicorns_bare_application_needs_no_framework(played: Played) -> None:
    # It refuses anything but HTTP, and so the start of its lifespan too.
    stayed, left = _scenarios(played("uvicorn"))
    assert stayed["clients"][0]["chunks"] == ["Hello, world!"]
    assert left["outcome"] == "completes"


def test_langgraphs_example_pauses_for_its_human_and_nothing_of_it_is_cut(played: Played) -> None:
    stayed, left = _scenarios(played("langgraph"))
    assert "__interrupt__" in stayed["clients"][0]["chunks"][-1]
    assert stayed["executed"] == {"review_workflow/compose_essay": 1}
    assert stayed["in_flight_when_cut"] == []
    assert left["steps"]["complete"] == {"review_workflow/compose_essay": 1}
    assert left["outcome"] == "completes"  # the essay is what the first chunk tells of


def test_ag_uis_endpoint_is_cancelled_at_once_and_its_model_runs_on_for_nobody(played: Played) -> None:
    stayed, left = _scenarios(played("ag-ui"))
    assert stayed["executed"] == {"model": 1}
    assert "RUN_FINISHED" in stayed["clients"][0]["chunks"][-1]
    assert left["platform"]["exception"] == "CancelledError"
    assert left["steps"]["after"] == {"model": 1}
    assert left["outcome"] == "completes"
