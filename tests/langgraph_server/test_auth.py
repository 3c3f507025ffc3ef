"""An application's own Auth object: who is let in, and what its handlers let them see and do."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import fastapi
import httpx
import pytest
from langgraph_sdk import Auth
from langgraph_sdk import client as sdk
from langgraph_sdk import errors as sdk_errors

import outlive
from langgraph_server import auths, graphs
from langgraph_server.conftest import POLICY
from outlive import errors
from outlive.agents.langgraph import LangGraphAgent
from outlive.http import application
from outlive.http.langgraph import routes, rules
from outlive.http.langgraph.handlers import Handlers
from outlive.testing.asgi import WITHIN, listening

SYSTEM = str(uuid.uuid5(uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), "steps"))
Serve = Callable[[Auth], contextlib.AbstractAsyncContextManager[str]]
_names = itertools.count(1)


@pytest.fixture
def serve(lasting_database: str) -> Serve:
    """Serves the graphs behind an Auth object, as ``outlive serve`` does."""

    @contextlib.asynccontextmanager
    async def serving(auth: Auth) -> AsyncIterator[str]:
        agents = [
            LangGraphAgent(name, make(), policy=POLICY)
            for name, make in {"steps": graphs.steps, "whose": graphs.whose}.items()
        ]
        served = outlive.Outlive(lasting_database, agents)
        app = application.application(served, langgraph=True, auth=Handlers(auth))
        async with served, listening(app) as port:
            yield f"http://127.0.0.1:{port}"

    return serving


@contextlib.asynccontextmanager
async def user(url: str, name: str) -> AsyncIterator[Any]:
    """The SDK's client of a user."""
    headers = {"authorization": f"Bearer {name}-token"}
    async with sdk.get_client(url=url, api_key=None, headers=headers) as client:
        yield client


@contextlib.asynccontextmanager
async def plain(url: str, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client without the SDK."""
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=WITHIN) as client:
        yield client


# ------------------------------------------------------------ who asks


async def test_who_is_not_known_is_refused_in_the_handlers_words(serve: Serve) -> None:
    async with serve(auths.owners()) as url, plain(url) as nobody:
        refused = await nobody.post("/threads", json={})
        assert (refused.status_code, refused.json()) == (401, {"detail": "Who is that?"})
        assert (await nobody.get("/ok")).status_code == 200
        unauthenticated = await nobody.post(
            "/threads", json={}, headers={"authorization": "Bearer eve-token"}
        )
        assert unauthenticated.status_code == 401


def takes_all() -> Any:
    """A handler that wants everything there is."""

    async def takes(  # noqa: PLR0917 - as the platform calls it
        request: fastapi.Request,
        body: dict[str, Any],
        path: str,
        method: str,
        path_params: dict[str, str] | None,
        query_params: dict[str, str] | None,
        headers: dict[Any, bytes],
        authorization: str | None,
    ) -> str:
        assert (request.url.path, path, method) == ("/threads/search", "/threads/search", "POST")
        assert (body, path_params, query_params) == ({"limit": 3}, {}, {"a": "b"})
        assert headers[b"authorization"] == headers["Authorization"] == b"Bearer x"
        assert headers.get("x-none") is None
        assert authorization == "Bearer x"
        return "ann"

    return takes


class Somebody:
    """A user as an object."""

    identity = "ann"
    permissions = ("a",)


async def as_object() -> Any:
    return Somebody()


async def as_dict() -> Any:
    return {"identity": "ann"}


def as_text() -> str:
    return "ann"


async def as_nobody() -> Any:
    return {"display_name": "nobody"}


@pytest.mark.parametrize(
    ("handler", "status"),
    [(takes_all(), 200), (as_object, 200), (as_dict, 200), (as_text, 200), (as_nobody, 401)],
)
async def test_a_handler_takes_what_it_names_and_returns_a_user_in_any_form(
    serve: Serve, handler: Any, status: int
) -> None:
    auth = Auth()
    auth.authenticate(handler)
    async with serve(auth) as url, plain(url, authorization="Bearer x") as client:
        answer = await client.post("/threads/search?a=b", json={"limit": 3})
        assert answer.status_code == status, answer.text


async def wants_more(planet: str) -> str:
    return planet


@pytest.mark.parametrize("handler", [None, wants_more])
def test_an_auth_object_that_cannot_tell_who_asks_is_refused_at_the_start(handler: Any) -> None:
    auth = Auth()
    if handler is not None:
        auth.authenticate(handler)
    with pytest.raises(errors.Misconfigured):
        Handlers(auth)
    with pytest.raises(errors.Misconfigured):
        Handlers("no auth")


async def test_without_handlers_each_user_has_their_own_and_outlives_own_routes(serve: Serve) -> None:
    auth = Auth()
    auth.authenticate(auths.by_token)
    async with serve(auth) as url, user(url, "ann") as ann, user(url, "bob") as bob:
        thread = await ann.threads.create()
        with pytest.raises(sdk_errors.NotFoundError):
            await bob.threads.get(thread["thread_id"])
        async with plain(url, authorization="Bearer ann-token") as native:
            assert (await native.get("/native/runs")).status_code == 200


async def test_where_handlers_decide_outlives_own_routes_are_closed(serve: Serve) -> None:
    async with serve(auths.owners()) as url, plain(url, authorization="Bearer ann-token") as native:
        assert (await native.get("/native/runs")).status_code == 403


# ------------------------------------------------------------ what a graph is told


async def test_a_graph_knows_its_user_whatever_the_caller_says_of_one(serve: Serve) -> None:
    forged = {"configurable": {"langgraph_auth_user": {"identity": "root"}, "langgraph_auth_user_id": "root"}}
    async with serve(auths.owners()) as url, user(url, "ann") as ann:
        told: Any = await ann.runs.wait(None, "whose", input={}, config=forged)
        assert told == {"identity": "ann", "role": "author", "named": "ann", "permissions": ["chat"]}


# ------------------------------------------------------------ owners


async def test_S22_what_a_user_makes_is_theirs_and_nobody_else_finds_it(serve: Serve) -> None:
    async with serve(auths.owners()) as url, user(url, "ann") as ann, user(url, "bob") as bob:
        thread = (await ann.threads.create(metadata={"owner": "bob", "n": 1}))["thread_id"]
        run = await ann.runs.create(thread, "steps", input={})
        await ann.runs.join(thread, run["run_id"])
        assistant = await ann.assistants.create("steps", name="anns")
        cron = await made_cron(ann, n=1)
        await ann.store.put_item(["notes"], "first", {"text": "mine"})
        assert [one["thread_id"] for one in await ann.threads.search(metadata={"n": 1})] == [thread]
        assert await ann.threads.count(metadata={"n": 1}) == 1
        assert await bob.threads.search() == []
        assert await bob.threads.count() == 0
        assert await bob.crons.search() == []
        assert [one["cron_id"] for one in await ann.crons.search()] == [cron["cron_id"]]
        item = await ann.store.get_item(["notes"], "first")
        assert item is not None
        assert item["namespace"] == ["ann", "notes"]
        assert (await bob.store.search_items([]))["items"] == []
        assert (await ann.store.list_namespaces())["namespaces"] == [["ann", "notes"]]
        foreign: list[Any] = [
            bob.threads.get(thread),
            bob.threads.get_state(thread),
            bob.threads.get_history(thread),
            bob.threads.update(thread, metadata={"owner": "bob"}),
            bob.threads.update_state(thread, {"steps": ["x"]}, as_node="plan"),
            bob.threads.copy(thread),
            bob.threads.delete(thread),
            bob.runs.create(thread, "steps", input={}),
            bob.runs.wait(thread, "steps", input={}, if_not_exists="create"),
            bob.runs.get(thread, run["run_id"]),
            bob.runs.list(thread),
            bob.runs.join(thread, run["run_id"]),
            bob.runs.cancel(thread, run["run_id"]),
            bob.runs.delete(thread, run["run_id"]),
            bob.assistants.get(assistant["assistant_id"]),
            bob.assistants.update(assistant["assistant_id"], name="bobs"),
            bob.assistants.delete(assistant["assistant_id"]),
            bob.runs.wait(None, assistant["assistant_id"], input={}),
            bob.crons.update(cron["cron_id"], schedule="* * * * *"),
            bob.crons.delete(cron["cron_id"]),
            bob.crons.create_for_thread(thread, "steps", schedule="* * * * *"),
        ]
        for place, call in enumerate(foreign):
            assert await came_to(call) == 404, place
        assert await bob.threads.prune([thread]) == {"pruned_count": 0}
        with pytest.raises(sdk_errors.ConflictError):
            await bob.threads.create(thread_id=thread, if_exists="do_nothing")
        with pytest.raises(sdk_errors.ConflictError):
            await bob.assistants.create(
                "steps", assistant_id=assistant["assistant_id"], if_exists="do_nothing"
            )
        with pytest.raises(sdk_errors.NotFoundError):
            await bob.runs.cancel_many(status="all")
        await ann.crons.delete(cron["cron_id"])


async def test_what_is_hidden_is_answered_like_what_is_not_there(serve: Serve) -> None:
    async with serve(auths.owners()) as url, user(url, "ann") as ann:
        thread = (await ann.threads.create())["thread_id"]
        run = (await ann.runs.create(thread, "steps", input={}))["run_id"]
        await ann.runs.join(thread, run)
        async with plain(url, authorization="Bearer bob-token") as bob:
            for method, path, sent in (
                ("GET", "/threads/{t}", None),
                ("GET", "/threads/{t}/state", None),
                ("POST", "/threads/{t}/history", {}),
                ("DELETE", "/threads/{t}", None),
                ("GET", "/threads/{t}/runs", None),
                ("GET", "/threads/{t}/runs/{r}", None),
                ("GET", "/runs/{r}/stream", None),
                ("POST", "/threads/{t}/runs", {"assistant_id": "steps", "input": {}}),
                ("POST", "/threads/{t}/runs/{r}/cancel", None),
            ):
                nobodys, none = str(uuid.uuid4()), str(uuid.uuid4())
                hidden = await bob.request(method, path.format(t=thread, r=run), json=sent)
                missing = await bob.request(method, path.format(t=nobodys, r=none), json=sent)
                assert hidden.status_code == missing.status_code == 404
                assert hidden.text.replace(thread, "T") == missing.text.replace(nobodys, "T"), path


async def test_what_a_run_makes_by_the_way_is_its_makers(serve: Serve) -> None:
    async with serve(auths.owners()) as url, user(url, "ann") as ann, user(url, "bob") as bob:
        thread = str(uuid.uuid4())
        await ann.runs.wait(thread, "steps", input={}, if_not_exists="create")
        assert (await ann.threads.get(thread))["metadata"]["owner"] == "ann"
        copied: Any = await ann.threads.copy(thread)
        assert (await ann.threads.get(copied["thread_id"]))["values"]["steps"]
        alone = await ann.runs.create(None, "steps", input={})
        await ann.runs.join(alone["thread_id"], alone["run_id"])
        batch = await ann.runs.create_batch([{"assistant_id": "steps", "input": {}}])
        for one in (alone, batch[0]):
            assert (await ann.runs.get(one["thread_id"], one["run_id"]))["run_id"] == one["run_id"]
            with pytest.raises(sdk_errors.NotFoundError):
                await bob.runs.get(one["thread_id"], one["run_id"])
        async with plain(url, authorization="Bearer ann-token") as http:
            streamed = str(uuid.uuid4())
            start = {
                "id": 1,
                "method": "run.start",
                "params": {"assistant_id": "steps", "input": {}},
            }
            begun = await http.post(f"/threads/{streamed}/commands", json=start)
            assert begun.json()["type"] == "success", begun.text
            assert (await ann.threads.get(streamed))["metadata"]["owner"] == "ann"
            early = str(uuid.uuid4())
            async with http.stream(
                "POST", f"/threads/{early}/stream/events", json={"channels": ["values"]}
            ) as opened:
                assert opened.status_code == 200
                assert (await ann.threads.get(early))["metadata"]["owner"] == "ann"
            blind = await http.post(
                f"/threads/{early}/commands", json=start, headers={"authorization": "Bearer bob-token"}
            )
            assert blind.status_code == 404


async def test_the_same_key_of_two_users_is_two(serve: Serve) -> None:
    async with serve(auths.owners()) as url, user(url, "ann") as ann, user(url, "bob") as bob:
        key = {"Idempotency-Key": f"key-{next(_names)}"}
        first = await ann.runs.create(None, "steps", input={}, headers=key)
        again = await ann.runs.create(None, "steps", input={}, headers=key)
        others = await bob.runs.create(None, "steps", input={}, headers=key)
        assert first["run_id"] == again["run_id"] != others["run_id"]


async def test_a_thread_is_shared_by_those_whom_it_contains_and_kept_by_its_owner(serve: Serve) -> None:
    auth = Auth()
    auth.authenticate(auths.by_token)

    @auth.on.threads
    async def shared(ctx: Auth.types.AuthContext, value: Any) -> Any:
        del value
        return {"members": {"$contains": ctx.user.identity}, "team": {"$eq": "red"}}

    async with serve(auth) as url, user(url, "ann") as ann, user(url, "bob") as bob:
        thread = (await ann.threads.create())["thread_id"]
        assert (await ann.threads.get(thread))["metadata"] == {"members": ["ann"], "team": "red"}
        with pytest.raises(sdk_errors.NotFoundError):
            await bob.threads.get(thread)
        await ann.threads.update(thread, metadata={"members": ["ann", "bob"]})
        assert (await bob.threads.get(thread))["thread_id"] == thread
        for one in (ann, bob):
            assert thread in [found["thread_id"] for found in await one.threads.search()]
        for change in ({"members": ["bob"]}, {"team": "blue"}, {"members": "ann"}):
            with pytest.raises(sdk_errors.PermissionDeniedError):
                await ann.threads.update(thread, metadata=change)
        lonely = (await bob.threads.create(metadata={"members": []}))["thread_id"]
        assert lonely not in [found["thread_id"] for found in await ann.threads.search()]


# ------------------------------------------------------------ each resource and action


Call = Callable[[Any, dict[str, str]], Any]
CALLS: dict[tuple[str, str], Call] = {
    ("threads", "create"): lambda c, ids: c.threads.create(),
    ("threads", "read"): lambda c, ids: c.threads.get(ids["thread"]),
    ("threads", "update"): lambda c, ids: c.threads.update(ids["thread"], metadata={"n": 1}),
    ("threads", "delete"): lambda c, ids: c.threads.delete(ids["thread"]),
    ("threads", "search"): lambda c, ids: c.threads.search(ids=[ids["thread"]]),
    ("threads", "create_run"): lambda c, ids: c.runs.wait(ids["thread"], "steps", input={}),
    ("assistants", "create"): lambda c, ids: c.assistants.create("steps"),
    ("assistants", "read"): lambda c, ids: c.assistants.get(ids["assistant"]),
    ("assistants", "update"): lambda c, ids: c.assistants.update(ids["assistant"], name="x"),
    ("assistants", "delete"): lambda c, ids: c.assistants.delete(ids["assistant"]),
    ("assistants", "search"): lambda c, ids: c.assistants.search(metadata={"mark": ids["mark"]}),
    ("crons", "create"): lambda c, ids: c.crons.create("steps", schedule="0 0 1 1 *"),
    ("crons", "update"): lambda c, ids: c.crons.update(ids["cron"], schedule="0 0 2 1 *"),
    ("crons", "delete"): lambda c, ids: c.crons.delete(ids["cron"]),
    ("crons", "search"): lambda c, ids: c.crons.search(metadata={"mark": ids["mark"]}),
    ("store", "put"): lambda c, ids: c.store.put_item([ids["mark"]], "k", {"v": 1}),
    ("store", "get"): lambda c, ids: c.store.get_item([ids["mark"]], "k"),
    ("store", "delete"): lambda c, ids: c.store.delete_item([ids["mark"]], "k"),
    ("store", "search"): lambda c, ids: c.store.search_items([ids["mark"]]),
    ("store", "list_namespaces"): lambda c, ids: c.store.list_namespaces(prefix=[ids["mark"]]),
}


async def made_cron(client: Any, **metadata: Any) -> Any:
    """A cron, which the SDK's types take for a run."""
    return await client.crons.create("steps", schedule="0 0 1 1 *", metadata=metadata)


async def things(client: Any) -> dict[str, str]:
    """One thing of each kind, which nobody owns."""
    mark = f"mark-{next(_names)}"
    thread = await client.threads.create()
    assistant = await client.assistants.create("steps", metadata={"mark": mark})
    cron = await made_cron(client, mark=mark)
    return {
        "mark": mark,
        "thread": thread["thread_id"],
        "assistant": assistant["assistant_id"],
        "cron": cron["cron_id"],
    }


async def came_to(call: Any) -> Any:
    """What a call came to, which may be the status of its refusal."""
    try:
        return await call
    except httpx.HTTPStatusError as refusal:
        return refusal.response.status_code


async def test_each_action_is_allowed_denied_and_narrowed_by_its_handler(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(auths.answering()) as url, user(url, "ann") as ann:
        for (resource, action), call in CALLS.items():
            where, ids = f"{action} of {resource}", await things(ann)
            for answer in (False, None, "filter"):
                monkeypatch.setitem(auths.answers, (resource, action), answer)
                expected = narrowed(resource, action) if answer == "filter" else 403
                assert shown(await came_to(call(ann, ids))) == expected, (where, answer)
            monkeypatch.delitem(auths.answers, (resource, action))
            assert not isinstance(await came_to(call(ann, ids)), int), where


def narrowed(resource: str, action: str) -> Any:
    """What an action comes to if its handler lets the user see only what is theirs."""
    if resource == "store":
        return 403
    if action == "search":
        return []
    return "ann" if action == "create" else 404


def shown(result: Any) -> Any:
    """A result as far as the table tells: a status, nothing found, or whose it is."""
    return result["metadata"].get("owner") if isinstance(result, dict) and "metadata" in result else result


async def test_a_denial_says_that_nothing_was_returned(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(auths.answers, ("threads", "create"), None)
    async with serve(auths.answering()) as url, plain(url, authorization="Bearer ann-token") as client:
        answer = (await client.post("/threads", json={})).json()
        assert "returned nothing" in answer["detail"]


async def test_a_handlers_own_refusals_are_answered_as_it_says(serve: Serve) -> None:
    auth = Auth()
    auth.authenticate(auths.by_token)

    @auth.on.threads.create
    async def teapot(ctx: Auth.types.AuthContext, value: Any) -> Any:
        raise Auth.exceptions.HTTPException(status_code=418, detail="short and stout")

    @auth.on.threads.read
    async def asserts(ctx: Auth.types.AuthContext, value: Any) -> Any:
        if ctx.user.identity != "root":
            raise AssertionError("not root")

    async with serve(auth) as url, plain(url, authorization="Bearer ann-token") as client:
        refused = await client.post("/threads", json={})
        assert (refused.status_code, refused.json()["detail"]) == (418, "short and stout")
        asserted = await client.get(f"/threads/{uuid.uuid4()}")
        assert (asserted.status_code, asserted.json()["detail"]) == (403, "not root")


def test_every_route_has_a_rule_and_every_rule_a_route(tmp_path: Any) -> None:
    served = outlive.Outlive(
        f"sqlite:///{tmp_path}/outlive.db", [LangGraphAgent("steps", graphs.steps(), policy=POLICY)]
    )
    app = fastapi.FastAPI()
    app.include_router(routes.router(served, handlers=Handlers(auths.owners())))
    ours = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert ours - {"GET /ok", "GET /info"} == rules.RULES.keys()


def test_what_no_handler_decides_about_is_named() -> None:
    auth = Auth()
    auth.authenticate(auths.by_token)

    @auth.on.threads
    async def anything(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return True

    assert Handlers(auth).undecided == ["assistants", "crons", "store"]
    assert Handlers(auths.owners()).undecided == []
