"""Time, memory, disk and output beyond what an answer may use; each would pass if nothing stopped it."""

from __future__ import annotations

from hostile.attacks.system_calls import SYSTEM_CALLS
from hostile.program import (
    LANDLOCK,
    NAMESPACES,
    RESOURCES,
    SECCOMP,
    VARIES,
    WATCHDOG,
    HostileProgram,
    hostile,
)

_SPIN = """
import os, signal, sys, threading, time
STARTED = time.monotonic()
def over(seconds=20): return time.monotonic() - STARTED > seconds
def spin(seconds=20):
    while not over(seconds): pass
def fill(folder):
    # 150 MiB in files that are small enough each
    here = os.open(folder, os.O_PATH)
    for number in range(150):
        file = os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=here)
        for _ in range(16): os.write(file, b"x" * (1 << 16))
        os.close(file)
    return True
"""


def _late(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    """Answers rightly, but only after 20 s."""
    stopped_by = stopped_by or (WATCHDOG,)
    return hostile(name, "timeouts", code, *stopped_by, wanted="successor", prelude=_SPIN, **fields)


def _memory(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    return hostile(name, "memory", code, *stopped_by, wanted="access", prelude=_SPIN + SYSTEM_CALLS, **fields)


def _disk(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    return hostile(name, "disk", code, *stopped_by, **{"wanted": "access", **fields}, prelude=_SPIN)


def _output(name: str, code: str, **fields: str) -> HostileProgram:
    return hostile(name, "output", code, WATCHDOG, prelude=_SPIN, **fields)


PROGRAMS = (
    _late("busy_loop", "def f(i):\n    spin()\n    return i + 1"),
    _late("busy_while_loading", "spin()\ndef f(i): return i + 1"),
    _late("sleeper", "def f(i):\n    while not over(): time.sleep(1)\n    return i + 1"),
    _late("bare_except_around_a_loop", """
        def f(i):
            while not over():
                try: spin()
                except: pass
            return i + 1
        """),
    _late("finally_that_goes_on", """
        def f(i):
            try: spin(0.2); raise KeyboardInterrupt
            finally:
                spin()
                return i + 1
        """),
    _late("finalizers_that_go_on", """
        class Next:
            def __del__(self):
                spin(min(20, time.monotonic() - STARTED + 1))
                if not over(): Next()
        def f(i):
            Next()
            return i + 1
        """),
    _late("every_signal_ignored", """
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def f(i):
            spin()
            return i + 1
        """),
    _late("every_signal_blocked", """
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        def f(i):
            spin()
            return i + 1
        """),
    _late("processor_limit_signal_caught", """
        signal.signal(signal.SIGXCPU, lambda *_: spin())
        def f(i):
            spin()
            return i + 1
        """),
    _late("one_long_operation_in_c", """
        def f(i):
            return i + 1 + 0 * sum(range(10**9))
        """),
    _late("catastrophic_pattern", """
        import re
        def f(i):
            return i + 1 if re.match("(a*)*b", "a" * 28) is None else i
        """),
    _late("a_power_of_a_power", """
        def f(i):
            return i + 1 + 0 * (7 ** (3 * 7 ** 8) % 2 ** 64)
        """),
    _late("sleeping_threads_at_the_end", """
        def f(i):
            threads = [threading.Thread(target=time.sleep, args=(20,)) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return i + 1
        """),
    _late("waiting_for_a_stopped_child", """
        def f(i):
            if (child := os.fork()) == 0: os.kill(os.getpid(), signal.SIGSTOP); os._exit(0)
            while not over() and os.waitpid(child, os.WNOHANG) == (0, 0): time.sleep(0.1)
            return i + 1
        """),
    _late("computing_in_threads", """
        def f(i):
            threads = [threading.Thread(target=spin) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return i + 1
        """),
    _late("computing_in_children", """
        def burn(seconds):
            while time.process_time() < seconds: pass
            os._exit(0)
        def f(i):
            if i: return i + 1
            for _ in range(3):
                if os.fork() == 0: burn(@CPU_SECONDS@ * 0.75)
            for _ in range(3): os.wait()
            return i + 1
        """, SECCOMP, unprotected=VARIES),
    _late("each_call_a_little_longer", """
        def f(i):
            end = time.process_time() + @CPU_SECONDS@ * 0.9
            while time.process_time() < end and not over(): pass
            return i + 1
        """),
    _late("exit_handler_that_goes_on", """
        import atexit
        atexit.register(spin)
        spin()
        def f(i): return i + 1
        """),
    _late("waiting_for_input_that_never_comes", """
        reader, writer = os.pipe()
        os.dup2(reader, 0)
        def f(i):
            threading.Timer(20, os.close, (writer,)).start()
            sys.stdin.read(); os.read(0, 1)
            return i + 1
        """),
    _memory("one_big_block", """
        def f(i): return len(bytearray(3 << 30)) > 0
        """, RESOURCES),
    _memory("a_list_that_grows", """
        def f(i):
            held = []
            while len(held) < 3000: held.append(b"x" * (1 << 20))
            return True
        """, RESOURCES),
    _memory("memory_error_caught_again_and_again", """
        def f(i):
            held = []
            while len(held) < 3000 and not over():
                try: held.append(bytearray(1 << 20))
                except MemoryError: continue
            return len(held) == 3000
        """, RESOURCES),
    _memory("anonymous_mapping", """
        import mmap
        def f(i):
            region = mmap.mmap(-1, 2 << 30)
            for offset in range(0, 2 << 30, 1 << 20): region[offset] = 1
            return True
        """, RESOURCES),
    _memory("many_small_objects", """
        def f(i): return len([object() for _ in range(60_000_000)]) > 0
        """, RESOURCES, WATCHDOG),
    _memory("shared_out_over_children", """
        def f(i):
            for _ in range(4):
                if os.fork() == 0:
                    held = b"x" * (@MEMORY_BYTES@ // 3)
                    time.sleep(0.3); os._exit(len(held) == 0)
            return [os.wait()[1] for _ in range(4)] == [0] * 4
        """, SECCOMP, unprotected=VARIES),
    _memory("files_in_memory", """
        def f(i):
            held = [syscall("memfd_create", b"x", 0) for _ in range(200)]
            return sum(os.write(fd, b"x" * (1 << 20)) for fd in held) > 100 << 20
        """, SECCOMP, unprotected=VARIES),
    _memory("full_pipes", """
        import fcntl
        def f(i):
            for _ in range(100):
                reader, writer = os.pipe()
                os.set_blocking(writer, False)
                fcntl.fcntl(writer, 1031, 1 << 20)  # F_SETPIPE_SZ
                os.write(writer, b"x" * (1 << 20))
            return True
        """, SECCOMP, unprotected=VARIES),
    _memory("memory_that_cannot_be_swapped", """
        def f(i): return syscall("mlockall", 3) == 0
        """, SECCOMP, NAMESPACES, unprotected=VARIES),
    _disk("one_big_file", """
        def f(i):
            with open("big", "wb", buffering=0) as file:
                return sum(file.write(b"x" * (1 << 20)) for _ in range(100)) == 100 << 20
        """, RESOURCES),
    _disk("file_size_signal_ignored", """
        def f(i):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            with open("big", "wb", buffering=0) as file:
                for _ in range(100):
                    try: file.write(b"x" * (1 << 20))
                    except OSError: break
            return os.path.getsize("big") == 100 << 20
        """, RESOURCES),
    _disk("sparse_file", """
        def f(i):
            with open("sparse", "wb") as file: file.truncate(1 << 40)
            return True
        """, RESOURCES),
    _disk("many_big_files", """
        def f(i):
            for number in range(150):
                with open(str(number), "wb", buffering=0) as file:
                    for _ in range(16): file.write(b"x" * (1 << 16))
            time.sleep(0.2)  # long enough to be seen
            return sum(os.path.getsize(str(number)) for number in range(150)) == 150 << 20
        """, NAMESPACES, WATCHDOG),
    _disk("many_big_files_at_the_end", """
        def f(i): return fill(".")
        """, NAMESPACES, WATCHDOG),
    _disk("a_folder_that_may_not_be_read", """
        os.umask(0o477); os.mkdir("d"); os.umask(0o077)
        def f(i): return fill("d")
        """, NAMESPACES, WATCHDOG),
    _disk("a_folder_that_may_not_be_searched_later", """
        os.mkdir("d"); os.umask(0o377); os.mkdir("d/e"); os.umask(0o077)
        def f(i): return fill("d")
        """, NAMESPACES, WATCHDOG),
    _disk("a_folder_beyond_the_longest_path", """
        for _ in range(20): os.mkdir("d" * 250); os.chdir("d" * 250)
        def f(i): return fill(".")
        """, NAMESPACES, WATCHDOG),
    _disk("a_folder_at_the_end_of_a_long_way_down", """
        for _ in range(400): os.mkdir("d"); os.chdir("d")
        def f(i): return fill(".")
        """, NAMESPACES, WATCHDOG),
    _disk("a_folder_that_keeps_moving", """
        os.mkdir("a"); here = os.open("a", os.O_RDONLY); done = []
        def move():
            while not done: os.rename("a", "b"); os.rename("b", "a")
        def f(i):
            mover = threading.Thread(target=move); mover.start()
            full = fill(f"/proc/self/fd/{here}") if os.path.exists("/proc/self/fd") else fill("a")
            done.append(True); mover.join()
            return full
        """, NAMESPACES, WATCHDOG, unprotected=VARIES),
    _disk("unlinked_files_held_open", """
        def f(i):
            held = []
            for number in range(150):
                file = open("gone", "wb", buffering=0)
                held.append(file); os.unlink("gone")
                for _ in range(16): file.write(b"x" * (1 << 16))
            time.sleep(0.2)  # long enough to be seen
            return True
        """, NAMESPACES, LANDLOCK, unprotected=VARIES),
    _disk("many_small_files", """
        def f(i):
            for number in range(20_000): os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
            time.sleep(0.2)  # long enough to be seen
            return True
        """, NAMESPACES, WATCHDOG),
    _disk("deep_folders", """
        for _ in range(3000):
            os.mkdir("d"); os.chdir("d")
        def f(i): return i + 1
        """, WATCHDOG, wanted="successor", may_pass=True),
    _disk("long_names_and_odd_names", """
        for number in range(200): open(f"{number}".rjust(250, "n"), "w").close()
        for name in (b"\\xff\\xfe", b"a\\nb", b"-rf", b" ", b"\\x1b[2J"): os.mkdir(name)
        def f(i): return i + 1
        """, WATCHDOG, wanted="successor", may_pass=True),
    _output("endless_lines", """
        def f(i):
            for _ in range(1500): print("x" * 100_000)
            return "x"
        """),
    _output("endless_errors", """
        def f(i):
            for _ in range(1500): sys.stderr.write("x" * 100_000)
            return "x"
        """),
    _output("one_endless_line", """
        def f(i):
            for _ in range(150): os.write(1, b"x" * (1 << 20))
            return "x"
        """),
    _output("output_from_many_threads", """
        def shout():
            for _ in range(300): os.write(1, b"x" * 100_000)
        for _ in range(5): threading.Thread(target=shout).start()
        def f(i): return "x"
        """),
    _output("streams_held_open_by_a_child", """
        def f(i):
            if os.fork() == 0:
                time.sleep(8); os._exit(0)
            return "x"
        """),
    _output("bytes_that_are_no_text", """
        os.write(1, bytes(range(256)) * 50); os.write(2, b"\\x1b]0;title\\x07\\x1b[2J\\x00\\xff")
        def f(i): return "x"
        """),
    _output("streams_filled_but_not_read", """
        os.set_blocking(1, False)
        def f(i):
            for _ in range(50):
                try: os.write(1, b"x" * (1 << 20))
                except BlockingIOError: pass
            return "x"
        """),
)  # fmt: skip
