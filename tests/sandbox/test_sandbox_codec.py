from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import Enum, IntEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.sandbox.codec import (
    MAX_DEPTH,
    PlainDataError,
    PlainDict,
    PlainSet,
    canonical,
    decode,
    decode_untrusted,
    encode,
)

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
plain = st.recursive(
    hashable | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=12,
)


def typed(value):
    """A form in which 1, 1.0 and True differ, and sets have an order."""
    if isinstance(value, dict):
        return dict, sorted((repr(typed(key)), repr(typed(entry))) for key, entry in value.items())
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(typed(element)) for element in value)
    if isinstance(value, (list, tuple)):
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


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "reduced"),
    [
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Colour.RED, 1),
        (Name.A, "a"),
        (Lying(5), 5),
        (LyingList([1, 2]), [1, 2]),
        (LyingDict(a=3), {"a": 3}),
    ],
)
def test_subclasses_are_reduced_by_their_base_and_not_by_their_own_methods(value, reduced):
    back = decode(encode(value))
    assert type(back) is type(reduced)
    assert back == reduced


def test_special_numbers_keep_their_identity():
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode([math.inf, -math.inf])) == [math.inf, -math.inf]
    assert math.copysign(1, decode(encode(-0.0))) == -1
    assert decode(encode(10**6000)) == 10**6000
    assert decode(encode(True)) is True


class WithFakeClass:
    __class__ = int  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 1, range(3), iter([]), int, bytearray(b"x"), WithFakeClass()],
    ids=["object", "function", "range", "iterator", "class", "bytearray", "fake class"],
)
def test_other_objects_are_refused(value):
    with pytest.raises(PlainDataError):
        encode(value)


def test_depth_and_size_are_bounded():
    nested: list = []
    for _ in range(MAX_DEPTH + 5):
        nested = [nested]
    cyclic: list = []
    cyclic.append(cyclic)
    for value in (nested, cyclic, "x" * (5 << 20)):
        with pytest.raises(PlainDataError):
            encode(value)


def test_sets_and_dicts_from_untrusted_text_are_never_rebuilt():
    collide = [index * (2**61 - 1) for index in range(1, 2000)]  # all hash to 0
    flat = decode_untrusted(encode(collide).join(['{"set":', "}"]))
    assert flat == PlainSet(collide)
    assert canonical({"a": {1}}) == PlainDict([["a", PlainSet([1])]])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "NaN",
        "Infinity",
        "{}",
        '{"int":"0x1","set":[]}',
        '{"unknown":1}',
        '{"int":1}',
        '{"int":"zz"}',
        '{"tuple":5}',
        '{"tuple":"ab"}',
        '{"set":{"set":[]}}',
        '{"dict":[1]}',
        '{"dict":[[1]]}',
        '{"bytes":"xyz"}',
        '{"complex":[1,2,3]}',
        '{"complex":["1","2"]}',
        '{"float":"one"}',
        '{"float":[]}',
        "[" * 100_000,
        "9" * 5000,
    ],
)
def test_garbled_text_is_refused_and_nothing_else(text):
    with pytest.raises(PlainDataError):
        decode_untrusted(text)
