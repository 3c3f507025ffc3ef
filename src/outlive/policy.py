"""What an agent's runs do when the world gets in the way: declared, never implied.

Decides nothing at run time: it holds the declarations that ``admission``, ``disconnect``, ``sweeper`` and
``execution`` obey.  Registering an agent without a policy is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, assert_never

from outlive import errors
from outlive.states import State


class OnDisconnect(StrEnum):
    """What the last viewer's leaving means: ``cancel`` acts after ``grace`` seconds without any viewer."""

    CANCEL = "cancel"
    CONTINUE = "continue"


class OnBusy(StrEnum):
    """What a message does on a thread whose run is still live.

    ``interrupt`` and ``rollback`` displace that run: it is stopped, and the message goes before all who wait.
    After ``interrupt`` it meets the thread as the run has left it; after ``rollback`` what the run has begun
    is taken back first, unless it had come to its end by itself.
    """

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"

    @property
    def displaces(self) -> bool:
        """Whether it takes the place of what runs."""
        return self in (OnBusy.INTERRUPT, OnBusy.ROLLBACK)


class OnTorn(StrEnum):
    """What a message does on a thread that was left part-way, where it would start over and repeat nodes.

    ``resume``: what was begun is finished first.  ``restart``: it starts over, and its log says so.
    ``reject``: it is refused.  ``rollback``: what was begun is taken back, its effects are undone.

    A message that answers a thread's question is none of this; any other on a thread that waits is refused
    under ``resume`` and ``reject``.
    """

    RESUME = "resume"
    RESTART = "restart"
    REJECT = "reject"
    ROLLBACK = "rollback"


class Recovery(StrEnum):
    """What follows the loss of an executor."""

    RESUME = "resume"
    STOP = "stop"


class Compensate(StrEnum):
    """After which ends of a run what it executed is undone: ``failures`` are failed and abandoned runs.

    ``always`` adds stopped runs, whatever stopped them.  Runs that succeeded or wait are never undone.
    """

    NEVER = "never"
    FAILURES = "failures"
    ALWAYS = "always"


class OnUnknown(StrEnum):
    """What a run does about an effect of which nobody can tell whether it happened.

    ``wait``: it waits for a person to say so.  ``fail``: the agent gets an ``EffectUnknown``.
    """

    WAIT = "wait"
    FAIL = "fail"


class Durability(StrEnum):
    """When a LangGraph checkpoint is written, relative to the next step."""

    SYNC = "sync"
    ASYNC = "async"
    EXIT = "exit"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPolicy:
    """The declared behaviour of one agent's runs.  All times are in seconds.

    ``grace`` counts from submit and from each moment the last viewer leaves; 0 means at once.
    ``max_losses`` is how many executors a run may lose and still be resumed.
    ``stop_deadline`` bounds how long a stopped agent may take to return; past it the run is settled as
    stopped and its slot is reported as leaked.  ``run_timeout`` bounds one attempt, and
    ``silence_timeout`` how long its agent may yield nothing (None: no bound).
    """

    on_disconnect: OnDisconnect
    on_busy: OnBusy
    on_torn: OnTorn
    recovery: Recovery
    grace: float = 30.0
    max_losses: int = 3
    durability: Durability = Durability.SYNC
    stop_deadline: float = 10.0
    run_timeout: float | None = None
    silence_timeout: float | None = None
    compensate: Compensate = Compensate.NEVER
    on_unknown: OnUnknown = OnUnknown.WAIT

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # A plain "cancel" becomes OnDisconnect.CANCEL; what is no policy is refused here, not at submit.
            object.__setattr__(self, field.name, _typed(field.name, getattr(self, field.name)))

    def compensates(self, state: State) -> bool:
        """Say whether what a run executed is undone when it ends in ``state``."""
        match self.compensate:
            case Compensate.NEVER:
                return False
            case Compensate.FAILURES:
                return state in (State.FAILED, State.ABANDONED)
            case Compensate.ALWAYS:
                return state in (State.FAILED, State.ABANDONED, State.STOPPED)
            case _ as unknown:
                assert_never(unknown)

    def but(self, **changes: Any) -> Self:
        """Return this policy with some fields changed; raises ``InvalidPolicy`` for a bad name or value."""
        return type(self).from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as plain JSON-able values."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Build a policy from plain values; raises ``InvalidPolicy`` naming the field that is wrong."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in fields:
            if name not in known:
                raise errors.InvalidPolicy(f"{name} is not a field of a run policy", field=name)
        try:
            return cls(**fields)
        except TypeError as missing:
            raise errors.InvalidPolicy(f"the policy is incomplete: {missing}", field="policy") from None

    @functools.lru_cache(maxsize=256)  # noqa: B019 - a service has few policies, and each of its runs has one
    def to_json(self) -> str:
        """Return the policy as the JSON text that is stored with each run."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @classmethod
    @functools.lru_cache(maxsize=256)
    def from_json(cls, text: str) -> Self:
        """Read a policy back from a run's row.

        A newer version may have written the row, and one row that cannot be read would keep this process
        from claiming or listing any: fields that this version does not know are left out, and a value that
        it does not know is read as the most careful one.
        """
        stored = json.loads(text)
        return cls(**{name: _readable(name, stored.get(name), value) for name, value in _CAREFUL.items()})


def chat(**changes: Any) -> RunPolicy:
    """A person waits for the answer: nobody watching for 30 s stops the run; a second message queues."""
    preset = RunPolicy(
        on_disconnect=OnDisconnect.CANCEL,
        on_busy=OnBusy.ENQUEUE,
        on_torn=OnTorn.RESUME,
        recovery=Recovery.RESUME,
    )
    return preset.but(**changes)


def job(**changes: Any) -> RunPolicy:
    """Work that must finish whoever watches: runs on after a disconnect; a second message is refused."""
    preset = RunPolicy(
        on_disconnect=OnDisconnect.CONTINUE,
        on_busy=OnBusy.REJECT,
        on_torn=OnTorn.RESUME,
        recovery=Recovery.RESUME,
    )
    return preset.but(**changes)


def server(**changes: Any) -> RunPolicy:
    """What clients of a LangGraph server expect: runs go on after a disconnect, and a second message queues.

    A client may ask for a run that stops when it leaves; it has 5 s then to come back.
    """
    preset = RunPolicy(
        on_disconnect=OnDisconnect.CONTINUE,
        on_busy=OnBusy.ENQUEUE,
        on_torn=OnTorn.RESUME,
        recovery=Recovery.RESUME,
        grace=5.0,
    )
    return preset.but(**changes)


PRESETS = {"chat": chat, "job": job, "server": server}

_CAREFUL: dict[str, Any] = {
    "on_disconnect": OnDisconnect.CONTINUE,
    "on_busy": OnBusy.REJECT,
    "on_torn": OnTorn.REJECT,
    "recovery": Recovery.STOP,
    "grace": 30.0,
    "max_losses": 0,
    "durability": Durability.SYNC,
    "stop_deadline": 10.0,
    "run_timeout": None,
    "silence_timeout": None,
    "compensate": Compensate.NEVER,
    "on_unknown": OnUnknown.WAIT,
}
_LEAST = {"grace": 0, "max_losses": 0, "stop_deadline": 0.01, "run_timeout": 0.01, "silence_timeout": 0.01}
_ENUMS: dict[str, type[StrEnum]] = {
    "on_disconnect": OnDisconnect,
    "on_busy": OnBusy,
    "on_torn": OnTorn,
    "recovery": Recovery,
    "durability": Durability,
    "compensate": Compensate,
    "on_unknown": OnUnknown,
}


def _typed(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return _member(name, _ENUMS[name], value)
    if name in ("run_timeout", "silence_timeout") and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise errors.InvalidPolicy(f"{name} must be a number, not {value!r}", field=name)
    if name == "max_losses" and not isinstance(value, int):
        raise errors.InvalidPolicy(f"{name} must be a whole number, not {value!r}", field=name)
    _at_least(name, value, _LEAST[name])
    return value


def _readable(name: str, value: Any, careful: Any) -> Any:
    try:
        return _typed(name, value)
    except errors.InvalidPolicy:
        return careful


def _member(name: str, kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise errors.InvalidPolicy(f"{name} must be one of {names}, not {value!r}", field=name) from None


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < 1e9:
        raise errors.InvalidPolicy(f"{name} must be between {least:g} and 1e9, not {value!r}", field=name)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value
