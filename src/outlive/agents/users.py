"""The user on whose behalf a graph is called, as graphs of LangGraph's platform know one.

Does not decide who anybody is: an application's own ``Auth`` object does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

IN_CONFIG = "langgraph_auth_user"
"""Under which name of ``configurable`` a graph finds the user."""
PREFIX = "langgraph_auth_"
"""What begins with it is said by the service alone: a graph believes it."""


class User(dict[str, Any]):
    """What an application said of a user, by its keys and as attributes."""

    @property
    def identity(self) -> str:
        """What tells users apart."""
        return str(self["identity"])

    @property
    def display_name(self) -> str:
        """What the user is called; the identity if nobody said."""
        return str(self.get("display_name") or self["identity"])

    @property
    def is_authenticated(self) -> bool:
        """True unless it was said otherwise."""
        return bool(self.get("is_authenticated", True))

    @property
    def permissions(self) -> Sequence[str]:
        """What the user may do, in the application's own words."""
        return list(self.get("permissions") or ())

    def __getattr__(self, name: str) -> Any:
        """Return what else was said of the user; raises ``AttributeError``."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def in_config(configurable: dict[str, Any]) -> dict[str, Any]:
    """Return the configurable part of a config with its user as one."""
    found = configurable.get(IN_CONFIG)
    if not isinstance(found, dict) or "identity" not in found:
        return configurable
    return {**configurable, IN_CONFIG: User(found)}


def said_of(user: User) -> dict[str, Any]:
    """Return what a graph's config says of a user."""
    return {
        IN_CONFIG: dict(user),
        f"{IN_CONFIG}_id": user.identity,
        f"{PREFIX}permissions": list(user.permissions),
    }


def without(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without what a caller said of a user: it is not theirs to say."""
    configurable = config.get("configurable")
    if not isinstance(configurable, dict) or not any(name.startswith(PREFIX) for name in configurable):
        return config
    kept = {name: value for name, value in configurable.items() if not name.startswith(PREFIX)}
    return {**config, "configurable": kept}
