"""LangGraph's checkpoint tables, read from outside: position, pending tasks, steps, the tree and its forks.

The rows are decoded by LangGraph's own savers, opened for reading; the graph itself is not needed. Whether a
torn thread paused at a static breakpoint is not on record, so such a thread reads as torn.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sqlite3
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlive.probe.evidence.found import Checkpoint, Found, Position, Record

#: Channels with which LangGraph triggers a node, and those that are its own.
BRANCH = "branch:to:"
JOIN = "join:"
SENDS = "__pregel_tasks"
START = "__start__"
OWN_WRITES = {"__error__", "__interrupt__", "__resume__", "__scheduled__"}

#: Values of the state are shown cut off at this many characters.
SHOWN = 300


@dataclass(frozen=True, kw_only=True)
class Write:
    """A pending write: which task wrote to which channel."""

    task: str
    path: str
    channel: str


class Sqlite:
    """The tables of `SqliteSaver` and `AsyncSqliteSaver` in a file."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    def begin(self, thread: str) -> None:
        """Each scenario has a thread of its own, so there is nothing to remember."""

    def read(self, thread: str) -> Found:
        if not self._path.exists():
            return Found(source="langgraph-sqlite", record=Record(position=Position.NONE))
        savers: Any = importlib.import_module("langgraph.checkpoint.sqlite")
        place = f"file:{urllib.parse.quote(str(self._path))}?mode=ro"
        with contextlib.closing(sqlite3.connect(place, uri=True)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints'").fetchall():
                return Found(source="langgraph-sqlite", record=Record(position=Position.NONE))
            saver = savers.SqliteSaver(connection)
            saver.is_setup = True  # setting up would write to somebody else's database
            rows = connection.execute(
                "SELECT checkpoint_id, task_id, task_path, channel FROM writes"
                " WHERE thread_id = ? AND checkpoint_ns = ''",
                (thread,),
            ).fetchall()
            return Found(source="langgraph-sqlite", record=_record(saver, thread, rows))


class Postgres:
    """The tables of `PostgresSaver` and `AsyncPostgresSaver` in a database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def begin(self, thread: str) -> None:
        """Each scenario has a thread of its own, so there is nothing to remember."""

    def read(self, thread: str) -> Found:
        savers: Any = importlib.import_module("langgraph.checkpoint.postgres")
        with savers.PostgresSaver.from_conn_string(self._dsn) as saver:
            with saver.conn.cursor() as cursor:
                cursor.execute("SELECT to_regclass('checkpoint_writes') IS NOT NULL AS there")
                if not cursor.fetchall()[0]["there"]:
                    return Found(source="langgraph-postgres", record=Record(position=Position.NONE))
                cursor.execute(
                    "SELECT checkpoint_id, task_id, task_path, channel FROM checkpoint_writes"
                    " WHERE thread_id = %s AND checkpoint_ns = ''",
                    (thread,),
                )
                rows = [tuple(row.values()) for row in cursor.fetchall()]
            return Found(source="langgraph-postgres", record=_record(saver, thread, rows))


def _record(saver: Any, thread: str, rows: Iterable[Sequence[Any]]) -> Record:
    tuples = list(saver.list({"configurable": {"thread_id": thread}}))
    writes: dict[str, list[Write]] = defaultdict(list)
    for checkpoint, task, path, channel in rows:
        writes[checkpoint].append(Write(task=task, path=path, channel=channel))
    return record_of(tuples, writes)


def record_of(tuples: Sequence[Any], writes: dict[str, list[Write]]) -> Record:
    """The record that LangGraph checkpoint tuples (any order) and the pending writes by checkpoint make."""
    if not tuples:
        return Record(position=Position.NONE)
    by_id = {_id(item): item for item in tuples}
    tree = tuple(_checkpoint(item, by_id) for item in sorted(tuples, key=_id))
    root = [item for item in sorted(tuples, key=_id) if not _namespace(item)]
    if not root:
        return Record(position=Position.NONE, checkpoints=tree)
    head = root[-1]
    nexts, tasks, waiting = _pending(head.checkpoint, writes.get(_id(head), []))
    return Record(
        position=_position(tasks, waiting=waiting),
        next=nexts,
        tasks=tasks,
        checkpoints=tree,
        head=tuple(_path_to(_id(head), tree)),
        anywhere=Counter(node for checkpoint in tree for node in checkpoint.nodes),
        forks=_forks(tree),
        values=_values(head.checkpoint["channel_values"]),
    )


def _id(item: Any) -> str:
    return str(item.config["configurable"]["checkpoint_id"])


def _namespace(item: Any) -> str:
    return str(item.config["configurable"].get("checkpoint_ns", ""))


def _parent(item: Any) -> str | None:
    return None if item.parent_config is None else str(item.parent_config["configurable"]["checkpoint_id"])


def _checkpoint(item: Any, by_id: dict[str, Any]) -> Checkpoint:
    parent = _parent(item)
    return Checkpoint(
        id=_id(item),
        parent=parent,
        namespace=_namespace(item),
        step=int(item.metadata.get("step", 0)),
        source=str(item.metadata.get("source", "")),
        nodes=_taken_in(item, by_id.get(parent or "")),
    )


def _taken_in(item: Any, parent: Any) -> tuple[str, ...]:
    # A node has run between two checkpoints exactly if what it has seen differs between them; but new input
    # marks the tasks that it discards as seen, too.
    if item.metadata.get("source") != "loop":
        return ()
    before = parent.checkpoint["versions_seen"] if parent is not None else {}
    seen = item.checkpoint["versions_seen"]
    outer = "".join(f"{part.partition(':')[0]}/" for part in _namespace(item).split("|") if part)
    return tuple(
        outer + node for node in seen if not node.startswith("__") and seen[node] != before.get(node)
    )


def _pending(
    checkpoint: dict[str, Any], writes: Sequence[Write]
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """As LangGraph tells it: `next` leaves out tasks that have written already; `tasks` does not."""
    tasks = tuple(_triggered(checkpoint["channel_values"]))
    wrote = {write.task: write for write in writes if write.channel not in OWN_WRITES}
    finished = Counter(write.path.split(", ")[-1] for write in wrote.values())
    waiting = any(write.channel == "__interrupt__" for write in writes)
    nexts = [task for task in tasks if not finished[task]]
    return tuple(nexts), tasks, waiting and bool(nexts)


def _triggered(values: dict[str, Any]) -> Iterator[str]:
    for channel, value in sorted(values.items()):
        if channel.startswith(BRANCH):
            yield channel.removeprefix(BRANCH)
        elif channel.startswith(JOIN):
            awaited, _, node = channel.removeprefix(JOIN).rpartition(":")
            if set(value) >= set(awaited.split("+")):
                yield node
        elif channel == SENDS:
            yield from (send.node for send in value)
        elif channel == START:
            yield START


def _position(tasks: Sequence[str], *, waiting: bool) -> Position:
    if waiting:
        return Position.WAITING
    return Position.TORN if tasks else Position.FINISHED


def _path_to(head: str, tree: Sequence[Checkpoint]) -> list[str]:
    by_id = {checkpoint.id: checkpoint for checkpoint in tree if not checkpoint.namespace}
    path: list[str] = []
    at: str | None = head
    while at in by_id:
        path[:0] = by_id[at].nodes
        at = by_id[at].parent
    return path


def _forks(tree: Sequence[Checkpoint]) -> int:
    # Two roots are a fork as well: two first messages that did not know of each other.
    children = Counter((c.namespace, c.parent) for c in tree)
    return sum(count - 1 for count in children.values() if count > 1)


def _values(values: dict[str, Any]) -> dict[str, str]:
    shown = {name: repr(value)[:SHOWN] for name, value in values.items()}
    return {name: text for name, text in shown.items() if not name.startswith(("__", BRANCH, JOIN))}
