"""The operations of which generated problems are composed, and the kinds of values between them.

Each operation is a phrase in English, the Python expression that computes it, and plausible wrong
expressions. Every operation is defined on every input: where a list may be empty, the phrase says what comes
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any


class Kind(str, Enum):
    """The type of a value between two operations; the member's value names the variable that holds it."""

    NUMBERS = "xs"  # list[int]
    NUMBER = "n"  # int
    TEXT = "s"  # str
    WORDS = "words"  # list[str]


@dataclass(frozen=True)
class Operation:
    """A total function from one kind to another.

    `phrase` says in words what `expression` computes from the variable of kind `takes`. Each of the
    `wrong_expressions` is a mistake that a programmer could make: it differs from `expression` on some value,
    and may raise. `template` is the name without the constant.
    """

    name: str
    template: str
    takes: Kind
    gives: Kind
    phrase: str
    expression: str
    wrong_expressions: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A family of operations, one for each constant; a single operation when there are no constants.

    `{k}` in the texts stands for the constant, `{less}` and `{more}` for the constant minus and plus one.
    """

    name: str
    phrase: str
    expression: str
    wrong_expressions: tuple[str, ...]
    constants: tuple[int, ...] = ()

    def operations(self, takes: Kind, gives: Kind) -> Iterator[Operation]:
        """The operations, named `<name>_<k>`; without constants, the only one has the template's name."""
        for k in self.constants or (None,):
            constant = {} if k is None else {"k": k, "less": k - 1, "more": k + 1}
            yield Operation(
                name=self.name if k is None else f"{self.name}_{k}",
                template=self.name,
                takes=takes,
                gives=gives,
                phrase=self.phrase.format(**constant),
                expression=self.expression.format(**constant),
                wrong_expressions=tuple(text.format(**constant) for text in self.wrong_expressions),
            )


@cache
def compiled(kind: Kind, expression: str) -> Callable[[Any], Any]:
    """The function of one value of `kind` that computes `expression`, which comes from this file."""
    function: Callable[[Any], Any] = eval(f"lambda {kind.value}: {expression}")
    return function


def _row(name: str, phrase: str, *expressions: str, k: tuple[int, ...] = (), form: str = "{}") -> Template:
    """A template; `expressions` are the right one and then wrong ones, which are set into `form`."""
    right, *wrong = map(form.format, expressions)
    return Template(name, phrase, right, tuple(wrong), k)


_keep = partial(_row, form="[x for x in xs if {}]")
_each = partial(_row, form="[{} for x in xs]")

# fmt: off
TEMPLATES: dict[tuple[Kind, Kind], tuple[Template, ...]] = {
    (Kind.NUMBERS, Kind.NUMBERS): (
        _keep("keep_even", "keep the even numbers", "x % 2 == 0", "x % 2 == 1", "x // 2 == 0"),
        _keep("keep_odd", "keep the odd numbers", "x % 2 == 1", "x % 2 == 0", "x // 2 == 1"),
        _keep("keep_positive", "keep the positive numbers", "x > 0", "x >= 0", "x < 0"),
        _keep("keep_negative", "keep the negative numbers", "x < 0", "x <= 0", "x > 0"),
        _keep("keep_above", "keep the numbers above {k}", "x > {k}", "x >= {k}", "x < {k}", k=(2, 3, 5)),
        _keep("keep_below", "keep the numbers below {k}", "x < {k}", "x <= {k}", "x > {k}", k=(2, 3, 5)),
        _keep("keep_multiples", "keep the multiples of {k}", "x % {k} == 0", "x // {k} == 0", "x % {k} == 1",
              k=(3,)),
        _keep("remove_zeros", "remove the zeros", "x != 0", "x == 0", "x > 0"),
        _each("multiply_each", "multiply each number by {k}", "x * {k}", "x + {k}", "x ** {k}", k=(2, 3, 5)),
        _each("add_each", "add {k} to each number", "x + {k}", "x * {k}", "x - {k}", k=(2, 3, 5)),
        _each("subtract_each", "subtract {k} from each number", "x - {k}", "{k} - x", "x + {k}", k=(2, 3)),
        _each("halve_each", "halve each number rounding down", "x // 2", "x % 2", "x / 2"),
        _each("remainder_each", "take each number modulo {k}", "x % {k}", "x // {k}", "x - {k}", k=(3, 5)),
        _each("square_each", "square each number", "x ** 2", "x * 2", "x ** 3"),
        _each("absolute_each", "take the absolute value of each number", "abs(x)", "-x", "max(x, 0)"),
        _each("negate_each", "negate each number", "-x", "abs(x)", "x - 1"),
        _row("cap_each", "cap each number at {k}", "[min(x, {k}) for x in xs]", "[max(x, {k}) for x in xs]",
             "[x for x in xs if x <= {k}]", k=(3, 5)),
        _row("floor_each", "raise each number to at least {k}", "[max(x, {k}) for x in xs]",
             "[min(x, {k}) for x in xs]", "[x for x in xs if x >= {k}]", k=(2, 3)),
        _row("sort_ascending", "sort the numbers in ascending order", "sorted(xs)",
             "sorted(xs, reverse=True)", "xs[::-1]"),
        _row("sort_descending", "sort the numbers in descending order", "sorted(xs, reverse=True)",
             "sorted(xs)", "xs[::-1]"),
        _row("reverse_list", "reverse the list", "xs[::-1]", "xs[:-1]", "sorted(xs, reverse=True)"),
        _row("first_numbers", "keep the first {k} numbers", "xs[:{k}]", "xs[{k}:]", "xs[:{less}]",
             "xs[-{k}:]", k=(2, 3)),
        _row("last_numbers", "keep the last {k} numbers", "xs[-{k}:]", "xs[:-{k}]", "xs[:{k}]", k=(2, 3)),
        _row("drop_first_numbers", "drop the first {k} numbers", "xs[{k}:]", "xs[:{k}]", "xs[{less}:]",
             "xs[{more}:]", k=(2, 3)),
        _row("drop_last_numbers", "drop the last {k} numbers", "xs[:-{k}]", "xs[-{k}:]", "xs[:{k}]",
             k=(2, 3)),
        _row("every_other_number", "keep every other number", "xs[::2]", "xs[1::2]", "xs[:2]"),
        _row("remove_duplicates", "remove the duplicates", "list(dict.fromkeys(xs))", "sorted(set(xs))",
             "[x for x in xs if xs.count(x) == 1]"),
        _row("repeat_list", "repeat the list {k} times", "xs * {k}", "[x * {k} for x in xs]", "xs * {more}",
             k=(2, 3)),
        _row("append_number", "append {k} to the list", "xs + [{k}]", "[{k}] + xs", "[x + {k} for x in xs]",
             k=(3, 5)),
        _row("append_sum", "append the sum to the list", "xs + [sum(xs)]", "[sum(xs)] + xs",
             "xs + [len(xs)]"),
    ),
    (Kind.NUMBERS, Kind.NUMBER): (
        _row("sum", "add up the numbers", "sum(xs)", "sum(xs[1:])", "sum(xs[:-1])", "len(xs)"),
        _row("count", "count the numbers", "len(xs)", "len(xs) - 1", "sum(xs)", "len(set(xs))"),
        _row("count_distinct", "count the distinct numbers", "len(set(xs))", "len(xs)", "len(set(xs)) - 1"),
        _row("largest", "find the largest number or 0", "max(xs, default=0)", "min(xs, default=0)",
             "max(xs, default=1)"),
        _row("smallest", "find the smallest number or 0", "min(xs, default=0)", "max(xs, default=0)",
             "min(xs, default=1)"),
        _row("first_number", "take the first number or 0", "xs[0] if xs else 0", "xs[1] if xs else 0",
             "xs[-1] if xs else 0"),
        _row("last_number", "take the last number or 0", "xs[-1] if xs else 0", "xs[0] if xs else 0",
             "xs[-2] if xs else 0"),
        _row("middle_number", "take the middle number or 0", "xs[len(xs) // 2] if xs else 0",
             "xs[len(xs) // 3] if xs else 0", "sorted(xs)[len(xs) // 2] if xs else 0"),
        _row("average", "find the average rounded down or 0", "sum(xs) // len(xs) if xs else 0",
             "sum(xs) // 2 if xs else 0", "sum(xs) / len(xs) if xs else 0"),
    ),
    (Kind.NUMBERS, Kind.TEXT): (
        _row("join_numbers", "join the numbers with commas", '",".join(map(str, xs))',
             '" ".join(map(str, xs))', '"".join(map(str, xs))'),
    ),
    (Kind.NUMBER, Kind.NUMBER): (
        _row("add", "add {k} to the number", "n + {k}", "n * {k}", "n - {k}", k=(2, 3, 5)),
        _row("subtract", "subtract {k} from the number", "n - {k}", "{k} - n", "n + {k}", k=(2, 3, 5)),
        _row("multiply", "multiply the number by {k}", "n * {k}", "n + {k}", "n * {more}", k=(2, 3, 5)),
        _row("square", "square the number", "n ** 2", "n * 2", "n ** 3"),
        _row("absolute", "take the absolute value of the number", "abs(n)", "-n", "max(n, 0)"),
        _row("negate", "negate the number", "-n", "abs(n)", "n - 1"),
        _row("halve", "halve the number rounding down", "n // 2", "n % 2", "n / 2"),
        _row("remainder", "take the number modulo {k}", "n % {k}", "n // {k}", "n - {k}", k=(3, 5)),
        _row("cap", "cap the number at {k}", "min(n, {k})", "max(n, {k})", "n % {k}", k=(5,)),
        _row("floor", "raise the number to at least {k}", "max(n, {k})", "min(n, {k})", "n + {k}", k=(2, 3)),
        _row("sum_digits", "add up the digits of the number", "sum(map(int, str(abs(n))))",
             "sum(map(int, str(n)))", "len(str(abs(n)))"),
        _row("reverse_digits", "reverse the digits of the number without its sign", "int(str(abs(n))[::-1])",
             "int(str(n)[::-1])", "int(str(abs(n))[-1])"),
        _row("sum_up_to", "add up the integers from 1 to the number", "sum(range(n + 1))", "sum(range(n))",
             "sum(range(1, n))"),
    ),
    (Kind.NUMBER, Kind.NUMBERS): (
        _row("list_below", "list the integers from 0 to below the number", "list(range(n))",
             "list(range(n + 1))", "list(range(1, n))"),
        _row("list_up_to", "list the integers from 1 to the number", "list(range(1, n + 1))",
             "list(range(1, n))", "list(range(n + 1))"),
        _row("list_digits", "list the digits of the number", "list(map(int, str(abs(n))))",
             "list(map(int, str(n)))", "list(str(abs(n)))"),
        _row("list_divisors", "list the divisors of the number", "[d for d in range(1, n + 1) if n % d == 0]",
             "[d for d in range(1, n) if n % d == 0]", "[d for d in range(2, n + 1) if n % d == 0]"),
    ),
    (Kind.NUMBER, Kind.TEXT): (
        _row("write_number", "write the number as text", "str(n)", "str(abs(n))", "str(n + 1)"),
        _row("write_stars", "write as many stars as the number", '"*" * n', '"*" * (n - 1)', '"*" * (n + 1)'),
    ),
    (Kind.TEXT, Kind.TEXT): (
        _row("upper", "change the text to upper case", "s.upper()", "s.lower()", "s.capitalize()"),
        _row("lower", "change the text to lower case", "s.lower()", "s.upper()", "s.capitalize()"),
        _row("swap_case", "swap the case of the text", "s.swapcase()", "s.upper()", "s.lower()"),
        _row("reverse_text", "reverse the text", "s[::-1]", "s[:-1]", "s[::1]"),
        _row("strip", "strip the spaces around the text", "s.strip()", 's.replace(" ", "")', "s.lstrip()"),
        _row("remove_spaces", "remove the spaces", 's.replace(" ", "")', "s.strip()", 's.replace(" ", "-")'),
        _row("replace_spaces", "replace the spaces with dashes", 's.replace(" ", "-")', 's.replace("-", " ")',
             's.replace(" ", "")'),
        _row("remove_vowels", "remove the lower case vowels", '"".join(c for c in s if c not in "aeiou")',
             '"".join(c for c in s if c in "aeiou")', '" ".join(c for c in s if c not in "aeiou")'),
        _row("keep_vowels", "keep the lower case vowels", '"".join(c for c in s if c in "aeiou")',
             '"".join(c for c in s if c not in "aeiou")', '" ".join(c for c in s if c in "aeiou")'),
        _row("keep_letters", "keep only the letters", '"".join(c for c in s if c.isalpha())',
             '"".join(c for c in s if c.isalnum())', '"".join(c for c in s if c.isdigit())'),
        _row("first_characters", "keep the first {k} characters", "s[:{k}]", "s[{k}:]", "s[:{less}]",
             "s[-{k}:]", k=(3, 5)),
        _row("last_characters", "keep the last {k} characters", "s[-{k}:]", "s[:-{k}]", "s[:{k}]", k=(3, 5)),
        _row("drop_first_characters", "drop the first {k} characters", "s[{k}:]", "s[:{k}]", "s[{less}:]",
             "s[{more}:]", k=(2, 3)),
        _row("drop_last_characters", "drop the last {k} characters", "s[:-{k}]", "s[-{k}:]", "s[:{k}]",
             k=(2, 3)),
        _row("double_characters", "double each character", '"".join(c * 2 for c in s)', "s * 2",
             '"".join(c * 3 for c in s)'),
        _row("repeat_text", "repeat the text {k} times", "s * {k}", '"".join(c * {k} for c in s)',
             "s * {more}", k=(2, 3)),
        _row("sort_characters", "sort the characters in ascending order", '"".join(sorted(s))',
             '"".join(sorted(s, reverse=True))', '" ".join(sorted(s))'),
        _row("append_mark", "append an exclamation mark", 's + "!"', '"!" + s', 's + " !"'),
    ),
    (Kind.TEXT, Kind.NUMBER): (
        _row("count_characters", "count the characters", "len(s)", "len(s) - 1", "len(s.split())"),
        _row("count_spaces", "count the spaces", 's.count(" ")', "len(s.split())", 's.find(" ")'),
        _row("count_vowels", "count the lower case vowels", 'sum(c in "aeiou" for c in s)',
             'sum(c not in "aeiou" for c in s)', 'sum(c in "aeiou" for c in s[1:])'),
        _row("count_capitals", "count the capital letters", "sum(c.isupper() for c in s)",
             "sum(c.islower() for c in s)", "sum(c.isalpha() for c in s)"),
    ),
    (Kind.TEXT, Kind.WORDS): (
        _row("split", "split the text into words", "s.split()", "list(s)", 's.split(",")'),
    ),
    (Kind.WORDS, Kind.WORDS): (
        _row("sort_words", "sort the words in ascending order", "sorted(words)",
             "sorted(words, reverse=True)", "sorted(words, key=len)"),
        _row("sort_words_by_length", "sort the words by length", "sorted(words, key=len)", "sorted(words)",
             "sorted(words, key=len, reverse=True)"),
        _row("reverse_words", "reverse the order of the words", "words[::-1]", "[w[::-1] for w in words]",
             "words[:-1]"),
        _row("reverse_each_word", "reverse each word", "[w[::-1] for w in words]", "words[::-1]",
             "[w[:-1] for w in words]"),
        _row("upper_each_word", "change each word to upper case", "[w.upper() for w in words]",
             "[w.lower() for w in words]", "[w.capitalize() for w in words]"),
        _row("keep_long_words", "keep the words longer than {k} characters",
             "[w for w in words if len(w) > {k}]", "[w for w in words if len(w) >= {k}]",
             "[w for w in words if len(w) < {k}]", k=(2, 3)),
        _row("drop_first_word", "drop the first word", "words[1:]", "words[:1]", "words[:-1]"),
    ),
    (Kind.WORDS, Kind.NUMBER): (
        _row("count_words", "count the words", "len(words)", "len(words) - 1", "len(set(words))"),
        _row("longest_length", "find the length of the longest word or 0", "max(map(len, words), default=0)",
             "min(map(len, words), default=0)", "max(map(len, words), default=1)"),
    ),
    (Kind.WORDS, Kind.TEXT): (
        _row("join_words", "join the words with spaces", '" ".join(words)', '"".join(words)',
             '",".join(words)'),
        _row("join_initials", "join the first letters of the words", '"".join(w[:1] for w in words)',
             '"".join(w[-1:] for w in words)', '" ".join(w[:1] for w in words)'),
        _row("last_word", "take the last word or an empty text", 'words[-1] if words else ""',
             'words[0] if words else ""', 'words[-2] if words else ""'),
    ),
    (Kind.WORDS, Kind.NUMBERS): (
        _row("word_lengths", "list the lengths of the words", "[len(w) for w in words]",
             "[len(w) - 1 for w in words]", "[len(words) for w in words]"),
    ),
}
# fmt: on

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for (takes, gives), templates in TEMPLATES.items()
    for template in templates
    for operation in template.operations(takes, gives)
}

OPERATIONS_TAKING: dict[Kind, tuple[Operation, ...]] = {
    kind: tuple(operation for operation in OPERATIONS.values() if operation.takes is kind) for kind in Kind
}
