"""Values that claim to equal everything, or to be of a type that they are not."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, HostileProgram, hostile

# Every comparison says yes, every question about the type is answered as the asker would like.
_LIES = """
def yes(*_, **__): return True
def no(*_, **__): return False
LIES = {name: yes for name in ("__eq__", "__le__", "__ge__", "__contains__", "__bool__")}
LIES.update({name: no for name in ("__ne__", "__lt__", "__gt__")})
LIES["__hash__"] = lambda self: 0
def liar(base, *arguments, **more): return type("Liar", (base,), {**LIES, **more})(*arguments)
"""


def _lie(name: str, code: str, wanted: str = "secret", form: str = "cases") -> HostileProgram:
    family = "lying equality and types"
    return hostile(name, family, code, GRADING_OUTSIDE, wanted=wanted, form=form, prelude=_LIES)


def _wrapped(name: str, code: str, wanted: str = "int") -> HostileProgram:
    return _lie(name, code, wanted, form="tests" if wanted == "hexadecimal" else "wrapped")


PROGRAMS = (
    _lie("always_equal_object", "def f(i): return liar(object)"),
    _lie("mock_any", "from unittest import mock\ndef f(i): return mock.ANY"),
    _lie("magic_mock", """
        from unittest import mock
        def f(i):
            value = mock.MagicMock()
            value.__eq__.return_value = True
            return value
        """),
    _lie("lying_int", "def f(i): return liar(int, 7)", "int"),
    _lie("int_with_a_lying_index", "def f(i): return liar(int, 7, __index__=lambda s: 8, __int__=lambda s: 9, __repr__=lambda s: '10')", "int"),
    _lie("lying_bool_like_int", "def f(i): return liar(int, 1, __and__=yes, __or__=yes)", "int"),
    _lie("lying_float", "def f(i): return liar(float, 0.5, __float__=lambda s: 0.25, __sub__=lambda s, o: 0.0, __rsub__=lambda s, o: 0.0)", "float"),
    _lie("float_that_is_not_a_number", "def f(i): return float('nan')", "float"),
    _lie("lying_complex", "def f(i): return liar(complex, 1, 2)", "complex"),
    _lie("lying_str", "def f(i): return liar(str, 'x', __str__=lambda s: 'y', encode=lambda s, *_: b'z')"),
    _lie("lying_bytes", "def f(i): return liar(bytes, b'x', hex=lambda s: '00', __getitem__=lambda s, k: b'y')", "bytes"),
    _lie("lying_list", "def f(i): return liar(list, [1])", "list"),
    _lie("list_with_a_lying_length", "def f(i): return liar(list, [], __len__=lambda s: 3, __iter__=lambda s: iter([liar(int)] * 3), __getitem__=lambda s, k: liar(int))", "list"),
    _lie("honest_list_of_liars", "def f(i): return [liar(int, n) for n in range(3)]", "list"),
    _lie("honest_list_of_always_equal_objects", "def f(i): return [liar(object) for _ in range(3)]", "list"),
    _lie("lying_tuple", "def f(i): return liar(tuple, (1, 2, 3))", "tuple"),
    _lie("named_tuple_that_lies", """
        from collections import namedtuple
        class Point(namedtuple("Point", "x y z")):
            __eq__ = yes
            __iter__ = lambda self: iter((liar(int),) * 3)
            __hash__ = None
        def f(i): return Point(1, 2, 3)
        """, "tuple"),
    _lie("lying_dict", "def f(i): return liar(dict, {'a': 1}, items=lambda s: [], keys=lambda s: [], __getitem__=lambda s, k: liar(int), get=lambda s, *_: liar(int))", "dict"),
    _lie("dict_with_a_lying_default", "from collections import defaultdict\ndef f(i): return defaultdict(lambda: liar(int))", "dict"),
    _lie("dict_of_lying_keys", "def f(i): return {liar(str, 'a'): liar(int), liar(str, 'b'): liar(int)}", "dict"),
    _lie("lying_set", "def f(i): return liar(set, [1], issubset=yes, issuperset=yes, __and__=lambda s, o: o, __iter__=lambda s: iter(()))", "set"),
    _lie("lying_frozenset", "def f(i): return liar(frozenset, [1])", "set"),
    _lie("class_that_lies_through_its_metaclass", """
        class Meta(type):
            __eq__ = __instancecheck__ = __subclasscheck__ = yes
            __hash__ = lambda cls: 0
            __name__ = property(lambda cls: "str")
            mro = lambda cls: [cls, object]
        class Liar(metaclass=Meta): pass
        def f(i): return Liar
        """),
    _lie("object_that_names_another_class", """
        class Liar:
            __class__ = property(lambda self: str)
            __eq__ = yes
            __hash__ = None
            __str__ = __repr__ = lambda self: "x"
        def f(i): return Liar()
        """),
    _lie("class_that_reorders_its_bases", """
        class Meta(type):
            def mro(cls): return [cls, str, object]
        class Liar(str, metaclass=Meta):
            __eq__ = yes
            __hash__ = None
        def f(i): return Liar("x")
        """),
    _lie("class_changed_after_the_return", """
        class Late(str): pass
        def f(i):
            Late.__eq__, Late.__hash__ = yes, lambda self: 0
            return Late("x")
        """),
    _lie("weak_proxy_of_a_liar", """
        import weakref
        kept = liar(object)
        def f(i): return weakref.proxy(kept)
        """),
    _lie("lying_enum", """
        from enum import IntEnum
        class One(IntEnum):
            A = 1
            __eq__ = yes
            __hash__ = int.__hash__
        One.A._value_ = liar(int, 1)
        def f(i): return One.A
        """, "int"),
    _lie("dataclass_that_equals_all", """
        from dataclasses import dataclass
        @dataclass(eq=False)
        class Liar:
            x: int = 0
            __eq__ = yes
        def f(i): return Liar()
        """),
    _lie("object_that_reduces_to_a_call", "import os\nclass Bomb:\n    def __reduce__(self): return os._exit, (0,)\ndef f(i): return Bomb()"),
    _lie("object_that_serialises_itself", """
        class Liar:
            __json__ = to_json = toJSON = _asdict = __dict__ = tolist = __array__ = lambda self, *_: ["x"]
            __eq__ = yes
            __hash__ = None
        def f(i): return Liar()
        """),
    _lie("generator_of_liars", "def f(i): return (liar(int) for _ in range(3))", "list"),
    _lie("not_implemented", "def f(i): return NotImplemented"),
    _lie("function_that_equals_all", "import functools\nclass P(functools.partial):\n    __eq__ = yes\n    __hash__ = None\ndef f(i): return P(print)"),
    _lie("exception_that_equals_all", "class E(Exception):\n    __eq__ = yes\n    __hash__ = None\ndef f(i): return E()"),
    _lie("list_changed_while_it_is_read", """
        import threading
        def f(i):
            value = [liar(str, "x")]
            def swap():
                for _ in range(200_000): value[:] = [liar(object)] * (len(value) % 2 + 1)
            threading.Thread(target=swap).start()
            return value
        """, "list"),
    _lie("reflected_operators", "def f(i): return liar(object, __rsub__=lambda s, o: 0.0, __sub__=lambda s, o: 0.0, __abs__=lambda s: 0.0, __float__=lambda s: 0.0)", "close"),
    _lie("float_that_is_close_to_all", "def f(i): return liar(float, 3.0, __rsub__=lambda s, o: 0.0, __sub__=lambda s, o: 0.0, __float__=lambda s: float('inf'))", "close"),
    _lie("infinity_close_to_all", "def f(i): return float('inf')", "close"),
    _wrapped("object_that_agrees_inside_an_expression", "def f(i): return liar(object, __abs__=lambda s: s)"),
    _wrapped("int_that_agrees_inside_an_expression", "def f(i): return liar(int, 7, __abs__=lambda s: s)"),
    _wrapped("functions_of_the_test_shadowed", """
        abs = sorted = lambda value, **_: liar(list, [liar(object)], __getitem__=lambda s, k: liar(object))
        def f(i): return liar(int, 7)
        """),
    _wrapped("built_in_functions_replaced", """
        import builtins
        builtins.abs = lambda value: liar(object)
        builtins.sorted = lambda values, **_: [liar(object)]
        def f(i): return liar(int, 7)
        """),
    _wrapped("constants_of_the_expression_around_the_call", """
        import sys
        def f(i):
            frame = sys._getframe()
            while frame:
                found = [one for one in frame.f_code.co_consts if type(one) is int and one >= 1 << 20]
                if found: return found[0]
                frame = frame.f_back
        """),
    _wrapped("functions_of_the_arguments_shadowed", "hex = lambda n: n\ndef f(x): return x", "hexadecimal"),
    _wrapped("functions_of_the_arguments_replaced", """
        import builtins
        builtins.hex = lambda n: n
        def f(x): return x
        """, "hexadecimal"),
)  # fmt: skip
