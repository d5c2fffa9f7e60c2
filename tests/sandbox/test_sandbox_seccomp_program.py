"""The filter as a program: its table of calls, and what it decides in a model of the kernel's machine."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from greenward.sandbox.inside import seccomp
from greenward.sandbox.inside.seccomp import AND, LOAD, NUMBERS, RETURN, Assembler, numbers_on

MACHINES = ("x86_64", "aarch64")
# linux/audit.h: ELF machine, 64 bits, little-endian. linux/seccomp.h: the answers of a filter.
ARCH = {"x86_64": 62 | 0xC000_0000, "aarch64": 183 | 0xC000_0000}
ALLOW, KILL, EPERM, ENOSYS, NO_EFFECT = 0x7FFF0000, 0x80000000, 0x50000 | 1, 0x50000 | 38, 0x50000
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
OWN_PID = 4242


def run_bpf(program: bytes, data: bytes) -> int:
    """What the kernel's machine would answer (kernel documentation, networking/filter)."""
    instructions = list(struct.iter_unpack("<HBBI", program))
    at = value = 0
    while True:
        code, if_true, if_false, constant = instructions[at]
        at += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, constant)
        elif code == 0x54:
            value &= constant
        elif code == 0x05:
            at += constant
        else:
            holds = {0x15: value == constant, 0x35: value >= constant}[code]
            at += if_true if holds else if_false


def with_own_pid(program: bytes, own_pid: int) -> bytes:
    changed = bytearray(program)
    for place in seccomp.own_pid_places(program):
        struct.pack_into("<I", changed, place, own_pid)
    return bytes(changed)


class Filter:
    def __init__(self, machine: str, own_pid: int = OWN_PID) -> None:
        self.program = with_own_pid(seccomp.build_program(machine), own_pid)
        self.machine = machine

    def __call__(self, call: int | str, *arguments: int, arch: int | None = None) -> int:
        number = call if isinstance(call, int) else numbers_on(self.machine)[call]
        words = [argument % (1 << 64) for argument in (*arguments, *[0] * (6 - len(arguments)))]
        data = struct.pack("<IIQ6Q", number, ARCH[self.machine] if arch is None else arch, 0, *words)
        return run_bpf(self.program, data)


@functools.cache
def header_numbers(machine: str) -> dict[str, int]:
    """The numbers in the system's headers; none where they are not installed."""
    if not HEADERS[machine].exists():
        return {}
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    numbers = {name: int(number) for name, number in found}
    if "fstatat" in numbers:  # what the generic header calls it for machines of 32 and 64 bits
        numbers["newfstatat"] = numbers["fstatat"]
    return numbers


needs_headers = pytest.mark.skipif(
    not all(path.exists() for path in HEADERS.values()), reason="the kernel's headers are not installed"
)


@pytest.fixture(params=MACHINES)
def machine(request) -> str:
    return request.param


@pytest.fixture
def decide(machine) -> Filter:
    return Filter(machine)


class TestTable:
    @needs_headers
    def test_numbers_are_those_of_the_systems_headers(self, machine):
        ours, theirs = numbers_on(machine, processes=True), header_numbers(machine)
        newer_than_the_headers = ours.keys() - theirs.keys()
        assert newer_than_the_headers <= {"fchmodat2"}
        assert {name: theirs.get(name, number) for name, number in ours.items()} == ours

    @needs_headers
    def test_what_a_machine_lacks_its_header_lacks(self, machine):
        lacking = NUMBERS.keys() - numbers_on(machine).keys()
        assert not lacking & header_numbers(machine).keys()

    def test_numbers_are_distinct(self, machine):
        numbers = list(numbers_on(machine, processes=True).values())
        assert len(numbers) == len(set(numbers))

    def test_conditions_and_exceptions_are_about_calls_of_the_table(self):
        named = {*seccomp.CONDITIONS, *seccomp.WITHOUT_EFFECT, *seccomp.MISSING, *seccomp.IN_ONE_GROUP}
        assert named <= {*NUMBERS, *seccomp.PROCESS_NUMBERS}

    def test_another_machine_is_refused_by_name(self):
        with pytest.raises(OSError, match=r"riscv64.*x86_64 and aarch64"):
            seccomp.build_program("riscv64")


class TestDecisions:
    def test_a_call_is_answered_by_the_table_and_refused_outside_it(self, machine, decide):
        expected = dict.fromkeys(range(601), EPERM)
        for name, number in numbers_on(machine).items():
            if name in seccomp.WITHOUT_EFFECT:
                expected[number] = NO_EFFECT
            elif name in seccomp.MISSING:
                expected[number] = ENOSYS
            elif name not in seccomp.CONDITIONS:
                expected[number] = ALLOW
        conditional = {numbers_on(machine).get(name) for name in seccomp.CONDITIONS}
        for arguments in ((), (2**64 - 1,) * 6):
            decided = {number: decide(number, *arguments) for number in expected}
            assert {n: d for n, d in decided.items() if n not in conditional} == {
                n: e for n, e in expected.items() if n not in conditional
            }

    def test_a_call_of_another_architecture_ends_the_process(self, machine, decide):
        others = {0x4000_0003, 0x4000_0028, 0, 2**32 - 1, *ARCH.values()} - {ARCH[machine]}  # i386, arm
        assert {decide("getpid", arch=other) for other in others} == {KILL}

    def test_the_second_set_of_calls_of_x86_64_ends_the_process(self):
        decide = Filter("x86_64")
        assert {decide(number | 1 << 30) for number in range(600)} == {KILL}
        assert decide(2**32 - 1) == KILL
        assert decide(2**30 - 1) == EPERM

    @pytest.mark.parametrize(
        "calls",
        [
            "fork vfork execve execveat ptrace process_vm_readv process_vm_writev kcmp process_madvise",
            "socket connect bind listen accept accept4 sendmsg sendmmsg recvmmsg setsockopt",
            "mount umount2 pivot_root chroot unshare setns open_tree move_mount fsopen fsmount mount_setattr",
            "io_uring_setup io_uring_enter io_uring_register userfaultfd bpf perf_event_open memfd_create",
            "add_key request_key keyctl pidfd_open pidfd_getfd pidfd_send_signal tkill",
            "rt_sigqueueinfo rt_tgsigqueueinfo setpriority sched_setaffinity sched_setscheduler ioprio_set",
            "shmget shmat shmctl semget semop semctl msgget msgsnd msgrcv mq_open mq_unlink",
            "setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset",
            "personality seccomp init_module finit_module delete_module kexec_load reboot swapon swapoff",
            "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname setrlimit",
            "fchown fchownat setxattr lsetxattr fsetxattr removexattr mknodat truncate openat2",
            "name_to_handle_at open_by_handle_at splice vmsplice tee fanotify_init inotify_init1 quotactl",
            "setsid setpgid sync syncfs syslog acct nfsservctl move_pages migrate_pages mbind",
            "landlock_create_ruleset memfd_secret remap_file_pages mlock2 modify_ldt iopl",
        ],
    )
    @needs_headers
    def test_what_reaches_beyond_the_process_is_refused(self, machine, decide, calls):
        numbers = header_numbers(machine)
        known = [numbers[name] for name in calls.split() if name in numbers]
        assert len(known) > len(calls.split()) / 2
        for arguments in ((), (2**64 - 1,) * 6):
            assert {decide(number, *arguments) for number in known} == {EPERM}

    # glibc's and musl's flags of a new thread; then a fork, and threads in new namespaces.
    @pytest.mark.parametrize("flags", [0x3D0F00, 0x7D0F00])
    def test_threads_start(self, decide, flags):
        assert decide("clone", flags) == ALLOW

    # The last is a thread with descriptors of its own.
    @pytest.mark.parametrize("flags", [0, 17, 0x01200011, 0x4111, 0x100, 0x10000, 0x3D0B00])
    def test_processes_do_not(self, decide, flags):
        assert decide("clone", flags) == EPERM

    @pytest.mark.parametrize("namespace", [0x20000, *(1 << bit for bit in range(25, 31))])
    def test_nor_do_namespaces(self, decide, namespace):
        assert decide("clone", 0x3D0F00 | namespace) == EPERM

    def test_the_c_library_is_sent_from_clone3_to_clone(self, decide):
        assert decide("clone3", 0x3D0F00) == ENOSYS

    @pytest.mark.parametrize("call", ["kill", "tgkill", "prlimit64"])
    @pytest.mark.parametrize("own_pid", [1, 2, OWN_PID, 4_194_303])
    def test_only_the_process_itself_is_touched(self, machine, call, own_pid):
        decide = Filter(machine, own_pid)
        assert decide(call, own_pid) == ALLOW
        others = {-1, -own_pid, 1, own_pid - 1, own_pid + 1, 2**31 - 1, OWN_PID, 0} - {own_pid}
        itself_by_zero = {0} if call == "prlimit64" else set()
        assert {decide(call, other) for other in others - itself_by_zero} == {EPERM}
        assert {decide(call, other) for other in itself_by_zero} <= {ALLOW}

    def test_a_file_is_not_emptied_by_opening_it_to_read(self, machine, decide):
        truncate, create, cloexec = 0o1000, 0o100, 0o2000000
        for name, before in (("open", (0,)), ("openat", (-100, 0))):
            if name not in numbers_on(machine):
                continue
            for more in (0, create, cloexec, create | cloexec | 1 << 32):
                allowed = [mode for mode in range(4) if decide(name, *before, mode | more) == ALLOW]
                emptying = [
                    mode for mode in range(4) if decide(name, *before, mode | truncate | more) == ALLOW
                ]
                assert (allowed, emptying) == ([0, 1, 2], [1, 2])

    def test_file_descriptors_do_not_send_signals(self, decide):
        set_owner, get_owner, set_signal, set_owner_ex, lease, notify, set_pipe_size = (
            8, 9, 10, 15, 1024, 1026, 1031,
        )  # fmt: skip
        for command in (
            set_owner,
            get_owner,
            set_signal,
            set_owner_ex,
            lease,
            notify,
            set_pipe_size,
            2**32 - 1,
        ):
            assert decide("fcntl", 0, command) == EPERM
        assert {decide("fcntl", 0, command) for command in (0, 1, 2, 3, 4, 5, 6, 7, 1030)} == {ALLOW}

    def test_devices_are_asked_six_harmless_questions(self, decide):
        allowed = [request for request in range(0x5300, 0x5600) if decide("ioctl", 0, request) == ALLOW]
        assert allowed == [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]  # asm-generic/ioctls.h
        assert decide("ioctl", 0, 0x5412) == EPERM  # TIOCSTI: type into the terminal

    def test_switches_of_the_process_stay_but_for_its_name(self, decide):
        assert [option for option in range(100) if decide("prctl", option) == ALLOW] == [15, 16]

    def test_socket_pairs_are_local_streams(self, decide):
        families, kinds = range(50), range(11)
        assert [family for family in families if decide("socketpair", family, 1) == ALLOW] == [1]
        assert [kind for kind in kinds if decide("socketpair", 1, kind) == ALLOW] == [1]
        assert decide("socketpair", 1, 1 | 0o2000000 | 0o4000) == ALLOW

    def test_nothing_is_sent_to_an_address_or_out_of_band(self, decide):
        assert decide("sendto", 3, 0x7F00_0000_0000, 5, 0) == ALLOW
        assert decide("sendto", 3, 0, 5, 0x4000) == ALLOW
        for address in (1, 1 << 32, 1 << 63, 0x7F00_0000_0000):
            assert decide("sendto", 3, 0, 5, 0, address) == EPERM
        for flag in (bit for bit in (1 << n for n in range(32)) if bit != 0x4000):
            assert decide("sendto", 3, 0, 5, flag) == EPERM


def test_the_own_id_is_put_into_constants_only(machine):
    program = seccomp.build_program(machine)
    before = list(struct.iter_unpack("<HBBI", program))
    after = list(struct.iter_unpack("<HBBI", with_own_pid(program, OWN_PID)))
    put_in = [(*code, OWN_PID if constant == seccomp.OWN_PID else constant) for *code, constant in before]
    assert after == put_in != before


class TestAssembler:
    @example({2**32 - 2: 0, 2**32 - 1: 0})
    @given(st.dictionaries(st.integers(0, 60) | st.integers(0, 2**32 - 1), st.integers(0, 3), max_size=60))
    def test_a_choice_leads_where_a_dictionary_would(self, mapping):
        code = Assembler()
        labels = [code.add(RETURN, answer) for answer in range(4)]
        otherwise = code.add(RETURN, 9)
        code.add(
            LOAD, 0, code.choose({value: labels[answer] for value, answer in mapping.items()}, otherwise)
        )
        near = {value + step for value in mapping for step in (-1, 0, 1)}
        for value in {0, 2**32 - 1, *filter(range(2**32).__contains__, near)}:
            assert run_bpf(code.program(), struct.pack("<I", value)) == mapping.get(value, 9)

    def test_equal_tails_are_kept_once(self):
        code = Assembler()
        yes, no = code.add(RETURN, 1), code.add(RETURN, 0)
        tail = code.add(AND, 7, code.choose({3: yes}, no))
        code.choose({5: code.add(LOAD, 0, tail), 6: code.add(LOAD, 4, tail)}, no)
        assert [code for code, *_ in struct.iter_unpack("<HBBI", code.program())].count(0x54) == 1
