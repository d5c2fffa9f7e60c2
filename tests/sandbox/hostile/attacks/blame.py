"""Passing one's own failure off as the infrastructure's, which would take the answer out of the count."""

from __future__ import annotations

from hostile.program import (
    GRADING_OUTSIDE,
    LANDLOCK,
    NAMESPACES,
    SECCOMP,
    VARIES,
    HostileProgram,
    hostile,
)

_TOOLS = """
import ctypes, gc, mmap, os, resource, signal, sys, threading, time
def swallow(fd=3):
    \"\"\"Takes out of a pipe what was written into it.\"\"\"
    taken = 0
    for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}", f"/proc/{os.getpid()}/task/{os.getpid()}/fd/{fd}"):
        try: other = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError: continue
        try:
            while data := os.read(other, 1 << 16): taken += len(data)
        except OSError: pass
        os.close(other)
    return taken
"""


def _blame(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    stopped_by = stopped_by or (GRADING_OUTSIDE,)
    return hostile(name, "blaming the infrastructure", code, *stopped_by, prelude=_TOOLS, **fields)


PROGRAMS = (
    _blame("first_frame_swallowed", "swallow()\nos._exit(0)"),
    _blame("first_frame_swallowed_in_the_call", """
        def f(i):
            swallow()
            os._exit(1)
        """),
    _blame("every_pipe_swallowed", """
        for fd in range(64): swallow(fd)
        os._exit(0)
        """),
    _blame("swallowed_and_killed", "swallow()\nos.kill(os.getpid(), signal.SIGKILL)"),
    _blame("swallowed_and_stopped", "swallow()\nos.kill(os.getpid(), signal.SIGSTOP)"),
    _blame("swallowed_and_crashed", "swallow()\nctypes.string_at(0)"),
    _blame("swallowed_and_out_of_time", "swallow()\nwhile True: pass"),
    _blame("swallowed_and_out_of_memory", "swallow()\nx = 'a' * (3 << 30)"),
    _blame("swallowed_by_a_thread_for_ever", """
        def take():
            while True: swallow()
        threading.Thread(target=take, daemon=True).start()
        def f(i):
            time.sleep(0.05)
            return "x"
        """),
    _blame("every_descriptor_closed", """
        for fd in range(256):
            try: os.close(fd)
            except OSError: pass
        def f(i): return "x"
        """),
    _blame("every_descriptor_closed_and_left", "os.closerange(0, 256)\nos._exit(0)"),
    _blame("channel_replaced_by_another_pipe", """
        reader, writer = os.pipe()
        os.dup2(writer, 3); os.dup2(writer, 4)
        def f(i): return "x"
        """),
    _blame("channel_made_to_fail", """
        os.set_blocking(3, False)
        for _ in range(100):
            try: os.write(3, b"x" * (1 << 16))
            except OSError: break
        os._exit(0)
        """),
    _blame("garbage_into_every_descriptor", """
        for fd in range(256):
            os.set_blocking(fd, False) if os.path.exists(f"/proc/self/fd/{fd}") else None
            try: os.write(fd, os.urandom(1000))
            except OSError: pass
        os._exit(0)
        """),
    _blame("no_descriptor_left", """
        held = []
        try:
            while True: held.append(os.pipe())
        except OSError: pass
        def f(i): return "x"
        """),
    _blame("no_thread_left", """
        threading.stack_size(1 << 15)
        def f(i):
            try:
                for _ in range(400): threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()
            except RuntimeError: pass
            os._exit(0)
        """),
    _blame("no_memory_left", """
        held = []
        size = 1 << 28
        while size > 16:
            try: held.append(bytearray(size))
            except MemoryError: size //= 2
        def f(i): return "x"
        """),
    _blame("limits_lowered_to_nothing", """
        for what in range(16):
            try: resource.setrlimit(what, (0, 0))
            except (OSError, ValueError): pass
        def f(i): return "x"
        """),
    _blame("killed_by_itself", "os.kill(os.getpid(), signal.SIGKILL)"),
    _blame("killed_in_the_call", "def f(i): os.kill(os.getpid(), signal.SIGKILL)"),
    _blame("processor_limit_signal_sent_to_itself", "os.kill(os.getpid(), signal.SIGXCPU)"),
    _blame("system_exit_of_every_kind", """
        class Exit(SystemExit):
            code = property(lambda self: os._exit(0))
        raise Exit
        """),
    _blame("folder_removed_and_left", """
        try: os.rmdir(os.getcwd())
        except OSError: pass
        os.chdir("/"); os._exit(0)
        """, LANDLOCK, NAMESPACES, unprotected=VARIES),
    _blame("folder_filled", """
        def f(i):
            for number in range(5000):
                with open(f"{number}", "wb", buffering=0) as file: file.write(b"x" * 8192)
            os._exit(0)
        """),
    _blame("folder_full_of_unreadable_folders", """
        os.umask(0o777)
        for number in range(50): os.mkdir(f"{number}")
        os._exit(0)
        """),
    _blame("a_child_holds_everything_open", """
        if os.fork() == 0: time.sleep(0.1)
        os._exit(0)
        """),
    _blame("parent_leaves_and_child_goes_on", """
        if os.fork(): os._exit(0)
        def f(i): return "x"
        """),
    _blame("worker_traced", """
        ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)  # PTRACE_ATTACH
        os._exit(0)
        """, SECCOMP, LANDLOCK, unprotected=VARIES),
    _blame("itself_traced_and_stopped", """
        ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
        os.kill(os.getpid(), signal.SIGSTOP)
        """),
    _blame("shared_memory_of_the_worker_cleared", """
        for one in gc.get_objects():
            if isinstance(one, mmap.mmap):
                try: one[0:1] = b"\\0"
                except (ValueError, IndexError): pass
        try: maps = open("/proc/self/maps").read().splitlines()
        except OSError: maps = []
        for line in maps:
            start, _, end = line.split()[0].partition("-")
            if "rw-s" in line: ctypes.memset(int(start, 16), 0, int(end, 16) - int(start, 16))
        os._exit(0)
        """),
    _blame("set_up_of_the_tests_made_to_fail", "def f(i): raise SyntaxError('invalid syntax')"),
    _blame("frames_of_every_shape", """
        import struct
        nonce = b"0" * 32
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_locals.values()): nonce = getattr(value, "_nonce", nonce)
            frame = frame.f_back
        payloads = ['[[],0]', '[{"dict":[]},0]', '[{"set":[]}]', '["ended",[],"",""]', '["ended",{"set":[]},"",""]',
                    '["ended",{"dict":[]},"x","y"]', '[{"Decimal":"NaN"}]', '["value",{"Decimal":"NaN"},1]',
                    '["value",[],1]', '["raised",0,{"bytearray":""},[]]', '["opaque",0,[]]', '[null]', '[true,0]']
        payload = payloads[os.urandom(1)[0] % len(payloads)].encode()
        os.write(3, nonce + struct.pack("!I", len(payload)) + payload)
        os._exit(0)
        """),
)  # fmt: skip
