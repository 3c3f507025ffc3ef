"""The items of graphs' long-term memory, as far as they are ours to look after: which have passed.

How they are kept is LangGraph's affair.
"""

from __future__ import annotations

from outlive.store.script import Steps, script, statement


@script()
def by_itself() -> Steps[None]:
    """Nothing, for a transaction whose work is LangGraph's."""
    yield from ()


@script()
def drop_passed() -> Steps[int]:
    """Delete the items whose time has passed; returns how many."""
    if not (yield statement("has_items")):
        return 0
    return len((yield statement("drop_passed_items")))
