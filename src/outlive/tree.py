"""A thread's checkpoints as a tree, with the runs that wrote them.

Decides how forks show: a checkpoint with one child is followed by it, and only where there are several does
the tree branch.  Reads nothing by itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlive.model import Run, Thread
from outlive.store.checkpoints import Mark

_EPOCH = 0x01B21DD213814000
"""Ticks of 100 ns between the beginning of the time in such an id and 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One checkpoint.  ``at`` is when it was written, by its id; ``head``: it is the newest of its graph."""

    mark: Mark
    at: float | None
    children: tuple[str, ...]
    head: bool

    @property
    def run_id(self) -> str | None:
        """The run, or the first of its chain, that wrote it."""
        found = self.mark.metadata.get("run_id")
        return found if isinstance(found, str) else None

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "checkpoint_id": self.mark.checkpoint_id,
            "parent": self.mark.parent,
            "children": list(self.children),
            "step": self.mark.metadata.get("step"),
            "source": self.mark.metadata.get("source"),
            "run_id": self.run_id,
            "at": self.at,
            "marks": list(self.mark.marks),
            "head": self.head,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """All that is known of a thread's checkpoints; ``graphs`` by namespace, the graph itself under ""."""

    thread: Thread
    runs: Mapping[str, Run]
    graphs: Mapping[str, Mapping[str, Node]]

    def public(self) -> dict[str, Any]:
        """Return it as JSON-able values; checkpoints are newest first."""
        return {
            "thread": self.thread.thread,
            "position": self.thread.position,
            "left_by": self.thread.left_by,
            "copied_from": self.thread.copied_from,
            "runs": [
                {"run_id": run.run_id, "origin": run.origin, "agent": run.agent, "state": run.state.value}
                for run in self.runs.values()
            ],
            "graphs": [
                {"namespace": name, "checkpoints": [node.public() for node in nodes.values()]}
                for name, nodes in self.graphs.items()
            ],
        }

    def lines(self) -> Iterator[str]:
        """Draw it: oldest first, a branch where a checkpoint has several children."""
        position = self.thread.position.value if self.thread.position else "nothing left there"
        by = f", left by {self.thread.left_by}" if self.thread.left_by else ""
        copied = f", copied from {self.thread.copied_from}" if self.thread.copied_from else ""
        yield f"{self.thread.thread}: {position}{by}{copied}"
        for name, nodes in self.graphs.items():
            if name:
                yield f"in {name}"
            roots = [one.mark.checkpoint_id for one in nodes.values() if one.mark.parent not in nodes]
            yield from self._branches(nodes, sorted(roots), "")

    def _branches(self, nodes: Mapping[str, Node], ids: Sequence[str], prefix: str) -> Iterator[str]:
        """Draw branches; a stack and no recursion, for a thread may fork as often as it likes."""
        waiting = [(name, prefix, len(ids) > 1, name == ids[-1]) for name in reversed(ids)]
        while waiting:
            name, before, forked, last = waiting.pop()
            node = nodes[name]
            joint = ("└─ " if last else "├─ ") if forked else ""
            yield f"{before}{joint}{self._said(node)}"
            inner = before + (("   " if last else "│  ") if forked else "")
            several = len(node.children) > 1
            last_child = node.children[-1:]
            waiting += [(child, inner, several, (child,) == last_child) for child in reversed(node.children)]

    def _said(self, node: Node) -> str:
        metadata = node.mark.metadata
        words = [
            node.mark.checkpoint_id,
            f"step {metadata.get('step', '?')}",
            str(metadata.get("source", "?")),
        ]
        if node.run_id:
            words.append(self._by(node.run_id))
        words += [f"[{mark}]" for mark in node.mark.marks]
        return "  ".join((*words, "<- newest") if node.head else words)

    def _by(self, run_id: str) -> str:
        """Name a chain by its first run, and its newest run's state: that is what became of it."""
        of_chain = [run for run in self.runs.values() if run.origin == run_id]
        return f"run {run_id} ({of_chain[0].state.value})" if of_chain else f"run {run_id}"


def grown(thread: Thread, runs: Sequence[Run], marks: Sequence[Mark]) -> Tree:
    """Put checkpoints, newest first, and runs, newest first, together."""
    graphs: dict[str, dict[str, Node]] = {}
    children: dict[tuple[str, str | None], list[str]] = {}
    for mark in reversed(marks):
        children.setdefault((mark.namespace, mark.parent), []).append(mark.checkpoint_id)
    for mark in marks:
        of_graph = graphs.setdefault(mark.namespace, {})
        of_graph[mark.checkpoint_id] = Node(
            mark=mark,
            at=written(mark.checkpoint_id),
            children=tuple(children.get((mark.namespace, mark.checkpoint_id), ())),
            head=not of_graph,
        )
    return Tree(thread=thread, runs={run.run_id: run for run in runs}, graphs=dict(sorted(graphs.items())))


def written(checkpoint_id: str) -> float | None:
    """Return when a checkpoint was written, in seconds since the epoch; None if its id does not tell."""
    try:
        found = uuid.UUID(checkpoint_id)
    except ValueError:
        return None
    if found.version != 6:
        return None
    ticks = (found.int >> 80 << 12) | (found.int >> 64 & 0xFFF)
    return (ticks - _EPOCH) / 1e7
