"""The language used to the full, and values at the edges."""

from __future__ import annotations

import math

from hostile.program import benign

PROGRAMS = (
    benign("plain", "def f(x): return x + 1", ((3,), 4)),
    benign("deep_but_legal_recursion", "def f(n): return 0 if n == 0 else 1 + f(n - 1)", ((900,), 900)),
    benign("recursion_with_a_raised_limit", """
        import sys
        sys.setrecursionlimit(20_000)
        def f(n): return 0 if n == 0 else 1 + f(n - 1)
        """, ((9000,), 9000)),
    benign("recursion_error_caught", """
        def down(): return down()
        def f():
            try: down()
            except RecursionError: return "caught"
        """, ((), "caught")),
    benign("generators_made_lists", """
        def count(n):
            for i in range(n): yield from (i, -i)
        def f(n): return list(count(n))
        """, ((3,), [0, 0, 1, -1, 2, -2])),
    benign("generator_sent_to", """
        def averager():
            total = count = 0
            while True: total, count = total + (yield total / count if count else None), count + 1
        def f(values):
            one = averager(); next(one)
            return [one.send(value) for value in values]
        """, (([1, 2, 3],), [1.0, 1.5, 2.0])),
    benign("classes_with_inheritance", """
        class Shape:
            def area(self): raise NotImplementedError
            def __lt__(self, other): return self.area() < other.area()
        class Square(Shape):
            __slots__ = ("side",)
            def __init__(self, side): self.side = side
            def area(self): return self.side ** 2
        def f(sides): return [one.side for one in sorted(map(Square, sides))]
        """, (([3, 1, 2],), [1, 2, 3])),
    benign("dataclasses", """
        from dataclasses import asdict, dataclass, field
        @dataclass(order=True)
        class Item:
            weight: int
            names: list = field(default_factory=list)
        def f(w): return asdict(max(Item(w, ["a"]), Item(0)))
        """, ((5,), {"weight": 5, "names": ["a"]})),
    benign("dataclasses_with_postponed_annotations", """
        from __future__ import annotations
        from dataclasses import dataclass
        from typing import ClassVar, Optional
        @dataclass
        class Node:
            value: int
            next: Optional[Node] = None
            count: ClassVar[int] = 7
        def f(x: Undefined) -> Missing: return Node(x, Node(1)).next.value + Node.count
        """, ((5,), 8)),
    benign("typed_dictionaries_and_protocols", """
        from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVar, get_type_hints
        T = TypeVar("T")
        class Movie(TypedDict): name: str
        class Named(Protocol):
            def name(self) -> str: ...
        class Box(Generic[T]):
            def __init__(self, item: T) -> None: self.item = item
        def f(name): return [Movie(name=name), Box[str](name).item, sorted(get_type_hints(Movie))]
        """, (("x",), [{"name": "x"}, "x", ["name"]])),
    benign("exceptions_caught_and_chained", """
        class Own(ValueError): pass
        def f(x):
            try:
                try: return 1 / x
                except ZeroDivisionError as error: raise Own("own") from error
                finally: x += 1
            except Own as error: return f"{error}: {type(error.__cause__).__name__}"
        """, ((0,), "own: ZeroDivisionError"), ((2,), 0.5)),
    benign("system_exit_caught", """
        import sys
        def f(x):
            try: sys.exit(x)
            except SystemExit as error: return error.code
        """, ((3,), 3)),
    benign("assertions_of_its_own", "def f(x):\n    assert x > 0, 'positive'\n    return x", ((3,), 3)),
    benign("main_block", """
        def f(x): return x * 2
        if __name__ == "__main__":
            import sys
            print(f(int(input())))
            sys.exit(f(1))
        """, ((4,), 8)),
    benign("names_of_builtins_reused", """
        list = [1, 2]; sum = 3; type = "t"; str = 4; id = len; print = max; input = min
        def f(dict): return [list, sum + dict, id(list), print(list)]
        """, ((1,), [[1, 2], 4, 2, 2])),
    benign("entry_point_is_a_lambda", "f = lambda x, *more, y=2, **rest: (x, more, y, rest)", ((1, 2, 3), (1, (2, 3), 2, {}))),
    benign("entry_point_is_a_callable_object", "class Add:\n    def __call__(self, a, b): return a + b\nf = Add()", ((1, 2), 3)),
    benign("entry_point_is_a_bound_method", """
        class Solution:
            def f(self, x): return x * 3
        f = Solution().f
        """, ((2,), 6)),
    benign("entry_point_is_a_class", "class f(list):\n    def __init__(self, n): super().__init__(range(n))", ((3,), [0, 1, 2])),
    benign("entry_point_replaced_by_itself", """
        def f(x):
            global f
            f = lambda x: x + 1
            return x + 1
        """, ((1,), 2), ((2,), 3)),
    benign("decorators_and_closures", """
        from functools import wraps
        def twice(function):
            @wraps(function)
            def inner(*args, **kwargs): return function(function(*args, **kwargs))
            return inner
        def make():
            count = 0
            @twice
            def step(x):
                nonlocal count
                count += 1
                return x + count
            return step
        f = make()
        """, ((1,), 4)),
    benign("own_classes_patched", """
        class A: value = 1
        A.double = lambda self: self.value * 2
        setattr(A, "value", 21)
        def f(): return A().double()
        """, ((), 42)),
    benign("metaclasses_and_descriptors", """
        class Registry(type):
            known = []
            def __new__(mcs, name, bases, space):
                mcs.known.append(name)
                return super().__new__(mcs, name, bases, space)
        class Positive:
            def __set_name__(self, owner, name): self.name = "_" + name
            def __get__(self, one, owner): return getattr(one, self.name)
            def __set__(self, one, value): setattr(one, self.name, abs(value))
        class A(metaclass=Registry): size = Positive()
        def f(x):
            one = A(); one.size = x
            return one.size, Registry.known
        """, ((-4,), (4, ["A"]))),
    benign("operators_overloaded", """
        class V:
            def __init__(self, *x): self.x = x
            def __add__(self, o): return V(*map(sum, zip(self.x, o.x)))
            def __eq__(self, o): return self.x == o.x
            def __hash__(self): return hash(self.x)
            def __iter__(self): return iter(self.x)
        def f(a, b): return list(V(*a) + V(*b)), V(*a) == V(*b), len({V(*a), V(*a)})
        """, (([1, 2], [3, 4]), ([4, 6], False, 1))),
    benign("pattern_matching_and_walrus", """
        def f(value):
            match value:
                case []: return "empty"
                case [x, *rest] if (n := len(rest)) > 1: return f"{x} and {n}"
                case {"kind": kind, **more}: return kind + str(len(more))
                case int() | float(): return "number"
                case _: return "other"
        """, (([],), "empty"), (([1, 2, 3],), "1 and 2"), (({"kind": "k", "a": 1},), "k1"), ((2.5,), "number")),
    benign("names_beyond_ascii", """
        def größe(α, 値=1): return α + 値
        f = größe
        """, ((2,), 3)),
    benign("text_beyond_ascii", "def f(s): return s.upper() + '\\u00e9\\U0001f600\\x00\\x7f' + s[::-1]", (("ünï",), "ÜNÏé\U0001f600\x00\x7fïnü")),
    benign("half_of_a_character", "def f(): return ['\\ud800', 'a\\udfffb']", ((), ["\ud800", "a\udfffb"])),
    benign("sorted_in_place_and_returned", "def f(xs):\n    xs.sort(key=lambda x: (-x % 3, x), reverse=True)\n    return xs", (([3, 1, 2],), [1, 2, 3])),
    benign("arguments_changed", "def f(xs, d):\n    xs.append(d.pop('a', 0))\n    return len(xs)", (([], {"a": 1}), 1), (([1], {}), 2)),
    benign("integers_of_ten_thousand_digits", "def f(n): return 10 ** n + 1", ((10_000,), 10**10_000 + 1)),
    benign("integers_as_long_text", """
        import sys
        if hasattr(sys, "set_int_max_str_digits"): sys.set_int_max_str_digits(0)
        def f(n): return len(str(2 ** n))
        """, ((40_000,), 12042)),
    benign("negative_integers_beyond_the_floats", "def f(n): return -(2 ** n), 2 ** 53, 2 ** 53 + 1", ((100,), (-(2**100), 2**53, 2**53 + 1))),
    benign("not_a_number_and_infinity", "def f(): return [float('nan'), float('inf'), -float('inf')]", ((), [math.nan, math.inf, -math.inf])),
    benign("negative_zero", "def f(x): return -x", ((0.0,), -0.0)),
    benign("smallest_and_largest_floats", "import sys\ndef f(): return [5e-324, sys.float_info.max, 0.1 + 0.2]", ((), [5e-324, 1.7976931348623157e308, 0.3])),
    benign("complex_numbers", "def f(x): return x ** 0.5, complex('nan')", ((-4 + 0j,), ((-4 + 0j) ** 0.5, complex(math.nan, 0)))),
    benign("bytes_and_their_like", "def f(b): return b[::-1] + bytes([0, 255])", ((b"ab",), b"ba\x00\xff")),
    benign("sets_and_frozensets", "def f(xs): return {frozenset(xs), frozenset(), (1, frozenset({2}))}", (([1, 2, 1],), {frozenset({1, 2}), frozenset(), (1, frozenset({2}))})),
    benign("sets_of_mixed_types", "def f(): return {1, 'a', None, (2,), 1.5, b'b', True}", ((), {1, "a", None, (2,), 1.5, b"b"})),
    benign("dicts_with_odd_keys", "def f(): return {(1, 2): 'a', None: [], 1.5: {}, frozenset({3}): b'', True: 0}", ((), {(1, 2): "a", None: [], 1.5: {}, frozenset({3}): b"", 1: 0})),
    benign("nested_tuples", "def f(n): return ((n, (n, [(n,)])), ())", ((1,), ((1, (1, [(1,)])), ()))),
    benign("a_dict_in_another_order", "def f(): return {'b': 1, 'a': 2}", ((), {"a": 2, "b": 1})),
    benign("nothing_returned", "def f(xs): xs.reverse()", (([1],), None)),
    benign("truth_for_one", "def f(x): return x > 0", ((3,), True), ((-3,), False)),
    benign("a_long_list", "def f(n): return list(range(n))", ((20_000,), list(range(20_000)))),
    benign("a_long_string", "def f(n): return ''.join(chr(97 + i % 26) for i in range(n))", ((100_000,), "".join(chr(97 + i % 26) for i in range(100_000)))),
    benign("ninety_levels", "def f(n):\n    value = []\n    for _ in range(n): value = [value]\n    return value", ((4,), [[[[[]]]]])),
    benign("keyword_arguments_and_defaults", "def f(a, /, b=2, *, c=3): return a, b, c", ((1,), (1, 2, 3)), ((1, 5), (1, 5, 3))),
    benign("reused_default", "def f(x, seen=[]):\n    seen.append(x)\n    return len(seen)", ((1,), 1), ((2,), 2)),
    benign("exec_and_eval", "space = {}\nexec('def g(x): return eval(\"x + 1\")', space)\nf = space['g']", ((1,), 2)),
    benign("reflection", """
        import inspect
        def f(a, b=2): return [p.name for p in inspect.signature(f).parameters.values()], f.__code__.co_argcount
        """, ((1,), (["a", "b"], 2))),
    benign("code_with_carriage_returns", "def f(x):\r\n    return x + 1\r\n", ((1,), 2)),
    benign("code_with_tabs_and_continuations", "def f(x):\n\tif x and \\\n\t\tx > 1:\n\t\treturn 'big'\n\treturn 'small'", ((2,), "big")),
    benign("code_with_an_encoding_line", "# -*- coding: latin-1 -*-\ndef f(): return 'é'", ((), "é")),
    benign("garbage_collected_often", """
        import gc
        gc.set_threshold(10)
        class Node: pass
        def f(n):
            for _ in range(n):
                a, b = Node(), Node(); a.b, b.a = b, a
            return gc.collect() >= 0
        """, ((2000,), True)),
    benign("re_entrant_calls", "def f(n): return sum(f(i) for i in range(n)) + 1", ((8,), 256)),
)  # fmt: skip
