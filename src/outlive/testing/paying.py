"""A provider (see ``provider``) started for a test, a demonstration or an experiment, and its log read.

Decides how it is started and ended, and how its log is read; only that log says what was executed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WITHIN = 20.0


class Paying:
    """A provider in a process of its own, for the length of a ``with`` block; ``url`` is where it listens.

    ``options`` are those of its command line: ``--no-keys``, ``--key-ttl 5``.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "provider.jsonl"
        self.url = ""
        self._options = options

    def __enter__(self) -> Self:
        """Start it and wait until it listens.  Blocks."""
        command = [sys.executable, "-m", "outlive.testing.provider", "--log", str(self.log), "--quiet"]
        self._process = subprocess.Popen(
            [*command, *self._options],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self.url = self._process.stderr.readline().decode().split()[-1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(WITHIN)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def script(self, operation: str, *behaviours: dict[str, Any]) -> None:
        """Say how the next requests of an operation shall go.  Blocks."""
        self._post("_script", {"operation": operation, "behaviours": list(behaviours)})

    def release(self) -> None:
        """Let what hangs go on.  Blocks."""
        self._post("_release", {})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:
            answer.read()

    def lines(self, what: str = "effect", step: str | None = None) -> Sequence[dict[str, Any]]:
        """What its log says: the effects, or ``request`` or ``replayed`` lines."""
        if not self.log.exists():
            return []
        said = [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]
        return [each for each in said if each["what"] == what and step in (None, each["step"])]
