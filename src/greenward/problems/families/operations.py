"""The operations of which generated problems are composed.

Each operation is a phrase in English, the Python expression that computes it, and plausible wrong
expressions. Every operation is defined on every input: where a list may be empty, the phrase says what comes
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from greenward.problems.families.kinds import Kind


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


# A row: name, phrase, expression, wrong expressions, constants.
# fmt: off
TEMPLATES: dict[tuple[Kind, Kind], tuple[Template, ...]] = {
    (Kind.NUMBERS, Kind.NUMBERS): (
        Template("keep_even", "keep the even numbers", "[x for x in xs if x % 2 == 0]",
                 ("[x for x in xs if x % 2 == 1]", "[x for x in xs if x // 2 == 0]")),
        Template("keep_odd", "keep the odd numbers", "[x for x in xs if x % 2 == 1]",
                 ("[x for x in xs if x % 2 == 0]", "[x for x in xs if x // 2 == 1]")),
        Template("keep_positive", "keep the positive numbers", "[x for x in xs if x > 0]",
                 ("[x for x in xs if x >= 0]", "[x for x in xs if x < 0]")),
        Template("keep_negative", "keep the negative numbers", "[x for x in xs if x < 0]",
                 ("[x for x in xs if x <= 0]", "[x for x in xs if x > 0]")),
        Template("keep_above", "keep the numbers above {k}", "[x for x in xs if x > {k}]",
                 ("[x for x in xs if x >= {k}]", "[x for x in xs if x < {k}]"), (2, 3, 5)),
        Template("keep_below", "keep the numbers below {k}", "[x for x in xs if x < {k}]",
                 ("[x for x in xs if x <= {k}]", "[x for x in xs if x > {k}]"), (2, 3, 5)),
        Template("keep_multiples", "keep the multiples of {k}", "[x for x in xs if x % {k} == 0]",
                 ("[x for x in xs if x // {k} == 0]", "[x for x in xs if x % {k} == 1]"), (3,)),
        Template("remove_zeros", "remove the zeros", "[x for x in xs if x != 0]",
                 ("[x for x in xs if x == 0]", "[x for x in xs if x > 0]")),
        Template("multiply_each", "multiply each number by {k}", "[x * {k} for x in xs]",
                 ("[x + {k} for x in xs]", "[x ** {k} for x in xs]"), (2, 3, 5)),
        Template("add_each", "add {k} to each number", "[x + {k} for x in xs]",
                 ("[x * {k} for x in xs]", "[x - {k} for x in xs]"), (2, 3, 5)),
        Template("subtract_each", "subtract {k} from each number", "[x - {k} for x in xs]",
                 ("[{k} - x for x in xs]", "[x + {k} for x in xs]"), (2, 3)),
        Template("halve_each", "halve each number rounding down", "[x // 2 for x in xs]",
                 ("[x % 2 for x in xs]", "[x / 2 for x in xs]")),
        Template("remainder_each", "take each number modulo {k}", "[x % {k} for x in xs]",
                 ("[x // {k} for x in xs]", "[x - {k} for x in xs]"), (3, 5)),
        Template("square_each", "square each number", "[x ** 2 for x in xs]",
                 ("[x * 2 for x in xs]", "[x ** 3 for x in xs]")),
        Template("absolute_each", "take the absolute value of each number", "[abs(x) for x in xs]",
                 ("[-x for x in xs]", "[max(x, 0) for x in xs]")),
        Template("negate_each", "negate each number", "[-x for x in xs]",
                 ("[abs(x) for x in xs]", "[x - 1 for x in xs]")),
        Template("cap_each", "cap each number at {k}", "[min(x, {k}) for x in xs]",
                 ("[max(x, {k}) for x in xs]", "[x for x in xs if x <= {k}]"), (3, 5)),
        Template("floor_each", "raise each number to at least {k}", "[max(x, {k}) for x in xs]",
                 ("[min(x, {k}) for x in xs]", "[x for x in xs if x >= {k}]"), (2, 3)),
        Template("sort_ascending", "sort the numbers in ascending order", "sorted(xs)",
                 ("sorted(xs, reverse=True)", "xs[::-1]")),
        Template("sort_descending", "sort the numbers in descending order", "sorted(xs, reverse=True)",
                 ("sorted(xs)", "xs[::-1]")),
        Template("reverse_list", "reverse the list", "xs[::-1]", ("xs[:-1]", "sorted(xs, reverse=True)")),
        Template("first_numbers", "keep the first {k} numbers", "xs[:{k}]",
                 ("xs[{k}:]", "xs[:{less}]", "xs[-{k}:]"), (2, 3)),
        Template("last_numbers", "keep the last {k} numbers", "xs[-{k}:]", ("xs[:-{k}]", "xs[:{k}]"), (2, 3)),
        Template("drop_first_numbers", "drop the first {k} numbers", "xs[{k}:]",
                 ("xs[:{k}]", "xs[{less}:]", "xs[{more}:]"), (2, 3)),
        Template("drop_last_numbers", "drop the last {k} numbers", "xs[:-{k}]",
                 ("xs[-{k}:]", "xs[:{k}]"), (2, 3)),
        Template("every_other_number", "keep every other number", "xs[::2]", ("xs[1::2]", "xs[:2]")),
        Template("remove_duplicates", "remove the duplicates", "list(dict.fromkeys(xs))",
                 ("sorted(set(xs))", "[x for x in xs if xs.count(x) == 1]")),
        Template("repeat_list", "repeat the list {k} times", "xs * {k}",
                 ("[x * {k} for x in xs]", "xs * {more}"), (2, 3)),
        Template("append_number", "append {k} to the list", "xs + [{k}]",
                 ("[{k}] + xs", "[x + {k} for x in xs]"), (3, 5)),
        Template("append_sum", "append the sum to the list", "xs + [sum(xs)]",
                 ("[sum(xs)] + xs", "xs + [len(xs)]")),
    ),
    (Kind.NUMBERS, Kind.NUMBER): (
        Template("sum", "add up the numbers", "sum(xs)", ("sum(xs[1:])", "sum(xs[:-1])", "len(xs)")),
        Template("count", "count the numbers", "len(xs)", ("len(xs) - 1", "sum(xs)", "len(set(xs))")),
        Template("count_distinct", "count the distinct numbers", "len(set(xs))",
                 ("len(xs)", "len(set(xs)) - 1")),
        Template("largest", "find the largest number or 0", "max(xs, default=0)",
                 ("min(xs, default=0)", "max(xs, default=1)")),
        Template("smallest", "find the smallest number or 0", "min(xs, default=0)",
                 ("max(xs, default=0)", "min(xs, default=1)")),
        Template("first_number", "take the first number or 0", "xs[0] if xs else 0",
                 ("xs[1] if xs else 0", "xs[-1] if xs else 0")),
        Template("last_number", "take the last number or 0", "xs[-1] if xs else 0",
                 ("xs[0] if xs else 0", "xs[-2] if xs else 0")),
        Template("middle_number", "take the middle number or 0", "xs[len(xs) // 2] if xs else 0",
                 ("xs[len(xs) // 3] if xs else 0", "sorted(xs)[len(xs) // 2] if xs else 0")),
        Template("average", "find the average rounded down or 0", "sum(xs) // len(xs) if xs else 0",
                 ("sum(xs) // 2 if xs else 0", "sum(xs) / len(xs) if xs else 0")),
    ),
    (Kind.NUMBERS, Kind.TEXT): (
        Template("join_numbers", "join the numbers with commas", '",".join(map(str, xs))',
                 ('" ".join(map(str, xs))', '"".join(map(str, xs))')),
    ),
    (Kind.NUMBER, Kind.NUMBER): (
        Template("add", "add {k} to the number", "n + {k}", ("n * {k}", "n - {k}"), (2, 3, 5)),
        Template("subtract", "subtract {k} from the number", "n - {k}", ("{k} - n", "n + {k}"), (2, 3, 5)),
        Template("multiply", "multiply the number by {k}", "n * {k}", ("n + {k}", "n * {more}"), (2, 3, 5)),
        Template("square", "square the number", "n ** 2", ("n * 2", "n ** 3")),
        Template("absolute", "take the absolute value of the number", "abs(n)", ("-n", "max(n, 0)")),
        Template("negate", "negate the number", "-n", ("abs(n)", "n - 1")),
        Template("halve", "halve the number rounding down", "n // 2", ("n % 2", "n / 2")),
        Template("remainder", "take the number modulo {k}", "n % {k}", ("n // {k}", "n - {k}"), (3, 5)),
        Template("cap", "cap the number at {k}", "min(n, {k})", ("max(n, {k})", "n % {k}"), (5,)),
        Template("floor", "raise the number to at least {k}", "max(n, {k})",
                 ("min(n, {k})", "n + {k}"), (2, 3)),
        Template("sum_digits", "add up the digits of the number", "sum(map(int, str(abs(n))))",
                 ("sum(map(int, str(n)))", "len(str(abs(n)))")),
        Template("reverse_digits", "reverse the digits of the number without its sign",
                 "int(str(abs(n))[::-1])", ("int(str(n)[::-1])", "int(str(abs(n))[-1])")),
        Template("sum_up_to", "add up the integers from 1 to the number", "sum(range(n + 1))",
                 ("sum(range(n))", "sum(range(1, n))")),
    ),
    (Kind.NUMBER, Kind.NUMBERS): (
        Template("list_below", "list the integers from 0 to below the number", "list(range(n))",
                 ("list(range(n + 1))", "list(range(1, n))")),
        Template("list_up_to", "list the integers from 1 to the number", "list(range(1, n + 1))",
                 ("list(range(1, n))", "list(range(n + 1))")),
        Template("list_digits", "list the digits of the number", "list(map(int, str(abs(n))))",
                 ("list(map(int, str(n)))", "list(str(abs(n)))")),
        Template("list_divisors", "list the divisors of the number",
                 "[d for d in range(1, n + 1) if n % d == 0]",
                 ("[d for d in range(1, n) if n % d == 0]", "[d for d in range(2, n + 1) if n % d == 0]")),
    ),
    (Kind.NUMBER, Kind.TEXT): (
        Template("write_number", "write the number as text", "str(n)", ("str(abs(n))", "str(n + 1)")),
        Template("write_stars", "write as many stars as the number", '"*" * n',
                 ('"*" * (n - 1)', '"*" * (n + 1)')),
    ),
    (Kind.TEXT, Kind.TEXT): (
        Template("upper", "change the text to upper case", "s.upper()", ("s.lower()", "s.capitalize()")),
        Template("lower", "change the text to lower case", "s.lower()", ("s.upper()", "s.capitalize()")),
        Template("swap_case", "swap the case of the text", "s.swapcase()", ("s.upper()", "s.lower()")),
        Template("reverse_text", "reverse the text", "s[::-1]", ("s[:-1]", "s[::1]")),
        Template("strip", "strip the spaces around the text", "s.strip()",
                 ('s.replace(" ", "")', "s.lstrip()")),
        Template("remove_spaces", "remove the spaces", 's.replace(" ", "")',
                 ("s.strip()", 's.replace(" ", "-")')),
        Template("replace_spaces", "replace the spaces with dashes", 's.replace(" ", "-")',
                 ('s.replace("-", " ")', 's.replace(" ", "")')),
        Template("remove_vowels", "remove the lower case vowels", '"".join(c for c in s if c not in "aeiou")',
                 ('"".join(c for c in s if c in "aeiou")', '" ".join(c for c in s if c not in "aeiou")')),
        Template("keep_vowels", "keep the lower case vowels", '"".join(c for c in s if c in "aeiou")',
                 ('"".join(c for c in s if c not in "aeiou")', '" ".join(c for c in s if c in "aeiou")')),
        Template("keep_letters", "keep only the letters", '"".join(c for c in s if c.isalpha())',
                 ('"".join(c for c in s if c.isalnum())', '"".join(c for c in s if c.isdigit())')),
        Template("first_characters", "keep the first {k} characters", "s[:{k}]",
                 ("s[{k}:]", "s[:{less}]", "s[-{k}:]"), (3, 5)),
        Template("last_characters", "keep the last {k} characters", "s[-{k}:]",
                 ("s[:-{k}]", "s[:{k}]"), (3, 5)),
        Template("drop_first_characters", "drop the first {k} characters", "s[{k}:]",
                 ("s[:{k}]", "s[{less}:]", "s[{more}:]"), (2, 3)),
        Template("drop_last_characters", "drop the last {k} characters", "s[:-{k}]",
                 ("s[-{k}:]", "s[:{k}]"), (2, 3)),
        Template("double_characters", "double each character", '"".join(c * 2 for c in s)',
                 ("s * 2", '"".join(c * 3 for c in s)')),
        Template("repeat_text", "repeat the text {k} times", "s * {k}",
                 ('"".join(c * {k} for c in s)', "s * {more}"), (2, 3)),
        Template("sort_characters", "sort the characters in ascending order", '"".join(sorted(s))',
                 ('"".join(sorted(s, reverse=True))', '" ".join(sorted(s))')),
        Template("append_mark", "append an exclamation mark", 's + "!"', ('"!" + s', 's + " !"')),
    ),
    (Kind.TEXT, Kind.NUMBER): (
        Template("count_characters", "count the characters", "len(s)", ("len(s) - 1", "len(s.split())")),
        Template("count_spaces", "count the spaces", 's.count(" ")', ("len(s.split())", 's.find(" ")')),
        Template("count_vowels", "count the lower case vowels", 'sum(c in "aeiou" for c in s)',
                 ('sum(c not in "aeiou" for c in s)', 'sum(c in "aeiou" for c in s[1:])')),
        Template("count_capitals", "count the capital letters", "sum(c.isupper() for c in s)",
                 ("sum(c.islower() for c in s)", "sum(c.isalpha() for c in s)")),
    ),
    (Kind.TEXT, Kind.WORDS): (
        Template("split", "split the text into words", "s.split()", ("list(s)", 's.split(",")')),
    ),
    (Kind.WORDS, Kind.WORDS): (
        Template("sort_words", "sort the words in ascending order", "sorted(words)",
                 ("sorted(words, reverse=True)", "sorted(words, key=len)")),
        Template("sort_words_by_length", "sort the words by length", "sorted(words, key=len)",
                 ("sorted(words)", "sorted(words, key=len, reverse=True)")),
        Template("reverse_words", "reverse the order of the words", "words[::-1]",
                 ("[w[::-1] for w in words]", "words[:-1]")),
        Template("reverse_each_word", "reverse each word", "[w[::-1] for w in words]",
                 ("words[::-1]", "[w[:-1] for w in words]")),
        Template("upper_each_word", "change each word to upper case", "[w.upper() for w in words]",
                 ("[w.lower() for w in words]", "[w.capitalize() for w in words]")),
        Template("keep_long_words", "keep the words longer than {k} characters",
                 "[w for w in words if len(w) > {k}]",
                 ("[w for w in words if len(w) >= {k}]", "[w for w in words if len(w) < {k}]"), (2, 3)),
        Template("drop_first_word", "drop the first word", "words[1:]", ("words[:1]", "words[:-1]")),
    ),
    (Kind.WORDS, Kind.NUMBER): (
        Template("count_words", "count the words", "len(words)", ("len(words) - 1", "len(set(words))")),
        Template("longest_length", "find the length of the longest word or 0",
                 "max(map(len, words), default=0)",
                 ("min(map(len, words), default=0)", "max(map(len, words), default=1)")),
    ),
    (Kind.WORDS, Kind.TEXT): (
        Template("join_words", "join the words with spaces", '" ".join(words)',
                 ('"".join(words)', '",".join(words)')),
        Template("join_initials", "join the first letters of the words", '"".join(w[:1] for w in words)',
                 ('"".join(w[-1:] for w in words)', '" ".join(w[:1] for w in words)')),
        Template("last_word", "take the last word or an empty text", 'words[-1] if words else ""',
                 ('words[0] if words else ""', 'words[-2] if words else ""')),
    ),
    (Kind.WORDS, Kind.NUMBERS): (
        Template("word_lengths", "list the lengths of the words", "[len(w) for w in words]",
                 ("[len(w) - 1 for w in words]", "[len(words) for w in words]")),
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
