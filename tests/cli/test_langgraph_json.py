"""A langgraph.json as it is served: what of it is used, refused, and named as ignored."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import uuid
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from cli import support
from outlive import errors
from outlive.cli import langgraph_json

AGENT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    said: str

def say(state):
    return {"said": WORD}

WORD = "first"
builder = StateGraph(State)
builder.add_node("say", say)
builder.add_edge(START, "say")
graph = builder.compile()

def make(config):
    return graph

async def make_later():
    return graph
"""


def written(folder: pathlib.Path, **entries: Any) -> str:
    """The path of a file that names one graph, with more entries."""
    (folder / "an_agent.py").write_text(AGENT)
    path = folder / "langgraph.json"
    path.write_text(json.dumps({"graphs": {"agent": "./an_agent.py:graph"}} | entries))
    return str(path)


@pytest.mark.parametrize("name", ["graph", "builder", "make", "make_later"])
def test_a_graph_its_builder_and_a_function_that_makes_one_are_served_alike(
    tmp_path: pathlib.Path, name: str
) -> None:
    found = langgraph_json.load(written(tmp_path, graphs={"agent": {"path": f"./an_agent.py:{name}"}}), None)
    assert [(agent.name, agent.policy.on_busy.value) for agent in found.agents] == [("agent", "enqueue")]


def test_what_has_no_meaning_here_is_named(tmp_path: pathlib.Path) -> None:
    file = written(
        tmp_path, store={"odd": 1}, python_version="3.12", http={"app": "./an_agent.py:graph", "cors": {}}
    )
    assert langgraph_json.load(file, None).ignored == ("store.odd", "http.cors")


def test_how_long_items_live_is_taken_from_it(tmp_path: pathlib.Path) -> None:
    found = langgraph_json.load(written(tmp_path, store={"ttl": {"default_ttl": 60}}), None)
    agent: Any = found.agents[0]
    assert agent._store_ttl == {"default_ttl": 60, "refresh_on_read": True}


def test_the_environment_is_set_unless_it_is_set_already(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SHELL", "kept")
    monkeypatch.delenv("OF_THE_FILE", raising=False)
    (tmp_path / ".env").write_text("OF_THE_SHELL=lost\nOF_THE_FILE=read\n")
    langgraph_json.load(written(tmp_path, env=".env"), None)
    assert (os.environ["OF_THE_SHELL"], os.environ["OF_THE_FILE"]) == ("kept", "read")
    monkeypatch.delenv("OF_THE_FILE")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"graphs": {}}, "names no graphs"),
        ({"graphs": {"agent": "./nothing.py:graph"}}, "no file"),
        ({"graphs": {"agent": "./an_agent.py:nobody"}}, "no attribute"),
        ({"graphs": {"agent": "./an_agent.py"}}, "names no attribute"),
        ({"graphs": {"agent": "no_such_module:graph"}}, "no module"),
        ({"graphs": {"agent": "./an_agent.py:WORD"}}, "neither a graph"),
        ({"env": "none.env"}, "none.env"),
        ({"auth": {"path": "./nothing.py:auth"}}, "no file"),
        ({"auth": {"path": "./an_agent.py:graph"}}, "no Auth object"),
        ({"http": {"enable_custom_route_auth": True}}, "enable_custom_route_auth"),
        ({"store": {"index": {"dims": 3}}}, "store.index"),
        ({"store": {"ttl": {"default_ttl": "long"}}}, "default_ttl"),
        ({"store": {"ttl": {"default": 5}}}, "default"),
        ({"store": {"ttl": 5}}, "ttl"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_by_its_name(
    tmp_path: pathlib.Path, entries: dict[str, Any], says: str
) -> None:
    with pytest.raises(errors.Misconfigured, match=says):
        langgraph_json.load(written(tmp_path, **entries), None)


def test_dev_serves_the_folders_graphs_and_starts_again_when_a_file_changes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    listens = r"listening on (\S+)"
    with support.running("dev", "--port", "0") as process:
        first = process.says(listens)
        body = {"assistant_id": "agent", "input": {}}
        assert httpx.post(f"{first}/runs/wait", json=body).json() == {"said": "first"}
        assert httpx.get(f"{first}/native/ready").status_code == 200
        with connect(f"{first.replace('http', 'ws')}/threads/{uuid.uuid4()}/stream/events") as socket:
            wanted = {"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}
            socket.send(json.dumps(wanted))
            assert json.loads(socket.recv(timeout=20))["type"] == "success"
        (tmp_path / "an_agent.py").write_text(AGENT.replace('"first"', '"second"'))
        second = process.says(rf"(?s){listens}.*{listens}".replace("(\\S+)", "\\S+", 1))
        assert httpx.post(f"{second}/runs/wait", json=body).json() == {"said": "second"}
        process.signal(signal.SIGINT)
        process.ended()


AUTH = """
from langgraph_sdk import Auth

auth = Auth()

@auth.authenticate
async def who(authorization):
    if authorization != "Bearer ann":
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who is that?")
    return "ann"

@auth.on.threads
async def theirs(ctx, value):
    return {"owner": ctx.user.identity}
"""


def test_a_files_own_handlers_say_who_asks_and_what_they_say_nothing_of_is_named(
    tmp_path: pathlib.Path, here: support.Here
) -> None:
    (tmp_path / "an_auth.py").write_text(AUTH)
    file = written(tmp_path, auth={"path": "./an_auth.py:auth", "disable_studio_auth": True})
    database = f"sqlite:///{tmp_path}/o.db"
    assert here("migrate", "--database", database).code == 0
    with support.running("serve", file, "--port", "0", "--database", database) as process:
        url = process.says(r"listening on (\S+)")
        assert "no handler decides about store" in process.said
        assert httpx.post(f"{url}/threads", json={}).json() == {"detail": "Who is that?"}
        ann = {"authorization": "Bearer ann"}
        assert httpx.post(f"{url}/threads", json={}, headers=ann).json()["metadata"] == {"owner": "ann"}
        assert httpx.get(f"{url}/native/runs", headers=ann).status_code == 403
        process.signal(signal.SIGINT)


def test_who_asks_is_not_said_twice(tmp_path: pathlib.Path, here: support.Here) -> None:
    (tmp_path / "an_auth.py").write_text(AUTH)
    file = written(tmp_path, auth={"path": "./an_auth.py:auth"})
    database = f"sqlite:///{tmp_path}/o.db"
    assert here("migrate", "--database", database).code == 0
    refused = here("serve", file, "--auth", "keys", "--database", database)
    assert refused.code != 0
    assert "twice" in refused.err
