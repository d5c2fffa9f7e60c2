from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.grading.compare import equal
from greenward.grading.testcases import show_value
from greenward.problems.problem import Comparison
from greenward.sandbox.inside.codec import (
    _FLAT,
    MAX_DEPTH,
    PlainDataError,
    PlainDict,
    PlainSet,
    canonical,
    decode,
    decode_untrusted,
    encode,
)

# `fromisoformat` of CPython 3.11 reads an offset below a second as UTC.
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).filter(
    lambda offset: not offset or abs(offset) >= timedelta(seconds=1)
)
zones = st.none() | offsets.map(timezone)
hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(timezones=zones).map(lambda value: value.replace(fold=0))
    | st.times().map(lambda value: value.replace(fold=0))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.builds(range, st.integers(), st.integers(), st.integers(1, 3)),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
plain = st.recursive(
    hashable | st.sets(hashable, max_size=3) | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=3).map(deque)
        | st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=12,
)


def typed(value):
    """A form in which 1, 1.0 and True differ, and sets have an order."""
    if isinstance(value, dict):
        return dict, sorted((repr(typed(key)), repr(typed(entry))) for key, entry in value.items())
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(typed(element)) for element in value)
    if isinstance(value, (list, tuple, deque)):
        return type(value), [typed(element) for element in value]
    return type(value), repr(value)


@settings(max_examples=100, deadline=None)
@given(plain)
def test_plain_data_survives_the_round_trip_with_its_types(value):
    assert typed(decode(encode(value))) == typed(value)


class Colour(IntEnum):
    RED = 1


class Name(str, Enum):
    A = "a"


class Lying(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 99

    __int__ = __index__
    __hash__ = int.__hash__


class LyingList(list):
    def __iter__(self):
        return iter([42])


class LyingDict(dict):
    def items(self):
        return [("x", 1)]


class LyingDate(datetime):
    year = property(lambda self: 1)  # type: ignore[assignment]

    def isoformat(self, *_):
        return "1-1-1"


class LyingDecimal(Decimal):
    def __str__(self):
        return "7"

    __repr__ = __format__ = __str__
    as_tuple = lambda self: None  # noqa: E731


class LyingDeque(deque):
    __iter__ = LyingList.__iter__


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "reduced"),
    [
        (Counter("aab"), {"a": 2, "b": 1}), (defaultdict(int, a=1), {"a": 1}), (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)), (Colour.RED, 1), (Name.A, "a"), (Lying(5), 5), (LyingList([1, 2]), [1, 2]),
        (LyingDict(a=3), {"a": 3}), (LyingDate(2024, 2, 3, 4), datetime(2024, 2, 3, 4)),
        (LyingDecimal("1.50"), Decimal("1.50")), (LyingDeque([1, 2]), deque([1, 2])),
        (bytearray(b"ab"), bytearray(b"ab")),
    ],
)  # fmt: skip
def test_subclasses_are_reduced_by_their_base_and_not_by_their_own_methods(value, reduced):
    back = decode(encode(value))
    assert type(back) is type(reduced)
    assert back == reduced


def own(value, held=lambda one: one):
    """The same value in a subclass of its type of which every method, but for those that make it, raises."""
    base = type(value)

    def refuse(*_, **__):
        raise AssertionError("a method of the object took part")

    making = (
        "__new__",
        "__init__",
        "__init_subclass__",
        "__class__",
        "__del__",
        "__delattr__",
        "__setattr__",
    )
    methods = [name for name in dir(base) if callable(getattr(base, name)) and name not in making]
    kind = type("Own", (base,), dict.fromkeys(methods, refuse) | {"__class__": property(refuse)})
    match value:
        case date() | time() | timedelta():
            return kind(*value.__reduce__()[1])
        case dict():
            made = kind()
            for key, one in value.items():
                dict.__setitem__(made, held(key), held(one))
            return made
        case list() | tuple() | set() | frozenset() | deque():
            return kind([held(one) for one in value])
    return kind(value)


OF_ONE_TYPE = (
    7, -(2**70), 1.5, math.inf, "text", b"ab", 1 + 2j, bytearray(b"ab"), date(2024, 2, 3), time(4, 5),
    datetime(2024, 2, 3, 4), timedelta(1, 2), Decimal("1.50"), [1, "b"], (1, "b"), deque([1, "b"]), {"a": 1},
    {1, "b"}, frozenset({1, "b"}),
)  # fmt: skip


@pytest.mark.parametrize("value", OF_ONE_TYPE, ids=lambda value: type(value).__name__)
def test_a_subclass_becomes_its_base_without_any_method_of_its_own(value):
    assert typed(decode(encode(own(value)))) == typed(value)
    assert typed(decode(encode([own(value), (own(value),)]))) == typed([value, (value,)])


class Element(int):
    """Can be held by a set; says when it is asked to compare or hash itself."""

    asked = 0

    def __hash__(self):
        Element.asked += 1
        return int.__hash__(self)

    def __eq__(self, other):
        Element.asked += 1
        return int.__eq__(self, other)


@pytest.mark.parametrize(
    "kind", [set, frozenset, dict, Counter, OrderedDict, defaultdict, list, tuple, deque]
)
def test_what_a_container_holds_is_neither_hashed_nor_compared(kind):
    class Own(kind):
        pass

    for container in (kind, Own):
        value = container()
        elements = [Element(3), Element(1), Element(2)]
        match value:
            case dict():
                for element in elements:
                    value[element] = element
                value.pop(elements.pop())
            case set():
                value.update(elements)
                value.remove(elements.pop())
            case _:
                value = container(elements)
        Element.asked = 0
        text = encode(value)
        assert Element.asked == 0
        expected = {int(one): int(one) for one in elements} if isinstance(value, dict) else map(int, elements)
        base = next(one for one in (dict, set, frozenset, list, tuple, deque) if isinstance(value, one))
        assert typed(decode(text)) == typed(base(expected))


tags = st.sampled_from(sorted(_FLAT))
forged = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | (st.text("0x1-.eENaInf", max_size=6) | st.text("0123456789-:T+", max_size=12)),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(tags, inner, max_size=2),
    max_leaves=15,
)


@settings(max_examples=300, deadline=None)
@given(forged)
def test_forged_text_is_a_comparable_value_or_refused(value):
    try:
        flat = decode_untrusted(json.dumps(value))
    except PlainDataError:
        return
    assert equal(flat, flat, Comparison())
    assert len(show_value(flat)) < 200


def test_special_numbers_keep_their_identity():
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.copysign(1, decode(encode(-0.0))) == -1
    assert decode(encode(10**6000)) == 10**6000
    assert decode(encode(True)) is True


class WithFakeClass:
    __class__ = int  # type: ignore[assignment]


class FractionOfItsOwn(Fraction):
    pass


class LocalTime(tzinfo):
    def utcoffset(self, _):
        raise AssertionError("a method of the object took part")


def fraction_holding(**slots):
    value = object.__new__(Fraction)
    for name, content in slots.items():
        setattr(value, name, content)
    return value


REFUSED = {
    "object": object(),
    "function": lambda: 1,
    "iterator": iter([]),
    "class": int,
    "fake class": WithFakeClass(),
    "a view": {}.keys(),
    "a Fraction's subclass, which could replace its pure-Python methods": FractionOfItsOwn(1, 2),
    "a Fraction without a value": fraction_holding(),
    "a Fraction of text": fraction_holding(_numerator="1", _denominator=1),
    "a Fraction of zeroths": fraction_holding(_numerator=1, _denominator=0),
    "a huge Fraction": Fraction(1 << 20_000, 3),
    "a long Decimal": Decimal("1" * 5000),
    "a Decimal far away": Decimal("1e999999"),
    "a zone of its own": datetime(2024, 1, 1, tzinfo=LocalTime()),
    "a time in a zone of its own": time(1, tzinfo=LocalTime()),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_other_objects_are_refused(value):
    with pytest.raises(PlainDataError):
        encode(value)


def test_methods_that_were_replaced_on_a_pure_python_class_take_no_part(monkeypatch):
    value = Fraction(1, 3)
    for name in ("__repr__", "__str__", "__eq__", "as_integer_ratio"):
        monkeypatch.setattr(Fraction, name, lambda *_: "replaced")
    for name in ("numerator", "denominator"):
        monkeypatch.setattr(Fraction, name, property(lambda _: 99))
    text = encode(value)
    monkeypatch.undo()
    assert decode(text) == Fraction(1, 3)


def test_a_signalling_nan_comes_back_as_one_that_can_be_compared():
    assert decode(encode(Decimal("sNaN"))) != 1


def nested_list(levels):
    value: list = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_and_size_are_bounded():
    nested = nested_list(MAX_DEPTH + 1)
    assert decode(encode(nested_list(MAX_DEPTH))) == nested_list(MAX_DEPTH)
    cyclic: list = []
    cyclic.append(cyclic)
    for value in (nested, cyclic, "x" * (5 << 20)):
        with pytest.raises(PlainDataError):
            encode(value)


@pytest.mark.parametrize("number", [10**18, 10**19 - 1, -(10**19) + 1, 10**19, 10**20 - 1])
@pytest.mark.parametrize("text", ["", "9" * 30])
def test_an_int_of_up_to_twenty_digits_is_read_whatever_texts_stand_beside_it(number, text):
    assert decode_untrusted(json.dumps([number, text])) == [number, text]


def test_a_longer_int_is_refused_wherever_it_stands():
    for text in (f"[{10**20}]", f"[1,[{-(10**19)}]]", '{"tuple":[' + "1" * 21 + "]}"):
        with pytest.raises(PlainDataError):
            decode_untrusted(text)


def test_sets_and_dicts_from_untrusted_text_are_never_rebuilt():
    collide = [index * (2**61 - 1) for index in range(1, 2000)]  # all hash to 0
    flat = decode_untrusted(encode(collide).join(['{"set":', "}"]))
    assert flat == PlainSet(collide)
    assert canonical({"a": {1}}) == PlainDict([["a", PlainSet([1])]])


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "NaN", "Infinity", "{}", '{"int":"0x1","set":[]}', '{"unknown":1}', '{"int":1}',
        '{"int":"zz"}', '{"tuple":5}', '{"tuple":"ab"}', '{"set":{"set":[]}}', '{"dict":[1]}',
        '{"dict":[[1]]}', '{"bytes":"xyz"}', '{"complex":[1,2,3]}', '{"complex":["1","2"]}',
        '{"float":"one"}', '{"float":"1e5"}', '{"complex":[{"int":"0x' + "f" * 400 + '"},0]}',
        '{"date":"2024-13-01"}', '{"date":"2024-01"}', '{"date":"a-01-01"}', '{"date":[2024,1,1]}',
        '{"date":"' + "9" * 40 + '-01-01"}', '{"datetime":""}', '{"datetime":"2024-01-01T"}',
        '{"datetime":"2024-01-01T00:00:00+99:00"}', '{"datetime":"2024-01-01T00:00:00[Europe/Berlin]"}',
        '{"time":"25:00:00"}', '{"timedelta":[' + "9" * 18 + ",0,0]}", '{"Decimal":"one"}', '{"Decimal":1}',
        '{"Decimal":"1e99999999999999999999"}', '{"Decimal":"1e5000"}', '{"Decimal":"' + "1" * 5000 + '"}',
        '{"Fraction":[1,0]}', '{"Fraction":[1]}', '{"Fraction":[1,-2]}', '{"Fraction":[1.5,2]}',
        '{"Fraction":[{"int":"0x' + "f" * 5000 + '"},3]}', '{"deque":{"set":[]}}', '{"range":[1,2,0]}',
        '{"range":[1.0,2,1]}', '{"bytearray":[1]}', "[" * 200 + "]" * 200,
        '{"tuple":' + '[{"tuple":' * 150 + "[]" + "}]" * 150 + "}", '{"float":[]}', "[" * 100_000,
        "9" * 5000,
    ],
)  # fmt: skip
def test_garbled_text_is_refused_and_nothing_else(text):
    with pytest.raises(PlainDataError):
        decode_untrusted(text)
