"""Async generators: which are left for the garbage collector to close, and which stay open.

The hooks that every event loop installs (`sys.set_asyncgen_hooks`) are wrapped, so that asyncio's loop and
others are seen alike. A thread looks at the open ones from time to time; it never forces a collection.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import tape  # noqa: TID252  (the directory runs under another name)

#: Suspended at a `yield` for this long, seen twice, with nobody iterating: left behind. Seconds.
LEFT_AFTER = 0.5

_open: dict[int, tuple[weakref.ref[Any], str | None]] = {}
_suspended: dict[int, float] = {}
_noted: set[int] = set()
_install = sys.set_asyncgen_hooks


def patch() -> None:
    """See every async generator that is first iterated from now on."""
    sys.set_asyncgen_hooks = _hooks
    threading.Thread(target=_watch, name="outlive-probe-generators", daemon=True).start()


def _hooks(*args: Any, **kwargs: Any) -> None:
    first, last = (*args, None, None)[:2]
    first = kwargs.get("firstiter", first)
    last = kwargs.get("finalizer", last)
    _install(firstiter=first and _first(first), finalizer=last and _last(last))


def _first(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    def noted(generator: Any) -> None:
        if owner(generator) != "library":
            _open[id(generator)] = (weakref.ref(generator), tape.request.get())
        hook(generator)

    return noted


def _last(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    def noted(generator: Any) -> None:
        _, request = _open.pop(id(generator), (None, None))
        if owner(generator) != "library":
            _note("collected", id(generator), generator, request)
        hook(generator)

    return noted


def _note(what: str, key: int, generator: Any, request: str | None) -> None:
    name, whose = generator.__qualname__, owner(generator)
    tape.note(f"generator.{what}", name=name, owner=whose, of=request, key=_named(key))


def _named(key: int) -> str:
    return f"{os.getpid()}-{key}"


def owner(generator: Any) -> str:
    """Whose code it is: `app`, `langgraph` (whose driver holds a run's resources), or another `library`."""
    path = generator.ag_code.co_filename
    if "/langgraph/" in path:
        return "langgraph"
    return "library" if path.startswith((*_library_paths(), "<")) else "app"


def _library_paths() -> tuple[str, ...]:
    with contextlib.suppress(AttributeError):
        return (sysconfig.get_path("stdlib"), *site.getsitepackages())
    return (sysconfig.get_path("stdlib"),)


def _watch() -> None:
    while True:
        time.sleep(LEFT_AFTER / 5)
        for key, (reference, request) in list(_open.items()):
            _look(key, reference(), request)


def _look(key: int, generator: Any, request: str | None) -> None:
    if generator is None or generator.ag_frame is None:
        _forget(key)
    elif generator.ag_running:
        _suspended.pop(key, None)
    elif time.monotonic() - _suspended.setdefault(key, time.monotonic()) > LEFT_AFTER and key not in _noted:
        _noted.add(key)
        _note("idle", key, generator, request)


def _forget(key: int) -> None:
    if key in _noted:
        tape.note("generator.closed", key=_named(key))
    _open.pop(key, None)
    _suspended.pop(key, None)
    _noted.discard(key)
