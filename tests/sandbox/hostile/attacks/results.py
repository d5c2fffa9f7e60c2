"""Answers and results that are costly to compile, to encode, to send or to compare."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, RESOURCES, WATCHDOG, HostileProgram, hostile


def _result(name: str, code: str, wanted: str = "secret") -> HostileProgram:
    return hostile(
        name, "bombs of results and code", code, GRADING_OUTSIDE, WATCHDOG, RESOURCES, wanted=wanted
    )


PROGRAMS = (
    _result("recursion_without_end", "def f(i): return f(i)"),
    _result("recursion_without_a_limit", "import sys\nsys.setrecursionlimit(10**9)\ndef f(i): return [f(i)]"),
    _result("recursion_in_c", """
        import sys
        sys.setrecursionlimit(10**6)
        class Deep:
            def __repr__(self): return repr([self])
        def f(i): return repr(Deep())
        """),
    _result("recursion_caught", """
        def f(i):
            try: return f(i)
            except RecursionError: return "x"
        """),
    _result("nested_a_hundred_thousand_times", """
        value = []
        for _ in range(100_000): value = [value]
        def f(i): return value
        """),
    _result("dicts_nested_beyond_the_depth", """
        value = 1
        for _ in range(500): value = {"a": value}
        def f(i): return value
        """, "dict"),
    _result("a_list_that_holds_itself", """
        def f(i):
            value = []
            value.append(value)
            return value
        """, "list"),
    _result("a_dict_that_holds_itself", """
        def f(i):
            value = {}
            value["a"] = value
            return value
        """, "dict"),
    _result("a_billion_laughs", """
        def f(i):
            value = ["x"]
            for _ in range(60): value = [value, value]
            return value
        """, "list"),
    _result("a_wide_billion_laughs", """
        def f(i):
            value = ["x" * 1000] * 1000
            for _ in range(3): value = [value] * 1000
            return value
        """, "list"),
    _result("an_integer_of_a_million_digits", "def f(i): return 10 ** 1_000_000 + i", "int"),
    _result("an_integer_of_ten_million_bits", "def f(i): return 1 << 20_000_000", "int"),
    _result("a_string_of_fifty_megabytes", "def f(i): return 'x' * (50 << 20)"),
    _result("a_string_that_escapes_long", "def f(i): return '\\U0001f600' * (2 << 20)"),
    _result("bytes_of_fifty_megabytes", "def f(i): return bytes(50 << 20)", "bytes"),
    _result("a_list_of_a_million", "def f(i): return list(range(1_000_000))", "list"),
    _result("a_set_that_hashes_alike", "def f(i): return [n * (2**61 - 1) for n in range(100_000)]", "list"),
    _result("a_dict_that_hashes_alike", """
        class Same:
            __hash__ = lambda self: 0
            __eq__ = lambda self, other: [x for x in range(100)] == 1
        def f(i): return {Same(): n for n in range(3000)}
        """, "dict"),
    _result("an_endless_generator", """
        def f(i):
            while True: yield 1
        """, "list"),
    _result("an_endless_list_by_its_iterator", """
        class Endless(list):
            def __iter__(self):
                while True: yield 1
            def __len__(self): return 1 << 60
        def f(i): return Endless()
        """, "list"),
    _result("a_message_without_end", """
        class Endless(Exception):
            def __str__(self):
                for _ in range(5 * 10**8): pass
        def f(i): raise Endless
        """),
    _result("a_message_of_a_gigabyte", "def f(i): raise ValueError('x' * (200 << 20))"),
    _result("a_chain_of_exceptions", """
        def f(i):
            error = ValueError()
            for _ in range(100_000):
                following = ValueError()
                following.__cause__, error = error, following
            raise error
        """),
    _result("a_constant_folded_for_ever", "x = 2 ** (2 ** 40)\ndef f(i): return 'x'"),
    _result("brackets_that_break_the_parser", "x = " + "(" * 150 + ")" * 150 + "\ny = " + "[" * 90_000),
    _result("operators_that_break_the_compiler", "x = " + "-" * 90_000 + "1\ndef f(i): return 'x'"),
    _result("a_long_chain_of_attributes", "x = 1" + ".real" * 90_000 + "\ndef f(i): return 'x'"),
    _result("a_long_chain_of_branches", "if 0: pass\n" + "elif 0: pass\n" * 20_000 + "def f(i): return 'x'"),
    _result("many_functions", "\n".join(f"def g{n}(): return {n}" for n in range(20_000)) + "\ndef f(i): return 'x'"),
    _result("more_code_than_allowed", "x = '" + "x" * (50 << 20) + "'\ndef f(i): return 'x'"),
    _result("code_with_null_bytes", "def f(i): return 'x'\0"),
    _result("code_that_is_not_utf_8", "# \udcff\ndef f(i): return '\ud800'"),
    _result("code_in_another_encoding", "# -*- coding: utf-7 -*-\n# +AAo-x = 1\ndef f(i): return 'x'"),
    _result("digits_that_take_long_to_read", "x = int('9' * 4300)\ny = " + "9" * 4301 + "\ndef f(i): return 'x'", "int"),
)  # fmt: skip
