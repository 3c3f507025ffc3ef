"""Outlives the demonstration for as long as it takes to end its processes.

Run as a program.  Each line on its standard input is ``+pid`` or ``-pid``: a process that must not outlive
the demonstration, or one that has ended.  When the input ends, whatever ended it, the rest is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


class Guard:
    """Holds the pipe to a guard process.  ``subject`` only says in a list of processes what it is for."""

    def __init__(self, subject: str) -> None:
        command = [sys.executable, "-m", "demo.guard", subject]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, pid: int) -> None:
        """Have a process killed when this one is gone."""
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """Leave a process alone that has ended: its number may be given to another."""
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Let the guard end, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


def main() -> None:
    """Listen to the end, then kill what is left."""
    left: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        (left.add if line[0] == "+" else left.discard)(pid)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)  # also ends a process that is frozen
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
