"""The table of the routes of this protocol, with the resource and action that handlers know each by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fastapi import Request

from outlive import errors

THREAD = "Thread with ID {name} not found."
RUN = "Run not found."
RUN_ON = "Thread {name} not found."
INDEX = "There is no thread '{name}'."
STARTS = frozenset({"run.start", "input.respond", "state.fork"})
"""The commands that make a run."""


class Of(StrEnum):
    """What a request is about: something to make, one thing, a search, a run to make, and so on."""

    NEW = "new"
    ONE = "one"
    SEARCH = "search"
    RUN = "run"
    BATCH = "batch"
    COMMAND = "command"
    SEVERAL = "several"
    ITEM = "item"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Who decides.  ``unknown`` is what is said of what is hidden, as of what is not there.

    ``copies``: a thread is made of this one.  ``enters``: it is made if it is not there yet.
    """

    resource: str
    action: str
    of: Of
    unknown: str = THREAD
    copies: bool = False
    enters: bool = False


def _rules(resource: str, action: str, of: Of, *routes: str, unknown: str = THREAD) -> dict[str, Rule]:
    rule = Rule(resource=resource, action=action, of=of, unknown=unknown)
    return dict.fromkeys(routes, rule)


_A, _T, _R = "/assistants/{assistant_id}", "/threads/{thread_id}", "/threads/{thread_id}/runs"
RULES: dict[str, Rule] = {
    **_rules("assistants", "create", Of.NEW, "POST /assistants"),
    **_rules("assistants", "search", Of.SEARCH, "POST /assistants/search", "POST /assistants/count"),
    **_rules("assistants", "read", Of.ONE, f"GET {_A}", f"GET {_A}/graph", f"GET {_A}/schemas"),
    **_rules("assistants", "read", Of.ONE, f"GET {_A}/subgraphs", f"GET {_A}/subgraphs/{{namespace}}"),
    **_rules("assistants", "read", Of.ONE, f"POST {_A}/versions"),
    **_rules("assistants", "update", Of.ONE, f"PATCH {_A}", f"POST {_A}/latest"),
    **_rules("assistants", "delete", Of.ONE, f"DELETE {_A}"),
    **_rules("threads", "create", Of.NEW, "POST /threads"),
    **_rules("threads", "search", Of.SEARCH, "POST /threads/search", "POST /threads/count"),
    **_rules("threads", "read", Of.ONE, f"GET {_T}", f"GET {_T}/state", f"POST {_T}/state/checkpoint"),
    **_rules("threads", "read", Of.ONE, f"GET {_T}/state/{{checkpoint_id}}", f"GET {_T}/history"),
    **_rules("threads", "read", Of.ONE, f"POST {_T}/history", f"GET {_T}/stream"),
    f"POST {_T}/stream/events": Rule(resource="threads", action="read", of=Of.ONE, enters=True),
    f"POST {_T}/copy": Rule(resource="threads", action="read", of=Of.ONE, copies=True),
    **_rules("threads", "update", Of.ONE, f"PATCH {_T}", f"POST {_T}/state", f"PATCH {_T}/state"),
    **_rules("threads", "delete", Of.ONE, f"DELETE {_T}"),
    **_rules("threads", "delete", Of.SEVERAL, "POST /threads/prune"),
    **_rules("threads", "create_run", Of.COMMAND, f"POST {_T}/commands"),
    **_rules("threads", "create_run", Of.BATCH, "POST /runs/batch"),
    **_rules("threads", "update", Of.SEVERAL, "POST /runs/cancel", unknown=RUN),
    **_rules("threads", "read", Of.ONE, f"GET {_R}", unknown=INDEX),
    **_rules("threads", "delete", Of.ONE, f"DELETE {_R}/{{run_id}}", unknown=RUN),
    **_rules("crons", "create", Of.NEW, "POST /runs/crons", f"POST {_R}/crons"),
    **_rules("crons", "search", Of.SEARCH, "POST /runs/crons/search", "POST /runs/crons/count"),
    **_rules("crons", "read", Of.ONE, "GET /runs/crons/{cron_id}"),
    **_rules("crons", "update", Of.ONE, "PATCH /runs/crons/{cron_id}"),
    **_rules("crons", "delete", Of.ONE, "DELETE /runs/crons/{cron_id}"),
    **_rules("store", "put", Of.ITEM, "PUT /store/items"),
    **_rules("store", "get", Of.ITEM, "GET /store/items"),
    **_rules("store", "delete", Of.ITEM, "DELETE /store/items"),
    **_rules("store", "search", Of.ITEM, "POST /store/items/search"),
    **_rules("store", "list_namespaces", Of.ITEM, "POST /store/namespaces"),
}
for _prefix in (_R, "/runs"):
    RULES |= {
        **_rules("threads", "create_run", Of.RUN, f"POST {_prefix}", unknown=RUN_ON),
        **_rules("threads", "create_run", Of.RUN, f"POST {_prefix}/stream", f"POST {_prefix}/wait"),
        **_rules("threads", "read", Of.ONE, f"GET {_prefix}/{{run_id}}", unknown=RUN),
        **_rules("threads", "read", Of.ONE, f"GET {_prefix}/{{run_id}}/stream", unknown=RUN),
        **_rules("threads", "read", Of.ONE, f"GET {_prefix}/{{run_id}}/join", unknown=RUN),
        **_rules("threads", "update", Of.ONE, f"POST {_prefix}/{{run_id}}/cancel", unknown=RUN),
    }
NAMESPACES = {
    "put": "namespace",
    "get": "namespace",
    "delete": "namespace",
    "search": "namespace_prefix",
    "list_namespaces": "prefix",
}
"""Under which name each request about items says where they are."""


def of(request: Request) -> Rule:
    """Return the rule of a request's route; raises ``Forbidden`` for a route that has none."""
    template = request.scope["route"].path
    rule = RULES.get(f"{request.method} {template}")
    if rule is None:
        raise errors.Forbidden(f"No handler decides about {request.method} {template}.")
    return rule
