"""Other processes: signals to relatives and bystanders, survivors, bombs of processes and threads.

Signals go to the own worker, the own group and a bystander that the tests have started, never to
whoever else is there: all others and the trainer get signal 0, which only asks for permission.
"""

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

_RELATIVES = """
import os, signal, sys, threading, time
MARK = b"@MARK@"
def mark(): libc.prctl(15, MARK, 0, 0, 0)  # PR_SET_NAME: how the tests find a survivor
def linger(seconds=8):
    mark()
    for number in range(1, 32):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(seconds)
    os._exit(0)
"""
_RIGHT = "\ndef f(i): return i + 1\n"


def _signal(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    return hostile(name, "signals to others", code, *stopped_by, prelude=SYSTEM_CALLS + _RELATIVES, **fields)


def _to_worker(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    """Answers rightly, after an attack that would cost the worker its life."""
    stopped_by = stopped_by or (LANDLOCK, SECCOMP, NAMESPACES)
    prelude = SYSTEM_CALLS + _RELATIVES + _RIGHT
    return hostile(
        name,
        "signals to others",
        code,
        *stopped_by,
        wanted="successor",
        may_pass=True,
        prelude=prelude,
        **fields,
    )


def _survive(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    prelude = SYSTEM_CALLS + _RELATIVES + _RIGHT
    family = "surviving the answer"
    return hostile(
        name,
        family,
        code,
        *(stopped_by or (WATCHDOG,)),
        wanted="successor",
        may_pass=True,
        prelude=prelude,
        **fields,
    )


def _bomb(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    prelude = SYSTEM_CALLS + _RELATIVES
    return hostile(name, "process and thread bombs", code, *stopped_by, prelude=prelude, **fields)


PROGRAMS = (
    _to_worker("kill_the_worker", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.3)"),
    _to_worker("stop_the_worker", "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.3)"),
    _to_worker("terminate_the_worker", "os.kill(os.getppid(), signal.SIGTERM); time.sleep(0.3)"),
    _to_worker("hang_up_the_worker", "os.kill(os.getppid(), signal.SIGHUP); time.sleep(0.3)"),
    _to_worker("fault_the_worker", "os.kill(os.getppid(), signal.SIGSEGV); time.sleep(0.3)"),
    _to_worker("kill_the_worker_when_called", """
        def f(i):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(0.3)
            return i + 1
        """),
    _to_worker("kill_the_group_of_the_worker", "os.killpg(os.getpgid(os.getppid()), signal.SIGKILL); time.sleep(0.3)"),
    _to_worker("kill_a_thread_of_the_worker", """
        syscall("tgkill", os.getppid(), os.getppid(), signal.SIGKILL); time.sleep(0.3)
        """),
    _to_worker("kill_the_worker_by_descriptor", """
        signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL); time.sleep(0.3)
        """),
    _to_worker("kill_the_worker_by_queued_signal", """
        information = ctypes.create_string_buffer(128)
        ctypes.c_int.from_buffer(information, 8).value = -1  # si_code SI_QUEUE
        syscall("rt_sigqueueinfo", os.getppid(), signal.SIGTERM, ctypes.byref(information)); time.sleep(0.3)
        """),
    _to_worker("kill_the_worker_by_input_and_output", """
        import fcntl
        reader, writer = os.pipe()
        fcntl.fcntl(reader, 8, os.getppid())  # F_SETOWN
        fcntl.fcntl(reader, 10, signal.SIGKILL)  # F_SETSIG
        fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
        os.write(writer, b"x"); time.sleep(0.3)
        """),
    _to_worker("kill_the_worker_from_a_child", """
        worker = os.getppid()
        if os.fork() == 0:
            os.setsid(); os.kill(worker, signal.SIGKILL); os._exit(0)
        time.sleep(0.3)
        """),
    _to_worker("flood_the_worker_with_signals", """
        for _ in range(20_000): os.kill(os.getppid(), signal.SIGCONT)
        os.kill(os.getppid(), signal.SIGUSR1); time.sleep(0.3)
        """),
    _to_worker("kill_its_own_group", "os.killpg(0, signal.SIGKILL)", WATCHDOG),
    _to_worker("stop_its_own_group", "os.killpg(0, signal.SIGSTOP)", WATCHDOG),
    _signal("permission_to_signal_everyone", """
        def f(i):
            relatives = (os.getpid(), os.getppid())
            return any(may_signal(pid) for pid in range(1, 32768) if pid not in relatives)
        def may_signal(pid):
            try: return os.kill(pid, 0) is None
            except OSError: return False
        """, LANDLOCK, SECCOMP, NAMESPACES, wanted="access"),
    _signal("permission_to_signal_the_trainer", """
        def f(i):
            os.kill(@TRAINER@, 0)
            return True
        """, LANDLOCK, SECCOMP, NAMESPACES, wanted="access"),
    _signal("signal_to_a_bystander", """
        def f(i):
            os.kill(@BYSTANDER@, signal.SIGCONT)
            return True
        """, LANDLOCK, SECCOMP, NAMESPACES, wanted="access"),
    _signal("priority_of_a_bystander", """
        def f(i):
            os.setpriority(os.PRIO_PROCESS, @BYSTANDER@, 19)
            return True
        """, SECCOMP, NAMESPACES, wanted="access"),
    _signal("processors_of_a_bystander", """
        def f(i):
            os.sched_setaffinity(@BYSTANDER@, {0})
            return True
        """, SECCOMP, NAMESPACES, wanted="access"),
    _signal("limits_of_a_bystander", """
        import resource
        def f(i):
            resource.prlimit(@BYSTANDER@, resource.RLIMIT_CORE, (0, 0))
            return True
        """, SECCOMP, NAMESPACES, wanted="access", unprotected=VARIES),
    _signal("limits_of_the_worker", """
        import resource
        def f(i):
            resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE))
            return True
        """, SECCOMP, wanted="access", unprotected=VARIES),
    _signal("priority_of_the_worker", """
        def f(i):
            os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
            return True
        """, SECCOMP, wanted="access"),
    _survive("daemon", """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: linger()
            os._exit(0)
        """),
    _survive("daemon_that_closed_everything", """
        if os.fork() == 0:
            os.setsid(); os.closerange(0, 256)
            if os.fork() == 0: linger()
            os._exit(0)
        """),
    _survive("sleeping_program", "import subprocess\nsubprocess.Popen(['sleep', '8.0@NUMBER@'], start_new_session=True)"),
    _survive("child_of_the_worker", """
        if syscall("clone", 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0: linger()  # CLONE_PARENT
        """),
    _survive("child_without_exit_signal", """
        if syscall("clone", 0, 0, 0, 0, 0) == 0: linger()
        """),
    _survive("stopped_child", """
        if (pid := os.fork()) == 0: linger()
        time.sleep(0.05); os.kill(pid, signal.SIGSTOP)
        """),
    _survive("child_that_forks_on", """
        if os.fork() == 0:
            for _ in range(60):
                mark(); time.sleep(0.02)
                if os.fork(): os._exit(0)
            os._exit(0)
        """),
    _survive("thread_that_goes_on", """
        mark()
        threading.Thread(target=time.sleep, args=(8,)).start()
        """),
    _survive("work_after_the_last_result", """
        import atexit
        atexit.register(linger)
        threading.Thread(target=lambda: [time.sleep(0.1) for _ in range(80)]).start()
        """),
    _survive("daemon_and_the_worker_killed", """
        worker = os.getppid()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: linger()
            os._exit(0)
        time.sleep(0.1); os.kill(worker, signal.SIGKILL); time.sleep(0.3)
        """, LANDLOCK, SECCOMP, NAMESPACES),
    _survive("daemon_while_the_worker_is_stopped", """
        worker = os.getppid()
        if os.fork() == 0:
            os.setsid(); os.kill(worker, signal.SIGSTOP); linger()
        time.sleep(0.3)
        """, LANDLOCK, SECCOMP, NAMESPACES),
    _bomb("fork_bomb", """
        def f(i):
            born = 0
            for _ in range(200):
                if os.fork() == 0: linger(4)
                born += 1
            time.sleep(0.5)
            return born == 200
        """, WATCHDOG, SECCOMP, wanted="access"),
    _bomb("fork_bomb_that_doubles", """
        def f(i):
            for _ in range(7): os.fork()
            linger(4)
        """, WATCHDOG),
    _bomb("fork_bomb_while_loading", """
        for _ in range(200):
            if os.fork() == 0: linger(4)
        def f(i): return "x"
        """, WATCHDOG),
    _bomb("processes_that_come_and_go", """
        def f(i):
            for _ in range(300):
                if os.fork() == 0: os._exit(0)
            return "x"
        """, WATCHDOG),
    _bomb("programs_started", """
        import subprocess
        def f(i): return subprocess.run(["true"]).returncode == 0
        """, SECCOMP, wanted="access"),
    _bomb("thread_bomb", """
        def f(i):
            threading.stack_size(32768)
            gate = threading.Event()
            for _ in range(2000): threading.Thread(target=gate.wait, args=(4,), daemon=True).start()
            return threading.active_count() > 2000
        """, RESOURCES, wanted="access"),
    _bomb("thread_bomb_in_the_background", """
        def spin(): [None for _ in range(10**8)]
        def f(i):
            for _ in range(50): threading.Thread(target=spin).start()
            time.sleep(3)
            return "x"
        """, WATCHDOG),
)  # fmt: skip
