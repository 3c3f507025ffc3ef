"""What a handler of an ``Auth`` object lets a user see: members that the metadata of a thing must have.

``{"owner": "ann"}`` and ``{"owner": {"$eq": "ann"}}`` say what a member is, ``{"$contains": one or several}``
what a list has in it.  All must hold.  Anything else is an error, for a condition that is left out lets in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlive import errors


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Members that are equal to something, and lists that hold something."""

    equal: Mapping[str, Any] = field(default_factory=dict)
    holding: Mapping[str, list[Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return bool(self.equal or self.holding)

    def passes(self, metadata: Mapping[str, Any]) -> bool:
        """Say whether all conditions hold."""
        return all(_same(metadata, name, value) for name, value in self.equal.items()) and all(
            _holds(metadata.get(name), wanted) for name, wanted in self.holding.items()
        )

    def given_to(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata that passes: whoever makes something must be able to see it, and as what it is."""
        made = {**metadata, **self.equal}
        for name, wanted in self.holding.items():
            now = made.get(name)
            held = now if isinstance(now, list) else []
            made[name] = [*held, *(one for one in wanted if one not in held)]
        return made

    def keeps(self, change: Mapping[str, Any]) -> bool:
        """Say whether a thing that passes still does when ``change`` is merged into its metadata."""
        named = {*self.equal, *self.holding} & change.keys()
        return all(
            _same(change, name, self.equal[name])
            if name in self.equal
            else _holds(change[name], self.holding[name])
            for name in named
        )


NOTHING = Filter()


def read(found: Mapping[str, Any]) -> Filter:
    """Return the filter that a handler gave; raises ``Misconfigured``."""
    equal: dict[str, Any] = {}
    holding: dict[str, list[Any]] = {}
    for name, condition in found.items():
        if not isinstance(condition, Mapping):
            equal[name] = condition
        elif condition.keys() == {"$eq"}:
            equal[name] = condition["$eq"]
        elif condition.keys() == {"$contains"}:
            wanted = condition["$contains"]
            holding[name] = list(wanted) if isinstance(wanted, list | tuple | set) else [wanted]
        else:
            raise errors.Misconfigured(
                f"A handler's filter says {condition!r} of {name!r}.",
                hint='A condition is a value, {"$eq": value}, or {"$contains": one or several}.',
            )
    return Filter(equal=equal, holding=holding)


def _same(metadata: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in metadata and type(metadata[name]) is type(value) and bool(metadata[name] == value)


def _holds(value: Any, wanted: list[Any]) -> bool:
    return isinstance(value, list) and all(
        any(type(one) is type(item) and one == item for item in value) for one in wanted
    )
