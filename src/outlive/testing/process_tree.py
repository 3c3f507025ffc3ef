"""Finds and signals a process together with all its descendants.

Decides in which order they are signalled, so that no child forked meanwhile escapes. It does not decide when,
and it does not reap: whoever started the root process waits for it.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time

_PROC = pathlib.Path("/proc")


def freeze(root: int) -> list[int]:
    """Stop `root` and every descendant with SIGSTOP; return their ids, the root first.

    A parent is stopped before its children are listed, so it cannot fork one that is missed.
    """
    frozen = [root]
    send(root, signal.SIGSTOP)
    for pid in frozen:
        found = [child for child in _children(pid) if child not in frozen]
        for child in found:
            send(child, signal.SIGSTOP)
        frozen += found
    return frozen


def thaw(pids: list[int]) -> None:
    """Continue frozen processes, children before parents, so that no parent takes a child for hung."""
    for pid in reversed(pids):
        send(pid, signal.SIGCONT)


def kill(root: int) -> list[int]:
    """Kill `root` and every descendant with SIGKILL; return their ids. The caller reaps its own child."""
    pids = freeze(root)
    for pid in pids:
        send(pid, signal.SIGKILL)
    return pids


def wait_gone(pids: list[int], *, within: float) -> None:
    """Wait until none of `pids` runs (a zombie does not); raise TimeoutError after `within` seconds."""
    deadline = time.monotonic() + within
    while left := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} still run {within} s after they were killed")
        time.sleep(0.005)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal and not been continued."""
    return any(pid == known and state == "T" for known, _, state in _table())


def _runs(pid: int) -> bool:
    return any(pid == known and state != "Z" for known, _, state in _table())


def _children(parent: int) -> list[int]:
    return [pid for pid, owner, _ in _table() if owner == parent]


def _table() -> list[tuple[int, int, str]]:
    """Every process as (id, parent's id, state)."""
    return _table_of_proc() if (_PROC / "self" / "stat").exists() else _table_of_ps()


def _table_of_proc() -> list[tuple[int, int, str]]:
    return [row for entry in os.listdir(_PROC) if entry.isdigit() and (row := _row(entry))]


def _row(entry: str) -> tuple[int, int, str] | None:
    try:
        text = (_PROC / entry / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):  # it ended between the listing and the reading
        return None
    # The name is in parentheses and may itself hold spaces and parentheses.
    state, parent = text.rpartition(")")[2].split()[:2]
    return int(entry), int(parent), state


def _table_of_ps() -> list[tuple[int, int, str]]:
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], check=True, capture_output=True, text=True)
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [(int(pid), int(parent), state[0]) for pid, parent, state in rows]
