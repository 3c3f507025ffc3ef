"""Who is told of a run's end, what they are told, and whose secret signs it.

Decides the shape of a notification, its receivers and its secrets.  Does not decide when one is written (the
statement that ends a run does that), nor when and how it is sent (``outbox`` and ``webhooks``).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from outlive import addresses, errors
from outlive.model import Row, Run, seconds

PREFIX = "whsec_"
SHORTEST_SECRET, LONGEST_SECRET = 24, 64
"""Bytes of a secret, as the Standard Webhooks specification has it."""
DAY = 86_400.0


class Audience(StrEnum):
    """Whose receiver it is, and so whose secret signs: the tenant's own, or that of the whole service."""

    TENANT = "tenant"
    SERVICE = "service"


class Delivery(StrEnum):
    """What became of a notification: still to be delivered, delivered, or given up."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notification:
    """One row of the outbox.  ``notification_id`` and ``body`` are the same at every try.

    ``receiver`` is who shares a circuit; ``status`` and ``error`` are those of the last try.
    """

    notification_id: str
    tenant: str
    run_id: str
    kind: str
    receiver: str
    url: str
    audience: Audience
    state: Delivery
    body: str | None
    attempts: int
    next_at: float
    claim_token: str | None
    status: int | None
    error: str | None
    created_at: float
    attempted_at: float | None
    ended_at: float | None
    traceparent: str | None

    @classmethod
    def from_row(cls, row: Row) -> Notification:
        """Build one from a row of ``outbox``."""
        plain: dict[str, Any] = {name: row[name] for name in _SAME}
        times: dict[str, Any] = {name: seconds(row[name]) for name in _TIMES}
        return cls(**plain, **times, audience=Audience(row["audience"]), state=Delivery(row["state"]))

    def public(self) -> dict[str, Any]:
        """Return what its tenant may see of it, as JSON-able values; ``body`` only once it was to be sent."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in _PUBLIC}
        shown["next_at"] = self.next_at if self.state is Delivery.PENDING else None
        shown["body"] = None if self.body is None else json.loads(self.body)
        return shown


_TIMES = ("next_at", "created_at", "attempted_at", "ended_at")
_SAME = tuple(
    column.name
    for column in dataclasses.fields(Notification)
    if column.name not in (*_TIMES, "audience", "state")
)
_PUBLIC = (
    *("notification_id", "run_id", "kind", "url", "audience", "state", "attempts", "status", "error"),
    *("created_at", "attempted_at", "ended_at"),
)


class Came(StrEnum):
    """What came of a try."""

    DELIVERED = "delivered"
    GONE = "gone"
    MISSED = "missed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a receiver answered.  ``status`` None: nothing.

    ``theirs``: the receiver as a whole is not well, whatever it was sent.  ``after``: for how many seconds it
    asked to be left alone.
    """

    came: Came
    status: int | None = None
    why: str = ""
    theirs: bool = False
    after: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhooks:
    """How the ends of runs are told to web servers.

    ``secrets`` sign (``whsec_`` and the base64 of 24 to 64 bytes); each of several does, so that receivers
    can change from one to the next.  ``url`` is told of every run, and ``agents`` of those of an agent,
    besides whatever the request that makes a run names.  ``public_url`` is where the native routes are
    reached from outside, for links.  A result of up to ``result_bytes`` is sent along; 0: only ever the link.
    ``networks`` are those that may be sent to although they are private, and without TLS.

    One try may take ``timeout`` seconds; what a process that died had in hand is tried again ``margin``
    seconds after that.  Between two tries are about ``delay`` seconds, then three times as many, and so on,
    up to ``longest_delay``.  After ``tries``, or ``max_age`` seconds, a notification is given up and kept as
    a dead letter; ``retention`` seconds after its end its row is deleted.
    ``at_once`` bounds what one process sends at one time, and ``per_receiver`` what it sends to one receiver.

    Raises ``Misconfigured``.
    """

    secrets: tuple[str, ...] = field(repr=False)
    url: str | None = None
    agents: Mapping[str, str] = field(default_factory=dict)
    public_url: str | None = None
    result_bytes: int = 0
    networks: tuple[str, ...] = ()
    timeout: float = 15.0
    margin: float = 30.0
    delay: float = 10.0
    longest_delay: float = 6 * 3600.0
    tries: int = 16
    max_age: float = 3 * DAY
    retention: float = 30 * DAY
    at_once: int = 64
    per_receiver: int = 8

    def __post_init__(self) -> None:
        if not self.secrets:
            raise errors.Misconfigured(
                "Webhooks need a secret.", hint="Make one: outlive webhooks new-secret"
            )
        for secret in self.secrets:
            _decoded(secret)
        if min(self.timeout, self.tries, self.at_once, self.per_receiver) <= 0:
            raise errors.Misconfigured("Webhooks have a bound that lets nothing be sent.", hint=_BOUNDS)
        for url in (self.url, *self.agents.values()):
            if url is not None:
                _configured(url, self.allowed)

    @property
    def allowed(self) -> tuple[addresses.Network, ...]:
        """The networks that may be sent to although they are private."""
        return addresses.networks(self.networks)

    def notify(self, tenant: str, agent: str, url: str | None) -> str | None:
        """Return who is told of a run's end, as its record keeps it; raises ``InvalidInput``."""
        told: dict[str, dict[str, str]] = {}
        for each in (self.url, self.agents.get(agent)):
            if each is not None:
                told[each] = _receiver("", _configured(each, self.allowed), Audience.SERVICE)
        if url is not None and url not in told:
            target = addresses.read_url(url, self.allowed, "webhook")
            told[url] = _receiver(tenant, target, Audience.TENANT)
        return json.dumps(list(told.values()), separators=(",", ":")) if told else None

    def secrets_of(self, tenant: str, audience: Audience) -> list[str]:
        """Return the secrets that sign what a tenant's own receivers, or the service's, are sent.

        Each tenant has its own, made from the service's: with one for all, whoever can verify what they are
        sent could forge what others are.
        """
        label = f"{audience}/{tenant}" if audience is Audience.TENANT else str(audience)
        return [_derived(secret, label) for secret in self.secrets]


_BOUNDS = "timeout, tries, at_once and per_receiver are above zero."


def refuse(tenant: str, agent: str, url: str | None) -> str | None:
    """What takes the place of ``Webhooks.notify`` where nothing is sent."""
    if url is not None:
        raise errors.InvalidInput("This service sends no webhooks.", field="webhook")
    return None


def _configured(url: str, ours: tuple[addresses.Network, ...]) -> addresses.Target:
    try:
        return addresses.read_url(url, ours, "the webhook's address")
    except errors.InvalidInput as wrong:
        raise errors.Misconfigured(wrong.message, hint="See docs/webhooks.md.") from None


def _receiver(tenant: str, target: addresses.Target, audience: Audience) -> dict[str, str]:
    return {"receiver": f"{tenant} {target.origin}", "url": target.url, "audience": audience.value}


def new_secret(random: bytes) -> str:
    """Return a secret as text."""
    return PREFIX + base64.b64encode(random).decode("ascii")


def _decoded(secret: str) -> bytes:
    try:
        found = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not secret.startswith(PREFIX) or not SHORTEST_SECRET <= len(found) <= LONGEST_SECRET:
        raise errors.Misconfigured(
            f"A webhook secret is {PREFIX} and the base64 of {SHORTEST_SECRET} to {LONGEST_SECRET} bytes.",
            hint="Make one: outlive webhooks new-secret",
        )
    return found


def _derived(secret: str, label: str) -> str:
    named = f"outlive webhook/{label}".encode("utf-8", "surrogatepass")
    return new_secret(hmac.new(_decoded(secret), named, hashlib.sha256).digest())


def compose(run: Run, end: Mapping[str, Any], webhooks: Webhooks) -> str:
    """Return the body that tells of a run's end, from its record and its end event, which never change.

    ASCII JSON: what is signed are its bytes, and they are the same at every try.
    """
    ended = datetime.datetime.fromtimestamp(run.ended_at or 0.0, datetime.UTC)
    data: dict[str, Any] = {name: getattr(run, name) for name in _TOLD}
    data["error"] = end.get("error")
    data["effects"] = {**_NO_EFFECTS, **(end.get("effects") or {})}
    data["artifacts"] = end.get("artifacts", [])
    data["follows"] = (
        json.loads(run.metadata).get("aftermath_of") if run.agent.startswith("outlive.") else None
    )
    data["url"] = f"{webhooks.public_url.rstrip('/')}/runs/{run.run_id}" if webhooks.public_url else None
    if run.output is not None and len(run.output) <= webhooks.result_bytes:
        data["result"] = json.loads(run.output)
    stamp = ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    told = {"type": f"run.{run.state}", "timestamp": stamp, "data": data}
    return json.dumps(told, separators=(",", ":"))


_TOLD = (
    *("run_id", "thread", "agent", "state", "reason", "origin", "continues"),
    *("created_at", "started_at", "ended_at"),
)
_NO_EFFECTS: dict[str, Any] = {"counts": {}, "executed": [], "unknown": []}
