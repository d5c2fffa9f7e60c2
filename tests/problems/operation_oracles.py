"""What each operation must compute, written a second time from its phrase, in another way.

`ORACLES[template]` takes the value and, for a template with a constant, the constant.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

from greenward.problems.generated import Operation

VOWELS = set("aeiou")


def kept(condition: Callable[..., bool]) -> Callable[..., list[Any]]:
    return lambda values, *k: [value for value in values if condition(value, *k)]


def each(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda values, *k: [function(value, *k) for value in values]


def first_seen(values: list[int]) -> list[int]:
    seen: list[int] = []
    for value in values:
        if value not in seen:
            seen.append(value)
    return seen


def insertion_sorted(values: Any, before: Callable[[Any, Any], bool]) -> list[Any]:
    result: list[Any] = []
    for value in values:
        at = next((i for i, other in enumerate(result) if before(value, other)), len(result))
        result.insert(at, value)
    return result


def extreme(values: list[int], better: Callable[[int, int], bool]) -> int:
    return functools.reduce(lambda a, b: b if better(b, a) else a, values) if values else 0


def digits(n: int) -> list[int]:
    n = n if n >= 0 else -n
    found = []
    while n >= 10:
        n, last = divmod(n, 10)
        found.insert(0, last)
    return [n, *found]


def swapped(c: str) -> str:
    return c.lower() if c.isupper() else c.upper()


def backwards(values: Any) -> list[Any]:
    return [values[i] for i in range(len(values) - 1, -1, -1)]


def words_of(s: str) -> list[str]:
    return re.findall(r"\S+", s)


ORACLES: dict[str, Callable[..., Any]] = {
    # lists of numbers
    "keep_even": kept(lambda x: x & 1 == 0),
    "keep_odd": kept(lambda x: x & 1 == 1),
    "keep_positive": kept(lambda x: math.copysign(1, x) > 0 and x != 0),
    "keep_negative": kept(lambda x: str(x).startswith("-")),
    "keep_above": kept(lambda x, k: not x <= k),
    "keep_below": kept(lambda x, k: not x >= k),
    "keep_multiples": kept(lambda x, k: x in range(-1000 * k, 1000 * k, k)),
    "remove_zeros": kept(bool),
    "multiply_each": each(lambda x, k: sum([x] * k)),
    "add_each": each(lambda x, k: sum((x, k))),
    "subtract_each": each(lambda x, k: x + -k),
    "halve_each": each(lambda x: math.floor(x / 2)),
    "remainder_each": each(lambda x, k: x - k * math.floor(x / k)),
    "square_each": each(lambda x: x * x),
    "absolute_each": each(lambda x: math.isqrt(x * x)),
    "negate_each": each(lambda x: 0 - x),
    "cap_each": each(lambda x, k: k if x > k else x),
    "floor_each": each(lambda x, k: k if x < k else x),
    "sort_ascending": lambda xs: insertion_sorted(xs, lambda a, b: a < b),
    "sort_descending": lambda xs: insertion_sorted(xs, lambda a, b: a > b),
    "reverse_list": backwards,
    "first_numbers": lambda xs, k: list(itertools.islice(xs, k)),
    "last_numbers": lambda xs, k: [x for i, x in enumerate(xs) if len(xs) - i <= k],
    "drop_first_numbers": lambda xs, k: list(itertools.islice(xs, k, None)),
    "drop_last_numbers": lambda xs, k: [x for i, x in enumerate(xs) if len(xs) - i > k],
    "every_other_number": lambda xs: [x for i, x in enumerate(xs) if i % 2 == 0],
    "remove_duplicates": first_seen,
    "repeat_list": lambda xs, k: list(itertools.chain.from_iterable([xs] * k)),
    "append_number": lambda xs, k: [*xs, k],
    "append_sum": lambda xs: [*xs, functools.reduce(int.__add__, xs, 0)],
    "sum": lambda xs: functools.reduce(int.__add__, xs, 0),
    "count": lambda xs: functools.reduce(lambda count, _: count + 1, xs, 0),
    "count_distinct": lambda xs: len(Counter(xs)),
    "largest": lambda xs: extreme(xs, int.__gt__),
    "smallest": lambda xs: extreme(xs, int.__lt__),
    "first_number": lambda xs: next(iter(xs), 0),
    "last_number": lambda xs: next(reversed(xs), 0),
    "middle_number": lambda xs: next((x for i, x in enumerate(xs) if i == len(xs) // 2), 0),
    "average": lambda xs: math.floor(statistics.mean(xs)) if xs else 0,
    "join_numbers": lambda xs: repr(list(xs)).strip("[]").replace(", ", ","),
    # numbers
    "add": lambda n, k: sum((n, k)),
    "subtract": lambda n, k: n + -k,
    "multiply": lambda n, k: sum([n] * k),
    "square": lambda n: n * n,
    "absolute": lambda n: math.isqrt(n * n),
    "negate": lambda n: 0 - n,
    "halve": lambda n: math.floor(n / 2),
    "remainder": lambda n, k: n - k * math.floor(n / k),
    "cap": lambda n, k: k if n > k else n,
    "floor": lambda n, k: k if n < k else n,
    "sum_digits": lambda n: sum(digits(n)),
    "reverse_digits": lambda n: sum(d * 10**i for i, d in enumerate(digits(n))),
    "sum_up_to": lambda n: n * (n + 1) // 2 if n > 0 else 0,
    "list_below": lambda n: list(itertools.takewhile(lambda i: i < n, itertools.count())),
    "list_up_to": lambda n: list(itertools.takewhile(lambda i: i <= n, itertools.count(1))),
    "list_digits": digits,
    "list_divisors": lambda n: [d for d in range(1, n + 1) if d * (n // d) == n],
    "write_number": lambda n: f"{n:d}",
    "write_stars": lambda n: "".join("*" for i in range(1000) if i < n),
    # text
    "upper": lambda s: "".join(c.upper() for c in s),
    "lower": lambda s: "".join(c.lower() for c in s),
    "swap_case": lambda s: "".join(map(swapped, s)),
    "reverse_text": lambda s: "".join(backwards(s)),
    "strip": lambda s: re.sub(r"^ +| +$", "", s),
    "remove_spaces": lambda s: "".join(s.split(" ")),
    "replace_spaces": lambda s: "-".join(s.split(" ")),
    "remove_vowels": lambda s: re.sub("[aeiou]", "", s),
    "keep_vowels": lambda s: re.sub("[^aeiou]", "", s),
    "keep_letters": lambda s: re.sub("[^A-Za-z]", "", s),
    "first_characters": lambda s, k: "".join(itertools.islice(s, k)),
    "last_characters": lambda s, k: "".join(c for i, c in enumerate(s) if len(s) - i <= k),
    "drop_first_characters": lambda s, k: "".join(itertools.islice(s, k, None)),
    "drop_last_characters": lambda s, k: "".join(c for i, c in enumerate(s) if len(s) - i > k),
    "double_characters": lambda s: re.sub("(.)", r"\1\1", s),
    "repeat_text": lambda s, k: "".join([s] * k),
    "sort_characters": lambda s: "".join(insertion_sorted(s, lambda a, b: ord(a) < ord(b))),
    "append_mark": lambda s: f"{s}!",
    "count_characters": lambda s: sum(1 for _ in s),
    "count_spaces": lambda s: len(s.split(" ")) - 1,
    "count_vowels": lambda s: len([c for c in s if c in VOWELS]),
    "count_capitals": lambda s: len(re.findall("[A-Z]", s)),
    "split": words_of,
    # words
    "sort_words": lambda words: insertion_sorted(words, lambda a, b: a < b),
    "sort_words_by_length": lambda words: insertion_sorted(words, lambda a, b: len(a) < len(b)),
    "reverse_words": backwards,
    "reverse_each_word": each(lambda w: "".join(backwards(w))),
    "upper_each_word": each(lambda w: "".join(c.upper() for c in w)),
    "keep_long_words": kept(lambda w, k: not len(w) <= k),
    "drop_first_word": lambda words: list(itertools.islice(words, 1, None)),
    "count_words": lambda words: sum(1 for _ in words),
    "longest_length": lambda words: extreme([len(w) for w in words], int.__gt__),
    "join_words": lambda words: "".join(w if i == 0 else f" {w}" for i, w in enumerate(words)),
    "join_initials": lambda words: "".join(next(iter(w), "") for w in words),
    "last_word": lambda words: next(reversed(words), ""),
    "word_lengths": each(lambda w: sum(1 for _ in w)),
}  # fmt: skip


def expected_of(operation: Operation, value: Any) -> Any:
    """What `operation` must give for `value`."""
    if operation.name in ORACLES:
        return ORACLES[operation.name](value)
    template, _, constant = operation.name.rpartition("_")
    return ORACLES[template](value, int(constant))
