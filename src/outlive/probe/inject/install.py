"""Put every hook in place: some at once, the others as the module that they belong to is imported."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence

from . import frameworks, generators, nodes, tape  # noqa: TID252  (the directory runs under another name)

#: The process of the probe: a service that it started does not outlive it, however it ends.
OWNER_VARIABLE = "OUTLIVE_PROBE_OWNER"

#: Seconds between two looks whether the probe is still there.
LOOK = 0.5

Patch = Callable[[types.ModuleType], None]

PATCHES: dict[str, Patch] = {
    "langgraph.pregel._retry": nodes.patch,
    "starlette.responses": frameworks.patch_responses,
    "starlette.background": frameworks.patch_background,
    "starlette.requests": frameworks.patch_requests,
    "fastapi.dependencies.utils": frameworks.patch_dependencies,
    "sse_starlette.sse": frameworks.patch_responses,
}


class Finder(importlib.abc.MetaPathFinder):
    """Let the ordinary finders find, and patch right after the module was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = PATCHES.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _patching(spec.loader.exec_module, patch)  # type: ignore[assignment, method-assign]
        return spec


def _patching(
    execute: Callable[[types.ModuleType], None], patch: Patch
) -> Callable[[types.ModuleType], None]:
    def executed(module: types.ModuleType) -> None:
        execute(module)
        patch(module)
        tape.note("patched", module=module.__name__)

    return executed


def everything() -> None:
    """Install the hooks in this process."""
    sys.meta_path.insert(0, Finder())
    generators.patch()
    tape.note("process.start", argv=sys.argv[:1])
    atexit.register(tape.note, "process.exit")
    if os.environ.get(OWNER_VARIABLE) == str(os.getppid()):
        threading.Thread(target=_end_with_the_probe, name="outlive-probe-owner", daemon=True).start()


def _end_with_the_probe() -> None:
    owner = os.getppid()
    while os.getppid() == owner:
        time.sleep(LOOK)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # the service leads a group of its own
