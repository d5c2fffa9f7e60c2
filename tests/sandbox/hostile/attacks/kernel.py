"""The kernel's surface: namespaces, mounts, keyrings, tracing, privileges, limits, /proc.

A probe undoes what it did, or asks with arguments that the kernel refuses after the permission.
"""

from __future__ import annotations

from hostile.attacks.system_calls import SYSTEM_CALLS
from hostile.program import (
    AS_ROOT,
    LANDLOCK,
    NAMESPACES,
    PRIVILEGES,
    RESOURCES,
    SECCOMP,
    VARIES,
    WATCHDOG,
    HostileProgram,
    hostile,
)

_PROBE = """
import errno, resource, signal, socket, sys, time
def reached(name, *arguments, refused=(errno.EPERM, errno.ENOSYS, errno.EACCES)):
    try: return syscall(name, *arguments) >= 0
    except OSError as error: return error.errno not in refused
def writable(path):
    os.close(os.open(path, os.O_WRONLY))  # nothing is written
    return True
"""


def _kernel(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    family = "kernel surface"
    return hostile(
        name,
        family,
        code,
        *(stopped_by or (SECCOMP,)),
        wanted="access",
        prelude=SYSTEM_CALLS + _PROBE,
        **fields,
    )


def _privilege(name: str, code: str, *stopped_by: str, unprotected: str = AS_ROOT) -> HostileProgram:
    return hostile(
        name,
        "privileges and limits",
        code,
        *stopped_by,
        wanted="access",
        unprotected=unprotected,
        prelude=SYSTEM_CALLS + _PROBE,
    )


def _proc(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    stopped_by = stopped_by or (LANDLOCK, NAMESPACES)
    return hostile(
        name, "tricks with proc", code, *stopped_by, wanted="access", prelude=SYSTEM_CALLS + _PROBE, **fields
    )


PROGRAMS = (
    _kernel("new_user_namespace", "def f(i): return reached('unshare', 0x10000000)", unprotected=VARIES),
    _kernel("new_network_namespace", "def f(i): return reached('unshare', 0x50000000)", unprotected=VARIES),
    _kernel("new_mount_namespace", "def f(i): return reached('unshare', 0x10020000)", unprotected=VARIES),
    _kernel("child_in_new_namespaces", """
        def f(i):
            child = syscall("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
            if child == 0: os._exit(0)
            return os.waitpid(child, 0)[1] == 0
        """, unprotected=VARIES),
    _kernel("child_by_the_newer_call", """
        def f(i):
            arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
            child = syscall("clone3", ctypes.byref(arguments), 64)
            if child == 0: os._exit(0)
            return os.waitpid(child, 0)[1] == 0
        """),
    _kernel("namespace_of_a_relative_entered", """
        def f(i): return syscall("setns", os.open(f"/proc/{os.getppid()}/ns/net", os.O_RDONLY), 0) == 0
        """, LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, unprotected=AS_ROOT),
    _kernel("file_system_mounted", """
        def f(i):
            os.mkdir("m")
            syscall("mount", b"none", os.path.abspath("m").encode(), b"tmpfs", 0, None)
            return syscall("umount2", os.path.abspath("m").encode(), 2) == 0
        """, LANDLOCK, SECCOMP, PRIVILEGES, unprotected=AS_ROOT),
    _kernel("file_system_opened", "def f(i): return syscall('fsopen', b'tmpfs', 0) >= 0", SECCOMP, PRIVILEGES, unprotected=AS_ROOT),
    _kernel("kernel_keyring", "def f(i): return reached('keyctl', 0, -3, 1)", unprotected=VARIES),  # KEYCTL_GET_KEYRING_ID
    _kernel("asynchronous_ring", """
        def f(i): return syscall("io_uring_setup", 1, ctypes.create_string_buffer(120)) >= 0
        """, unprotected=VARIES),
    _kernel("program_in_the_kernel", """
        def f(i):
            wanted = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # an array map of one entry
            return syscall("bpf", 0, ctypes.byref(wanted), 128) >= 0
        """, SECCOMP, PRIVILEGES, unprotected=VARIES),
    _kernel("page_faults_handled_here", "def f(i): return syscall('userfaultfd', 0) >= 0", SECCOMP, unprotected=VARIES),
    _kernel("performance_counters", """
        def f(i):
            wanted = (ctypes.c_uint32 * 32)(1, 128)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK
            return syscall("perf_event_open", ctypes.byref(wanted), 0, -1, -1, 0) >= 0
        """, unprotected=VARIES),
    _kernel("every_file_event", "def f(i): return syscall('fanotify_init', 0, 0) >= 0", SECCOMP, PRIVILEGES, NAMESPACES, unprotected=VARIES),
    _kernel("kernel_log", "def f(i): return reached('syslog', 10, None, 0)", unprotected=AS_ROOT),  # SYSLOG_ACTION_SIZE_BUFFER
    _kernel("processes_compared", "def f(i): return reached('kcmp', os.getpid(), os.getppid(), 1, 0, 0)", LANDLOCK, SECCOMP, NAMESPACES, PRIVILEGES, unprotected=VARIES),
    _kernel("itself_traced", "def f(i): return reached('ptrace', 0, 0, 0, 0)"),  # PTRACE_TRACEME
    _kernel("personality_changed", "def f(i): return syscall('personality', 0x0040000) >= 0"),  # no random addresses
    _kernel("program_from_memory", """
        import subprocess
        def f(i):
            fd = syscall("memfd_create", b"x", 0)
            with open(sys.executable, "rb") as file, open(fd, "wb", closefd=False) as copy: copy.write(file.read(1 << 16))
            child = os.fork()
            if child == 0:
                try: os.execve(fd, ["x"], {})
                except OSError as error: os._exit(error.errno)
            return os.waitpid(child, 0)[1] >> 8 not in (errno.EPERM, errno.EACCES)
        """),
    _kernel("system_restarted", "def f(i): return reached('reboot', 0, 0, 0, None)", SECCOMP, PRIVILEGES, unprotected=AS_ROOT),
    _kernel("kernel_module_loaded", "def f(i): return reached('init_module', None, 0, b'')", SECCOMP, PRIVILEGES, NAMESPACES, unprotected=VARIES),
    _privilege("name_of_the_host", """
        def f(i):
            socket.sethostname(socket.gethostname())
            return True
        """, SECCOMP, PRIVILEGES),
    _privilege("higher_priority", """
        def f(i):
            os.setpriority(os.PRIO_PROCESS, 0, -5)
            return True
        """, SECCOMP, PRIVILEGES, NAMESPACES),
    _privilege("real_time_priority", """
        def f(i):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            return True
        """, SECCOMP, PRIVILEGES, NAMESPACES),
    _privilege("another_user", """
        def f(i):
            os.setresuid(12345, 12345, 12345)
            return os.getuid() == 12345
        """, SECCOMP, PRIVILEGES, NAMESPACES),
    _privilege("groups_given_away", """
        def f(i):
            os.setgroups([])
            return True
        """, SECCOMP, PRIVILEGES, NAMESPACES),
    _privilege("file_given_to_another_user", """
        def f(i):
            open("mine", "w").close(); os.chown("mine", 12345, -1)
            return True
        """, SECCOMP, PRIVILEGES, NAMESPACES),
    _privilege("file_that_runs_as_root", """
        def f(i):
            open("mine", "w").close(); os.chmod("mine", 0o4755); os.chown("mine", 0, 0); os.chmod("mine", 0o6755)
            return os.stat("mine").st_mode & 0o6000 == 0o6000 and os.stat("mine").st_uid == 0 and can_run()
        def can_run():
            if (child := os.fork()) == 0: os.execv("/bin/true", ["true"])
            return os.waitpid(child, 0)[1] == 0
        """, SECCOMP),
    _privilege("ports_of_the_machine", "def f(i): return os.uname().machine == 'x86_64' and libc.syscall(172, 3) == 0", SECCOMP, PRIVILEGES, NAMESPACES, unprotected=VARIES),
    _privilege("hard_limit_of_processor_time_raised", """
        def f(i):
            if resource.getrlimit(resource.RLIMIT_CPU)[1] == resource.RLIM_INFINITY: return False
            resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)
            return True
        """, PRIVILEGES, SECCOMP, NAMESPACES, unprotected=VARIES),
    _privilege("hard_limit_of_memory_raised", """
        def f(i):
            if resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY: return False
            resource.prlimit(0, resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
            return len(bytearray(2 << 30)) > 0
        """, PRIVILEGES, SECCOMP, NAMESPACES, RESOURCES, unprotected=VARIES),
    _privilege("hard_limit_of_open_files_raised", """
        def f(i):
            if resource.getrlimit(resource.RLIMIT_NOFILE)[1] == resource.RLIM_INFINITY: return False
            resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 16, 1 << 16))
            return True
        """, PRIVILEGES, SECCOMP, NAMESPACES, unprotected=VARIES),
    _privilege("many_open_files", """
        def f(i): return len([os.dup(0) for _ in range(5000)]) == 5000
        """, RESOURCES, unprotected=VARIES),
    _privilege("core_dump_wanted", """
        def f(i):
            if resource.getrlimit(resource.RLIMIT_CORE)[1] == resource.RLIM_INFINITY: return False
            resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
            return True
        """, RESOURCES, unprotected=VARIES),
    _privilege("dumpable_and_traceable_by_all", """
        def f(i): return libc.prctl(0x59616D61, -1, 0, 0, 0) == 0  # PR_SET_PTRACER: anyone
        """, SECCOMP, unprotected=VARIES),
    _privilege("life_beyond_the_worker", """
        def f(i):
            worker = os.getppid()
            libc.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: none
            os.kill(worker, signal.SIGKILL); time.sleep(0.3)
            return os.getppid() != worker
        """, LANDLOCK, SECCOMP, NAMESPACES, unprotected=VARIES),
    _proc("victim_of_memory_shortage_chosen", """
        def f(i):
            with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
            return True
        """, LANDLOCK, unprotected=VARIES),
    _proc("core_pattern", "def f(i): return writable('/proc/sys/kernel/core_pattern')", LANDLOCK, unprotected=VARIES),
    _proc("magic_request_key", "def f(i): return writable('/proc/sysrq-trigger')", LANDLOCK, NAMESPACES, unprotected=VARIES),
    _proc("path_of_module_loader", "def f(i): return writable('/proc/sys/kernel/modprobe')", LANDLOCK, NAMESPACES, unprotected=VARIES),
    _proc("memory_image_of_the_kernel", "def f(i): return os.open('/proc/kcore', os.O_RDONLY) >= 0", LANDLOCK, NAMESPACES, PRIVILEGES, unprotected=VARIES),
    _proc("write_to_own_memory_through_proc", """
        def f(i):
            value = ctypes.create_string_buffer(b"before")
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(ctypes.addressof(value)); memory.write(b"after\\0")
            return value.value == b"after"
        """, LANDLOCK, unprotected=AS_ROOT),
    _proc("other_processes_listed", """
        def f(i): return any(int(name) == @BYSTANDER@ for name in os.listdir("/proc") if name.isdigit())
        """),
    _proc("memory_of_init", "def f(i): return os.open('/proc/1/mem', os.O_RDONLY) >= 0", LANDLOCK, NAMESPACES, PRIVILEGES, unprotected=VARIES),
    _proc("root_through_init", "def f(i): return bool(os.listdir('/proc/1/root@OUTSIDE@'))", LANDLOCK, NAMESPACES, unprotected=VARIES),
    _proc("interpreter_through_proc", """
        def f(i):
            try: return writable("/proc/self/exe")
            except OSError as error: return error.errno == errno.EPERM
        """, WATCHDOG),
    _proc("group_of_resources_left", """
        def f(i):
            for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"):
                try: return writable(path)
                except FileNotFoundError: continue
            return False
        """, LANDLOCK, unprotected=VARIES),
    _proc("id_maps_rewritten", """
        def f(i):
            libc.unshare(0x10000000)
            with open("/proc/self/uid_map", "w") as file: file.write(f"0 {os.getuid()} 1")
            return True
        """, LANDLOCK, SECCOMP, unprotected=VARIES),
)  # fmt: skip
