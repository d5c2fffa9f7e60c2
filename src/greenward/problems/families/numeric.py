"""Operations on whole numbers and on lists of them.

Every one is defined on every input: where a list may be empty, the phrase says what comes then.
"""

from __future__ import annotations

from greenward.problems.families.operation import Kind, Template

NUMERIC: dict[tuple[Kind, Kind], tuple[Template, ...]] = {
    (Kind.NUMBERS, Kind.NUMBERS): (
        Template(
            "keep_even",
            "keep the even numbers",
            "[x for x in xs if x % 2 == 0]",
            ("[x for x in xs if x % 2 == 1]", "[x for x in xs if x // 2 == 0]"),
        ),
        Template(
            "keep_odd",
            "keep the odd numbers",
            "[x for x in xs if x % 2 == 1]",
            ("[x for x in xs if x % 2 == 0]", "[x for x in xs if x // 2 == 1]"),
        ),
        Template(
            "keep_positive",
            "keep the positive numbers",
            "[x for x in xs if x > 0]",
            ("[x for x in xs if x >= 0]", "[x for x in xs if x < 0]"),
        ),
        Template(
            "keep_negative",
            "keep the negative numbers",
            "[x for x in xs if x < 0]",
            ("[x for x in xs if x <= 0]", "[x for x in xs if x > 0]"),
        ),
        Template(
            "keep_above",
            "keep the numbers above {k}",
            "[x for x in xs if x > {k}]",
            ("[x for x in xs if x >= {k}]", "[x for x in xs if x < {k}]"),
            constants=(2, 3, 5),
        ),
        Template(
            "keep_below",
            "keep the numbers below {k}",
            "[x for x in xs if x < {k}]",
            ("[x for x in xs if x <= {k}]", "[x for x in xs if x > {k}]"),
            constants=(2, 3, 5),
        ),
        Template(
            "keep_multiples",
            "keep the multiples of {k}",
            "[x for x in xs if x % {k} == 0]",
            ("[x for x in xs if x // {k} == 0]", "[x for x in xs if x % {k} == 1]"),
            constants=(3,),
        ),
        Template(
            "remove_zeros",
            "remove the zeros",
            "[x for x in xs if x != 0]",
            ("[x for x in xs if x == 0]", "[x for x in xs if x > 0]"),
        ),
        Template(
            "multiply_each",
            "multiply each number by {k}",
            "[x * {k} for x in xs]",
            ("[x + {k} for x in xs]", "[x ** {k} for x in xs]"),
            constants=(2, 3, 5),
        ),
        Template(
            "add_each",
            "add {k} to each number",
            "[x + {k} for x in xs]",
            ("[x * {k} for x in xs]", "[x - {k} for x in xs]"),
            constants=(2, 3, 5),
        ),
        Template(
            "subtract_each",
            "subtract {k} from each number",
            "[x - {k} for x in xs]",
            ("[{k} - x for x in xs]", "[x + {k} for x in xs]"),
            constants=(2, 3),
        ),
        Template(
            "halve_each",
            "halve each number rounding down",
            "[x // 2 for x in xs]",
            ("[x % 2 for x in xs]", "[x / 2 for x in xs]"),
        ),
        Template(
            "remainder_each",
            "take each number modulo {k}",
            "[x % {k} for x in xs]",
            ("[x // {k} for x in xs]", "[x - {k} for x in xs]"),
            constants=(3, 5),
        ),
        Template(
            "square_each",
            "square each number",
            "[x ** 2 for x in xs]",
            ("[x * 2 for x in xs]", "[x ** 3 for x in xs]"),
        ),
        Template(
            "absolute_each",
            "take the absolute value of each number",
            "[abs(x) for x in xs]",
            ("[-x for x in xs]", "[max(x, 0) for x in xs]"),
        ),
        Template(
            "negate_each",
            "negate each number",
            "[-x for x in xs]",
            ("[abs(x) for x in xs]", "[x - 1 for x in xs]"),
        ),
        Template(
            "cap_each",
            "cap each number at {k}",
            "[min(x, {k}) for x in xs]",
            ("[max(x, {k}) for x in xs]", "[x for x in xs if x <= {k}]"),
            constants=(3, 5),
        ),
        Template(
            "floor_each",
            "raise each number to at least {k}",
            "[max(x, {k}) for x in xs]",
            ("[min(x, {k}) for x in xs]", "[x for x in xs if x >= {k}]"),
            constants=(2, 3),
        ),
        Template(
            "sort_ascending",
            "sort the numbers in ascending order",
            "sorted(xs)",
            ("sorted(xs, reverse=True)", "xs[::-1]"),
        ),
        Template(
            "sort_descending",
            "sort the numbers in descending order",
            "sorted(xs, reverse=True)",
            ("sorted(xs)", "xs[::-1]"),
        ),
        Template(
            "reverse_list",
            "reverse the list",
            "xs[::-1]",
            ("xs[:-1]", "sorted(xs, reverse=True)"),
        ),
        Template(
            "first_numbers",
            "keep the first {k} numbers",
            "xs[:{k}]",
            ("xs[{k}:]", "xs[:{less}]", "xs[-{k}:]"),
            constants=(2, 3),
        ),
        Template(
            "last_numbers",
            "keep the last {k} numbers",
            "xs[-{k}:]",
            ("xs[:-{k}]", "xs[:{k}]"),
            constants=(2, 3),
        ),
        Template(
            "drop_first_numbers",
            "drop the first {k} numbers",
            "xs[{k}:]",
            ("xs[:{k}]", "xs[{less}:]", "xs[{more}:]"),
            constants=(2, 3),
        ),
        Template(
            "drop_last_numbers",
            "drop the last {k} numbers",
            "xs[:-{k}]",
            ("xs[-{k}:]", "xs[:{k}]"),
            constants=(2, 3),
        ),
        Template(
            "every_other_number",
            "keep every other number",
            "xs[::2]",
            ("xs[1::2]", "xs[:2]"),
        ),
        Template(
            "remove_duplicates",
            "remove the duplicates",
            "list(dict.fromkeys(xs))",
            ("sorted(set(xs))", "[x for x in xs if xs.count(x) == 1]"),
        ),
        Template(
            "repeat_list",
            "repeat the list {k} times",
            "xs * {k}",
            ("[x * {k} for x in xs]", "xs * {more}"),
            constants=(2, 3),
        ),
        Template(
            "append_number",
            "append {k} to the list",
            "xs + [{k}]",
            ("[{k}] + xs", "[x + {k} for x in xs]"),
            constants=(3, 5),
        ),
        Template(
            "append_sum",
            "append the sum to the list",
            "xs + [sum(xs)]",
            ("[sum(xs)] + xs", "xs + [len(xs)]"),
        ),
    ),
    (Kind.NUMBERS, Kind.NUMBER): (
        Template("sum", "add up the numbers", "sum(xs)", ("sum(xs[1:])", "sum(xs[:-1])", "len(xs)")),
        Template("count", "count the numbers", "len(xs)", ("len(xs) - 1", "sum(xs)", "len(set(xs))")),
        Template(
            "count_distinct",
            "count the distinct numbers",
            "len(set(xs))",
            ("len(xs)", "len(set(xs)) - 1"),
        ),
        Template(
            "largest",
            "find the largest number or 0",
            "max(xs, default=0)",
            ("min(xs, default=0)", "max(xs, default=1)"),
        ),
        Template(
            "smallest",
            "find the smallest number or 0",
            "min(xs, default=0)",
            ("max(xs, default=0)", "min(xs, default=1)"),
        ),
        Template(
            "first_number",
            "take the first number or 0",
            "xs[0] if xs else 0",
            ("xs[1] if xs else 0", "xs[-1] if xs else 0"),
        ),
        Template(
            "last_number",
            "take the last number or 0",
            "xs[-1] if xs else 0",
            ("xs[0] if xs else 0", "xs[-2] if xs else 0"),
        ),
        Template(
            "middle_number",
            "take the middle number or 0",
            "xs[len(xs) // 2] if xs else 0",
            ("xs[len(xs) // 3] if xs else 0", "sorted(xs)[len(xs) // 2] if xs else 0"),
        ),
        Template(
            "average",
            "find the average rounded down or 0",
            "sum(xs) // len(xs) if xs else 0",
            ("sum(xs) // 2 if xs else 0", "sum(xs) / len(xs) if xs else 0"),
        ),
    ),
    (Kind.NUMBERS, Kind.TEXT): (
        Template(
            "join_numbers",
            "join the numbers with commas",
            '",".join(map(str, xs))',
            ('" ".join(map(str, xs))', '"".join(map(str, xs))'),
        ),
    ),
    (Kind.NUMBER, Kind.NUMBER): (
        Template("add", "add {k} to the number", "n + {k}", ("n * {k}", "n - {k}"), constants=(2, 3, 5)),
        Template(
            "subtract", "subtract {k} from the number", "n - {k}", ("{k} - n", "n + {k}"), constants=(2, 3, 5)
        ),
        Template(
            "multiply",
            "multiply the number by {k}",
            "n * {k}",
            ("n + {k}", "n * {more}"),
            constants=(2, 3, 5),
        ),
        Template("square", "square the number", "n ** 2", ("n * 2", "n ** 3")),
        Template("absolute", "take the absolute value of the number", "abs(n)", ("-n", "max(n, 0)")),
        Template("negate", "negate the number", "-n", ("abs(n)", "n - 1")),
        Template("halve", "halve the number rounding down", "n // 2", ("n % 2", "n / 2")),
        Template(
            "remainder", "take the number modulo {k}", "n % {k}", ("n // {k}", "n - {k}"), constants=(3, 5)
        ),
        Template("cap", "cap the number at {k}", "min(n, {k})", ("max(n, {k})", "n % {k}"), constants=(5,)),
        Template(
            "floor",
            "raise the number to at least {k}",
            "max(n, {k})",
            ("min(n, {k})", "n + {k}"),
            constants=(2, 3),
        ),
        Template(
            "sum_digits",
            "add up the digits of the number",
            "sum(map(int, str(abs(n))))",
            ("sum(map(int, str(n)))", "len(str(abs(n)))"),
        ),
        Template(
            "reverse_digits",
            "reverse the digits of the number without its sign",
            "int(str(abs(n))[::-1])",
            ("int(str(n)[::-1])", "int(str(abs(n))[-1])"),
        ),
        Template(
            "sum_up_to",
            "add up the integers from 1 to the number",
            "sum(range(n + 1))",
            ("sum(range(n))", "sum(range(1, n))"),
        ),
    ),
    (Kind.NUMBER, Kind.NUMBERS): (
        Template(
            "list_below",
            "list the integers from 0 to below the number",
            "list(range(n))",
            ("list(range(n + 1))", "list(range(1, n))"),
        ),
        Template(
            "list_up_to",
            "list the integers from 1 to the number",
            "list(range(1, n + 1))",
            ("list(range(1, n))", "list(range(n + 1))"),
        ),
        Template(
            "list_digits",
            "list the digits of the number",
            "list(map(int, str(abs(n))))",
            ("list(map(int, str(n)))", "list(str(abs(n)))"),
        ),
        Template(
            "list_divisors",
            "list the divisors of the number",
            "[d for d in range(1, n + 1) if n % d == 0]",
            ("[d for d in range(1, n) if n % d == 0]", "[d for d in range(2, n + 1) if n % d == 0]"),
        ),
    ),
    (Kind.NUMBER, Kind.TEXT): (
        Template("write_number", "write the number as text", "str(n)", ("str(abs(n))", "str(n + 1)")),
        Template(
            "write_stars", "write as many stars as the number", '"*" * n', ('"*" * (n - 1)', '"*" * (n + 1)')
        ),
    ),
}
