"""The documentation is true: its code runs, its tables agree with the code, its pages are current."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pathlib
import re
import shutil
import sys
import tomllib
import types
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import fastapi
import httpx
import pytest
import uvicorn
from langgraph.graph import END, START, StateGraph
from packaging.requirements import Requirement
from typer.main import get_command

import outlive
from outlive import admission, errors, policy, states
from outlive.cli import app as command_line

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
HTTP = (ROOT / "docs" / "http.md").read_text()
THREADS = (ROOT / "docs" / "threads.md").read_text()
WITHIN = 20.0


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [block for its, block in found if its == language]


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table with this head."""
    table = page[page.index(head) :].split("\n\n", maxsplit=1)[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


# ------------------------------------------------------------ the code in the README


class _State(TypedDict):
    text: str


async def _shout(state: _State) -> _State:
    return {"text": state["text"].upper()}


def _graph() -> Any:
    builder = StateGraph(_State)
    builder.add_node("shout", _shout)
    builder.add_edge(START, "shout")
    builder.add_edge("shout", END)
    return builder.compile()


def current_user(request: fastapi.Request) -> str:
    """Somebody's own authentication."""
    if (name := request.headers.get("X-User")) is None:
        raise fastapi.HTTPException(401, "Who are you?")
    return name


@pytest.fixture
def yours(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[None]:
    """The application's own module, which the README's code imports, in a directory of its own."""
    module = types.ModuleType("yours")
    module.__dict__.update(current_user=current_user, graph=_graph())
    monkeypatch.setitem(sys.modules, "yours", module)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("readme", None)


def application(code: str) -> fastapi.FastAPI:
    module = types.ModuleType("readme")
    sys.modules["readme"] = module  # where pydantic looks the annotations up
    exec(compile(code, "README.md", "exec"), module.__dict__)  # noqa: S102 - it is what the README shows
    found = module.__dict__["app"]
    assert isinstance(found, fastapi.FastAPI)
    return found


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.begun.set()


@asynccontextmanager
async def served(app: fastapi.FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    server = _Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=5))
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(WITHIN):
        await server.begun.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    user = {"X-User": "ann"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=user, timeout=WITHIN) as client:
        yield client
    server.should_exit = True
    await task


def events(text: str) -> list[dict[str, str]]:
    """The fields of each event of a whole stream."""
    return [
        dict(line.partition(": ")[::2] for line in block.split("\n"))
        for block in text.rstrip("\n").split("\n\n")
    ]


def chunks(text: str) -> list[Any]:
    return [json.loads(event["data"])["data"] for event in events(text) if event["event"] == "chunk"]


async def test_the_router_of_the_README_serves_a_graph_to_each_user(yours: None) -> None:
    code, _ = blocks(README, "python")
    body = {"agent": "assistant", "input": {"text": "hello"}, "thread": "t"}
    async with served(application(code)) as client:
        made = await client.post("/runs", json=body, headers={"Idempotency-Key": "k"})
        assert made.status_code == 201
        stream = await client.get(f"{made.headers['location']}/events")
        assert {"shout": {"text": "HELLO"}} in chunks(stream.text)
        assert events(stream.text)[-1]["event"] == "end"
        last = events(stream.text)[1]["id"]
        again = await client.get(f"{made.headers['location']}/events", headers={"Last-Event-ID": last})
        assert events(again.text) == events(stream.text)[2:]
        assert (await client.get("/runs", headers={"X-User": "bob"})).json()["runs"] == []
        del client.headers["X-User"]
        assert (await client.get("/runs")).status_code == 401


async def test_the_handler_of_the_README_streams_attaches_and_goes_on(yours: None) -> None:
    _, code = blocks(README, "python")
    message = {"id": "1", "text": "one two three", "conversation": "c"}
    async with served(application(code)) as client:
        first = await client.post("/chat", json=message)
        assert first.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert first.headers["outlive-admitted"] == "created"
        assert events(first.text)[0]["id"].partition(":")[0] == first.headers["outlive-run"]
        assert chunks(first.text) == ["one", "two", "three"]
        assert events(first.text)[-1]["event"] == "end"
        assert (await client.post("/chat", json=message)).text == first.text
        last = events(first.text)[2]["id"]
        rest = await client.post("/chat", json=message, headers={"Last-Event-ID": last})
        assert events(rest.text) == events(first.text)[3:]
        wrong = await client.post("/chat", json=message, headers={"Last-Event-ID": "nobody:1"})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_cursor")
        other = await client.post("/chat", json=message | {"text": "four"})
        assert (other.status_code, other.json()["code"]) == (409, "key_conflict")
        assert other.json()["field"] == "key"  # of submit(): the handler has no header of ours
        bob = await client.post("/chat", json=message | {"text": "four"}, headers={"X-User": "bob"})
        assert chunks(bob.text) == ["four"]


@outlive.agent("assistant", policy=policy.job())
async def words(context: outlive.Context) -> AsyncGenerator[str, None]:
    for word in context.input.split():
        yield word


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_shell_session_of_the_README_streams_attaches_and_goes_on(tmp_path: pathlib.Path) -> None:
    """By a real shell and curl; jq is not everywhere, and Python does its one job."""
    (session,) = blocks(README, "sh")
    first_run = "import json, sys; print(json.load(sys.stdin)['runs'][0]['run_id'])"
    runs = outlive.Outlive(f"sqlite:///{tmp_path}/runs.db", [words])
    app = fastapi.FastAPI(lifespan=runs.lifespan)
    app.include_router(outlive.router(runs))
    async with served(app) as client:
        script = session.replace("localhost:8000", f"{client.base_url.host}:{client.base_url.port}")
        script = script.replace("jq -r '.runs[0].run_id'", f'{sys.executable} -c "{first_run}"')
        shell = await asyncio.create_subprocess_exec(
            "sh", "-euc", script.replace("\ncurl", "\necho; echo ----; curl"), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WITHIN):
            out, _ = await shell.communicate()
    assert shell.returncode == 0
    streamed, again, rest, stopped = out.decode().split("\n----\n")[1:]
    assert chunks(streamed) == ["one", "two", "three"]
    assert json.loads(again)["admitted"] == "replayed"
    assert json.loads(again)["run_id"] == events(streamed)[0]["id"].partition(":")[0]
    assert events(rest) == events(streamed)[2:]
    assert json.loads(stopped)["outcome"] == "already"


def test_in_an_application_it_takes_five_lines() -> None:
    code, _ = blocks(README, "python")
    assert len([line for line in code.splitlines() if "outlive" in line or "runs" in line]) <= 5


# ------------------------------------------------------------ tables and names


def test_the_policies_in_the_README_are_the_policies() -> None:
    table = rows(README, "| field | values |")
    shown = {cells[0].strip("`"): cells[2:4] for cells in table}
    for number, preset in enumerate((policy.chat(), policy.job())):
        expected = {
            name: "none"
            if value is None
            else f"{value:g}"
            if isinstance(value, float | int)
            else f"`{value}`"
            for name, value in preset.to_dict().items()
        }
        assert {name: cells[number] for name, cells in shown.items()} == expected
    for cells in table:
        kinds = {"on_disconnect": policy.OnDisconnect, "on_busy": policy.OnBusy, "on_torn": policy.OnTorn}
        kind = kinds.get(cells[0].strip("`"))
        if kind is not None:
            assert cells[1] == ", ".join(f"`{member}`" for member in kind)


def test_the_commands_in_the_README_are_there() -> None:
    group = get_command(command_line.app)
    used = set(re.findall(r"^(?:\.venv/bin/)?outlive (\w+)", "\n".join(blocks(README, "")), re.MULTILINE))
    assert used == {"serve", "worker", "runs", "migrate"}
    assert used <= set(group.list_commands(None))  # type: ignore[attr-defined]


TAKEN = {
    ("clean", "resume"): "starts",
    ("clean", "restart"): "starts",
    ("clean", "reject"): "starts",
    ("clean", "rollback"): "starts",
    ("waiting", "restart"): "starts over",
    ("waiting", "rollback"): "taken back, then starts",
    ("torn", "resume"): "finished first, then starts",
    ("torn", "restart"): "starts over",
    ("torn", "rollback"): "taken back, then starts",
}


def test_what_a_message_does_on_an_idle_thread_is_what_the_page_says() -> None:
    table = rows(THREADS, "| the thread is |")
    assert [cells[0].strip("`") for cells in table] == ["clean", "waiting", "torn"]
    for cells in table:
        position = states.Position(cells[0].strip("`"))
        standing = admission.Standing(position=position, left_by="l")
        for on_torn, shown in zip(policy.OnTorn, cells[1:], strict=True):
            decision = admission.admit([], policy.chat(on_torn=on_torn), standing)
            refused = isinstance(decision, admission.Left)
            assert shown == (f"409 `thread_{position}`" if refused else TAKEN[position, on_torn])


MEETS = {
    (admission.Accept, False): "queued",
    (admission.Reject, False): "409 `thread_busy`",
    (admission.Reject, True): "409 `thread_busy`",
    (admission.Displace, False): "displaces the live run",
    (admission.Displace, True): "displaces the live run, and takes it back",
}


def test_what_a_message_does_on_a_busy_thread_is_what_the_page_says() -> None:
    live = [admission.LiveRun(run_id="r", state=states.State.RUNNING)]
    for answers, cells in zip((False, True), rows(THREADS, "| the message |"), strict=True):
        for on_busy, shown in zip(policy.OnBusy, cells[1:], strict=True):
            decision = admission.admit(live, policy.chat(on_busy=on_busy), answers=answers)
            assert shown == MEETS[type(decision), on_busy is policy.OnBusy.ROLLBACK]


def test_every_error_that_a_client_can_meet_is_documented() -> None:
    table = {cells[0].strip("`"): int(cells[1]) for cells in rows(HTTP, "| code | status | when |")}
    known = {error.code: error.status for error in _tree(errors.OutliveError)}
    for internal in (
        "refused",
        "unavailable",
        "fenced",
        "stopping",
        "effect_conflict",
        "effect_busy",
        "effect_failed",
        "effect_unknown",
        "not_approved",
        "thread_left",
        "misconfigured",
        "schema_mismatch",
        "unsafe_file_system",
    ):
        del known[internal]
    assert table == known | {"method_not_allowed": 405}


def _tree(root: type[errors.OutliveError]) -> Iterator[type[errors.OutliveError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


async def test_every_route_is_documented(sqlite_path: pathlib.Path) -> None:
    documented = {tuple(cells[0].strip("`").split()) for cells in rows(HTTP, "| route | does | answers |")}
    app = fastapi.FastAPI()
    app.include_router(outlive.router(outlive.Outlive(f"sqlite:///{sqlite_path}", [])))
    paths = app.openapi()["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == routes | {("GET", "/health"), ("GET", "/ready")}


def test_the_body_in_the_documentation_has_every_field() -> None:
    (body,) = blocks(HTTP, "json")
    native = importlib.import_module("outlive.http.native")
    assert list(json.loads(body)) == list(native.NewRun.model_fields)


def test_every_dependency_earns_its_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted: dict[str, set[str]] = {name: {"-"} for name in map(_name, project["dependencies"])}
    for extra in extras.keys() - {"all", "test", "dev"}:
        for name in map(_name, extras[extra]):
            wanted.setdefault(name, set()).add(extra)
    wanted.pop("outlive", None)  # in an extra that is made of others
    page = (ROOT / "docs" / "decisions.md").read_text()
    table = rows(page, "| package | extra |")
    assert {cells[0].strip("`"): set(re.findall(r"[\w-]+", cells[1])) for cells in table} == wanted


def _name(requirement: str) -> str:
    return Requirement(requirement).name


def test_the_page_of_states_is_current_and_names_every_move() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    page = (ROOT / "docs" / "states.md").read_text()
    assert page == generate.states_page(), "run: python docs/generate.py"
    for word in (*states.State, *states.Move, *states.Reason):
        assert f"`{word}`" in page


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} == set(
        re.findall(r"\]\((\w+\.md)\)", index)
    )


def test_the_public_names_are_these() -> None:
    assert outlive.__all__ == [
        "Chunk",
        "Context",
        "Event",
        "EventStream",
        "LangGraphAgent",
        "Limits",
        "Note",
        "Outcome",
        "Outlive",
        "OutliveError",
        "Principal",
        "Reason",
        "Run",
        "RunPolicy",
        "State",
        "Webhooks",
        "agent",
        "api_keys",
        "chat",
        "job",
        "problems",
        "router",
        "stream",
        "tokens",
    ]
    for name in outlive.__all__:
        assert getattr(outlive, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = outlive.nonsense
