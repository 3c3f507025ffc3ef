"""The rules for a value that is not plain: which of its parts are written, and where a placeholder stands.

Decides: how each kind of container and object is taken apart, in which order the rules are tried, and what is
reported. Does not decide: the form of a leaf (`leaves`), or what counts as plain (`plain`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from outlive.encoding import leaves, limits, plain

_BUILT_IN: Final = (dict, list, tuple, set, frozenset)
# Fields of LangGraph's types that older clients do not know are left out while they are None.
_ADDED_LATER: Final = {"Interrupt": "response_schema", "Send": "timeout"}

_Path: TypeAlias = "tuple[_Path, str | int] | None"
_Form: TypeAlias = "Callable[[Walk, Any, _Path, int], str]"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placeholder:
    """Something that the text does not hold: where (a JSON pointer), of which type, and why."""

    path: str
    type: str
    why: str


class Walk:
    """One encoding: the budget, the report, and the rules for values that are not plain."""

    def __init__(self) -> None:
        self.left = limits.MAX_NODES
        self.report: list[Placeholder] = []
        self.open: set[int] = set()  # the containers that the walk is inside of

    def plain(self, value: object, depth: int) -> str:
        """The text of a value that is plain through and through, else an empty one."""
        text, count = plain.text_of(value, levels=limits.MAX_DEPTH - depth, limit=self.left)
        self.left -= count
        return text

    def placeholder(self, value: object, path: _Path, why: str) -> str:
        self.add(value, path, why)
        kind = leaves.quote(_name_of(type(value)))
        return leaves.joined(((limits.TAG, '"placeholder"'), ("type", kind), ("why", leaves.quote(why))))

    def add(self, value: object, path: _Path, why: str) -> None:
        if len(self.report) < limits.MAX_REPORTED:
            self.report.append(Placeholder(path=_pointer(path), type=_name_of(type(value)), why=why))

    def convert(self, value: object, path: _Path, depth: int, *, tried: bool = False) -> str:
        """The text that stands for `value`. Whatever goes wrong inside ends here, as a placeholder.

        tried: it is known not to be plain, or looking again would cost more than it saves.
        """
        self.left -= 1
        if self.left < 0:
            return self.placeholder(value, path, limits.TOO_MANY)
        inside = id(value)
        common = type(value) in plain.CONTAINERS
        try:
            if not common and (leaf := self.leaf(value, path)) is not None:
                return leaf
            if inside in self.open or depth >= limits.MAX_DEPTH:
                return self.placeholder(value, path, limits.CYCLE if inside in self.open else limits.TOO_DEEP)
            if common and not tried and (text := self.plain(value, depth)):
                return text
            self.open.add(inside)
            try:
                return _form_of(value)(self, value, path, depth + 1)
            finally:
                self.open.discard(inside)
        except MemoryError:
            raise
        except Exception as failure:  # a value's own code may raise anything
            return self.placeholder(value, path, f"raised {_name_of(type(failure))}")

    def leaf(self, value: object, path: _Path) -> str | None:
        """The text of a value that holds no others, else None."""
        if isinstance(value, str):
            return leaves.quote(self.text(value, path))
        if text := leaves.text_of(value):
            return text
        spelled = leaves.spelled(value)
        return None if spelled is None else leaves.quote(self.text(spelled, path))

    def text(self, value: str, path: _Path) -> str:
        exact = str.__str__(value)  # the characters it holds, whatever a subclass says
        if leaves.is_unicode(exact):
            return exact
        # Two halves that stand side by side become the character that they mean.
        halves = exact.encode("utf-16-le", "surrogatepass")
        whole = halves.decode("utf-16-le", "replace")
        if whole.encode("utf-16-le") != halves:
            self.add(value, path, limits.SURROGATES)
        return whole

    def reached(self, reach: Callable[[], object], owner: object, path: _Path, depth: int) -> str:
        """The text of what a value's own code hands out. If that code fails, only this place is lost."""
        try:
            found = reach()
        except MemoryError:
            raise
        except Exception as failure:
            return self.placeholder(owner, path, f"raised {_name_of(type(failure))}")
        return self.convert(found, path, depth)

    def bounded(self, items: Iterable[Any]) -> list[Any]:
        """The items while the budget lasts: an overridden ``__iter__`` may never end."""
        return list(itertools.islice(items, max(self.left, 0) + 1))

    def sequence(self, value: Iterable[object], path: _Path, depth: int) -> str:
        items = self.bounded(value)
        deeper = type(value) in plain.CONTAINERS and plain.has_only_plain(items)
        texts = [self.convert(item, (path, index), depth, tried=deeper) for index, item in enumerate(items)]
        return f"[{','.join(texts)}]"

    def unordered(self, value: Iterable[object], path: _Path, depth: int) -> str:
        """Sorted by their text, since the order of a set changes from process to process."""
        before = len(self.report)
        texts = [self.convert(item, (path, "*"), depth) for item in self.bounded(value)]
        self.report[before:] = sorted(self.report[before:], key=dataclasses.astuple)
        return f"[{','.join(sorted(texts))}]"

    def mapping(self, value: abc.Mapping[object, object], path: _Path, depth: int) -> str:
        items = self.bounded(value.items())
        names = {name: item for key, item in items if (name := leaves.key_of(key)) is not None}
        if len(names) < len(items) or limits.TAG in names:
            # Names that are missing or alike would lose entries, so the keys become values too.
            return leaves.tagged("dict", self.unordered(items, (path, "value"), depth))
        names_are_plain = type(value) is dict and plain.STR.issuperset(map(type, value))
        deeper = names_are_plain and plain.has_only_plain(names.values())
        return leaves.joined(
            (name, self.convert(item, (path, name), depth, tried=deeper)) for name, item in names.items()
        )

    def exception(self, value: BaseException, path: _Path, depth: int) -> str:
        said = self.reached(functools.partial(str, value), value, (path, "message"), depth)
        return leaves.joined((("error", leaves.quote(_name_of(type(value)))), ("message", said)))

    def model(self, value: Any, path: _Path, depth: int) -> str:
        """What a pydantic model (LangChain's messages are some) says of itself: its fields."""
        kind: Any = type(value)
        dump = kind.model_dump if hasattr(kind, "model_dump") else kind.dict
        try:
            # A field declared as a base class would lose what the subclass adds: a message its tool calls.
            fields = dump(value, serialize_as_any=True, warnings=False)
        except TypeError:  # pydantic 1, or a signature of its own
            fields = dump(value)
        return self.convert(fields, path, depth)

    def fields(self, value: object, path: _Path, depth: int) -> str:
        late = _ADDED_LATER.get(type(value).__name__)
        reach = functools.partial(functools.partial, getattr, value)
        return leaves.joined(
            (name, self.reached(reach(name), value, (path, name), depth))
            for name in _field_names(value) or ()
            if name != late or getattr(value, name) is not None
        )

    def array(self, value: Any, path: _Path, depth: int) -> str:
        if value.size > limits.MAX_ITEMS:
            return self.placeholder(value, path, limits.TOO_LARGE)
        # A date finer than a microsecond would come out as a bare integer.
        items = (value.astype(str) if value.dtype.kind == "M" else value).tolist()
        endless = type(items) is type(value)  # a long double has no Python counterpart
        return self.placeholder(value, path, limits.NO_FORM) if endless else self.convert(items, path, depth)

    def formless(self, value: object, path: _Path, depth: int) -> str:
        waits = isinstance(value, abc.Iterator | abc.AsyncIterator | abc.Awaitable)
        large = isinstance(value, abc.Mapping | abc.Sequence | abc.Set)
        return self.placeholder(
            value, path, limits.ITERATOR if waits else limits.TOO_LARGE if large else limits.NO_FORM
        )


def _form_of(value: Any) -> _Form:
    """The rule for a value that is no leaf. The more a type says of itself, the earlier it is asked."""
    for applies, form in _RULES:
        if applies(value):
            return form
    for collection, form in _COLLECTIONS:
        if isinstance(value, collection) and (isinstance(value, _BUILT_IN) or len(value) <= limits.MAX_ITEMS):
            return form
    return Walk.formless


def _is_model(value: object) -> bool:
    kind = type(value)
    return hasattr(kind, "model_dump") or (hasattr(kind, "__fields__") and hasattr(kind, "dict"))


def _field_names(value: Any) -> list[str] | None:
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    if kind.__name__ == "Send" and hasattr(value, "node"):  # LangGraph's, neither a dataclass nor a model
        return ["node", "arg", "timeout"]
    return None


_RULES: Final[tuple[tuple[Callable[[Any], bool], _Form], ...]] = (
    (lambda value: isinstance(value, enum.Enum), lambda walk, value, *at: walk.convert(value.value, *at)),
    (lambda value: isinstance(value, BaseException), Walk.exception),
    (_is_model, Walk.model),
    (lambda value: _field_names(value) is not None, Walk.fields),
    (lambda value: leaves.is_of(value, "numpy", "generic", "ndarray"), Walk.array),
)
_COLLECTIONS: Final[tuple[tuple[Any, _Form], ...]] = (
    (abc.Mapping, Walk.mapping),
    (abc.Sequence, Walk.sequence),
    (abc.Set, Walk.unordered),
)


def _name_of(kind: type) -> str:
    try:
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return name.encode("ascii", "backslashreplace").decode("ascii")
    except Exception:  # a metaclass may answer with anything
        return "unknown"


def _pointer(path: _Path) -> str:
    """The JSON pointer (RFC 6901) of a place in the text, its first 1,000 characters."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append("/" + str(step).replace("~", "~0").replace("/", "~1"))
    return "".join(reversed(steps))[:1_000]
