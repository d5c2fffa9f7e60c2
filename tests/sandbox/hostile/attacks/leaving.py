"""Leaving before the tests ran, in the hope that a quiet end looks like success."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, HostileProgram, hostile


def _leave(name: str, code: str, **fields: str) -> HostileProgram:
    return hostile(name, "leaving early", code, GRADING_OUTSIDE, **fields)


PROGRAMS = (
    _leave("sys_exit_zero", "import sys\nsys.exit(0)"),
    _leave("sys_exit_in_the_call", "import sys\ndef f(i): sys.exit(0)"),
    _leave("os_exit_zero", "import os\nos._exit(0)"),
    _leave("os_exit_in_the_call", "import os\ndef f(i): os._exit(0)"),
    _leave("os_exit_in_the_second_call", "import os\ndef f(i): return os._exit(0) if i else 'x'"),
    _leave("raise_system_exit", "def f(i): raise SystemExit"),
    _leave("system_exit_with_a_lying_code", """
        class Quiet(SystemExit):
            code = property(lambda self: 0)
            def __eq__(self, other): return True
            __hash__ = None
        def f(i): raise Quiet
        """),
    _leave("exit_handler", """
        import atexit, os
        atexit.register(os._exit, 0)
        def f(i): return "x"
        """),
    _leave("exit_in_a_thread", """
        import sys, threading
        threading.Thread(target=sys.exit, args=(0,)).start()
        def f(i): return "x"
        """),
    _leave("process_exit_from_a_thread", """
        import os, threading, time
        def f(i):
            threading.Thread(target=os._exit, args=(0,)).start()
            time.sleep(1)
        """),
    _leave("main_thread_ends_itself", "import ctypes\nctypes.CDLL(None).pthread_exit(None)", wanted="secret"),
    _leave("exit_group_by_system_call", """
        import ctypes, os
        def f(i): ctypes.CDLL(None).syscall({"x86_64": 231, "aarch64": 94}[os.uname().machine], 0)
        """),
    _leave("abort", "import os\ndef f(i): os.abort()"),
    _leave("kill_itself", "import os, signal\ndef f(i): os.kill(os.getpid(), signal.SIGKILL)"),
    _leave("terminate_itself", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"),
    _leave("stop_itself", "import os, signal\ndef f(i): os.kill(os.getpid(), signal.SIGSTOP)"),
    _leave("segmentation_fault", "import ctypes\ndef f(i): ctypes.string_at(0)"),
    _leave("alarm_handler_exits", """
        import signal, sys, time
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        def f(i): time.sleep(1)
        """),
    _leave("keyboard_interrupt", "def f(i): raise KeyboardInterrupt"),
    _leave("generator_exit", "def f(i): raise GeneratorExit"),
    _leave("exception_that_claims_success", """
        class passed(BaseException):
            __module__ = "builtins"
            def __str__(self): return "passed"
        def f(i): raise passed
        """),
    _leave("become_another_program", """
        import os, sys
        def f(i): os.execv(sys.executable, [sys.executable, "-c", ""])
        """),
    _leave("parent_leaves_and_child_answers", """
        import os
        if os.fork(): os._exit(0)
        def f(i): return "x"
        """),
    _leave("finalizer_exits", """
        import os
        class Last:
            def __del__(self): os._exit(0)
        def f(i): return Last()
        """),
    _leave("exception_hook_exits", """
        import os, sys
        sys.excepthook = lambda *_: os._exit(0)
        raise ValueError
        """),
    _leave("close_every_descriptor", """
        import os
        os.closerange(0, 256)
        def f(i): return "x"
        """),
    _leave("close_standard_streams_and_leave", """
        import os, sys
        sys.stdout.close(); sys.stderr.close()
        os._exit(0)
        """),
    _leave("nothing_at_all", "pass"),
    _leave("a_name_that_a_prelude_might_define", "x = 1", wanted="add"),
    _leave("entry_point_is_not_a_function", "f = 'x'"),
    _leave("entry_point_only_in_builtins", "import builtins\nbuiltins.f = lambda i: True"),
)  # fmt: skip
