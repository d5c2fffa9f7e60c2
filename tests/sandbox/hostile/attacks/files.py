"""Files outside the answer's folder, the folder itself, and what the next answer might find."""

from __future__ import annotations

from hostile.attacks.system_calls import SYSTEM_CALLS
from hostile.program import (
    AS_ROOT,
    LANDLOCK,
    NAMESPACES,
    PRIVILEGES,
    SECCOMP,
    VARIES,
    WATCHDOG,
    HostileProgram,
    hostile,
)

# `OUTSIDE` is this program's own: it holds victim.txt and a folder `precious` with one file.
_OUTSIDE = """
import os, stat, sys, tempfile
OUTSIDE = "@OUTSIDE@"
VICTIM, PRECIOUS = OUTSIDE + "/victim.txt", OUTSIDE + "/precious"
PACKAGES = [f"{root}/{version}/{kind}-packages" for root in (sys.base_prefix + "/lib", "/usr/lib", "/usr/lib64", "/usr/local/lib")
            for version in ("python%d.%d" % sys.version_info[:2], "python3") for kind in ("site", "dist")]
PACKAGES = [folder for folder in PACKAGES if os.path.isdir(folder)]
def f(i): return i + 1
"""


def _outside(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    """Answers rightly; what must not happen is a change outside."""
    stopped_by = stopped_by or (LANDLOCK, NAMESPACES)
    return hostile(
        name,
        "files outside the folder",
        code,
        *stopped_by,
        wanted="successor",
        may_pass=True,
        prelude=_OUTSIDE,
        **fields,
    )


def _probe(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    stopped_by = stopped_by or (LANDLOCK, NAMESPACES)
    prelude = _OUTSIDE + SYSTEM_CALLS
    return hostile(
        name, "files outside the folder", code, *stopped_by, wanted="access", prelude=prelude, **fields
    )


def _left(name: str, code: str, then: str, *stopped_by: str, **fields: str) -> HostileProgram:
    """Leaves something behind; `then` returns True if the next answer finds it."""
    prelude = "import os, sys, tempfile\n" + SYSTEM_CALLS + "def f(i): return i + 1\n"
    return hostile(
        name,
        "state for the next answer",
        code,
        *stopped_by,
        wanted="successor",
        may_pass=True,
        then=then,
        prelude=prelude,
        **fields,
    )


# write(2) says EFAULT where memory is not mapped; reading there would end the process.
_SEARCH_OF_OWN_MEMORY = """
import ctypes, gc, os, re
PATTERN = re.compile(rb"@TAG@-[0-9a-f]{40}")
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
reader, writer = os.pipe()
def page(address):
    return os.read(reader, 4096) if libc.write(writer, ctypes.c_void_p(address), 4096) == 4096 else b""
def searched(start, end):
    before = b""
    for address in range(start, end, 4096):
        data = page(address)
        if PATTERN.search(before + data): return True
        before = data[-64:]
    return False
def f(i):
    arenas = {id(one) >> 20 for one in gc.get_objects()}
    end = libc.sbrk(0) & ~4095
    return searched(end - (32 << 20), end) or any(searched(one << 20, (one + 1) << 20) for one in arenas)
"""


def _memory(name: str, code: str) -> HostileProgram:
    """A right answer, of which the next one must not find anything in its own memory."""
    return hostile(
        name, "state for the next answer", code, WATCHDOG, may_pass=True, then=_SEARCH_OF_OWN_MEMORY
    )


PROGRAMS = (
    _outside("new_file_outside", "open(OUTSIDE + '/new', 'w').write('x')"),
    _outside("new_file_outside_by_a_relative_path", """
        os.chdir("/"); open(os.path.relpath(OUTSIDE, "/") + "/new", "w").write("x")
        """),
    _outside("victim_overwritten", "open(VICTIM, 'w').write('x')"),
    _outside("victim_appended_to", "open(VICTIM, 'a').write('x')"),
    _outside("victim_truncated", "os.truncate(VICTIM, 0)"),
    _outside("victim_removed", "os.unlink(VICTIM)"),
    _outside("victim_renamed", "os.rename(VICTIM, VICTIM + '.old')"),
    _outside("victim_moved_into_the_folder", "os.rename(VICTIM, 'mine')"),
    _outside("rights_of_the_victim", "os.chmod(VICTIM, 0o777)", LANDLOCK, SECCOMP, NAMESPACES),
    _outside("times_of_the_victim", "os.utime(VICTIM, (0, 0))", SECCOMP, NAMESPACES),
    _outside("owner_of_the_victim", "os.chown(VICTIM, 12345, -1)", SECCOMP, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _outside("attributes_of_the_victim", "os.setxattr(VICTIM, 'user.greenward', b'x')", SECCOMP, NAMESPACES, unprotected=VARIES),
    _outside("link_out_of_the_folder", "os.symlink(VICTIM, 'link'); open('link', 'w').write('x')"),
    _outside("hard_link_into_the_folder", "os.link(VICTIM, 'mine'); open('mine', 'w').write('x')"),
    _outside("link_to_a_folder_that_is_cleaned_up", "os.symlink(PRECIOUS, 'link')", WATCHDOG),
    _outside("folder_replaced_by_a_link", """
        here = os.getcwd()
        os.rename(here, here + ".gone"); os.symlink(PRECIOUS, here)
        """, LANDLOCK, NAMESPACES, unprotected=VARIES),
    _outside("folder_swapped_while_it_is_removed", """
        if os.fork() == 0:
            os.setsid()
            for _ in range(3000):
                try:
                    os.mkdir("d"); os.rmdir("d"); os.symlink(PRECIOUS, "d"); os.unlink("d")
                except OSError: pass
            os._exit(0)
        os.mkdir("other")
        """, WATCHDOG),
    _outside("folder_made_unreadable", "os.mkdir('d'); open('d/x', 'w').close(); os.chmod('d', 0); os.chmod('.', 0)", WATCHDOG),
    _outside("folder_removed", "os.rmdir(os.getcwd())", LANDLOCK, NAMESPACES, unprotected=VARIES),
    _outside("folder_renamed", "os.rename(os.getcwd(), os.getcwd() + '.moved')", LANDLOCK, NAMESPACES, unprotected=VARIES),
    _outside("folder_full_of_special_files", "os.mkfifo('fifo'); os.mkdir('d'); os.symlink('d', 'd/loop'); os.symlink('nowhere', 'dangling')", WATCHDOG),
    _outside("fifo_that_nobody_reads", "os.mkfifo('fifo'); os.open('fifo', os.O_WRONLY | os.O_NONBLOCK)", WATCHDOG),
    _probe("folder_outside_listed", "def f(i): return 'victim.txt' in os.listdir(OUTSIDE)"),
    _probe("installed_packages_listed", """
        def f(i): return any(os.listdir(folder) for folder in PACKAGES)
        """, LANDLOCK, unprotected=VARIES),
    _probe("installed_packages_imported", """
        def f(i):
            sys.path += PACKAGES
            for name in ("pip", "setuptools", "wheel", "numpy", "torch", "yaml"):
                try: __import__(name)
                except ImportError: continue
                return True
            return False
        """, LANDLOCK, unprotected=VARIES),
    _probe("installed_package_read", """
        def f(i):
            for folder in PACKAGES:
                for name in ("pip", "setuptools", "numpy", "yaml"):
                    try: return bool(open(f"{folder}/{name}/__init__.py").read())
                    except FileNotFoundError: continue
            return False
        """, LANDLOCK, unprotected=VARIES),
    _probe("installed_package_read_by_another_name", """
        def f(i):
            os.symlink(PACKAGES[0], "mine")
            return any(os.listdir(path) for path in ("mine", "mine/../site-packages", "mine/../dist-packages"))
        """, LANDLOCK, unprotected=VARIES),
    _probe("sites_of_the_interpreter_added", """
        def f(i):
            import site
            sys.flags, site.ENABLE_USER_SITE = None, True
            site.addsitepackages(set(), {sys.base_prefix, sys.prefix, "/usr", "/usr/local"})
            import pip
            return True
        """, LANDLOCK, unprotected=VARIES),
    _probe("root_changed", """
        def f(i):
            os.chroot(".")
            return True
        """, SECCOMP, PRIVILEGES, unprotected=AS_ROOT),
    _probe("device_made", """
        def f(i):
            os.mknod("zero", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
            with open("zero", "rb") as file: return file.read(4) == b"\\0" * 4
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _probe("raw_disk_opened", """
        def f(i):
            for name in sorted(os.listdir("/dev")):
                if name.startswith(("vd", "sd", "nvme", "xvd", "dm-", "loop-control", "mem", "kmsg")):
                    try: os.close(os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK)); return True
                    except OSError: continue
            return False
        """, LANDLOCK, NAMESPACES, unprotected=VARIES),
    _probe("standard_library_writable", """
        import bisect
        def f(i):
            os.close(os.open(bisect.__file__, os.O_WRONLY))  # nothing is written
            return True
        """, unprotected=VARIES),
    _probe("compiled_modules_writable", """
        import bisect
        def f(i):
            path = os.path.join(os.path.dirname(bisect.__file__), "__pycache__", "@MARK@.pyc")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)); os.unlink(path)
            return True
        """, unprotected=VARIES),
    _probe("interpreter_writable", """
        def f(i): return os.access(os.path.dirname(os.path.realpath(sys.executable)), os.W_OK) and writable()
        def writable():
            path = os.path.join(os.path.dirname(os.path.realpath(sys.executable)), "@MARK@")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)); os.unlink(path)
            return True
        """, unprotected=VARIES),
    _probe("folder_above_writable", """
        def f(i):
            path = os.path.join(os.path.dirname(os.getcwd()), "@MARK@")
            os.mkdir(path); os.rmdir(path)
            return True
        """, LANDLOCK),
    _probe("programs_made_executable", """
        import subprocess
        def f(i):
            with open("program", "w") as file: file.write("#!/bin/sh\\nexit 0\\n")
            os.chmod("program", 0o755)
            return subprocess.run(["./program"]).returncode == 0
        """, LANDLOCK, SECCOMP),
    _left("file_in_the_folder", "open('@MARK@', 'w').write('x')", "def f(i): return os.path.exists('@MARK@') or bool(os.listdir('.'))", WATCHDOG),
    _left("file_beside_the_folder", "open('../@MARK@', 'w').write('x')", "def f(i): return os.path.exists('../@MARK@')", LANDLOCK),
    _left("file_in_the_temporary_folder", """
        open("/tmp/greenward-tests-@MARK@", "w").write("x")
        """, "def f(i): return os.path.exists('/tmp/greenward-tests-@MARK@')", LANDLOCK),
    _left("file_in_shared_memory", """
        open("/dev/shm/greenward-tests-@MARK@", "w").write("x")
        """, "def f(i): return os.path.exists('/dev/shm/greenward-tests-@MARK@')", LANDLOCK),
    _left("message_queue", """
        syscall("msgget", @NUMBER@, 0o1666)
        """, """
        def f(i):
            queue = syscall("msgget", @NUMBER@, 0o600)
            return libc.msgctl(queue, 0, None) == 0  # IPC_RMID: nothing stays on the machine
        """, SECCOMP),
    _left("key_in_a_keyring", """
        syscall("add_key", b"user", b"greenward-tests-@MARK@", b"x", 1, -4)  # KEY_SPEC_USER_KEYRING
        """, """
        def f(i):
            key = syscall("keyctl", 10, -4, b"user", b"greenward-tests-@MARK@", 0)  # KEYCTL_SEARCH
            syscall("keyctl", 9, key, -4)  # KEYCTL_UNLINK
            return True
        """, SECCOMP, unprotected=VARIES),
    _left("folder_of_the_next_answer_prepared", """
        parent, name = os.path.split(os.getcwd())
        os.rename(os.getcwd(), os.path.join(parent, "gone"))
        os.mkdir(os.path.join(parent, name)); open(os.path.join(parent, name, "@MARK@"), "w").close()
        """, "def f(i): return bool(os.listdir('.'))", WATCHDOG),
    _memory("result_of_an_earlier_answer", "def f(i): return '@FIRST_HALF@' + '@SECOND_HALF@'"),
    _memory("code_of_an_earlier_answer", "def f(i): return '@SECRET@'"),
    _left("environment_changed", "os.environ['PYTHONPATH'] = os.environ['MARK'] = '@MARK@'; os.putenv('MARK', 'x')", "def f(i): return '@MARK@' in repr(dict(os.environ))", WATCHDOG),
    _left("modules_changed", "import bisect, json\nbisect.mark = json.mark = '@MARK@'", "import bisect, json\ndef f(i): return hasattr(bisect, 'mark') or hasattr(json, 'mark')", WATCHDOG),
    _left("cached_module_left", """
        import py_compile
        open("bisect.py", "w").write("mark = 1"); py_compile.compile("bisect.py")
        """, "import bisect\ndef f(i): return hasattr(bisect, 'mark')", WATCHDOG),
    _left("mask_and_processors_changed", "os.umask(0o777); os.sched_setaffinity(0, {0}); os.nice(5)", "def f(i): return os.umask(0) == 0o777 or os.nice(0) >= 5", WATCHDOG),
)  # fmt: skip
