"""Whole programs that read and print: each run must print the expected value and nothing helps it."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, LANDLOCK, NAMESPACES, SECCOMP, WATCHDOG, HostileProgram, hostile

_START = "import os, sys, threading, time\n"


def _program(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    family = "programs that read and print"
    return hostile(
        name, family, code, *(stopped_by or (GRADING_OUTSIDE,)), form="stdio", prelude=_START, **fields
    )


PROGRAMS = (
    _program("leaves_at_once", "os._exit(0)"),
    _program("prints_verdicts", "print('passed', 'Accepted', '[\"done\"]', True, sep='\\n')"),
    _program("prints_its_input", "print(sys.stdin.read(), end='')"),
    _program("prints_every_number", "for n in range(1000): print(n)", wanted="successor"),
    _program("closes_its_output", "print('1', flush=True); os.close(1); sys.exit(0)"),
    _program("writes_to_every_descriptor", """
        for fd in range(3, 64):
            try: os.write(fd, b'["value",0,"x"]["done"]')
            except OSError: pass
        """),
    _program("rewrites_its_input", """
        try: os.ftruncate(0, 0); os.pwrite(0, b"secret", 0); os.lseek(0, 0, 0)
        except OSError: pass
        print(sys.stdin.read())
        """),
    _program("finds_what_an_earlier_run_left", """
        number = int(input())
        found = os.path.exists("left") or os.path.exists(os.path.expanduser("~/left"))
        open("left", "w").close()
        print(number + 1 if number == 0 or found else "no")
        """, WATCHDOG, wanted="successor"),
    _program("prints_from_a_daemon", """
        if os.fork() == 0:
            os.setsid(); time.sleep(0.2); os.write(1, b"True\\n"); os._exit(0)
        """, WATCHDOG, wanted="access"),
    _program("prints_after_the_end", """
        def late():
            while threading.main_thread().is_alive(): time.sleep(0.01)
            time.sleep(20); print(int(input()) + 1)
        threading.Thread(target=late).start()
        """, WATCHDOG, wanted="successor"),
    _program("prints_without_end", "while True: os.write(1, b'True\\n' * 10_000)", WATCHDOG, wanted="access"),
    _program("prints_what_cannot_be_decoded", "os.write(1, b'\\xff\\xfe\\x00True\\n' + bytes(range(256)))", wanted="access"),
    _program("prints_a_file_of_tests", """
        with open("@SECRET_FILE@") as file: print(file.read().split('"')[3])
        """, LANDLOCK, NAMESPACES),
    _program("starts_a_program_that_answers", """
        import subprocess
        print(subprocess.run(["echo", "True"], capture_output=True, text=True).stdout, end="")
        """, SECCOMP, wanted="access"),
)  # fmt: skip
