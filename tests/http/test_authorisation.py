"""Who may do what: every route that the application really has, for every kind of caller.

A route without a row here fails; so does a row without a route.  Run as a program it writes
`docs/authorisation.md`, whose every cell is what a test here asks for on both stores.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import keyed_service
import pytest
from keyed_service import Keyed

import outlive
from outlive import keys, notifications, seams
from outlive.principal import Scope


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to use a route.

    ``ended``: the run in its path is one that has ended.  ``own``: what the owner is answered; a stranger
    gets 404, or what ``foreign`` says; ``waits``: a stream that waits
    for one of their own.  ``public``: anybody may ask, and gets what ``own`` says.
    """

    method: str
    path: str
    own: int = 200
    foreign: int = 404
    public: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    query: str = ""
    ended: bool = False
    waits: bool = False

    def __str__(self) -> str:
        words = " ".join(f"{name}:{text}" for name, text in self.headers.items())
        return " ".join(filter(None, (self.method, self.path + self.query, words)))


STREAM = {"Accept": "text/event-stream"}
PAGE = {"Accept": "application/json"}
BACK = {"Last-Event-ID": "{run}:1"}
NEW = {"agent": "gated", "input": 1}
YEARLY = {"cron": "0 0 1 1 *", "agent": "gated"}
NOBODY = "http://127.0.0.1:9/hook"
SECRET = notifications.new_secret(bytes(range(32)))
MATRIX = [
    # What everybody may know: that the process lives, and how the interface looks.
    Row(method="GET", path="/health", public=True),
    Row(method="GET", path="/ready", public=True),
    Row(method="GET", path="/health/drip", public=True),
    Row(method="GET", path="/openapi.json", public=True),
    Row(method="GET", path="/docs", public=True),
    Row(method="GET", path="/docs/oauth2-redirect", public=True),
    Row(method="GET", path="/redoc", public=True),
    Row(method="GET", path="/client.js", public=True),
    # Making runs: a stranger makes their own, and attaches to nobody else's.
    Row(method="POST", path="/runs", body=NEW, own=201, foreign=201),
    Row(method="POST", path="/runs", body=NEW | {"thread": "{thread}"}, own=201, foreign=201),
    Row(method="POST", path="/runs", headers=BACK),
    Row(method="POST", path="/runs", headers=STREAM | BACK),
    # Looking and stopping.
    Row(method="GET", path="/runs", foreign=200),
    Row(method="GET", path="/runs", query="?thread={thread}", foreign=200),
    Row(method="GET", path="/runs", query="?before={run}", foreign=200),
    Row(method="GET", path="/runs/{run_id}"),
    Row(method="GET", path="/runs/{run_id}/events", headers=STREAM),
    Row(method="GET", path="/runs/{run_id}/events", headers=PAGE),
    Row(method="GET", path="/runs/{run_id}/events", headers=STREAM | BACK),
    Row(method="GET", path="/runs/{run_id}/events", headers=PAGE, query="?after={run}:1"),
    Row(method="GET", path="/runs/{run_id}/events/{seq}"),
    Row(method="POST", path="/runs/{run_id}/stop", own=202),
    Row(method="GET", path="/threads", foreign=200),
    Row(method="GET", path="/threads", query="?before={thread}", foreign=200),
    Row(method="GET", path="/threads/{thread:path}"),
    # The gated agent is no graph: its threads have no states, and who may know of one is told so.
    Row(method="GET", path="/threads/{thread:path}/state", own=422),
    Row(method="GET", path="/threads/{thread:path}/state", query="?checkpoint_id={run}", own=422),
    Row(method="GET", path="/threads/{thread:path}/history", own=422),
    Row(method="GET", path="/threads/{thread:path}/tree"),
    Row(method="POST", path="/threads/{thread:path}/state", body={"values": 1}, own=422),
    Row(method="POST", path="/threads/{thread:path}/copy", body={}, own=201),
    Row(method="DELETE", path="/threads/{thread:path}"),
    Row(method="GET", path="/threads/{thread:path}/events", headers=STREAM, foreign=200, waits=True),
    Row(method="GET", path="/threads/{thread:path}/events", headers=PAGE),
    Row(method="GET", path="/threads/{thread:path}/events", headers=STREAM, foreign=200, waits=True),
    Row(method="GET", path="/threads/{thread:path}/events", headers=PAGE),
    # Files: of a run that has ended, for before that it has none.
    Row(method="GET", path="/runs/{run_id}/artifacts"),
    Row(method="GET", path="/runs/{run_id}/artifacts/{name}", own=404),
    Row(method="GET", path="/runs/{run_id}/artifacts", ended=True),
    Row(method="GET", path="/runs/{run_id}/artifacts/{name}", ended=True),
    # Notifications: of the run that has ended.
    Row(method="GET", path="/notifications", foreign=200),
    Row(method="GET", path="/notifications", query="?state=dead&before={notification_id}", foreign=200),
    Row(method="GET", path="/notifications/{notification_id}"),
    Row(method="POST", path="/notifications/{notification_id}/resend", own=202),
    Row(method="GET", path="/runs/{run_id}/notifications", ended=True),
    # Schedules: of the tenant, which has one that is not due for a long time.
    Row(method="POST", path="/schedules", body=YEARLY, own=201, foreign=201),
    Row(method="GET", path="/schedules", foreign=200),
    Row(method="GET", path="/schedules", query="?before={schedule_id}", foreign=200),
    Row(method="GET", path="/schedules/{schedule_id}"),
    Row(method="GET", path="/schedules/{schedule_id}/occurrences"),
    Row(method="GET", path="/schedules/{schedule_id}/next"),
    Row(method="PATCH", path="/schedules/{schedule_id}", body={"name": "new"}),
    Row(method="POST", path="/schedules/{schedule_id}/pause"),
    Row(method="POST", path="/schedules/{schedule_id}/resume"),
    Row(method="DELETE", path="/schedules/{schedule_id}", own=204),
    # Effects: the gated agent has executed one, so what became of it is known, and its owner may say nothing.
    Row(method="GET", path="/effects", foreign=200),
    Row(method="GET", path="/effects", query="?unsettled=true", foreign=200),
    Row(method="GET", path="/effects/{effect_id}"),
    Row(method="GET", path="/runs/{run_id}/effects"),
    Row(method="POST", path="/effects/{effect_id}/settle", body={"executed": True}, own=409),
    Row(method="POST", path="/approvals", body={"name": "e", "key": "{run}"}, own=201, foreign=201),
]
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "authorisation.md"
ROWS = pytest.mark.parametrize("row", MATRIX, ids=str)
PRIVATE = pytest.mark.parametrize("row", [row for row in MATRIX if not row.public], ids=str)


@pytest.fixture(scope="module")
async def keyed(lasting_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Keyed]:
    """A service for the whole module."""
    root = tmp_path_factory.mktemp("artifacts")
    hooks = outlive.Webhooks(secrets=(SECRET,), networks=("127.0.0.0/8",), delay=3600.0)
    async with keyed_service.serving(lasting_database, slots=5000, artifacts=root, webhooks=hooks) as served:
        yield served


Mine = tuple[keys.Minted, "Named"]


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a path or a body may name."""

    run: str = field(default_factory=seams.new_id)
    thread: str = field(default_factory=lambda: f"thread-{seams.new_id()}")
    effect: str = field(default_factory=seams.new_id)
    ended: str = field(default_factory=seams.new_id)
    schedule: str = field(default_factory=seams.new_id)

    def __call__(self, text: str, *, ended: bool = False) -> str:
        """Put the names where a row wants them."""
        wanted = {"run_id": self.ended if ended else self.run, "run": self.run, "name": "made.html"}
        wanted |= {
            "notification_id": f"{self.ended}-1",
            "thread:path": self.thread,
            "thread": self.thread,
            "effect_id": self.effect,
            "schedule_id": self.schedule,
            "seq": "1",
        }
        for word, name in wanted.items():
            text = text.replace("{" + word + "}", name)
        return text

    def hidden(self, text: str) -> str:
        """The same text whatever the names are."""
        names = {self.run: "RUN", self.ended: "ENDED", self.thread: "THREAD", self.effect: "EFFECT"}
        names[self.schedule] = "SCHEDULE"
        for name, word in names.items():
            text = text.replace(name, word)
        return text


@pytest.fixture
async def mine(keyed: Keyed) -> Mine:
    """The key of a new tenant with a run that is under way, and the names of what it has."""
    tenant = seams.new_id()
    key, thread = await keyed.key(tenant), f"thread-{tenant}"
    async with keyed.client(key.text) as owner:
        made = await owner.post("/runs", json=NEW | {"thread": thread})
        run: str = made.json()["run_id"]
        async with owner.stream("GET", f"/runs/{run}/events", headers=STREAM) as events:
            async for line in events.aiter_lines():
                if line.startswith("event: chunk"):  # so it is driven, and a stop will not end it at once
                    break
        (effect,) = (await owner.get(f"/runs/{run}/effects")).json()["effects"]
        other = (await owner.post("/runs", json={"agent": "writing", "webhook": NOBODY})).json()["run_id"]
        assert '"closed":true' in (await owner.get(f"/runs/{other}/events", headers=STREAM)).text
        schedule = (await owner.post("/schedules", json=YEARLY)).json()["schedule_id"]
    named = {
        "run": run,
        "thread": thread,
        "effect": effect["effect_id"],
        "ended": other,
        "schedule": schedule,
    }
    return key, Named(**named)


Answer = tuple[int, str, dict[str, str]]


async def asked(client: httpx.AsyncClient, row: Row, named: Named) -> Answer:
    """Ask once; of a stream no more than its status is read."""
    headers = {name: named(text) for name, text in row.headers.items()}
    body = None if row.body is None else json.loads(named(json.dumps(row.body)))
    where = named(row.path + row.query, ended=row.ended)
    async with client.stream(row.method, where, headers=headers, json=body) as answer:
        streams = answer.headers.get("content-type", "").startswith("text/event-stream")
        text = "" if streams else (await answer.aread()).decode()
        kept = {name: value for name, value in answer.headers.items() if name != "date"}
        return answer.status_code, named.hidden(text), kept


def routes(found: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Every method and path of an application; a router that it includes is looked into."""
    for route in found:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from routes(inner.routes)
        else:
            yield from ((method, route.path) for method in route.methods)


async def test_S22_every_route_has_a_row_and_every_row_a_route(keyed: Keyed) -> None:
    real = set(routes(keyed.app.routes))
    known = {(row.method, row.path) for row in MATRIX}
    heads = {("HEAD", path) for method, path in known if method == "GET"}
    assert real - heads == known, "a route was added or taken away: say here who may use it"
    assert {path for method, path in real if method == "HEAD"} <= {path for _, path in heads}


@ROWS
async def test_the_owner_gets_what_the_row_says(keyed: Keyed, mine: Mine, row: Row) -> None:
    key, named = mine
    async with keyed.client(key.text) as owner:
        status, text, _ = await asked(owner, row, named)
    assert status == row.own, text


@pytest.mark.invariant("I14")
@PRIVATE
async def test_S22_a_stranger_is_answered_as_if_it_had_never_been(keyed: Keyed, mine: Mine, row: Row) -> None:
    key, named = mine
    stranger = await keyed.key(f"stranger-{seams.new_id()}")
    async with keyed.client(stranger.text) as other:
        if row.waits:
            for name in (named.thread, Named().thread):
                where = row.path.replace("{thread:path}", name)
                async with other.stream(row.method, where, headers=row.headers) as waiting:
                    assert waiting.status_code == row.foreign
                    assert await anext(waiting.aiter_lines()) == ":"
            return
        foreign = await asked(other, row, named)
        assert foreign[0] == row.foreign, foreign[1]
        assert row.foreign == 404 or not {"RUN", "ENDED", "EFFECT", "SCHEDULE"} & set(
            re.findall("[A-Z]+", foreign[1])
        )
        if row.foreign == 404:
            assert foreign == await asked(other, row, Named())
        elif row.method == "GET":
            assert next(iter(json.loads(foreign[1]).values())) == []
    async with keyed.client(key.text) as owner:
        record = (await owner.get(f"/runs/{named.run}")).json()
    assert (record["state"], record["stop_requested"]) == ("running", False)


@pytest.mark.invariant("I14")
@ROWS
async def test_S22_without_credentials_that_hold_nothing_is_told_and_nothing_is_done(
    keyed: Keyed, mine: Mine, row: Row
) -> None:
    key, named = mine
    revoked, expired = await keyed.key("gone"), await keyed.key("gone", lifetime=-1)
    await keyed.outlive.store.write(keys.revoke(revoked.key_id))
    nonsense = (key.text[:-1], f"{key.text}x", keys.mint().text, "olv_", "x", b"\xff")
    for credentials in (None, revoked.text, expired.text, *nonsense):
        async with keyed.client(credentials) as client:
            status, text, headers = await asked(client, row, named)
        assert status == (row.own if row.public else 401), (credentials, text)
        if not row.public:
            assert json.loads(text)["code"] == "unauthenticated"
            assert headers["www-authenticate"] == "Bearer"
            assert not {"RUN", "ENDED", "THREAD", "EFFECT"} & set(re.findall("[A-Z]+", text))


@PRIVATE
async def test_a_key_that_may_only_read_reads_and_changes_nothing(keyed: Keyed, mine: Mine, row: Row) -> None:
    key, named = mine
    found = await keyed.outlive.store.read(keys.find(key.key_id))
    assert found is not None
    reader = await keyed.key(found.tenant, scopes=frozenset({Scope.READ}))
    writer = await keyed.key(found.tenant, scopes=frozenset({Scope.WRITE}))
    allowed, refused = (reader, writer) if row.method == "GET" else (writer, reader)
    async with keyed.client(refused.text) as client:
        status, text, _ = await asked(client, row, named)
    assert (status, json.loads(text)["code"]) == (403, "forbidden")
    async with keyed.client(allowed.text) as client:
        assert (await asked(client, row, named))[0] == row.own


@pytest.mark.parametrize("path", ["/runs", "/runs/{run}", "/runs/{run}/events", "/threads/{thread}"])
async def test_HEAD_is_refused_like_GET(keyed: Keyed, mine: Mine, path: str) -> None:
    _, named = mine
    stranger = await keyed.key("somebody")
    where = named(path)
    async with keyed.client(None) as nobody, keyed.client(stranger.text) as other:
        assert (await nobody.head(where)).status_code == 401
        assert (await other.head(where)).status_code == (200 if path == "/runs" else 404)


async def test_the_use_of_a_key_is_noted(keyed: Keyed) -> None:
    key = await keyed.key("noted")
    before = await keyed.outlive.store.read(keys.find(key.key_id))
    assert before is not None
    assert before.last_used_at is None
    async with keyed.client(key.text) as client:
        assert (await client.get("/runs")).status_code == 200
    with keyed.outlive.store.hub.watch("nothing"):
        while True:  # it is written a moment after the answer
            after = await keyed.outlive.store.read(keys.find(key.key_id))
            if after is not None and after.last_used_at is not None:
                break
    assert after.last_used_at >= after.created_at


# ------------------------------------------------------------ the page

HEAD = """# Who may do what

Made by `python tests/http/test_authorisation.py` from the rows that are asked, on SQLite and on PostgreSQL,
of the application that `outlive serve` serves. A test holds it current; another fails when there is a route
that has no row. What a stranger is answered with 404 is, byte for byte, what a made-up id is
answered. *Nobody* is a request without credentials, and with ones that are cut short, too long, made up,
expired or revoked.

| request | owner | another tenant | owner, scope `read` | owner, scope `write` | nobody |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(map(_line, MATRIX))


def _line(row: Row) -> str:
    if row.public:
        return f"| `{row}` | {row.own} | {row.own} | {row.own} | {row.own} | {row.own} |\n"
    foreign = f"{row.foreign}, its own" if row.foreign < 300 else str(row.foreign)
    reader, writer = (row.own, 403) if row.method == "GET" else (403, row.own)
    what = f"`{row}`" + (" of a run that has ended" if row.ended else "")
    return f"| {what} | {row.own} | {foreign} | {reader} | {writer} | 401 |\n"


def test_the_page_about_who_may_do_what_is_current() -> None:
    assert DOCUMENT.read_text() == page(), "run: python tests/http/test_authorisation.py"


if __name__ == "__main__":
    DOCUMENT.write_text(page(), encoding="utf-8")
