"""What real web servers hear of runs' ends, however they behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any
from unittest.mock import AsyncMock

import pytest
import standardwebhooks.webhooks

import outlive
from core import support as core
from outlive import effects, outbox, signals
from outlive.effects import defining
from outlive.model import Offer, Run
from outlive.notifications import Audience, Delivery
from outlive.store import moves, outbox_moves
from outlive.testing.receiver import Receiver, Reply, Told
from webhooks import support

Delivered, Failed, Dead = (
    signals.NotificationDelivered,
    signals.NotificationFailed,
    signals.NotificationDead,
)


def verified(served: outlive.Outlive, told: Told, *, tenant: str = "", which: int = 0) -> dict[str, Any]:
    """The body, checked as a receiver does that knows one secret."""
    assert served.webhooks is not None
    secret = served.webhooks.secrets_of(tenant, Audience.TENANT)[which]
    body: dict[str, Any] = standardwebhooks.webhooks.Webhook(secret).verify(told.body, told.headers)
    return body


def same(told: list[Told]) -> bool:
    """Whether all of these say the same."""
    return len({(each.id, each.body) for each in told}) == 1


async def ended(served: outlive.Outlive, url: str, **options: Any) -> Run:
    """A run that has ended, of which ``url`` is to be told."""
    made = (await served.submit("agent", webhook=url, **options)).run
    return await served.result(made.run_id, tenant=made.tenant)


@pytest.mark.invariant("I10")
async def test_a_receiver_is_told_once_signed_and_what_was_saved(database: str) -> None:
    hooks = support.webhooks(public_url="https://agents.example/api/", result_bytes=100)
    with Receiver() as receiver:
        async with support.serving(database, webhooks=hooks) as served:
            heard = core.heard(served)
            run = await ended(served, receiver.url, thread="t", tenant="acme", input=1)
            sent = await heard.of(Delivered)
            [row] = await served.notifications.of_run(run.run_id, tenant="acme")
            [told] = receiver.told
            body = verified(served, told, tenant="acme")
            with pytest.raises(standardwebhooks.webhooks.WebhookVerificationError):
                verified(served, told, tenant="other")
    assert (sent.run_id, sent.attempts, told.id) == (run.run_id, 1, row.notification_id)
    assert 0 <= sent.seconds < 60
    assert (row.state, row.status, row.body) == (Delivery.DELIVERED, 204, told.body.decode())
    assert body["type"] == "run.succeeded"
    data = body["data"]
    assert (data["run_id"], data["thread"], data["agent"]) == (run.run_id, "t", "agent")
    assert (data["state"], data["reason"], data["ended_at"]) == ("succeeded", None, run.ended_at)
    assert data["url"] == f"https://agents.example/api/runs/{run.run_id}"
    assert data["effects"] == {"counts": {}, "executed": [], "unknown": []}
    assert data["result"] is None


async def test_S24_after_failures_the_same_words_come_again_under_the_same_id(database: str) -> None:
    with Receiver(500, 500, Reply(hang_up=True), 200) as receiver:
        async with support.serving(database) as served:
            heard = core.heard(served)
            run = await ended(served, receiver.url)
            sent = await heard.of(Delivered)
            assert [each.error for each in heard.all(Failed)][:2] == ["answered 500", "answered 500"]
            for told in receiver.told:
                assert verified(served, told)["data"]["run_id"] == run.run_id
    assert sent.attempts == 4
    assert len(receiver.told) == 4
    assert same(receiver.told)


async def test_S24_a_receiver_that_hangs_is_given_up_on_and_holds_nobody_else_up(database: str) -> None:
    hooks = support.webhooks(timeout=0.4)
    with Receiver() as slow, Receiver() as other:
        slow.reply(*[Reply(hang=True)] * 4)
        async with support.serving(database, webhooks=hooks) as served:
            heard = core.heard(served)
            for _ in range(4):
                await ended(served, slow.url)
            await slow.heard(4)
            quick = [await ended(served, other.url) for _ in range(5)]
            await heard.of(Delivered, count=5)
            assert {each.run_id for each in heard.all(Delivered)} == {run.run_id for run in quick}
            failed = await heard.of(Failed)
            assert failed.error == "no answer within 0.4 s"
            await heard.of(Delivered, count=9)
    assert len({each.id for each in slow.told}) == 4


async def test_S24_what_says_gone_is_told_nothing_more(database: str) -> None:
    with Receiver(410) as receiver:
        async with support.serving(database) as served:
            heard = core.heard(served)
            first = await ended(served, receiver.url)
            assert (await heard.of(Dead)).run_id == first.run_id
            second = await ended(served, receiver.url)
            assert (await heard.of(Dead, run_id=second.run_id)).why == outbox_moves.GONE
            elsewhere = await ended(served, receiver.url + "?another=1")
            await heard.of(Delivered, run_id=elsewhere.run_id)
            assert len(receiver.told) == 2
            [dead, _] = await served.notifications.newest(state=Delivery.DEAD)
            await served.notifications.resend(dead.notification_id)
            await heard.of(Delivered, run_id=second.run_id)
            assert dead.run_id == second.run_id


async def test_S24_a_redirect_is_not_followed(database: str) -> None:
    with Receiver() as elsewhere, Receiver() as receiver:
        receiver.always(Reply(status=302, headers={"location": elsewhere.url}))
        async with support.serving(database, webhooks=support.webhooks(tries=2)) as served:
            heard = core.heard(served)
            await ended(served, receiver.url)
            assert (await heard.of(Dead)).why == "302: redirects are not followed"
    assert elsewhere.told == []
    assert len(receiver.told) == 2


@pytest.mark.parametrize("address", ["10.0.0.7", "169.254.169.254", "::1"])
async def test_S24_a_name_that_leads_to_a_private_address_is_not_connected_to(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = [(kind, socket.SOCK_STREAM, 6, "", (address, 443))]
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with support.serving(sqlite_url, webhooks=support.webhooks(tries=1)) as served:
        heard = core.heard(served)
        await ended(served, "https://inside.example/hook")
        dead = await heard.of(Dead)
    assert dead.why == "nothing is sent to the addresses of inside.example"
    assert asked == ["inside.example"]


async def test_S24_the_connection_goes_to_the_address_that_was_checked(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leads elsewhere at a second look gains nothing: there is no second look."""
    asked: list[str] = []

    def rebinding(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.0.0.7"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    with Receiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        async with support.serving(sqlite_url) as served:
            heard = core.heard(served)
            await ended(served, f"http://name.example:{receiver.port}/hook")
            await heard.of(Delivered)
    assert asked == ["name.example"]
    assert receiver.told[0].headers["host"] == f"name.example:{receiver.port}"


async def test_plain_http_goes_to_the_operators_own_networks_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    async with support.serving(sqlite_url, webhooks=support.webhooks(tries=1)) as served:
        heard = core.heard(served)
        await ended(served, "http://public.example/hook")
        assert (await heard.of(Dead)).why == "nothing is sent to the addresses of public.example"


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_asks_for_time_is_given_it(sqlite_url: str, status: int) -> None:
    with Receiver(Reply(status=status, headers={"retry-after": "1"})) as receiver:
        async with support.serving(sqlite_url) as served:
            heard = core.heard(served)
            await ended(served, receiver.url)
            failed = await heard.of(Failed)
            delivered = await heard.of(Delivered)
    assert failed.again_in == 1.0
    assert delivered.seconds >= 1.0


async def test_after_the_last_try_it_is_a_dead_letter_that_can_be_sent_again(database: str) -> None:
    with Receiver(500, 404, 500) as receiver:
        async with support.serving(database, webhooks=support.webhooks(tries=3)) as served:
            heard = core.heard(served)
            run = await ended(served, receiver.url)
            dead = await heard.of(Dead)
            [row] = await served.notifications.newest(state=Delivery.DEAD)
            assert (row.run_id, row.attempts, row.status, row.error) == (run.run_id, 3, 500, "answered 500")
            assert heard.all(Failed)[-1].again_in is None
            await served.notifications.resend(row.notification_id)
            await heard.of(Delivered)
            assert (await served.notifications.show(row.notification_id)).state is Delivery.DELIVERED
            await served.notifications.resend(row.notification_id)
            await receiver.heard(5)
            await heard.of(Delivered, count=2)
    assert dead.notification_id == row.notification_id
    assert same(receiver.told)


async def test_while_secrets_change_either_verifies(sqlite_url: str) -> None:
    with Receiver() as receiver:
        hooks = support.webhooks(secrets=(support.OTHER, support.SECRET))
        async with support.serving(sqlite_url, webhooks=hooks) as served:
            await ended(served, receiver.url)
            [told] = await receiver.heard(1)
            assert verified(served, told, which=0) == verified(served, told, which=1)
            before = support.webhooks(secrets=(support.SECRET,)).secrets_of("", Audience.TENANT)
            assert standardwebhooks.webhooks.Webhook(before[0]).verify(told.body, told.headers)


async def test_nothing_of_an_answers_body_is_read(sqlite_url: str) -> None:
    with Receiver(Reply(status=200, endless=True)) as receiver:
        async with support.serving(sqlite_url) as served:
            heard = core.heard(served)
            await ended(served, receiver.url)
            await heard.of(Delivered)


async def test_S24_a_dead_receiver_costs_the_others_nothing(database: str) -> None:
    """A hundred wait for one that refuses connections: it is tried a few times, and the rest is quiet."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/hook"
    hooks = support.webhooks(delay=5.0, longest_delay=60.0)
    with Receiver() as receiver:
        async with support.serving(database, webhooks=hooks) as served:
            heard = core.heard(served)
            waiting = [await served.submit("agent", webhook=nobody) for _ in range(100)]
            for each in waiting:
                await core.story(served, each.run.run_id)
            fine = [await ended(served, receiver.url) for _ in range(20)]
            await heard.of(Delivered, count=20)
            assert {each.run_id for each in heard.all(Delivered)} == {run.run_id for run in fine}
            tried = len(heard.all(Failed))
            assert outbox_moves.TRIP <= tried <= outbox_moves.TRIP + hooks.per_receiver
            assert all(each.attempts == 1 for each in heard.all(Delivered))
    assert len(receiver.told) == 20


async def test_S24_a_tenant_whose_receivers_all_hang_leaves_the_others_their_half(database: str) -> None:
    hooks = support.webhooks(at_once=4, per_receiver=2, timeout=30.0)
    with contextlib.ExitStack() as stack:
        stuck = [stack.enter_context(Receiver(*[Reply(hang=True)] * 2)) for _ in range(4)]
        receiver = stack.enter_context(Receiver())
        async with support.serving(database, webhooks=hooks) as served:
            heard = core.heard(served)
            for each in stuck * 2:
                await ended(served, each.url, tenant="a")
            for run in [await ended(served, receiver.url, tenant="b") for _ in range(3)]:
                await heard.of(Delivered, run_id=run.run_id)
            assert sum(len(each.told) for each in stuck) == 2
            for each in stuck:
                each.release()
            await heard.of(Delivered, count=11)


async def test_S24_processes_that_send_side_by_side_send_each_once(database: str) -> None:
    with Receiver() as receiver:
        async with support.serving(database) as one, support.serving(database) as two:
            heard = core.heard(one, two)
            runs = [
                await one.submit("agent", webhook=f"http://127.0.0.1:{receiver.port}/{number % 3}")
                for number in range(40)
            ]
            await heard.of(Delivered, count=40)
            for run in runs:
                assert [row.attempts for row in await one.notifications.of_run(run.run.run_id)] == [1]
    assert len(set(receiver.ids())) == len(receiver.ids()) == 40


@core.job("waits")
async def waits(context: outlive.Context) -> Any:
    """Asks a person."""
    yield outlive.Outcome(output="?", state=outlive.State.WAITING)


@core.job("fails")
async def fails(context: outlive.Context) -> Any:
    """Raises."""
    yield 1
    raise ValueError("a secret of the agent's")


@core.job("stays")
async def stays(context: outlive.Context) -> Any:
    """Waits for ever."""
    yield 1
    await asyncio.Event().wait()


async def test_S24_every_kind_of_end_is_told(database: str) -> None:
    with Receiver() as receiver:
        async with support.serving(database, support.quick, waits, fails, stays) as served:
            heard = core.heard(served)
            hooked: dict[str, Any] = {"webhook": receiver.url}
            for agent in ("agent", "waits", "fails"):
                await served.submit(agent, **hooked)
            running = (await served.submit("stays", thread="t", **hooked)).run.run_id
            queued = (await served.submit("stays", thread="t", **hooked)).run.run_id
            await core.seen(served, running, 1)
            await served.stop(queued)
            await served.stop(running)
            await heard.of(Delivered, count=5)
            bodies = [verified(served, told) for told in receiver.told]
    kinds = sorted((body["type"], body["data"]["reason"]) for body in bodies)
    assert kinds == sorted(
        [
            ("run.succeeded", None),
            ("run.waiting", None),
            ("run.failed", None),
            ("run.stopped", "requested"),
            ("run.stopped", "requested"),
        ],
        key=str,
    )
    assert b"a secret of the agent's" not in b"".join(told.body for told in receiver.told)
    [failed] = [body for body in bodies if body["type"] == "run.failed"]
    assert failed["data"]["error"]["type"] == "ValueError"


async def test_S24_what_one_process_left_another_sends(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        with monkeypatch.context() as idle:
            idle.setattr(outbox.Dispatcher, "look_once", AsyncMock(return_value=0))
            async with support.serving(database) as plain:
                run_id = (await ended(plain, receiver.url)).run_id
        assert receiver.told == []
        async with support.serving(database) as served:
            await core.heard(served).of(Delivered, run_id=run_id)
    assert json.loads(receiver.told[0].body)["data"]["run_id"] == run_id


async def test_S24_the_end_of_a_lost_run_is_told(database: str) -> None:
    with Receiver() as receiver:
        declared = outlive.job(recovery="stop")
        async with support.serving(database, slots=0) as served:
            heard = core.heard(served)
            run_id = (await served.submit("agent", policy=declared, webhook=receiver.url)).run.run_id
            offer = Offer(worker="gone", claim_token="token", lease=0.05, agents=("agent",))
            await served.store.write(moves.claim([offer]))
            await heard.of(Delivered, run_id=run_id)
    assert json.loads(receiver.told[0].body)["type"] == "run.abandoned"


async def test_what_is_too_old_is_given_up_and_what_ended_long_ago_is_deleted(
    unchecked: str,
) -> None:
    with Receiver(500) as receiver:
        hooks = support.webhooks(delay=30.0, longest_delay=60.0, max_age=0.0, retention=0.0)
        async with support.serving(unchecked, webhooks=hooks) as served:
            heard = core.heard(served)
            run = await ended(served, receiver.url)
            await heard.of(Failed)
            assert isinstance(served._dispatcher, outbox.Dispatcher)
            assert await served._dispatcher.tidy_once() == 1
            assert (await heard.of(Dead)).why == outbox_moves.OLD
            assert await served.notifications.of_run(run.run_id) == []


async def test_what_was_executed_is_told_and_so_is_the_run_that_executes_what_was_deferred(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []
    monkeypatch.setattr(defining, "DECLARED", {})

    @effects.effect("webhooks.mail", key="booking", kind="deferrable", key_ttl=60)
    async def mail(booking: str) -> str:
        executed.append(booking)
        return "sent"

    @core.job("books")
    async def books(context: outlive.Context) -> Any:
        await effects.once("webhooks.charge", key=context.input, call=lambda: "charged")
        await mail(context.input)
        yield "booked"

    with Receiver() as receiver:
        async with support.serving(database, books) as served:
            heard = core.heard(served)
            run_id = (await served.submit("books", "b1", webhook=receiver.url)).run.run_id
            await heard.of(Delivered, count=2)
            first, second = sorted(
                (verified(served, told)["data"] for told in receiver.told),
                key=lambda data: str(data["follows"] or ""),
            )
    assert executed == ["b1"]
    assert (first["run_id"], first["effects"]["executed"]) == (run_id, ["webhooks.charge"])
    assert first["effects"]["counts"] == {"done": 1, "intended": 1}
    assert (second["run_id"], second["follows"]) == (first["effects"]["aftermath"], run_id)
    assert second["state"] == "succeeded"
