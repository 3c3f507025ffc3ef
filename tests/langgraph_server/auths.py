"""Auth objects as applications have them, and the tests' table of what may be asked of them."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

USERS: dict[str, dict[str, Any]] = {
    "ann-token": {"identity": "ann", "permissions": ["chat"], "role": "author"},
    "bob-token": {"identity": "bob"},
    "eve-token": {"identity": "eve", "is_authenticated": False},
}


def owners() -> Auth:
    """Everybody has their own: as the platform's documentation shows it, but for the explicit answers."""
    auth = Auth()
    auth.authenticate(by_token)

    @auth.on
    async def owned(ctx: Auth.types.AuthContext, value: Any) -> Any:
        filters = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(filters)
        return filters

    @auth.on.assistants.search
    async def any_assistant(ctx: Auth.types.AuthContext, value: Any) -> Any:
        del ctx, value
        return True

    @auth.on.store
    async def own_items(ctx: Auth.types.AuthContext, value: Any) -> Any:
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))
        return True

    return auth


async def by_token(authorization: str | None) -> dict[str, Any]:
    """Tell users by what follows Bearer."""
    token = (authorization or "").removeprefix("Bearer ")
    if token not in USERS:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who is that?")
    return USERS[token]


answers: dict[tuple[str, str], Any] = {}
"""What the handler of ``answering`` says for an action; True for what is not in it."""


def answering() -> Auth:
    """A handler that says what a test has it say."""
    auth = Auth()
    auth.authenticate(by_token)

    @auth.on
    async def answer(ctx: Auth.types.AuthContext, value: Any) -> Any:
        del value
        said = answers.get((ctx.resource, ctx.action), True)
        return {"owner": ctx.user.identity} if said == "filter" else said

    return auth
