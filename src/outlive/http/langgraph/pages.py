"""Pages of search results, as clients of the LangGraph protocol count them."""

from __future__ import annotations


def headers(offset: int, shown: int, total: int) -> dict[str, str]:
    """Return how many there are in all, and where the next page begins; the last page has none."""
    counted = {"X-Pagination-Total": str(total)}
    if shown and offset + shown < total:
        counted["X-Pagination-Next"] = str(offset + shown)
    return counted
