"""Changing the interpreter under the harness: builtins, modules, tracing, imports, memory."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, HostileProgram, hostile


def _tamper(name: str, code: str, wanted: str = "secret") -> HostileProgram:
    return hostile(name, "tampering with the interpreter", code, GRADING_OUTSIDE, wanted=wanted)


PROGRAMS = (
    _tamper("builtins_that_say_yes", """
        import builtins
        for name in ("isinstance", "issubclass", "all", "any", "callable", "hasattr", "bool"):
            setattr(builtins, name, lambda *_: True)
        def f(i): return "x"
        """),
    _tamper("builtins_that_raise", """
        import builtins
        def f(i):
            for name in list(vars(builtins)):
                if not name.startswith("__"): setattr(builtins, name, None)
            return "x"
        """),
    _tamper("builtins_emptied", """
        import builtins
        vars(builtins).clear()
        def f(i): return "x"
        """),
    _tamper("type_replaced", """
        import builtins
        real = type
        builtins.type = lambda value, *more: real(value, *more) if more else str
        def f(i): return [object()]
        """),
    _tamper("numbers_replaced", """
        import builtins
        class AlwaysEqual(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        builtins.int = builtins.len = builtins.abs = AlwaysEqual
        def f(i): return 7
        """, "int"),
    _tamper("assertions_replaced", """
        import builtins
        builtins.AssertionError = SystemExit
        def f(i): return "x"
        """),
    _tamper("comparisons_replaced", """
        import math, operator
        math.isclose = operator.eq = operator.is_ = lambda *_, **__: True
        def f(i): return 3.0
        """, "close"),
    _tamper("names_of_the_tests_shadowed", """
        class math: isclose = staticmethod(lambda *_, **__: True)
        def abs(value): return 0.0
        isclose = math.isclose
        def f(i): return 3.0
        """, "close"),
    _tamper("encoder_of_json_replaced", """
        import json
        for name in ("dumps", "dump", "loads", "load"): setattr(json, name, lambda *_, **__: '"passed"')
        json.JSONEncoder.encode = json.JSONEncoder.default = lambda *_: '"passed"'
        json.encoder.encode_basestring_ascii = json.encoder.c_make_encoder = json.encoder.INFINITY = None
        def f(i): return ["x", 1.5, {"a": 1}]
        """),
    _tamper("every_module_replaced", """
        import sys
        class Yes:
            def __getattr__(self, name): return self
            def __call__(self, *_, **__): return True
            def __eq__(self, other): return True
            __hash__ = None
        for name in list(sys.modules): sys.modules[name] = Yes()
        def f(i): return Yes()
        """),
    _tamper("modules_forgotten", "import sys\nsys.modules.clear()\ndef f(i): return 'x'"),
    _tamper("functions_of_the_system_replaced", """
        import os, posix, sys, struct
        def lie(*_): return 1
        for module in (os, posix):
            for name in ("write", "_exit", "close", "getpid", "fork", "kill"): setattr(module, name, lie)
        def f(i): return "x"
        """),
    _tamper("code_of_the_harness_replaced", """
        import sys
        def done(*_, **__): return None
        frame = sys._getframe()
        while frame:
            for one in (*frame.f_globals.values(), *vars(type(frame.f_locals.get("self"))).values()):
                if type(one).__name__ == "function" and one.__name__ in ("_text_of", "end", "_describe", "_execute"):
                    one.__code__ = done.__code__
            frame = frame.f_back
        def f(i): return "x"
        """),
    _tamper("trace_function_jumps", """
        import sys
        def trace(frame, event, value):
            if frame.f_code.co_name in ("_text_of", "_send", "run_answer"): raise SystemExit(0)
            return trace
        def f(i):
            sys.settrace(trace)
            frame = sys._getframe(1)
            while frame: frame.f_trace, frame = trace, frame.f_back
            return "x"
        """),
    _tamper("locals_written_by_the_c_interface", """
        import ctypes, sys
        def f(i):
            frame = sys._getframe()
            while frame:
                for name in list(frame.f_locals):
                    if name in ("calls", "expressions", "position", "value", "expected"): frame.f_locals[name] = ()
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
                frame = frame.f_back
            return "x"
        """),
    _tamper("profile_function_raises", """
        import sys
        def profile(frame, event, value): raise SystemExit(0)
        def f(i):
            sys.setprofile(profile)
            return "x"
        """),
    _tamper("tracing_of_threads", """
        import threading
        threading.settrace(lambda *_: (_ for _ in ()).throw(SystemExit(0)))
        threading.setprofile(lambda *_: None)
        def f(i): return "x"
        """),
    _tamper("audit_hook_raises", """
        import sys
        def hook(event, arguments): raise SystemExit(0)
        def f(i):
            sys.addaudithook(hook)
            return "x"
        """),
    _tamper("collector_callback_leaves", """
        import gc, os
        gc.callbacks.append(lambda *_: os._exit(0))
        gc.set_threshold(1)
        def f(i): return [[n] for n in range(1000)]
        """),
    _tamper("import_function_replaced", """
        import builtins, types
        builtins.__import__ = lambda *_, **__: types.SimpleNamespace(encode=lambda v: '"passed"')
        def f(i): return "x"
        """),
    _tamper("import_hook_serves_fakes", """
        import sys, types
        class Finder:
            def find_spec(self, name, path=None, target=None): raise SystemExit(0)
        sys.meta_path.insert(0, Finder())
        for name in ("math", "json", "re"): sys.modules.pop(name, None)
        def f(i): return 3.0
        """, "close"),
    _tamper("own_modules_first_on_the_path", """
        import os, sys
        for name in ("math", "json", "random", "decimal", "fractions", "greenward"):
            with open(name + ".py", "w") as file: file.write("import os; os._exit(0)\\n")
        sys.path.insert(0, os.getcwd())
        sys.modules.pop("decimal", None)
        def f(i): return 3.0
        """, "close"),
    _tamper("codecs_replaced", """
        import codecs
        codecs.register(lambda name: codecs.CodecInfo(lambda *_: (b'"passed"', 8), lambda *_: ("", 0)))
        def f(i): return "x\\ud800"
        """),
    _tamper("equality_of_str_rewritten", """
        import gc
        for base in (str, int, float, list, bool, object):
            own = gc.get_referents(base.__dict__)[0]
            own["__eq__"], own["__ne__"] = lambda a, b: True, lambda a, b: False
        def f(i): return "x"
        """),
    _tamper("comparison_slot_rewritten", """
        import ctypes
        slot = type(str.__eq__)
        COMPARE = ctypes.CFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int)
        yes = COMPARE(lambda a, b, operation: True)
        words = ctypes.cast(id(str), ctypes.POINTER(ctypes.c_void_p))
        words[25] = ctypes.cast(yes, ctypes.c_void_p).value  # tp_richcompare
        def f(i): return "x"
        """),
    _tamper("small_integers_swapped", """
        import ctypes
        def f(i):
            for number in range(256):
                ctypes.memmove(id(number) + 24, id(7) + 24, 4)
            return 7
        """, "int"),
    _tamper("false_made_true", """
        import ctypes
        def f(i):
            ctypes.memmove(id(False), id(True), 28)
            return "x"
        """),
    _tamper("none_released", """
        import ctypes
        def f(i):
            for _ in range(100_000): ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))
            return None
        """),
    _tamper("class_of_a_constant_replaced", """
        import ctypes
        class AlwaysEqual(str):
            __eq__ = lambda self, other: True
            __hash__ = str.__hash__
        value = "something that is not interned"
        ctypes.c_void_p.from_address(id(value) + 8).value = id(AlwaysEqual)
        def f(i): return value
        """),
    _tamper("interpreter_state_frozen", """
        import sys, threading
        sys.setswitchinterval(1e9)
        threading.Thread(target=lambda: [None for _ in range(500) if sum(range(10**6)) < 0], daemon=True).start()
        def f(i): return "x"
        """),
    _tamper("streams_replaced_by_liars", """
        import sys
        class Stream:
            def write(self, text): raise SystemExit(0)
            def flush(self): raise SystemExit(0)
            def __getattr__(self, name): raise SystemExit(0)
        sys.stdout = sys.stderr = sys.stdin = sys.__stdout__ = sys.__stderr__ = Stream()
        def f(i): return "x"
        """),
    _tamper("exception_that_cannot_be_described", """
        class Meta(type):
            __name__ = __qualname__ = property(lambda cls: 1 / 0)
            def __instancecheck__(cls, one): raise SystemExit(0)
        class Odd(BaseException, metaclass=Meta):
            def __str__(self): raise SystemExit(0)
            __repr__ = __str__
            __traceback__ = __cause__ = __context__ = property(lambda self: 1 / 0)
        def f(i): raise Odd
        """),
    _tamper("class_with_an_endless_name", """
        def f(i): raise type("E\\n\\x1b[2J\\x00" + "e" * 10_000_000, (Exception,), {})("m\\x1b]0;x\\x07" * 1_000_000)
        """),
    _tamper("surrogates_everywhere", """
        print("\\ud800", "\\x1b[2J\\x00\\x07", flush=True)
        def f(i): raise ValueError("\\ud800\\udfff\\x1b[31m")
        """),
    _tamper("entry_point_changes_between_calls", """
        class Caller:
            def __call__(self, i):
                globals()["f"] = lambda i: SystemExit
                type(self).__call__ = lambda self, i: exit(0)
                return "x"
        f = Caller()
        """),
    _tamper("entry_point_that_lies_about_being_callable", """
        class Liar:
            __class__ = property(lambda self: type(lambda: 0))
            def __getattr__(self, name): return lambda *_: "x"
        f = Liar()
        """),
    _tamper("namespace_that_watches", """
        import sys
        class Watching(dict):
            def __getitem__(self, key): return lambda *_: "x"
            def get(self, *_): return lambda *_: "x"
        module = type(sys)("answer")
        for name in ("answer", "__main__"): sys.modules[name] = module
        def f(i): return "x"
        """),
    _tamper("recursion_left_exhausted", """
        import sys
        def f(i):
            sys.setrecursionlimit(len(__import__("inspect").stack()) + 6)
            return [[[["x"]]]]
        """),
)  # fmt: skip
