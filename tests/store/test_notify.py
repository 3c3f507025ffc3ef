"""S19: hints may be lost, cut, dropped or refused; events are not, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from outlive import signals
from outlive.store import notify, wakeup
from outlive.store.postgres import PostgresStore
from outlive.testing.store_checks.bench import Bench
from store import support
from store.wire import wire_to

WITHIN = 20.0


@contextlib.asynccontextmanager
async def two_stores(dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    async with support.opened(PostgresStore(dsn)) as one, support.opened(PostgresStore(dsn)) as two:
        yield one, two


async def until(condition: Callable[[], Any], what: str) -> None:
    """Let the loop run until the condition holds."""
    try:
        async with asyncio.timeout(WITHIN):
            while not condition():  # noqa: ASYNC110 - the loop must turn for the condition to change
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"waited in vain for {what}") from None


async def hint_arrives(sender: PostgresStore, receiver: PostgresStore, topic: str) -> None:
    """A hint of one process wakes a waiter of the other, long before it would poll."""
    with receiver.hub.watch(topic) as waiter:
        sender.announce(topic)
        async with asyncio.timeout(WITHIN):
            await waiter.wait(WITHIN * 2)


def listener_of(store: PostgresStore) -> int:
    """The backend that listens for this store."""
    assert store._direct._listener is not None
    return store._direct._listener.info.backend_pid


def speaker_of(store: PostgresStore) -> int:
    assert store._direct._speaker is not None
    return store._direct._speaker.info.backend_pid


async def test_S19_events_of_any_size_are_stored_and_never_travel_in_a_notification(empty_dsn: str) -> None:
    async with two_stores(empty_dsn) as (one, two):
        bench = Bench(one=one, two=two)
        run = await bench.running()
        topic = wakeup.run_topic(run.run_id)
        heard: list[str] = []
        async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as spy:
            await spy.execute(f"LISTEN {notify.CHANNEL}".encode())
            seq = run.last_seq
            for size in (7_999, 8_001, 500_000):
                for letter in ("a", "é", "\U0001f600"):
                    text = json.dumps(letter * (size // len(letter.encode())), ensure_ascii=False)
                    seq = (await bench.append(await bench.run(run.run_id), text)).last_seq
                    await hint_arrives(one, two, topic)
            assert seq == run.last_seq + 9
            async with contextlib.aclosing(spy.notifies(timeout=0.1)) as notes:
                heard = [note.payload async for note in notes]
        assert heard != []
        assert max(len(payload) for payload in heard) < 200
        stored = [len(event.payload.encode()) for event in await bench.events(run.run_id)][1:]
        assert sorted(stored)[-1] >= 500_000
        assert len(stored) == 9


def test_topics_too_many_for_one_notification_travel_in_several() -> None:
    topics = {wakeup.run_topic(f"{number:032x}") for number in range(1000)}
    payloads = notify._payloads("me", {*topics, "x" * 9000})
    assert max(len(payload.encode()) for payload in payloads) <= notify.MOST_BYTES
    assert {topic for payload in payloads for topic in payload.split(" ")[1:]} == topics
    assert {payload.split(" ")[0] for payload in payloads} == {"me"}
    assert notify._payloads("me", []) == []


async def test_hints_that_gather_travel_together(empty_dsn: str) -> None:
    async with support.opened(PostgresStore(empty_dsn)) as store:
        async with await psycopg.AsyncConnection.connect(empty_dsn, autocommit=True) as spy:
            await spy.execute(f"LISTEN {notify.CHANNEL}".encode())
            for number in range(500):
                store.announce(f"run:{number % 50}", wakeup.QUEUE)
            heard: set[str] = set()
            count = 0
            async with asyncio.timeout(WITHIN), contextlib.aclosing(spy.notifies()) as notes:
                async for note in notes:
                    count += 1
                    heard |= set(note.payload.split(" ")[1:])
                    if len(heard) == 51:
                        break
        assert count <= 3


@pytest.mark.parametrize("which", ["listener", "speaker", "both"])
async def test_S19_a_killed_direct_connection_is_made_again_and_nothing_is_missed(
    which: str, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PROBE_EVERY", 0.2)
    async with two_stores(empty_dsn) as (one, two):
        await one.hold_token("worker")
        await hint_arrives(one, two, "run:x")
        victims = {"listener": [listener_of], "speaker": [speaker_of], "both": [listener_of, speaker_of]}[
            which
        ]
        old = (listener_of(one), speaker_of(one))
        with support.told(one) as seen, one.hub.watch("anything") as waiter:
            waiter.clear()
            for victim in victims:
                support.postgres_rows(empty_dsn, "SELECT pg_terminate_backend(%s)", (victim(one),))
            await until(
                lambda: any(isinstance(one, signals.WakeupsRestored) for one in seen), "the reconnect"
            )
            async with asyncio.timeout(WITHIN):
                await waiter.wait(WITHIN * 2)  # whoever waited is woken: something may have been missed
        told = [
            type(one) for one in seen if isinstance(one, signals.WakeupsDegraded | signals.WakeupsRestored)
        ]
        assert told == [signals.WakeupsDegraded, signals.WakeupsRestored]
        assert not {listener_of(one), speaker_of(one)} & set(old)
        assert one._direct.listening
        assert one.hub.poll == two.hub.poll == 1.0
        await hint_arrives(two, one, "run:y")
        await hint_arrives(one, two, "run:z")
        assert await two.dead(["worker", "nobody"]) == {"nobody"}


async def test_S19_a_listen_that_hears_nothing_is_found_out_at_start_and_said_once(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As through a transaction pooler: LISTEN is accepted, and nothing ever comes."""
    monkeypatch.setattr(notify, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(notify, "PROBE_EVERY", 0.05)
    monkeypatch.setattr(notify, "RECONNECT_SECONDS", 0.01)
    monkeypatch.setattr(notify, "CHANNEL", "nobody_speaks_here")
    store = PostgresStore(empty_dsn)
    monkeypatch.setattr(store._direct, "_run", speaking_on(store._direct._run, "outlive"))
    with support.told(store) as seen:
        async with support.opened(store):
            assert [one.why for one in degraded(seen)] == ["NOTIFY does not reach LISTEN"]
            assert store.hub.poll == notify.POLL_WITHOUT_HINTS
            first = listener_of(store)
            await until(
                lambda: store._direct._listener is not None and listener_of(store) != first, "a retry"
            )
            bench = Bench(one=store, two=store)
            run = await bench.running()
            assert (await bench.append(run, "1")).last_seq == 2
            assert await store.dead(["nobody"]) == set(), "without a token of our own, absence proves nothing"
    assert len(degraded(seen)) == 1


def degraded(seen: list[signals.Happening]) -> list[signals.WakeupsDegraded]:
    return [one for one in seen if isinstance(one, signals.WakeupsDegraded)]


def speaking_on(run: Any, channel: str) -> Any:
    """Send every notification on another channel than the one that is listened to."""

    async def notifying(connection: Any, name: str, **params: object) -> Any:
        if name == "notify":
            params["channel"] = channel
        return await run(connection, name, **params)

    return notifying


async def test_S19_a_connection_that_goes_silent_is_found_out_by_the_probe(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer is there and answers, but no longer listens: only a probe can tell."""
    monkeypatch.setattr(notify, "PROBE_EVERY", 0.1)
    monkeypatch.setattr(notify, "PROBE_SECONDS", 0.1)
    async with two_stores(empty_dsn) as (one, two):
        direct = one._direct
        assert direct._listener is not None
        with support.told(one) as seen:
            await until(lambda: direct._listener is not None and not direct._listener.lock.locked(), "a gap")
            await direct._listener.execute("UNLISTEN *")
            await until(
                lambda: any(isinstance(one, signals.WakeupsRestored) for one in seen), "the reconnect"
            )
        await hint_arrives(two, one, "run:x")


async def impatient(connection: object, *, timeout: float) -> None:
    """psycopg itself asks a silent server for ten seconds to give up the query."""
    raise TimeoutError


async def test_S19_a_peer_that_vanished_without_a_word_is_found_out(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall that drops: the connection stays open and nothing comes or goes on it."""
    monkeypatch.setattr(notify, "PROBE_EVERY", 0.1)
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(psycopg.AsyncConnection, "_try_cancel", impatient)
    async with wire_to(empty_dsn) as wire:
        one, two = PostgresStore(empty_dsn, direct_dsn=wire.dsn), PostgresStore(empty_dsn)
        async with support.opened(one), support.opened(two):
            await hint_arrives(two, one, "run:x")
            with support.told(one) as seen:
                wire.silence()
                bench = Bench(one=one, two=two)
                assert (await bench.append(await bench.running(), "1")).last_seq == 2, "the pool goes on"
                await until(
                    lambda: any(isinstance(one, signals.WakeupsRestored) for one in seen), "the reconnect"
                )
            assert len(degraded(seen)) == 1
            await hint_arrives(two, one, "run:x")
            await hint_arrives(one, two, "run:x")


async def test_without_hints_a_waiter_still_looks_again_within_a_poll(empty_dsn: str) -> None:
    async with two_stores(empty_dsn) as (one, two):
        bench = Bench(one=one, two=two)
        run = await bench.running()
        with two.hub.watch(wakeup.run_topic(run.run_id)) as waiter:
            await bench.append(run, "1")  # nobody announces it
            async with asyncio.timeout(WITHIN):
                await waiter.wait()
        assert len(await bench.events(run.run_id)) == 2


async def test_a_store_tells_no_waiter_of_its_own_twice(empty_dsn: str) -> None:
    async with two_stores(empty_dsn) as (one, two):
        with one.hub.watch("run:x") as here, two.hub.watch("run:x") as there:
            one.announce("run:x")
            assert here._event.is_set(), "local waiters are woken at once"
            here.clear()
            async with asyncio.timeout(WITHIN):
                await there.wait(WITHIN * 2)
            two.announce("run:y")
            await hint_arrives(two, one, "run:z")  # came later over the same connection
            assert not here._event.is_set()


# ---------------------------------------------------------------- alone


@contextlib.asynccontextmanager
async def overheard(dsn: str) -> AsyncIterator[list[str]]:
    """What is said on the channel, heard by somebody who says nothing."""
    said: list[str] = []
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(f"LISTEN {notify.CHANNEL}")

        async def listen() -> None:
            async for note in connection.notifies():
                said.append(note.payload)  # noqa: PERF401 - it never ends

        listening = asyncio.create_task(listen())
        yield said
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


async def test_a_process_that_hears_nobody_says_nothing_until_somebody_says_hello(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "HELLO_SECONDS", 0.0)
    async with overheard(empty_dsn) as said, support.opened(PostgresStore(empty_dsn)) as one:
        await until(lambda: said, "the hello")
        one.announce("run:unheard")
        async with support.opened(PostgresStore(empty_dsn)) as two:
            await until(
                lambda: any(word.endswith(notify.EVERYTHING) for word in said), "what makes up for it"
            )
            await hint_arrives(one, two, "run:x")
            await hint_arrives(two, one, "run:y")
        assert not any("run:unheard" in word for word in said)


async def test_what_a_silent_process_did_not_say_wakes_the_newcomer_who_waits_for_it(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newcomer listens already when the hint is not given: its hello has not been read yet."""
    monkeypatch.setattr(notify, "HELLO_SECONDS", 0.0)
    async with support.opened(PostgresStore(empty_dsn)) as one:
        hear = one._direct._hear
        unread: list[str] = []
        monkeypatch.setattr(one._direct, "_hear", unread.append)
        async with support.opened(PostgresStore(empty_dsn)) as two:
            with two.hub.watch("run:x") as waiter:
                one.announce("run:x")
                await until(lambda: unread, "the hello")
                monkeypatch.setattr(one._direct, "_hear", hear)
                for word in unread:
                    hear(word)
                async with asyncio.timeout(WITHIN):
                    await waiter.wait(WITHIN * 2)


async def test_a_process_that_cannot_hear_goes_on_speaking(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "HELLO_SECONDS", 0.0)
    async with overheard(empty_dsn) as said, support.opened(PostgresStore(empty_dsn)) as one:
        one._direct._set_listening(False)
        one.announce("run:x")
        await until(lambda: any("run:x" in word for word in said), "the hint")
