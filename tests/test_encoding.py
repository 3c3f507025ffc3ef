"""Any value becomes strict ASCII JSON; what JSON cannot hold is tagged, or replaced and reported."""

from __future__ import annotations

import asyncio
import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import inspect
import json
import math
import pathlib
import subprocess
import sys
import types
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
import orjson
import pydantic
import pydantic.v1
import pytest
from hypothesis import strategies as st
from langchain_core import messages
from langgraph import types as langgraph_types

from outlive import encoding
from outlive.encoding import limits, walk

UTC = datetime.UTC


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def strict(text: str) -> Any:
    """Read it as the strictest clients do."""
    assert text.isascii()
    assert text.isprintable()
    orjson.loads(text)  # refuses NaN and lone surrogates; reads integers beyond 64 bits as floats
    return json.loads(text, parse_constant=refuse)


def restored(read: dict[str, Any]) -> Any:
    """The documented way back from a tagged object."""
    match read:
        case {"$outlive": "int", "value": str(value)}:
            return int(value, 0)
        case {"$outlive": "float", "value": str(value)}:
            return float(value)
        case {"$outlive": "bytes", "value": str(value)}:
            return base64.b64decode(value)
        case {"$outlive": "dict", "value": list(items)}:
            return {tuple(key) if isinstance(key, list) else key: value for key, value in items}
    return read


def roundtrip(value: object) -> Any:
    encoded = encoding.encode(value)
    assert encoded.placeholders == ()
    strict(encoded.text)
    return json.loads(encoded.text, object_hook=restored)


def only_placeholder(value: object) -> tuple[str, str]:
    """Where it is and why, of a value that has exactly one."""
    encoded = encoding.encode(value)
    strict(encoded.text)
    (report,) = encoded.placeholders
    return report.path, report.why


class Colour(enum.Enum):
    RED = "red"
    BOTH = ("red", "blue")


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__


class Odd(int):
    def __repr__(self) -> str:
        return "not a number"


@dataclasses.dataclass
class Booking:
    id: uuid.UUID
    price: decimal.Decimal
    inner: object = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    said: list[messages.BaseMessage]
    secret: pydantic.SecretStr = pydantic.SecretStr("hunter2")
    link: pydantic.AnyUrl = pydantic.AnyUrl("http://example.org/a")
    hidden: int = pydantic.Field(default=1, exclude=True)
    anything: Any = None


class OldModel(pydantic.v1.BaseModel):
    price: decimal.Decimal = decimal.Decimal("1.10")
    inner: Any = None


class Point(tuple[int, int]):
    __slots__ = ()


Named = collections.namedtuple("Named", ["x", "y"])


class Attrs:
    __attrs_attrs__ = (types.SimpleNamespace(name="a"), types.SimpleNamespace(name="b"))

    def __init__(self) -> None:
        self.a = 1
        self.b = b"x"


class Raising:
    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__

    def model_dump(self, **_: object) -> dict[str, Any]:
        raise LookupError("dump")


class Masked:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("class")


class Sealed:
    def __getattribute__(self, name: str) -> Any:
        raise OSError(name)  # __dict__ and __class__ included


class Endless:
    """Dumps into another one of itself, for ever."""

    def model_dump(self, **_: object) -> Endless:
        return Endless()


class EndlessList(list[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("str")


def nested(depth: int, leaf: object = 1) -> object:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=30,
)
LEAVES = st.one_of(
    st.floats(),
    st.text(st.characters(categories=["Cs", "Lu", "Cc", "Zl", "So"])),
    st.binary(),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(),
    st.complex_numbers(),
    st.sampled_from([*Colour, *Word, *Level]),
    st.builds(Loud),
    st.builds(Odd),
    st.builds(object),
    st.builds(Raising),
    st.builds(Masked),
    st.builds(Sealed),
    st.builds(Endless),
    st.builds(Silent),
    st.builds(iter, st.lists(st.integers())),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.array, st.lists(st.integers(-5, 5))),
    st.builds(messages.AIMessageChunk, content=st.text()),
    st.builds(langgraph_types.Interrupt, value=st.binary(), id=st.text()),
    st.sampled_from([int, Model, print, ..., ValueError("x"), pathlib.Path("/a"), range(10**9)]),
)
KEYS = (
    st.text() | st.integers() | st.floats() | st.booleans() | st.none() | st.binary() | st.sampled_from(Word)
)
ANYTHING = st.recursive(
    LEAVES | PLAIN,
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(KEYS, inner),
        st.tuples(inner, inner),
        st.lists(inner).map(collections.deque),
        st.builds(Booking, id=inner, price=inner, inner=inner),
        st.builds(Model, said=st.just([messages.HumanMessage("hi")]), anything=inner),
        st.builds(OldModel, inner=inner),
        st.builds(langgraph_types.Command, update=inner, goto=st.text()),
        st.builds(lambda arg: langgraph_types.Send("node", arg), inner),
        st.dictionaries(KEYS, inner).map(types.MappingProxyType),
        st.frozensets(st.integers() | st.text() | st.floats() | st.binary()),
    ),
    max_leaves=12,
)


@hypothesis.given(PLAIN)
def test_a_JSON_value_comes_back_exactly(value: object) -> None:
    back = roundtrip(value)
    assert back == value
    assert json.dumps(back) == json.dumps(value)  # 1, 1.0 and True are equal in Python


@hypothesis.given(ANYTHING)
@hypothesis.settings(max_examples=300)
def test_S18_any_value_becomes_strict_ASCII_JSON_the_same_every_time(value: object) -> None:
    encoded = encoding.encode(value)
    strict(encoded.text)
    assert encoding.encode(value) == encoded
    for report in encoded.placeholders:
        assert report.type
        assert report.why


@hypothesis.given(ANYTHING)
def test_each_placeholder_is_where_its_report_says(value: object) -> None:
    encoded = encoding.encode(value)
    for report in encoded.placeholders:
        place = json.loads(encoded.text)
        for step in report.path.split("/")[1:]:
            if step == "*":
                break
            name = step.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) else place[name]
        else:
            if report.why == encoding.SURROGATES:
                assert "\ufffd" in place or place.isprintable()
            else:
                assert place == {"$outlive": "placeholder", "type": report.type, "why": report.why}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.datetime(2026, 11, 30, 12, 0, 0, 5, tzinfo=UTC), '"2026-11-30T12:00:00.000005+00:00"'),
        (datetime.datetime(2026, 11, 30), '"2026-11-30T00:00:00"'),  # noqa: DTZ001 - without a zone it stays so
        (datetime.date(2026, 11, 30), '"2026-11-30"'),
        (datetime.time(1, 2, 3), '"01:02:03"'),
        (datetime.timedelta(days=1, milliseconds=500), "86400.5"),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (decimal.Decimal("NaN"), '"NaN"'),
        (pathlib.PurePosixPath("/a/b"), '"/a/b"'),
        (Colour.RED, '"red"'),
        (Colour.BOTH, '["red","blue"]'),
        (Word.YES, '"yes"'),
        (Level.HIGH, "3"),
        (Odd(7), "7"),
        (Loud("hi"), '"hi"'),
        ((1, 2), "[1,2]"),
        (Point((1, 2)), "[1,2]"),
        (Named(1, 2), "[1,2]"),
        (collections.deque([1, 2]), "[1,2]"),
        (range(3), "[0,1,2]"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({"a": 1}.keys(), '["a"]'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (collections.OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (b"\x00\xff", '{"$outlive":"bytes","value":"AP8="}'),
        (bytearray(b"\xff"), '{"$outlive":"bytes","value":"/w=="}'),
        (memoryview(b"abcd")[::2], '{"$outlive":"bytes","value":"YWM="}'),
        (float("nan"), '{"$outlive":"float","value":"NaN"}'),
        (float("inf"), '{"$outlive":"float","value":"Infinity"}'),
        (float("-inf"), '{"$outlive":"float","value":"-Infinity"}'),
        (2**53 - 1, "9007199254740991"),
        (2**53, '{"$outlive":"int","value":"9007199254740992"}'),
        (-(2**53), '{"$outlive":"int","value":"-9007199254740992"}'),
        ({1: "a", None: "b", False: "c", 2.5: "d"}, '{"1":"a","null":"b","false":"c","2.5":"d"}'),
        ({Word.YES: 1, uuid.UUID(int=0): 2}, '{"yes":1,"00000000-0000-0000-0000-000000000000":2}'),
        ({1: "a", "1": "b"}, '{"$outlive":"dict","value":[["1","b"],[1,"a"]]}'),
        ({(1, 2): 3}, '{"$outlive":"dict","value":[[[1,2],3]]}'),
        ({"$outlive": "bytes"}, '{"$outlive":"dict","value":[["$outlive","bytes"]]}'),
        ("\ud83d\ude00", '"\\ud83d\\ude00"'),
        ("\U0001f600\u2028\x00\x7f\x85", '"\\ud83d\\ude00\\u2028\\u0000\\u007f\\u0085"'),
        ("\\ud800", '"\\\\ud800"'),
        (np.float32(1.5), "1.5"),
        (np.float64(0.1), "0.1"),
        (np.int64(-3), "-3"),
        (np.bool_(True), "true"),
        (np.str_("a"), '"a"'),
        (np.float64("nan"), '{"$outlive":"float","value":"NaN"}'),
        (np.array([[1, 2], [3, 4]]), "[[1,2],[3,4]]"),
        (np.array(7), "7"),
        (np.datetime64("2026-11-30T00:00:00.123456789"), '"2026-11-30T00:00:00.123456789"'),
        (Attrs(), '{"a":1,"b":{"$outlive":"bytes","value":"eA=="}}'),
        (ValueError("no seat"), '{"error":"ValueError","message":"no seat"}'),
        (langgraph_types.Interrupt(value={"q": 1}, id="i"), '{"value":{"q":1},"id":"i"}'),
        (langgraph_types.Send("n", {"a": 1}), '{"node":"n","arg":{"a":1}}'),
        (
            langgraph_types.Command(goto="n", update={"a": b""}),
            '{"graph":null,"update":{"a":{"$outlive":"bytes","value":""}},"resume":null,"goto":"n"}',
        ),
        (
            Booking(id=uuid.UUID(int=0), price=decimal.Decimal(1)),
            '{"id":"00000000-0000-0000-0000-000000000000","price":"1","inner":null}',
        ),
        (OldModel(), '{"price":"1.10","inner":null}'),
    ],
)
def test_a_value_that_text_can_hold_has_this_form_and_no_report(value: object, text: str) -> None:
    encoded = encoding.encode(value)
    assert (encoded.text, encoded.placeholders) == (text, ())
    strict(encoded.text)
    assert encoding.encode([value]).text == f"[{text}]"


def test_an_integer_too_long_for_decimal_is_exact_too() -> None:
    assert roundtrip([10**5_000, -(10**5_000)]) == [10**5_000, -(10**5_000)]


@hypothesis.given(st.dictionaries(st.integers() | st.text(st.characters(codec="utf-8")), st.integers()))
def test_a_mapping_loses_no_entry_when_its_keys_read_alike(value: dict[object, int]) -> None:
    back = roundtrip(value)
    assert sorted(back.values()) == sorted(value.values())
    assert {str(key) for key in back} == {str(key) for key in value}


@pytest.mark.parametrize(
    "message",
    [
        messages.HumanMessage("hi", id="1"),
        messages.AIMessage(
            "", id="2", tool_calls=[{"name": "charge", "args": {"n": 1}, "id": "c", "type": "tool_call"}]
        ),
        messages.AIMessageChunk(
            content="tok",
            id="3",
            tool_call_chunks=[
                {"name": "charge", "args": "{", "id": "c", "index": 0, "type": "tool_call_chunk"}
            ],
        ),
        messages.ToolMessage("done", tool_call_id="c", id="4"),
    ],
)
def test_a_LangChain_message_has_the_flat_shape_that_clients_read(message: messages.BaseMessage) -> None:
    tree = strict(encoding.encode({"messages": [message]}).text)["messages"][0]
    assert tree == message.model_dump()
    assert tree["type"] == message.type
    assert tree["id"] == message.id


def test_a_model_keeps_what_a_subclass_adds_and_hides_what_it_hides() -> None:
    said = messages.AIMessage("", tool_calls=[{"name": "charge", "args": {}, "id": "c", "type": "tool_call"}])
    encoded = encoding.encode(Model(said=[said], anything=b"x"))
    tree = strict(encoded.text)
    assert tree["said"][0]["tool_calls"][0]["name"] == "charge"
    assert tree["secret"] == "**********"
    assert tree["link"] == "http://example.org/a"
    assert tree["anything"] == {"$outlive": "bytes", "value": "eA=="}
    assert "hidden" not in tree
    assert "hunter2" not in encoded.text


def cyclic() -> object:
    value: dict[str, object] = {}
    value["me"] = [value]
    return value


def released_view() -> memoryview:
    view = memoryview(b"a")
    view.release()
    return view


async def _agen() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("make", "path", "why"),
    [
        (object, "", encoding.NO_FORM),
        (lambda: {"a": [1, object()]}, "/a/1", encoding.NO_FORM),
        (lambda: {"a/b": {"c~d": object()}}, "/a~1b/c~0d", encoding.NO_FORM),
        (lambda: {(1,): object()}, "/value/*/1", encoding.NO_FORM),
        (lambda: {1.5: [object()]}, "/1.5/0", encoding.NO_FORM),
        (lambda: {Booking}, "/*", encoding.NO_FORM),
        (lambda: 1j, "", encoding.NO_FORM),
        (lambda: np.longdouble(1), "", encoding.NO_FORM),
        (lambda: np.zeros(10_001), "", encoding.TOO_LARGE),
        (lambda: range(10**12), "", encoding.TOO_LARGE),
        (lambda: iter([1]), "", encoding.ITERATOR),
        (lambda: (n for n in [1]), "", encoding.ITERATOR),
        (_agen, "", encoding.ITERATOR),
        (cyclic, "/me/0", encoding.CYCLE),
        (Raising, "", "raised LookupError"),
        (Masked, "", "raised RuntimeError"),
        (Sealed, "", "raised OSError"),
        (Silent, "/message", "raised RuntimeError"),
        (lambda: "a\ud800b", "", encoding.SURROGATES),
        (lambda: pathlib.Path("/a\udcff"), "", encoding.SURROGATES),
        (lambda: {"\ud800": 1}, "/value/*/0", encoding.SURROGATES),
        (released_view, "", "raised ValueError"),
    ],
)
def test_S18_what_has_no_form_is_a_placeholder_that_is_reported_once(
    make: Callable[[], object], path: str, why: str
) -> None:
    assert only_placeholder(make()) == (path, why)


def test_a_lone_surrogate_becomes_a_replacement_character_and_halves_that_meet_become_whole() -> None:
    assert (
        strict(encoding.encode("\ud83d\ude00 \ud800 \udc00\ud83d\ud83d\ude00").text)
        == "😀 \ufffd \ufffd\ufffd😀"
    )


def test_a_backslash_before_a_surrogate_hides_nothing() -> None:
    assert strict(encoding.encode(["\\ud83d\ude00"]).text) == ["\\ud83d\ufffd"]
    assert roundtrip(["\\ud83d", "\\ud83d\\ude00", "\\😀", "\\\\ud800"]) == [
        "\\ud83d",
        "\\ud83d\\ude00",
        "\\😀",
        "\\\\ud800",
    ]


def test_a_value_that_is_held_twice_is_no_cycle() -> None:
    shared = [b"x"]
    assert roundtrip({"a": shared, "b": [shared, shared]}) == {"a": [b"x"], "b": [[b"x"], [b"x"]]}


def test_one_broken_field_does_not_cost_its_siblings() -> None:
    value = Booking(id=uuid.UUID(int=0), price=decimal.Decimal(1))
    del value.id
    encoded = encoding.encode({"before": 1, "booking": value, "after": 2})
    tree = strict(encoded.text)
    assert (tree["before"], tree["booking"]["price"], tree["after"]) == (1, "1", 2)
    assert tree["booking"]["id"]["$outlive"] == "placeholder"
    assert [report.path for report in encoded.placeholders] == ["/booking/id"]


def test_nesting_is_exact_up_to_the_bound_and_a_placeholder_below_it() -> None:
    assert roundtrip(nested(encoding.MAX_DEPTH)) == nested(encoding.MAX_DEPTH)
    assert roundtrip(nested(encoding.MAX_DEPTH, b"x")) == nested(encoding.MAX_DEPTH, b"x")
    for depth in (encoding.MAX_DEPTH + 1, 200_000):
        path, why = only_placeholder(nested(depth))
        assert (path, why) == ("/0" * encoding.MAX_DEPTH, encoding.TOO_DEEP)


def test_a_plain_part_is_held_to_the_depth_of_the_whole() -> None:
    assert only_placeholder([b"x", nested(encoding.MAX_DEPTH)]) == ("/1" + "/0" * 99, encoding.TOO_DEEP)
    assert roundtrip([b"x", nested(encoding.MAX_DEPTH - 1)]) == [b"x", nested(encoding.MAX_DEPTH - 1)]


def test_an_object_that_dumps_into_itself_for_ever_ends() -> None:
    assert only_placeholder({"a": Endless()}) == ("/a", encoding.TOO_DEEP)


@pytest.mark.parametrize("leaf", ["x", b"x"], ids=["plain", "walked"])
def test_a_small_value_that_holds_itself_many_times_over_is_bounded(
    leaf: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_NODES", 5_000)
    value = leaf
    for _ in range(60):
        value = [value] * 10
    encoded = encoding.encode(value)
    strict(encoded.text)
    assert len(encoded.text) < 1_000_000
    assert len(encoded.placeholders) == encoding.MAX_REPORTED


def test_plain_parts_share_the_budget_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NODES", 5_000)
    shared = list(range(1_000))
    encoded = encoding.encode([b"x", *[shared] * 1_000])
    assert len(strict(encoded.text)) == 1_001
    assert encoded.text.count(",") < 10_000


def test_a_list_whose_iteration_never_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NODES", 1_000)
    tree = strict(encoding.encode(EndlessList()).text)
    assert len(tree) == 1_000
    assert tree[-1]["$outlive"] == "placeholder"


def test_a_caller_that_is_deep_in_its_stack_gets_an_answer_too() -> None:
    def deeper(levels: int) -> encoding.Encoded:
        return deeper(levels - 1) if levels else encoding.encode({"a": nested(90, b"x")})

    encoded = deeper(sys.getrecursionlimit() - len(inspect.stack(0)) - 60)
    strict(encoded.text)
    assert encoded.placeholders


def test_an_input_is_left_as_it_was() -> None:
    source = iter([1, 2])
    generator = (n for n in [1, 2])
    queue = collections.deque([1, 2], maxlen=2)
    model = Model(said=[messages.HumanMessage("hi")], anything=generator)
    value = {"source": source, "model": model, "queue": queue, "nan": [math.nan], 1: {2: b"x"}}
    before = repr(value)
    encoding.encode(value)
    assert repr(value) == before
    assert list(source) == [1, 2]
    assert list(generator) == [1, 2]


def test_a_coroutine_is_neither_run_nor_lost() -> None:
    async def answer() -> int:
        return 42

    waiting = answer()
    assert only_placeholder([waiting]) == ("/0", encoding.ITERATOR)
    assert asyncio.run(waiting) == 42


def test_a_model_that_does_not_match_its_own_types_warns_nobody() -> None:
    model = Model.model_construct(said="not a list", secret=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert strict(encoding.encode(model).text)["said"] == "not a list"


def test_interrupts_of_the_process_pass_through() -> None:
    class Impatient:
        def model_dump(self, **_: object) -> None:
            raise KeyboardInterrupt

    class Starved:
        def model_dump(self, **_: object) -> None:
            raise MemoryError

    with pytest.raises(KeyboardInterrupt):
        encoding.encode([Impatient()])
    with pytest.raises(MemoryError):
        encoding.encode([Starved()])


def test_a_placeholder_shows_nothing_of_the_value() -> None:
    class Leaky:
        def __init__(self) -> None:
            self.password = "hunter2"

        def __repr__(self) -> str:
            return "hunter2"

    class Failing:
        def model_dump(self, **_: object) -> None:
            raise ValueError("hunter2")

    assert "hunter2" not in encoding.encode([Leaky(), Failing()]).text


def test_sets_are_written_alike_under_every_hash_seed() -> None:
    code = (
        "from outlive import encoding;"
        "e = encoding.encode({'a': {str(n) for n in range(50)}, 'b': {len, print, abs}});"
        "print(e.text, e.placeholders)"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=20,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_plain_values_take_the_fast_path_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "Walk", None)
    plain = {"messages": [{"content": "héllo 😀", "n": [1, 2.5, None, True], "t": (1, "1700000000000000")}]}
    assert json.loads(encoding.encode(plain).text)["messages"][0]["content"] == "héllo 😀"
    for value in (
        math.nan,
        "\ud800",
        {1: 2},
        2**60,
        Loud("a"),
        Level.HIGH,
        {"$outlive": 1},
        nested(101),
        b"",
    ):
        with pytest.raises(TypeError):
            encoding.encode([value])


def test_a_fingerprint_ignores_the_order_of_keys_and_how_a_number_was_spelled() -> None:
    first = encoding.fingerprint({"a": 1, "b": {"c": [1.0, -0.0, "é"], "d": None}})
    assert first == encoding.fingerprint(json.loads('{"b":{"d":null,"c":[1,0,"\\u00e9"]},"a":1e0}'))
    assert encoding.fingerprint({"$outlive": 1, "a": 2}) == encoding.fingerprint({"a": 2, "$outlive": 1})
    assert len(first) == 64
    assert int(first, 16) >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [2, 1]),
        ({"a": None}, {}),
        (1, "1"),
        (1, True),
        (0.1, 0.10000000000000002),
        (2**53, 2**53 + 1),
        ({"a": b"x"}, {"a": "eA=="}),
        ([], {}),
    ],
)
def test_another_value_has_another_fingerprint(one: object, other: object) -> None:
    assert encoding.fingerprint(one) != encoding.fingerprint(other)


@hypothesis.given(PLAIN, st.randoms())
def test_a_fingerprint_survives_any_shuffle_of_keys(value: object, random: Any) -> None:
    def shuffled(tree: object) -> object:
        if isinstance(tree, list):
            return [shuffled(item) for item in tree]
        if isinstance(tree, dict):
            items = [(key, shuffled(item)) for key, item in tree.items()]
            random.shuffle(items)
            return dict(items)
        return tree

    assert encoding.fingerprint(shuffled(value)) == encoding.fingerprint(value)
