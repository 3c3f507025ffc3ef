"""Outlives the process that started it, for as long as it takes to clean up after it.

Run as a program with a directory as its argument. Each line on its standard input names the process to end
when the parent is gone (0: none). It decides only that: when the input ends or the parent changes, whatever
killed it, the named process is told to quit, killed if it does not, and the directory is removed.

A death signal set on the server would be simpler, but it follows the *thread* that started the server, and a
test may start one from a worker thread that ends.
"""

from __future__ import annotations

import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

from outlive.testing import process_tree

_LOOK = (
    0.5  # seconds between two looks at the parent; a forked sibling may hold our input open after its death
)


class Keeper:
    """Holds the pipe to a keeper process. Leaving the context cleans up too: leave it last."""

    def __init__(self, directory: pathlib.Path) -> None:
        command = [sys.executable, "-m", __name__, str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """The id of the keeper process."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Name the process that must not outlive this one; 0 for none."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """Have everything cleaned up now, and wait for it. At most 30 seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _last_word(parent: int) -> int:
    """Read names until the parent is gone; return the last one."""
    buffer = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], _LOOK)[0]:
            continue
        read = os.read(0, 4096)
        if not read:
            break
        buffer = (buffer + read)[-64:]
    names = buffer.rpartition(b"\n")[0].split()
    return int(names[-1]) if names else 0


def _end(pid: int) -> None:
    """Quit first: a server that is only killed leaves its shared memory to the machine."""
    process_tree.thaw(process_tree.freeze(pid))  # whatever was frozen could not quit
    process_tree.send(pid, signal.SIGQUIT)
    try:
        process_tree.wait_gone([pid], within=5)
    except TimeoutError:
        process_tree.wait_gone(process_tree.kill(pid), within=5)


def main() -> None:
    """Wait for the parent's end, then clean up."""
    pid = _last_word(os.getppid())
    if pid:
        _end(pid)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
