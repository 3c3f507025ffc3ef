"""Starting a command again when a file has changed, for ``outlive dev``.

Decides nothing of what is served: the command runs in a process of its own, which is ended as any server is,
so that its runs are handed back and go on in the next one.
"""

from __future__ import annotations

import importlib
import os
import sys

MARK = "OUTLIVE_RELOADED"
"""Set in the environment of the process that serves."""


def run() -> None:
    """Serve until interrupted, starting again whenever a Python file, a .env or a JSON file here changes."""
    watchfiles = importlib.import_module("watchfiles")
    os.environ[MARK] = "1"
    command = " ".join((sys.executable, "-m", "outlive", *sys.argv[1:]))
    watchfiles.run_process(".", target=command, target_type="command", watch_filter=_Files(watchfiles))


class _Files:
    """What a service is made of."""

    def __init__(self, watchfiles: object) -> None:
        default: type = watchfiles.DefaultFilter  # type: ignore[attr-defined]
        self._default = default()

    def __call__(self, change: object, path: str) -> bool:
        return path.endswith((".py", ".env", ".json", ".toml")) and self._default(change, path)
