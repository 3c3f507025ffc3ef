"""Strict ASCII JSON for any value that an agent yields.

Decides: which JSON stands for which Python value, what becomes a placeholder, how large a value may grow.
Does not decide: which values are recorded, how text is framed for a client, what is done with a report.

Values made of plain JSON types take one pass of the C encoder; everything else takes ``_Walk``. What text can
hold but JSON cannot becomes a tagged object (``{"$outlive": "bytes", "value": "..."}``). What cannot be held
at all becomes a placeholder and is reported: it never costs the run. docs/encoding.md has the table of forms.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import itertools
import json
import math
import pathlib
import uuid
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

TAG: Final = "$outlive"  # marks an object as one of ours; a mapping with this key is written as pairs
MAX_DEPTH: Final = 100  # nested containers; clients' parsers stop at about 1,000 levels
MAX_NODES: Final = 1_000_000  # values in one encoding: a small value may hold itself many times over
MAX_ITEMS: Final = 10_000  # of a numpy array, or of a collection that is no built-in
MAX_REPORTED: Final = 100  # placeholders in a report; the text may hold more
MAX_SAFE_INTEGER: Final = 2**53 - 1  # the largest integer that JavaScript reads exactly

CYCLE: Final = "contains itself"  # these are the reasons that a report gives, and "raised SomeError"
ITERATOR: Final = "an iterator is not consumed"
NO_FORM: Final = "has no JSON form"
SURROGATES: Final = "lone surrogates replaced by U+FFFD"
TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH}"
TOO_LARGE: Final = f"more than {MAX_ITEMS} items"
TOO_MANY: Final = f"more than {MAX_NODES} values"

_CONTAINERS: Final = frozenset({dict, list, tuple})
_SMALL: Final = frozenset({str, float, bool, type(None)})
_PLAIN: Final = _CONTAINERS | _SMALL | {int}
_BUILT_IN: Final = (dict, list, tuple, set, frozenset)
_SPELLED: Final = (uuid.UUID, decimal.Decimal, pathlib.PurePath)
# Fields of LangGraph's types that older clients do not know are left out while they are None.
_ADDED_LATER: Final = {"Interrupt": "response_schema", "Send": "timeout"}

_Path: TypeAlias = "tuple[_Path, str | int] | None"
_Form: TypeAlias = "Callable[[_Walk, Any, _Path, int], Any]"

_dumps: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Placeholder:
    """Something that the text does not hold: where (a JSON pointer), of which type, and why."""

    path: str
    type: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A value as strict JSON in printable ASCII, and what it does not hold (the first `MAX_REPORTED`)."""

    text: str
    placeholders: tuple[Placeholder, ...] = ()


def encode(value: object) -> Encoded:
    """Write any value as strict JSON: no NaN, nothing outside printable ASCII, no lone surrogate.

    Never raises for what it is given (MemoryError, and what is no Exception, such as KeyboardInterrupt, pass
    through), never changes it, and consumes no iterator. The same value has the same text in every process.
    """
    text = _fast(value)
    return _Walk().encoded(value) if text is None else Encoded(text=text)


def fingerprint(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: key order, and 1 against 1.0, make no difference.

    Meant for the bodies of requests. Values that JSON cannot hold are equal when their placeholders are.
    """
    tree = json.loads(encode(value).text, parse_float=_canonical_number)
    return hashlib.sha256(_sorted_text(tree).encode("ascii")).hexdigest()


def _fast(value: object) -> str | None:
    """The text of a value that is plain through and through, or None if only the walk can tell."""
    try:
        if not _is_plain(value):
            return None
        text = _dumps(value)  # refuses NaN and the infinities
        if "\\ud" in text:
            # In ASCII half of an emoji looks like a lone surrogate. UTF-8 has no form for a lone one.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except MemoryError:
        raise
    except Exception:  # whatever it was, the walk says it better
        return None
    return None if TAG in text else text


def _is_plain(value: object) -> bool:
    """Whether only exact JSON types, str keys and safe integers are in it, within the bounds.

    Exact types, since a subclass may say something else than it holds. Level by level, so that a cycle ends.
    """
    level: list[Any] = [(value,)]
    seen = 0
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for container in level:
            items = container
            if type(container) is dict:
                if not {str}.issuperset(map(type, container)):
                    return False
                items = container.values()
            seen += len(items)
            if not _SMALL.issuperset(map(type, items)):
                if seen > MAX_NODES or not _PLAIN.issuperset(map(type, items)):
                    return False
                if any(abs(item) > MAX_SAFE_INTEGER for item in items if type(item) is int):
                    return False
                below += [item for item in items if type(item) in _CONTAINERS]
        if not below:
            return seen <= MAX_NODES
        level = below
    return False


class _Walk:
    """One encoding of a value that is not plain: a tree of exact JSON types, and a report."""

    def __init__(self) -> None:
        self.left = MAX_NODES
        self.report: list[Placeholder] = []
        self.open: set[int] = set()  # the containers that the walk is inside of

    def encoded(self, value: object) -> Encoded:
        try:
            text = _dumps(self.convert(value, None, 0))
        except RecursionError:  # the caller's own stack left too little room
            self.report.clear()
            text = _dumps(self.placeholder(value, None, TOO_DEEP))
        return Encoded(text=text, placeholders=tuple(self.report))

    def placeholder(self, value: object, path: _Path, why: str) -> dict[str, str]:
        self.add(value, path, why)
        return {TAG: "placeholder", "type": _name_of(type(value)), "why": why}

    def add(self, value: object, path: _Path, why: str) -> None:
        if len(self.report) < MAX_REPORTED:
            self.report.append(Placeholder(path=_pointer(path), type=_name_of(type(value)), why=why))

    def convert(self, value: object, path: _Path, depth: int) -> Any:
        """The tree that stands for `value`. Whatever goes wrong inside ends here, as a placeholder."""
        self.left -= 1
        if self.left < 0:
            return self.placeholder(value, path, TOO_MANY)
        inside = id(value)
        try:
            leaf = self.leaf(value, path)
            if leaf is not None or value is None:
                return leaf
            if inside in self.open or depth >= MAX_DEPTH:
                return self.placeholder(value, path, CYCLE if inside in self.open else TOO_DEEP)
            self.open.add(inside)
            try:
                return _form_of(value)(self, value, path, depth + 1)
            finally:
                self.open.discard(inside)
        except MemoryError:
            raise
        except Exception as failure:  # a value's own code may raise anything
            return self.placeholder(value, path, f"raised {_name_of(type(failure))}")

    def leaf(self, value: object, path: _Path) -> Any:
        """The tree of a value that holds no others, else None."""
        if isinstance(value, str):
            return self.text(value, path)
        for kinds, form in _LEAVES:
            if isinstance(value, kinds):
                return form(value)
        spelled = _spelled(value)
        return None if spelled is None else self.text(spelled, path)

    def text(self, value: str, path: _Path) -> str:
        exact = str.__str__(value)  # the characters it holds, whatever a subclass says
        if _is_unicode(exact):
            return exact
        # Two halves that stand side by side become the character that they mean.
        halves = exact.encode("utf-16-le", "surrogatepass")
        whole = halves.decode("utf-16-le", "replace")
        if whole.encode("utf-16-le") != halves:
            self.add(value, path, SURROGATES)
        return whole

    def reached(self, reach: Callable[[], object], owner: object, path: _Path, depth: int) -> Any:
        """The tree of what a value's own code hands out. If that code fails, only this place is lost."""
        try:
            found = reach()
        except MemoryError:
            raise
        except Exception as failure:
            return self.placeholder(owner, path, f"raised {_name_of(type(failure))}")
        return self.convert(found, path, depth)

    def bounded(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items while the budget lasts: an overridden ``__iter__`` may never end."""
        return itertools.islice(items, max(self.left, 0) + 1)

    def sequence(self, items: Iterable[object], path: _Path, depth: int) -> list[Any]:
        return [self.convert(item, (path, index), depth) for index, item in enumerate(self.bounded(items))]

    def unordered(self, items: Iterable[object], path: _Path, depth: int) -> list[Any]:
        """Sorted by their text, since the order of a set changes from process to process."""
        before = len(self.report)
        found = [self.convert(item, (path, "*"), depth) for item in self.bounded(items)]
        self.report[before:] = sorted(self.report[before:], key=dataclasses.astuple)
        return sorted(found, key=_sorted_text)

    def mapping(self, value: abc.Mapping[object, object], path: _Path, depth: int) -> dict[str, Any]:
        items = list(self.bounded(value.items()))
        names = {name: item for key, item in items if (name := _key(key)) is not None}
        if len(names) == len(items) and TAG not in names:
            return {name: self.convert(item, (path, name), depth) for name, item in names.items()}
        # Names that are missing or alike would lose entries, so the keys become values too.
        return {TAG: "dict", "value": self.unordered(items, (path, "value"), depth)}

    def exception(self, value: BaseException, path: _Path, depth: int) -> dict[str, Any]:
        said = self.reached(functools.partial(str, value), value, (path, "message"), depth)
        return {"error": _name_of(type(value)), "message": said}

    def model(self, value: Any, path: _Path, depth: int) -> Any:
        """What a pydantic model (LangChain's messages are some) says of itself: its fields."""
        kind: Any = type(value)
        dump = kind.model_dump if hasattr(kind, "model_dump") else kind.dict
        try:
            # A field declared as a base class would lose what the subclass adds: a message its tool calls.
            fields = dump(value, serialize_as_any=True, warnings=False)
        except TypeError:  # pydantic 1, or a signature of its own
            fields = dump(value)
        return self.convert(fields, path, depth)

    def fields(self, value: object, path: _Path, depth: int) -> dict[str, Any]:
        late = _ADDED_LATER.get(type(value).__name__)
        reach = functools.partial(functools.partial, getattr, value)
        return {
            name: self.reached(reach(name), value, (path, name), depth)
            for name in _field_names(value) or ()
            if name != late or getattr(value, name) is not None
        }

    def array(self, value: Any, path: _Path, depth: int) -> Any:
        if value.size > MAX_ITEMS:
            return self.placeholder(value, path, TOO_LARGE)
        # A date finer than a microsecond would come out as a bare integer.
        items = (value.astype(str) if value.dtype.kind == "M" else value).tolist()
        endless = type(items) is type(value)  # a long double has no Python counterpart
        return self.placeholder(value, path, NO_FORM) if endless else self.convert(items, path, depth)

    def formless(self, value: object, path: _Path, depth: int) -> dict[str, str]:
        waits = isinstance(value, abc.Iterator | abc.AsyncIterator | abc.Awaitable)
        large = isinstance(value, abc.Mapping | abc.Sequence | abc.Set)
        return self.placeholder(value, path, ITERATOR if waits else TOO_LARGE if large else NO_FORM)


def _form_of(value: Any) -> _Form:
    """The rule for a value that is no leaf. The more a type says of itself, the earlier it is asked."""
    for applies, form in _RULES:
        if applies(value):
            return form
    for collection, form in _COLLECTIONS:
        if isinstance(value, collection) and (isinstance(value, _BUILT_IN) or len(value) <= MAX_ITEMS):
            return form
    return _Walk.formless


def _is_model(value: object) -> bool:
    kind = type(value)
    return hasattr(kind, "model_dump") or (hasattr(kind, "__fields__") and hasattr(kind, "dict"))


def _is_of(value: object, package: str, *words: str) -> bool:
    """Whether one of its classes is of this package with one of these words in its name. Imports nothing."""
    bases = [base.__name__ for base in type(value).__mro__ if base.__module__.startswith(package)]
    return any(word in name for name in bases for word in words)


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
    (lambda value: isinstance(value, BaseException), _Walk.exception),
    (_is_model, _Walk.model),
    (lambda value: _field_names(value) is not None, _Walk.fields),
    (lambda value: _is_of(value, "numpy", "generic", "ndarray"), _Walk.array),
)
_COLLECTIONS: Final[tuple[tuple[Any, _Form], ...]] = (
    (abc.Mapping, _Walk.mapping),
    (abc.Sequence, _Walk.sequence),
    (abc.Set, _Walk.unordered),
)


def _integer(value: int) -> Any:
    exact = int.__int__(value)
    if -MAX_SAFE_INTEGER <= exact <= MAX_SAFE_INTEGER:
        return exact
    # Python refuses to write more than 4,300 decimal digits; hexadecimal has no limit.
    return {TAG: "int", "value": str(exact) if exact.bit_length() < 1_000 else hex(exact)}


def _float(value: float) -> Any:
    exact = float.__float__(value)
    if math.isfinite(exact):
        return exact
    return {TAG: "float", "value": "NaN" if math.isnan(exact) else "Infinity" if exact > 0 else "-Infinity"}


def _bytes(value: bytes | bytearray | memoryview) -> dict[str, str]:
    return {TAG: "bytes", "value": base64.b64encode(bytes(value)).decode("ascii")}


_NUMBERS: Final[Any] = ((bool, bool), (int, _integer), (float, _float))
_BYTES: Final[Any] = ((bytes, bytearray, memoryview), _bytes)
_LEAVES: Final[Any] = (*_NUMBERS, _BYTES, (datetime.timedelta, datetime.timedelta.total_seconds))


def _spelled(value: Any) -> str | None:
    """The text of a value that is written one way everywhere, else None."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    # Of pydantic's types only some may be printed: addresses, and secrets, which print as asterisks.
    known = isinstance(value, _SPELLED) or _is_of(value, "pydantic", "Url", "Secret")
    return str(value) if known else None


def _key(key: object) -> str | None:
    """The name that a key gets (a number's as `json` gives it), or None if only a pair can hold it."""
    if isinstance(key, enum.Enum):
        return _key(key.value)
    if isinstance(key, str):
        exact = str.__str__(key)
        return exact if _is_unicode(exact) else None
    for kinds, form in _NUMBERS:
        if isinstance(key, kinds):
            number = form(key)
            return None if isinstance(number, dict) else _dumps(number)
    return "null" if key is None else _spelled(key)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _sorted_text(tree: object) -> str:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


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


def _canonical_number(written: str) -> int | float:
    number = float(written)
    return int(number) if number.is_integer() and abs(number) <= MAX_SAFE_INTEGER else number
