"""Reading the expected values: from this process, from its ancestors, from what lies about."""

from __future__ import annotations

from hostile.attacks.system_calls import SYSTEM_CALLS
from hostile.program import (
    AS_ROOT,
    GRADING_OUTSIDE,
    LANDLOCK,
    NAMESPACES,
    PRIVILEGES,
    SECCOMP,
    HostileProgram,
    hostile,
)

_THIEF = """
import glob, os, re, sys
PATTERN = re.compile(rb"@TAG@-[0-9a-f]{40}")
def look(data):
    if isinstance(data, str): data = data.encode("utf-8", "replace")
    found = PATTERN.search(data) if isinstance(data, (bytes, bytearray)) else None
    return found and found.group().decode()
def look_in_file(path):
    try:
        with open(path, "rb") as file: return look(file.read(1 << 20))
    except OSError: return None
def first(found): return next((one for one in found if one), None)
TRAINER = @TRAINER@
RELATIVES = (TRAINER, os.getppid())
"""

_MEMORY = """
def regions(pid):
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            span, rights = line.split()[:2]
            if rights.startswith("rw") and "/dev/" not in line:
                start, end = (int(one, 16) for one in span.split("-"))
                if end - start < 1 << 30: yield start, end
def look_in_memory(pid):
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for start, end in regions(pid):
                try:
                    memory.seek(start)
                    if (found := look(memory.read(end - start))): return found
                except (OSError, ValueError, OverflowError): continue
    except OSError: return None
"""


def _inside(name: str, code: str, **fields: str) -> HostileProgram:
    family = "stealing expected values in the process"
    return hostile(name, family, code, GRADING_OUTSIDE, prelude=_THIEF + _MEMORY, **fields)


def _outside(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    family = "stealing expected values elsewhere"
    return hostile(name, family, code, *stopped_by, prelude=_THIEF + _MEMORY + SYSTEM_CALLS, **fields)


PROGRAMS = (
    _inside("frames_below", """
        def search(value, depth=4):
            if isinstance(value, (str, bytes)): return look(value)
            if depth and isinstance(value, dict): return first(search(one, depth - 1) for one in [*value.values(), *value])
            if depth and isinstance(value, (list, tuple, set)): return first(search(one, depth - 1) for one in value)
            return None
        def f(i):
            frame = sys._getframe()
            while frame:
                if (found := search(dict(frame.f_locals)) or search(list(frame.f_code.co_consts))): return found
                frame = frame.f_back
        """),
    _inside("frames_of_a_traceback", """
        def f(i):
            try: raise ValueError
            except ValueError as error: frame = error.__traceback__.tb_frame
            while frame:
                if (found := look(repr(dict(frame.f_locals)))): return found
                frame = frame.f_back
        """),
    _inside("all_objects_of_the_collector", """
        import gc
        def f(i): return first(look(one) for holder in gc.get_objects() for one in gc.get_referents(holder) if isinstance(one, (str, bytes)))
        """),
    _inside("frames_of_other_threads", """
        def f(i):
            for frame in sys._current_frames().values():
                while frame:
                    if (found := look(repr(dict(frame.f_locals)))): return found
                    frame = frame.f_back
        """),
    _inside("stack_by_inspection", """
        import inspect
        def f(i): return first(look(repr(one.frame.f_locals) + str(one.code_context)) for one in inspect.stack(50))
        """),
    _inside("trace_function_reads_the_harness", """
        seen = []
        def trace(frame, event, value):
            seen.append(look(repr(dict(frame.f_locals)) + repr(value)))
            return trace
        sys.settrace(trace)
        frame = sys._getframe()
        while frame: frame.f_trace, frame = trace, frame.f_back
        def f(i): return first(seen)
        """),
    _inside("comparison_told_by_the_other_side", """
        class Spy(str):
            def __eq__(self, other): Spy.seen = other; return True
            __hash__ = str.__hash__
        Spy.seen = "x"
        def f(i): return Spy(Spy.seen)
        """),
    _inside("own_memory", "def f(i): return look_in_memory('self')"),
    _inside("own_arguments_and_environment", """
        def f(i): return first(look(repr(one)) for one in (sys.argv, sys.orig_argv, dict(os.environ), os.confstr_names))
        """),
    _inside("source_of_the_harness", """
        import inspect
        def f(i):
            frame = sys._getframe()
            while frame:
                if (found := look_in_file(frame.f_code.co_filename)): return found
                frame = frame.f_back
        """),
    _outside("memory_of_the_trainer", "def f(i): return look_in_memory(TRAINER)", LANDLOCK, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _outside("memory_of_the_trainer_by_vector_reads", """
        class Span(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        def f(i):  # in parts: a trainer may have more memory, and an answer has little time
            data = ctypes.create_string_buffer(1 << 22)
            here = Span(ctypes.addressof(data), len(data))
            for start, end in regions(TRAINER):
                for at in range(start, end, len(data)):
                    there = Span(at, min(len(data), end - at))
                    try: count = syscall("process_vm_readv", TRAINER, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
                    except OSError: continue
                    if (found := look(ctypes.string_at(data, count))): return found
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _outside("trainer_traced", """
        def f(i): return any(attach(pid) for pid in RELATIVES)
        def attach(pid):
            try: return syscall("ptrace", 0x4206, pid, 0, 0) == 0  # PTRACE_SEIZE: without stopping it
            except OSError: return False
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, wanted="access", unprotected=AS_ROOT),
    _outside("descriptor_taken_from_a_relative", """
        def f(i): return any(take(pid, fd) for pid in RELATIVES for fd in range(3, 20))
        def take(pid, fd):
            try: return syscall("pidfd_getfd", syscall("pidfd_open", pid, 0), fd, 0) >= 0
            except OSError: return False
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, wanted="access", unprotected=AS_ROOT),
    _outside("open_files_of_the_trainer", """
        def f(i): return first(look_in_file(path) for path in glob.glob(f"/proc/{TRAINER}/fd/*") if os.path.isfile(path))
        """, LANDLOCK, NAMESPACES, PRIVILEGES),
    _outside("environment_of_the_trainer", """
        def f(i):
            with open(f"/proc/{TRAINER}/environ", "rb") as file: return bool(file.read())
        """, LANDLOCK, NAMESPACES, PRIVILEGES, wanted="access"),
    _outside("command_lines_of_all_processes", """
        def f(i): return first(look_in_file(path) for path in glob.glob("/proc/[0-9]*/cmdline"))
        """, LANDLOCK, NAMESPACES),
    _outside("environment_of_a_bystander", "def f(i): return look_in_file('/proc/@BYSTANDER@/environ')", LANDLOCK, NAMESPACES, PRIVILEGES),
    _outside("root_folder_of_the_trainer", "def f(i): return look_in_file(f'/proc/{TRAINER}/root/@SECRET_FILE@')", LANDLOCK, NAMESPACES),
    _outside("inherited_descriptors", """
        def f(i):
            for fd in range(256):
                try:
                    if (found := look(os.pread(fd, 1 << 16, 0))): return found
                except OSError: continue
        """, GRADING_OUTSIDE),
    _outside("inherited_environment", """
        import subprocess
        def f(i):
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_char_p
            return look(repr(dict(os.environ)) + str(libc.getenv(b"GREENWARD_TEST_SECRET"))) or look_in_file("/proc/self/environ")
        """, GRADING_OUTSIDE),
    _outside("file_of_tests", "def f(i): return look_in_file('@SECRET_FILE@')", LANDLOCK, NAMESPACES),
    _outside("file_of_tests_through_a_link", """
        os.symlink("@SECRET_FILE@", "link")
        def f(i): return look_in_file("link")
        """, LANDLOCK, NAMESPACES),
    _outside("file_of_tests_by_handle", """
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]
        def f(i):
            handle, mount = Handle(128), ctypes.c_int()
            syscall("name_to_handle_at", -100, b"@SECRET_FILE@", ctypes.byref(handle), ctypes.byref(mount), 0)
            folder = os.open(os.path.dirname("@SECRET_FILE@"), os.O_RDONLY)
            return look(os.read(syscall("open_by_handle_at", folder, ctypes.byref(handle), os.O_RDONLY), 1 << 16))
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _outside("file_of_another_user", "def f(i): return look_in_file('@FOREIGN_FILE@')", LANDLOCK, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _outside("home_folder", "def f(i): return look_in_file(os.path.join('@HOME@', '.netrc'))", LANDLOCK, NAMESPACES),
    _outside("real_home_folders_listed", """
        import pwd
        def f(i): return any(listed(one.pw_dir) for one in pwd.getpwall() if one.pw_dir.startswith(("/root", "/home")))
        def listed(folder):
            try: return bool(os.listdir(folder))
            except OSError: return False
        """, LANDLOCK, NAMESPACES, wanted="access", unprotected=AS_ROOT),
    _outside("temporary_folder_searched", """
        def f(i):
            for folder in {"/tmp", "/var/tmp", "@TEMPORARY@"}:
                for path, _, names in os.walk(folder):
                    for name in names:
                        if name.startswith("greenward-tests-") and (found := look_in_file(os.path.join(path, name))): return found
        """, LANDLOCK, NAMESPACES),
    _outside("source_of_these_tests", """
        import hashlib
        def f(i):
            with open("@SOURCE@", "rb") as file: return hashlib.sha256(file.read()).hexdigest()
        """, LANDLOCK, NAMESPACES, wanted="digest of a source file"),
    _outside("shadowed_passwords", """
        def f(i):
            with open("/etc/shadow") as file: return bool(file.read())
        """, LANDLOCK, NAMESPACES, wanted="access", unprotected=AS_ROOT),
    _outside("shared_memory_file", "def f(i): return look_in_file('@SHARED_FILE@')", LANDLOCK, NAMESPACES),
    _outside("shared_memory_segment", """
        libc.shmat.restype = ctypes.c_void_p
        def f(i): return look(ctypes.string_at(libc.shmat(syscall("shmget", @SEGMENT_KEY@, 4096, 0), None, 0), 64))
        """, SECCOMP, NAMESPACES),
)  # fmt: skip
