"""What people and programs see of schedules: the commands and the routes."""

from __future__ import annotations

import asyncio
import json
import pathlib

import fastapi
import httpx
import pytest

import outlive
from cli.support import Here
from outlive import errors
from schedules import support


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Here:
    """Runs commands in this process, in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    return Here(monkeypatch, capsys)


def test_a_schedule_is_made_shown_paused_resumed_and_deleted_by_command(here: Here, database: str) -> None:
    def ask(*words: str) -> str:
        return here("schedules", *words, "-d", database, "--tenant", "acme").out

    made = json.loads(ask("create", "30 2 * * *", "agent", '{"a": 1}', "-z", "Europe/Berlin", "--json"))
    one = made["schedule_id"]
    assert (made["input"], made["state"], made["missed"]) == ({"a": 1}, "active", "skip")
    assert [each["schedule_id"] for each in json.loads(ask("list", "--json"))] == [one]
    assert one in ask("list")
    assert "Europe/Berlin" in ask("show", one)
    assert json.loads(ask("show", one, "--json"))["occurrences"] == []
    assert ask("next", one, "--count", "3").count(" 02:30:00 CE") == 3
    assert json.loads(ask("pause", one, "--json"))["state"] == "paused"
    assert ask("resume", one).startswith(f"active: {one}, next at ")
    assert here("schedules", "show", one, "-d", database).code == 4
    assert ask("delete", one) == f"deleted: {one}\n"
    assert json.loads(ask("list", "--json")) == []


@pytest.mark.parametrize(
    "words", [("* * *", "agent"), ("* * * * *", "agent", "{"), ("* * * * *", "a", "-z", "X/Y")]
)
def test_a_schedule_that_cannot_be_is_refused_by_command(
    here: Here, sqlite_url: str, words: tuple[str, ...]
) -> None:
    assert here("schedules", "create", *words, "-d", sqlite_url).code == 2


YEARLY = {"cron": support.NEVER_SOON, "agent": "agent", "name": "n"}


def client(served: outlive.Outlive) -> httpx.AsyncClient:
    app = fastapi.FastAPI()
    app.include_router(outlive.router(served))
    outlive.problems(app)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")


async def test_a_schedule_is_made_changed_and_followed_over_http(database: str) -> None:
    async with support.serving(database) as served, client(served) as http:
        made = (
            await http.post("/schedules", json={"cron": "0 0 1 1 *", "agent": "agent", "name": "n"})
        ).json()
        where = f"/schedules/{made['schedule_id']}"
        assert (await http.get(where)).json() == made
        assert len((await http.get(where + "/next?count=3")).json()["next"]) == 3
        changed = await http.patch(where, json={"cron": support.EACH_SECOND})
        assert (changed.json()["cron"], changed.json()["name"]) == (support.EACH_SECOND, "n")
        await support.until(served, made["schedule_id"], support.settled)
        assert (await http.post(where + "/pause")).json()["state"] == "paused"
        page = (await http.get(where + "/occurrences?limit=1000")).json()["occurrences"]
        fired = [each for each in page if each["state"] == "fired"]
        assert fired
        assert (await http.get(f"/runs/{fired[-1]['run_id']}")).status_code == 200
        assert (await http.post(where + "/resume")).json()["state"] == "active"
        assert (await http.delete(where)).status_code == 204
        assert (await http.get(where)).status_code == 404
        assert (await http.get("/schedules")).json() == {"schedules": [], "before": None}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "nope"},
        {"timezone": "X/Y"},
        {"grace": -1},
        {"missed": "perhaps"},
        {"policy": {"on_busy": "perhaps"}},
        {"ends_at": 1},
        {"passes_after": 5, "thread": "of all its runs"},
        {"colour": "red"},
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_over_http(
    sqlite_url: str, wrong: dict[str, object]
) -> None:
    async with support.serving(sqlite_url) as served, client(served) as http:
        answer = await http.post("/schedules", json={"cron": "* * * * *", "agent": "agent", **wrong})
        assert answer.status_code == 422, answer.text
        assert next(iter(wrong)) in answer.text


async def test_two_who_change_a_schedule_at_once_both_do(database: str) -> None:
    async with support.serving(database) as served:
        made = await served.schedule(support.NEVER_SOON, "agent")
        desk = served.schedules
        await asyncio.gather(
            desk.update(made.schedule_id, name="new"), desk.update(made.schedule_id, metadata={"a": 1})
        )
        found = await desk.show(made.schedule_id)
        assert (found.name, found.metadata) == ("new", {"a": 1})
        with pytest.raises(errors.InvalidInput):
            await desk.update(made.schedule_id, tenancy="other")
