"""Public example services, run unmodified from the documentation that the installed packages carry.

Nothing of theirs is kept here: the examples are taken out of the packages when the tests run.
"""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
from typing import Any

import fastapi

from outlive import probe


def _examples(text: str) -> list[str]:
    return re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL | re.IGNORECASE)


def _readme(distribution: str, containing: str) -> str:
    """The first example of a distribution's description that contains this."""
    metadata = importlib.metadata.metadata(distribution)
    text = str(metadata.get("Description") or metadata.get_payload())  # type: ignore[attr-defined]
    return next(example for example in _examples(text) if containing in example)


def _probed(directory: pathlib.Path, code: str, method: str, path: str, *names: str, **more: Any) -> Any:
    (directory / "service.py").write_text(code, encoding="utf-8")
    plan = probe.Plan(
        target=probe.Target(app="service:app", directory=directory),
        request=probe.Request(method=method, path=path, body=more.pop("body", None)),
        scenarios=probe.scenarios(names),
        quiet=0.4,
        **more,
    )
    report = probe.run(plan).as_json()
    assert all(client["status"] == 200 for one in report["scenarios"] for client in one["clients"])
    return report["scenarios"]


def test_sse_starlettes_quick_start_stops_at_once(tmp_path: pathlib.Path) -> None:
    code = _readme("sse-starlette", 'Route("/events"')
    stayed, left = _probed(tmp_path, code, "GET", "/events", "stay", "leave", patience=2.5)
    assert "Event 0" in stayed["clients"][0]["chunks"][0]
    assert left["outcome"] == "stops"
    assert left["platform"]["generators_left"] == []
    assert left["platform"]["time_to_cancel"] is not None


def test_fastapis_native_events_are_counted_as_they_are_produced(tmp_path: pathlib.Path) -> None:
    guide = pathlib.Path(fastapi.__file__).parent / ".agents/skills/fastapi/references/streaming.md"
    code = next(code for code in _examples(guide.read_text(encoding="utf-8")) if '"/events"' in code)
    stayed, left = _probed(tmp_path, code, "GET", "/events", "stay", "leave-early")
    assert [c.split("\n")[0] for c in stayed["clients"][0]["chunks"]] == ["event: status", "event: progress"]
    # Both events are there at once, so how many were produced by the time of leaving is a race.
    assert left["steps"]["complete"] == {"item": 2}
    assert left["outcome"] in {"stops", "partial", "completes"}


def test_fastapis_first_example_answers_nobody(tmp_path: pathlib.Path) -> None:
    code = _readme("fastapi", '@app.get("/items/{item_id}")')
    stayed, left = _probed(tmp_path, code, "GET", "/items/5?q=x", "stay", "leave-early")
    assert json.loads(stayed["clients"][0]["chunks"][0])["item_id"] == 5
    assert left["outcome"] == "completes"


def test_starlettes_first_example_answers_nobody(tmp_path: pathlib.Path) -> None:
    code = _readme("starlette", "homepage")
    stayed, left = _probed(tmp_path, code, "GET", "/", "stay", "leave-early")
    assert json.loads(stayed["clients"][0]["chunks"][0]) == {"hello": "world"}
    assert left["outcome"] == "completes"


def test_uvicorns_bare_application_needs_no_framework(tmp_path: pathlib.Path) -> None:
    code = _readme("uvicorn", "async def app(scope, receive, send)")
    # It refuses anything but HTTP, and so the start of its lifespan too.
    stayed, left = _probed(tmp_path, code, "GET", "/", "stay", "leave-early")
    assert stayed["clients"][0]["chunks"] == ["Hello, world!"]
    assert left["outcome"] == "completes"


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


def test_ag_uis_endpoint_is_cancelled_at_once_and_its_model_runs_on_for_nobody(
    tmp_path: pathlib.Path,
) -> None:
    body = {
        "threadId": "{thread}",
        "runId": "{nonce}",
        "state": {},
        "messages": [{"id": "m-{nonce}", "role": "user", "content": "{message}"}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    stayed, left = _probed(
        tmp_path, AG_UI, "POST", "/agent", "stay", "leave", body=json.dumps(body), patience=15.0
    )
    assert stayed["executed"] == {"model": 1}
    assert "RUN_FINISHED" in stayed["clients"][0]["chunks"][-1]
    assert left["platform"]["exception"] == "CancelledError"
    assert left["steps"]["after"] == {"model": 1}
    assert left["outcome"] == "completes"
