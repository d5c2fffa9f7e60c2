"""Answers called from a test program in another process: lies on the socket between the two."""

from __future__ import annotations

from hostile.program import (
    AS_ROOT,
    GRADING_OUTSIDE,
    LANDLOCK,
    NAMESPACES,
    PRIVILEGES,
    WATCHDOG,
    HostileProgram,
    hostile,
)

_SOCKET = """
import json, os, re, socket, struct, time
FD = 4
def send(payload):
    payload = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    view = memoryview(struct.pack("!I", len(payload)) + payload)
    while view: view = view[os.write(FD, view):]
"""


def _check(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    family = "attacking the test process"
    return hostile(
        name, family, code, *(stopped_by or (GRADING_OUTSIDE,)), form="checks", prelude=_SOCKET, **fields
    )


def _loop(name: str, raised: str) -> HostileProgram:
    code = f"def f(i): raise {raised}" if "\n" not in raised else raised
    return hostile(name, "attacking the test process", code, GRADING_OUTSIDE, form="loops", prelude=_SOCKET)


PROGRAMS = (
    _loop("stop_iteration", "StopIteration"),
    _loop("stop_iteration_with_the_value", "StopIteration('@FIRST_HALF@')"),
    _loop("stop_iteration_of_its_own", "type('Done', (StopIteration,), {})()"),
    _loop("stop_iteration_that_derives_from_more", "type('E', (ValueError, StopIteration), {})()"),
    _loop("stop_iteration_by_another_name", "type('ValueError', (StopIteration,), {'__str__': lambda s: 1 / 0})()"),
    _loop("stop_async_iteration", "StopAsyncIteration"),
    _loop("generator_exit", "GeneratorExit"),
    _loop("keyboard_interrupt", "KeyboardInterrupt"),
    _loop("system_exit", "SystemExit(0)"),
    _loop("base_exception_called_stop_iteration", "type('StopIteration', (BaseException,), {})()"),
    _loop("stop_iteration_forged_on_the_socket", """
        for reply in (["raised", "StopIteration", "", "StopIteration"], ["raised", "StopIteration", ""], ["end"]): send(reply)
        def f(i): time.sleep(9)
        """),
    _loop("iterators_in_place_of_values", """
        send(["iterator", 0]); send(["iterator", 0]); send(["raised", "StopIteration", "", "StopIteration"])
        def f(i): return iter(())
        """),
    _check("replies_before_the_calls", """
        for value in (True, None, "passed", {"tuple": []}): send(["value", value])
        def f(i): return "x"
        """),
    _check("replies_twice", """
        def f(i):
            send(["value", "x"]); send(["value", "x"])
            return "x"
        """),
    _check("reply_that_claims_a_verdict", """
        def f(i):
            for text in (["done"], ["passed"], ["value", 0, None], ["ended", "completed", "", ""]): send(text)
            return "x"
        """),
    _check("replies_that_are_no_text", """
        def f(i):
            os.write(FD, b"\\xff" * 64); send(b"\\x80\\x04\\x88."); send(b"{]")
            return "x"
        """),
    _check("reply_longer_than_announced", """
        def f(i):
            os.write(FD, struct.pack("!I", 0xFFFFFFFF) + b"x" * (1 << 20))
            return "x"
        """),
    _check("reply_nested_without_end", """
        def f(i): send(b'["value",' + b"[" * 100_000 + b"]" * 100_000 + b"]")
        """),
    _check("reply_of_keys_that_hash_alike", """
        def f(i):
            send({"a": 1}); keys = [{"int": hex(n * (2**61 - 1))} for n in range(20_000)]
            send(["value", {"set": keys}])
        """),
    _check("requests_read_by_the_answer", """
        import threading
        threading.Thread(target=lambda: [os.read(FD, 1 << 16) for _ in range(3)], daemon=True).start()
        def f(i): return "x"
        """),
    _check("socket_closed", """
        os.close(FD)
        def f(i): return "x"
        """),
    _check("socket_replaced_by_a_file_of_replies", """
        with open("replies", "wb") as file: file.write((struct.pack("!I", 14) + b'["value",true]') * 10)
        os.dup2(os.open("replies", os.O_RDWR), FD)
        def f(i): return "x"
        """),
    _check("descriptors_sent_over_the_socket", """
        def f(i):
            with socket.socket(fileno=os.dup(FD)) as peer: socket.send_fds(peer, [b"x" * 8], [0, 1, 3] * 20)
            return "x"
        """),
    _check("no_reply_at_all", "def f(i):\n    while True: time.sleep(1)", WATCHDOG),
    _check("a_flood_of_replies", """
        def f(i):
            for _ in range(200_000): send(["value", "x"])
        """, WATCHDOG),
    _check("exceptions_that_pretend", """
        KINDS = ["AssertionError", "SystemExit", "StopIteration", "GeneratorExit", "KeyboardInterrupt", "ExceptionGroup", "UnicodeDecodeError"]
        def f(i): raise type(KINDS[os.getpid() % len(KINDS)], (Exception,), {"__eq__": lambda a, b: True, "__hash__": None})("x")
        """),
    _check("errors_named_like_anything", """
        NAMES = ["__import__", "exit", "print", "BaseException", "type", "Warning", "OSError", "open"]
        def f(i):
            for name in NAMES: send(["raised", name, "x", name])
        """),
    _check("result_channel_of_the_tests_forged", """
        for fd in range(3, 64):
            try: os.write(fd, b'["value",0,null]["value",1,null]["done"]')
            except OSError: pass
        def f(i): return "x"
        """),
    _check("memory_of_the_test_process", """
        PATTERN = re.compile(rb"@TAG@-[0-9a-f]{40}")
        def children(pid):
            with open(f"/proc/{pid}/task/{pid}/children") as file: return [int(one) for one in file.read().split()]
        def look(pid):
            try:
                with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                    for line in maps:
                        start, end = (int(one, 16) for one in line.split()[0].split("-"))
                        if line.split()[1].startswith("rw") and end - start < 1 << 28:
                            memory.seek(start)
                            if (found := PATTERN.search(memory.read(end - start))): return found.group().decode()
            except (OSError, ValueError, OverflowError): return None
        def workers():
            for task in os.listdir("/proc/@TRAINER@/task"):
                with open(f"/proc/@TRAINER@/task/{task}/children") as file: yield from map(int, file.read().split())
        def f(i):
            return next(found for worker in workers() for pid in children(worker) if pid != os.getpid() and (found := look(pid)))
        """, LANDLOCK, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
)  # fmt: skip
