"""The ledger over HTTP and on the command line: seen by its tenant, settled and approved by whoever asks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import fastapi
import httpx
import pytest
from typer.testing import CliRunner

import outlive
from core import support as core
from effects import support
from outlive import errors, signals
from outlive.cli import app as command_line
from outlive.testing.paying import Paying


def api(served: outlive.Outlive, tenant: str) -> httpx.AsyncClient:
    """A client of the router, as a tenant."""

    async def who() -> str:
        return tenant

    app = fastapi.FastAPI()
    app.include_router(outlive.router(served, tenant=who))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://served")


@pytest.mark.invariant("I14")
async def test_an_open_effect_is_listed_read_and_settled_by_its_tenant_only(
    database: str, forgetful: Paying
) -> None:
    forgetful.script("charge", {"hang_up": True})
    async with (
        support.client(forgetful) as http,
        core.serving(database, support.agent(support.charging(http, key_ttl=None))) as served,
        api(served, "ours") as ours,
        api(served, "theirs") as theirs,
    ):
        listening = core.heard(served)
        run_id = (await served.submit("agent", "b1", tenant="ours", thread="t")).run.run_id
        waits = await listening.of(signals.EffectWaits, run_id=run_id)
        path = f"/effects/{waits.effect_id}"
        assert (await theirs.get("/effects")).json() == {"effects": []}
        for refused in (
            await theirs.get(path),
            await theirs.post(f"{path}/settle", json={"executed": True}),
            await theirs.get(f"/runs/{run_id}/effects"),
        ):
            assert refused.status_code == 404
        (listed,) = (await ours.get("/effects?unsettled=true")).json()["effects"]
        assert (listed["effect_id"], listed["state"], listed["key"]) == (waits.effect_id, "unknown", "b1")
        assert (await ours.get(path)).json() == listed
        read = (await ours.get(f"/runs/{run_id}")).json()["effects"]
        thread = (await ours.get("/threads/t")).json()["effects"]
        wrong = await ours.post(f"{path}/settle", json={"executed": "yes"})
        settled = await ours.post(f"{path}/settle", json={"executed": True, "result": {"n": 1}})
        again = await ours.post(f"{path}/settle", json={"executed": False})
        await core.story(served, run_id)
        shown = (await ours.get(f"/runs/{run_id}/effects")).json()["effects"]
    assert read == {"counts": {"unknown": 1}, "executed": [], "unknown": ["charge"]}
    assert [effect["state"] for effect in thread] == ["unknown"]
    assert (wrong.status_code, settled.status_code, again.status_code) == (422, 200, 409)
    assert settled.json()["state"] == "reconciled"
    assert settled.json()["settled_by"] == "http:ours"
    assert [effect["result"] for effect in shown] == [{"n": 1}]


async def test_an_approval_over_HTTP_lets_the_effect_start_and_a_bad_one_is_refused(
    database: str, paying: Paying
) -> None:
    bad: list[dict[str, Any]] = [
        {"name": "", "key": "b1"},
        {"name": "charge", "key": "x" * (1 << 17)},
        {"name": "charge", "key": 1.5},
        {"name": "charge", "key": True},
        {"name": "charge", "key": [7.0]},
        {"name": "charge"},
        {"name": "charge", "key": "b1", "lasts": 0},
        {"name": "charge", "key": "b1", "by": "ann"},
        {"name": "charge", "key": "a\0b"},
    ]
    async with (
        support.client(paying) as http,
        core.serving(database, support.agent(support.charging(http, approval=True))) as served,
        api(served, "ours") as ours,
    ):
        refused = [(await ours.post("/approvals", json=body)).status_code for body in bad]
        granted = await ours.post("/approvals", json={"name": "charge", "key": "b1", "lasts": 60})
        run_id = (await served.submit("agent", "b1", tenant="ours")).run.run_id
        story = await core.story(served, run_id)
    assert refused == [422] * len(bad)
    assert granted.status_code == 201
    assert core.end(story)["state"] == "succeeded"


async def left_open(database: str, forgetful: Paying) -> tuple[str, str]:
    """A run that failed because nobody can tell what became of its effect, and that effect."""
    forgetful.script("charge", {"hang_up": True})
    async with support.client(forgetful) as http:
        agent = support.agent(support.charging(http, key_ttl=None), on_unknown="fail")
        async with core.serving(database, agent) as served:
            run = await support.ran(served, "b1")
            return run.run_id, (await support.newest(served, "b1")).effect_id


def test_the_command_line_lists_shows_settles_and_approves(database: str, forgetful: Paying) -> None:
    run_id, effect_id = asyncio.run(left_open(database, forgetful))
    (listed,) = json.loads(outlive_effects("list", "--open", "--json", database=database))
    assert listed["effect_id"] == effect_id
    assert "unknown" in outlive_effects("list", database=database)
    assert "outlive-" in outlive_effects("show", effect_id, database=database)
    assert "unknown" in outlive_effects("show", run_id, database=database, group="runs")
    said = ("settle", effect_id, "--executed", "--result", '{"n": 2}', "--by", "ann", "--json")
    settled = json.loads(outlive_effects(*said, database=database))
    assert (settled["state"], settled["result"], settled["settled_by"]) == ("reconciled", {"n": 2}, "ann")
    assert "approved" in outlive_effects("approve", "charge", "b9", "--by", "ann", database=database)
    with pytest.raises(errors.AlreadySettled):
        outlive_effects("settle", effect_id, "--not-executed", database=database)
    with pytest.raises(errors.NotFound):
        outlive_effects("show", "0" * 32, database=database)


def outlive_effects(*words: str, database: str, group: str = "effects") -> str:
    """What a command prints; raises what it would report."""
    told = [group, *words, "--database", database]
    done = CliRunner().invoke(command_line.app, told)
    if done.exception is not None:
        raise done.exception
    return done.stdout
