"""Named points at which a test may stop, fail or kill the process that reaches them.

Nothing is armed in production, and an unarmed point costs one dictionary look-up.  The environment variable
``OUTLIVE_FAILPOINTS`` (``name=action;name=action``) arms points in a subprocess: ``kill`` ends it as SIGKILL
would, ``freeze`` stops it until SIGCONT, ``fail`` raises ``FailpointReached``.  ``name@N=action`` acts only
on the Nth time the point is reached.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

Action = Callable[[], None]
_armed: dict[str, Action] = {}


class FailpointReached(RuntimeError):
    """Raised at a point armed with ``fail``."""


def reach(name: str) -> None:
    """Act if ``name`` is armed; otherwise do nothing."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def arm(name: str, action: Action) -> None:
    """Call ``action`` each time ``name`` is reached."""
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one point, or all of them."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def kill() -> None:
    """End this process at once, as SIGKILL does: no cleanup, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    """Stop this process until somebody sends SIGCONT."""
    # To this very thread: sent to the process, another thread may take it, and this one runs on for a moment.
    signal.raise_signal(signal.SIGSTOP)


def fail() -> None:
    """Raise ``FailpointReached``."""
    raise FailpointReached("a failpoint was armed here")


_ACTIONS: dict[str, Action] = {"kill": kill, "freeze": freeze, "fail": fail}


def _on_nth(count: int, action: Action) -> Action:
    reached = 0

    def act() -> None:
        nonlocal reached
        reached += 1
        if reached == count:
            action()

    return act


def arm_from(text: str, **actions: Action) -> None:
    """Arm the points that ``text`` names; raises ``ValueError`` for an unknown action.

    ``actions`` adds to the actions that can be named, or replaces one.
    """
    known = {**_ACTIONS, **actions}
    for item in filter(None, text.split(";")):
        name, _, action_name = item.partition("=")
        if action_name not in known:
            raise ValueError(f"failpoint {name!r} has the unknown action {action_name!r}")
        name, _, count = name.partition("@")
        action = known[action_name]
        arm(name, _on_nth(int(count), action) if count else action)


arm_from(os.environ.get("OUTLIVE_FAILPOINTS", ""))
