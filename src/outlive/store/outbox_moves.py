"""The moves of a notification as transactions: taken, delivered, put off, given up, sent again.

No script here writes a row: the statement that ends a run does (``finish``), and nothing else.  Delivery is
at least once: a try whose outcome could not be recorded is made again when its lease is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlive import errors
from outlive.model import Row, Run, millis
from outlive.notifications import Delivery, Notification
from outlive.store import steps
from outlive.store.script import Statement, Steps, script, statement

TRIP = 5
"""Failures in a row after which a receiver is left alone for a while, then tried by one at a time."""
Compose = Callable[[Run, Mapping[str, Any]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Buried:
    """A notification that was given up, and why."""

    notification_id: str
    run_id: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What a claim found: rows to be sent, and rows for addresses that are gone."""

    rows: tuple[Notification, ...] = ()
    buried: tuple[Buried, ...] = ()


@script(reads=True)
def due(busy: list[str], limit: int, after: str = "") -> Steps[list[str]]:
    """Return receivers, other than ``busy`` and those left alone, to whom something can be sent now.

    Those that come after ``after`` are first: with more than ``limit``, everybody has a turn.
    """
    rows = yield statement("receivers_due", busy=busy, limit=limit, after=after)
    found = [row["receiver"] for row in rows]
    if after and len(found) < limit:
        rows = yield statement("receivers_due", busy=[*busy, *found], limit=limit - len(found), after="")
        found += [row["receiver"] for row in rows]
    return found


@script()
def take(receiver: str, limit: int, token: str, lease: float, compose: Compose) -> Steps[Taken]:
    """Take up to ``limit`` notifications for one receiver, for ``lease`` seconds, in nobody else's hands.

    Their bodies are set here, before anything is sent: whoever sends one again sends the same.
    """
    circuit = yield statement("circuit", receiver=receiver)
    if circuit and not circuit[0]["due"]:
        return Taken()
    if circuit and circuit[0]["failures"] >= TRIP:
        limit = 1
        if not (yield statement("probe_circuit", receiver=receiver, lease_ms=millis(lease))):
            return Taken()
    ids = yield from _ids(statement("due_notifications", receiver=receiver, limit=limit))
    rows = yield statement("claim_notifications", ids=ids, claim_token=token, lease_ms=millis(lease))
    taken, buried = [], []
    for row in sorted(rows, key=lambda row: (row["created_at"], row["notification_id"])):
        if (yield statement("is_gone", receiver=receiver, url=row["url"])):
            yield _bury(row["notification_id"], token, None, GONE)
            buried.append(_buried(row, GONE))
            continue
        sealed = row if row["body"] is not None else (yield from _seal(row, compose))
        if sealed is None:  # it can never be told, and must not stand in the way of what can
            yield _bury(row["notification_id"], token, None, NOTHING)
            buried.append(_buried(row, NOTHING))
            continue
        taken.append(Notification.from_row(sealed))
    return Taken(rows=tuple(taken), buried=tuple(buried))


GONE = "gone: the receiver wants to hear nothing more at this address"
NOTHING = "nothing to tell: the record of its run is not there, or cannot be read"
OLD = "too old: it could not be delivered in time"


def _seal(row: Row, compose: Compose) -> Steps[Row | None]:
    run = yield from steps.own(row["run_id"])
    ends = yield statement(
        "events_after", run_id=row["run_id"], after=run.last_seq - 1 if run else 0, limit=1
    )
    if run is None or not ends:
        return None
    try:
        body = compose(run, json.loads(ends[0]["payload"]))
    except (ValueError, TypeError, LookupError):  # somebody wrote into the record by hand
        return None
    sealed = yield statement("seal_notification", notification_id=row["notification_id"], body=body)
    return sealed[0]


def _ids(look: Statement) -> Steps[list[str]]:
    return [row["notification_id"] for row in (yield look)]


def _bury(notification_id: str, token: str | None, status: int | None, why: str) -> Statement:
    return statement(
        "bury_notification", notification_id=notification_id, claim_token=token, status=status, error=why
    )


def _buried(row: Row, why: str) -> Buried:
    return Buried(notification_id=row["notification_id"], run_id=row["run_id"], why=why)


@script()
def delivered(sent: Notification, status: int) -> Steps[float | None]:
    """Note that a receiver has it.

    Returns the seconds since its run ended, or since somebody had it sent again; None if that was known.
    """
    rows = yield statement("deliver_notification", notification_id=sent.notification_id, status=status)
    yield statement("close_circuit", receiver=sent.receiver)
    return (rows[0]["ended_at"] - rows[0]["queued_at"]) / 1000 if rows else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """A try that failed.  ``delay``: seconds until the next.

    ``theirs``: the receiver as a whole does not answer, so it counts against it.  ``pause``: for how many
    seconds a receiver with so many failures in a row is left alone.  ``status`` None: no answer came.
    """

    why: str
    delay: float
    status: int | None = None
    last: bool = False
    theirs: bool = True
    pause: Callable[[int], float] = lambda failures: 0.0


@script()
def missed(sent: Notification, miss: Miss) -> Steps[bool]:
    """Put a notification off, or give it up if that was its last try; False if somebody else has it now."""
    if miss.last:
        rows = yield _bury(sent.notification_id, sent.claim_token, miss.status, miss.why)
    else:
        rows = yield statement(
            "put_off_notification",
            notification_id=sent.notification_id,
            claim_token=sent.claim_token,
            status=miss.status,
            error=miss.why,
            delay_ms=millis(miss.delay),
        )
    if miss.theirs:
        counted = yield statement("note_failure", receiver=sent.receiver)
        pause = miss.pause(counted[0]["failures"])
        if pause > 0:
            yield statement("open_circuit", receiver=sent.receiver, pause_ms=millis(pause))
    else:
        yield statement("close_circuit", receiver=sent.receiver)
    return bool(rows)


@script()
def gone(sent: Notification, status: int) -> Steps[list[Buried]]:
    """Note that nobody wants to hear anything at this address any more; whatever waits for it is given up."""
    # First: of two that learn of it at once, the second waits here, and not for a row of the first.
    yield statement("note_gone", receiver=sent.receiver, url=sent.url)
    rows = yield statement("bury_url", receiver=sent.receiver, url=sent.url, status=status, error=GONE)
    yield statement("close_circuit", receiver=sent.receiver)
    return [_buried(row, GONE) for row in rows]


@script()
def expire(age: float, limit: int) -> Steps[list[Buried]]:
    """Give up to ``limit`` notifications up that are older than ``age`` seconds."""
    ids = yield from _ids(statement("old_notifications", age_ms=millis(age), limit=limit))
    rows = (yield statement("bury_old", ids=ids, error=OLD)) if ids else []
    return [_buried(row, OLD) for row in rows]


@script()
def resend(notification_id: str, tenant: str | None) -> Steps[Notification]:
    """Have a notification sent again, now, as if it were new: same id, same body.  Raises ``NotFound``.

    Its receiver is taken to be back, and its address too.
    """
    rows = yield statement("resend_notification", notification_id=notification_id, tenant=tenant)
    if not rows:
        raise _unknown(notification_id)
    yield statement("forget_gone", receiver=rows[0]["receiver"], url=rows[0]["url"])
    yield statement("close_circuit", receiver=rows[0]["receiver"])
    return Notification.from_row(rows[0])


@script()
def prune(retention: float, limit: int) -> Steps[int]:
    """Delete up to ``limit`` notifications that ended more than ``retention`` seconds ago."""
    ids = yield from _ids(statement("ended_notifications", retention_ms=millis(retention), limit=limit))
    return len((yield statement("prune_notifications", ids=ids))) if ids else 0


# ---------------------------------------------------------------- reads


@script(reads=True)
def notification(notification_id: str, tenant: str | None) -> Steps[Notification]:
    """Return one notification; raises ``NotFound``."""
    rows = yield statement("notification", notification_id=notification_id, tenant=tenant)
    if not rows:
        raise _unknown(notification_id)
    return Notification.from_row(rows[0])


@script(reads=True)
def oldest() -> Steps[float | None]:
    """Return for how many seconds the oldest notification has been waiting; None if none waits."""
    rows = yield statement("oldest_notification")
    return rows[0]["age_ms"] / 1000 if rows else None


@script(reads=True)
def notifications(
    tenant: str, *, limit: int, state: Delivery | None = None, before: str | None = None
) -> Steps[list[Notification]]:
    """Return up to ``limit`` notifications, newest first, older than the notification ``before``."""
    wanted = None if state is None else state.value
    rows = yield statement("list_notifications", tenant=tenant, state=wanted, before=before, limit=limit)
    return [Notification.from_row(row) for row in rows]


@script(reads=True)
def of_run(
    run_id: str, tenant: str, *, limit: int, state: Delivery | None = None
) -> Steps[list[Notification]]:
    """Return the notifications of one run's end."""
    wanted = None if state is None else state.value
    rows = yield statement("list_notifications_of", run_id=run_id, tenant=tenant, state=wanted, limit=limit)
    return [Notification.from_row(row) for row in rows]


def _unknown(notification_id: str) -> errors.NotFound:
    return errors.NotFound(f"There is no notification {notification_id}.", field="notification_id")
