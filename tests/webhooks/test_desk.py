"""What people and programs see of the outbox: the commands, the routes, and the settings behind them."""

from __future__ import annotations

import asyncio
import base64
import json
import pathlib
import signal
from unittest import mock

import fastapi
import httpx
import pytest
import standardwebhooks.webhooks

import outlive
from cli.support import Here, running
from core import support as core
from outlive import errors, outbox, settings, signals
from outlive.cli import told
from outlive.notifications import Audience
from outlive.testing.receiver import Receiver, Reply
from webhooks import support

WHO = ("--tenant", "acme")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Here:
    """Runs commands in this process, in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    return Here(monkeypatch, capsys)


async def _history(database: str, receiver: Receiver) -> list[str]:
    """A notification that was delivered, and one that is a dead letter; their ids, newest first."""
    receiver.reply(200, 404)
    async with support.serving(database, webhooks=support.webhooks(tries=1)) as served:
        heard = core.heard(served)
        for _ in range(2):
            made = await served.submit("agent", tenant="acme", webhook=receiver.url)
            await served.result(made.run.run_id, tenant="acme")
        await heard.of(signals.NotificationDelivered)
        await heard.of(signals.NotificationDead)
        return [each.notification_id for each in await served.notifications.newest(tenant="acme")]


async def _served_until_delivered(database: str) -> None:
    async with support.serving(database) as served:
        await core.heard(served).of(signals.NotificationDelivered)


def test_notifications_are_listed_shown_and_sent_again_by_command(here: Here, database: str) -> None:
    with Receiver() as receiver:
        ids = asyncio.run(_history(database, receiver))
        listed = json.loads(here("webhooks", "list", "-d", database, "--json", *WHO).out)
        assert [each["notification_id"] for each in listed] == ids
        [dead] = [each for each in listed if each["state"] == "dead"]
        shown = here("webhooks", "list", "-d", database, "--state", "dead", *WHO).out
        assert dead["notification_id"] in shown
        assert "answered 404" in shown
        again = json.loads(
            here("webhooks", "resend", dead["notification_id"], "-d", database, "--json", *WHO).out
        )
        assert (again["state"], again["attempts"]) == ("pending", 0)
        asyncio.run(_served_until_delivered(database))
        record = here("webhooks", "show", dead["notification_id"], "-d", database, "--json", *WHO)
        assert json.loads(record.out)["state"] == "delivered"
        of_run = here("webhooks", "list", "--run", dead["run_id"], "-d", database, "--json", *WHO)
        assert [each["notification_id"] for each in json.loads(of_run.out)] == [dead["notification_id"]]
        assert here("webhooks", "show", dead["notification_id"], "-d", database).code == 4
    assert len({told.body for told in receiver.told if told.id == dead["notification_id"]}) == 1


def test_a_tenants_secret_verifies_what_it_is_sent(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    made = here("webhooks", "new-secret").out.strip()
    assert len(base64.b64decode(made.removeprefix("whsec_"))) == 32
    monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", f"{made}, {support.OTHER}")
    mine = here("webhooks", "secret", *WHO).out.split()
    hooks = outlive.Webhooks(secrets=(made, support.OTHER))
    assert mine == hooks.secrets_of("acme", Audience.TENANT)
    service = json.loads(here("webhooks", "secret", "--service", "--json").out)
    assert service == hooks.secrets_of("", Audience.SERVICE)
    standardwebhooks.webhooks.Webhook(mine[0])


def test_the_settings_say_who_is_told_and_their_secrets_are_never_shown(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    pathlib.Path("outlive.toml").write_text(
        'webhook_networks = ["127.0.0.0/8"]\nwebhook_url = "http://127.0.0.1:9/all"\n'
        '[agent_webhooks]\nbooking = "https://ops.example/booking"\n'
    )
    with pytest.raises(errors.Misconfigured, match="webhook_secrets is empty"):
        told.webhooks(settings.load().settings)
    monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", support.SECRET)
    hooks = told.webhooks(settings.load().settings)
    assert hooks is not None
    assert (hooks.url, dict(hooks.agents)) == (
        "http://127.0.0.1:9/all",
        {"booking": "https://ops.example/booking"},
    )
    shown = here("settings", "--json").out + here("settings").out
    assert support.SECRET[6:20] not in shown
    assert settings.MASK in shown
    monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", "whsec_short")
    with pytest.raises(errors.Misconfigured, match="webhook secret"):
        told.webhooks(settings.load().settings)


def test_the_doctor_says_what_waits_and_what_is_amiss(
    here: Here, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> tuple[str, str] | None:
        looked = json.loads(here("doctor", "--json", "-d", database, "--port", "0").out)
        return next(((one["level"], one["found"]) for one in looked if one["check"] == "webhooks"), None)

    assert found() is None
    monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", support.SECRET)
    assert found() == ("ok", "Nothing waits to be sent.")
    with Receiver() as receiver:
        asyncio.run(_left(database, receiver.url))
        level, said = found() or ("", "")
        assert (level, said.split(" for ")[0]) == ("ok", "The oldest has been waiting to be sent")
        monkeypatch.delenv("OUTLIVE_WEBHOOK_SECRETS")
        assert (found() or ("", ""))[0] == "warn"
        monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", "whsec_short")
        assert (found() or ("", ""))[0] == "fail"
        assert receiver.told == []


async def _left(database: str, url: str) -> None:
    """A run has ended, and its process before it could tell of it."""
    idle = mock.patch.object(outbox.Dispatcher, "look_once", mock.AsyncMock(return_value=0))
    with idle:
        async with support.serving(database) as served:
            made = await served.submit("agent", webhook=url)
            await served.result(made.run.run_id)


def test_without_a_secret_nobody_is_told_and_nothing_is_needed(here: Here) -> None:
    assert told.webhooks(settings.load().settings) is None


async def test_over_http_a_run_is_made_with_a_webhook_and_its_notification_read(database: str) -> None:
    with Receiver(Reply(status=500)) as receiver:
        async with support.serving(database) as served:
            heard = core.heard(served)
            app = fastapi.FastAPI()
            app.include_router(outlive.router(served))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                wrong = await client.post("/runs", json={"agent": "agent", "webhook": "https://10.0.0.1/"})
                assert (wrong.status_code, wrong.json()["field"]) == (422, "webhook")
                run = (await client.post("/runs", json={"agent": "agent", "webhook": receiver.url})).json()
                assert "notify" not in run
                await heard.of(signals.NotificationDelivered)
                found = (await client.get(f"/runs/{run['run_id']}/notifications")).json()["notifications"]
                [row] = found
                assert (row["state"], row["attempts"], row["url"]) == ("delivered", 2, receiver.url)
                assert row["body"] == json.loads(receiver.told[0].body)
                listed = (await client.get("/notifications?state=delivered")).json()
                assert listed == {"notifications": found, "before": None}
                where = f"/notifications/{row['notification_id']}"
                assert (await client.get(where)).json() == row
                assert (await client.post(f"{where}/resend")).status_code == 202
                await receiver.heard(3)
                await heard.of(signals.NotificationDelivered, count=2)


def test_outlive_serve_tells_whom_a_request_names_and_a_tenants_secret_verifies_it(
    here: Here, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLIVE_WEBHOOK_SECRETS", support.SECRET)
    monkeypatch.setenv("OUTLIVE_WEBHOOK_NETWORKS", "127.0.0.0/8")
    secret = here("webhooks", "secret").out.strip()
    serve = ("serve", "served:plain", "--policy", "job", "--port", "0", "-d", database)
    with Receiver() as receiver, running(*serve, "--public-url", "https://agents.example") as process:
        url = process.says(r"listening on (http://\S+)")
        order = {"agent": "plain", "input": 1, "webhook": receiver.url}
        made = httpx.post(f"{url}/runs", json=order, trust_env=False, verify=False)
        [heard] = receiver.wait(1)
        body = standardwebhooks.webhooks.Webhook(secret).verify(heard.body, heard.headers)
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
    run_id = made.json()["run_id"]
    assert (body["type"], body["data"]["url"]) == (
        "run.succeeded",
        f"https://agents.example/runs/{run_id}",
    )
