"""On bad days every end is told, in the same words; and bugs that break this are noticed as what they are."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import pytest

from outlive import execution, outbox
from outlive.model import Row, Run
from outlive.notifications import Came, Notification
from outlive.store import outbox_moves, sql, steps
from outlive.store.script import Steps, script, statement
from outlive.testing.simulation import Sabotage, checker, receivers, simulate
from simulation.mutations import edited

SEEDS, WITHIN = 60, 60
"""Seeds that must keep every promise, and those of which one must notice a bug."""
TELLS = "WHERE r.run_id = :run_id AND r.notify IS NOT NULL"
_settle = execution._settle
_send = receivers.Line.send


def silent(more: str = "AND 0", *, also: Mapping[str, str] | None = None) -> Sabotage:
    """The end is committed without its notifications; ``also`` adds blocks."""
    sabotage = edited(("finish", TELLS, f"{TELLS} {more}"))
    assert sabotage.blocks is not None
    blocks = dict(sabotage.blocks)
    for name, text in (also or {}).items():
        blocks[name] = sql.Block(name=name, statements=(text,))
    return dataclasses.replace(sabotage, blocks=blocks)


TELL = sql.load(sql.Dialect.SQLITE, bound_clock=True)["finish"].statements[-1]


@script()
def _tell(run_id: str) -> Steps[None]:
    yield statement("tell", run_id=run_id)


async def settle_then_tell(attempt: execution.Attempt, verdict: Any, tail: Any) -> None:
    """The end is committed, and then, by itself, what is told of it."""
    await _settle(attempt, verdict, tail)
    await attempt.around.store.write(_tell(attempt.run.run_id))


@script()
def tell_again(sent: Notification, status: int) -> Steps[float | None]:
    """A repeat that makes a row of its own: what is told twice has two ids."""
    rows = yield statement("deliver_notification", notification_id=sent.notification_id, status=status)
    if sent.attempts > 1:
        yield statement("tell_again", notification_id=sent.notification_id)
    return 0.0 if rows else None


TELL_AGAIN = """INSERT INTO outbox (notification_id, tenant, run_id, kind, receiver, url, audience,
    state, body, next_at, created_at, queued_at)
SELECT notification_id || '-again', tenant, run_id, kind, receiver, url, audience, 'pending', body,
    next_at, created_at, queued_at
FROM outbox WHERE notification_id = :notification_id AND notification_id NOT LIKE '%again'
ON CONFLICT DO NOTHING"""


async def own_id(self: receivers.Line, sent: Notification) -> Any:
    """Every try has an id of its own."""
    named = f"{sent.notification_id}-{sent.attempts}"
    return await _send(self, dataclasses.replace(sent, notification_id=named))


def fresh_words(row: Row, compose: Callable[[Run, Mapping[str, Any]], str]) -> Steps[Row | None]:
    """The body is put together at each try."""
    run = yield from steps.own(row["run_id"])
    assert run is not None
    ends = yield statement("events_after", run_id=run.run_id, after=run.last_seq - 1, limit=1)
    told = json.loads(compose(run, json.loads(ends[0]["payload"])))
    return {**row, "body": json.dumps(told | {"try": row["attempts"]})}


async def forgetful_tell(self: outbox.Dispatcher, sent: Notification) -> None:
    """It is noted as delivered, and then sent."""
    await self._store.write(outbox_moves.delivered(sent, 200))
    await self._sender.send(sent)


async def whatever(self: outbox.Dispatcher, sent: Notification) -> None:
    """Any answer will do."""
    answer = await self._sender.send(sent)
    assert answer.came in Came
    await self._store.write(outbox_moves.delivered(sent, answer.status or 200))


Mutation = tuple[Callable[[], Sabotage], tuple[Any, ...]]
MUTATIONS: dict[str, Mutation] = {
    "an end tells nobody": (silent, ()),
    "a stop in the queue and a sweep tell nobody": (lambda: silent("AND :claim_token IS NOT NULL"), ()),
    "a sweep tells nobody": (lambda: silent("AND :raise = 0"), ()),
    "what is told is written in a transaction of its own": (
        lambda: silent("AND :claim_token IS NULL", also={"tell": TELL}),
        (mock.patch.object(execution, "_settle", settle_then_tell),),
    ),
    "a repeat is told under an id of its own": (
        lambda: silent("", also={"tell_again": TELL_AGAIN}),
        (mock.patch.object(outbox_moves, "delivered", tell_again),),
    ),
    "every try has an id of its own": (Sabotage, (mock.patch.object(receivers.Line, "send", own_id),)),
    "the words are put together at each try": (
        Sabotage,
        (mock.patch.object(outbox_moves, "_seal", fresh_words),),
    ),
    "it is delivered before it is sent": (
        Sabotage,
        (mock.patch.object(outbox.Dispatcher, "_tell", forgetful_tell),),
    ),
    "any answer will do": (Sabotage, (mock.patch.object(outbox.Dispatcher, "_tell", whatever),)),
    "what a dead process had in hand is sent by nobody": (
        lambda: edited(
            (
                "due_notifications",
                "WHERE state = 'pending'",
                "WHERE claim_token IS NULL AND state = 'pending'",
            )
        ),
        (),
    ),
}


def broken(seed: int, sabotage: Sabotage | None = None) -> list[checker.Violation]:
    """What a seed's history shows of notifications."""
    return [one for one in simulate(seed, sabotage=sabotage).violations if one.invariant == "I10"]


@pytest.mark.invariant("I10")
@pytest.mark.timeout(180)
def test_S24_on_bad_days_every_end_is_told_in_the_same_words() -> None:
    told = 0
    for seed in range(SEEDS):
        result = simulate(seed)
        assert [one for one in result.violations if one.invariant == "I10"] == [], seed
        told += len(result.history.told) - len({each.id for each in result.history.told})
    assert told > SEEDS, "hardly anything was ever told twice: the days are not bad enough"


@pytest.mark.invariant("I10")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_in_telling_is_noticed(name: str) -> None:
    sabotage, patches = MUTATIONS[name]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        broke = sabotage()
        assert any(broken(seed, broke) for seed in range(WITHIN)), f"{WITHIN} seeds kept it"
