"""Sockets of every kind. The tests serve the secret on each way that stays on this machine."""

from __future__ import annotations

from hostile.program import (
    AS_ROOT,
    LANDLOCK,
    NAMESPACES,
    PRIVILEGES,
    SECCOMP,
    VARIES,
    HostileProgram,
    hostile,
)


def _socket(name: str, code: str, *stopped_by: str, **fields: str) -> HostileProgram:
    prelude = """
import ctypes, os, socket
socket.setdefaulttimeout(1)
def secret_in(data): return data.decode().partition("X-Secret: ")[2].split()[0]
"""
    return hostile(name, "sockets", code, *(stopped_by or (SECCOMP, NAMESPACES)), prelude=prelude, **fields)


PROGRAMS = (
    _socket("tcp_to_the_host", """
        def f(i): return secret_in(socket.create_connection(("127.0.0.1", @TCP_PORT@)).recv(200))
        """),
    _socket("tcp_by_a_raw_descriptor", """
        def f(i):
            libc = ctypes.CDLL(None)
            fd = libc.socket(2, 1, 0)
            address = (2).to_bytes(2, "little") + (@TCP_PORT@).to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
            assert libc.connect(fd, address, 16) == 0
            return secret_in(os.read(fd, 200))
        """),
    _socket("tcp_through_the_standard_library", """
        import urllib.request
        def f(i): return urllib.request.urlopen("http://127.0.0.1:@TCP_PORT@/").headers["X-Secret"]
        """),
    _socket("tcp_from_a_thread_pool", """
        from concurrent.futures import ThreadPoolExecutor
        def fetch(): return secret_in(socket.create_connection(("127.0.0.1", @TCP_PORT@)).recv(200))
        def f(i):
            with ThreadPoolExecutor(1) as pool: return pool.submit(fetch).result()
        """),
    _socket("tcp_by_asyncio", """
        import asyncio
        async def fetch():
            reader, _ = await asyncio.open_connection("127.0.0.1", @TCP_PORT@)
            return secret_in(await reader.read(200))
        def f(i): return asyncio.run(fetch())
        """),
    _socket("udp_like_a_name_lookup", """
        def f(i):
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.sendto(b"?", ("127.0.0.1", @UDP_PORT@))
            return secret_in(one.recv(200))
        """),
    _socket("unix_socket_on_a_path", """
        def f(i):
            one = socket.socket(socket.AF_UNIX)
            one.connect("@UNIX_PATH@")
            return secret_in(one.recv(200))
        """),
    _socket("unix_socket_without_a_path", """
        def f(i):
            one = socket.socket(socket.AF_UNIX)
            one.connect("\\0@ABSTRACT@")
            return secret_in(one.recv(200))
        """, SECCOMP, NAMESPACES, LANDLOCK),
    _socket("datagram_pair_that_sends_elsewhere", """
        def f(i):
            one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            one.sendto(b"?", "@DATAGRAM_PATH@")
            return True
        """, SECCOMP, NAMESPACES, wanted="access"),
    _socket("listening_for_visitors", """
        def f(i):
            one = socket.socket(socket.AF_INET)
            one.bind(("0.0.0.0", 0)); one.listen()
            return True
        """, SECCOMP, LANDLOCK, wanted="access"),
    _socket("network_of_version_six", """
        def f(i):
            one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            one.bind(("::", 0))
            return True
        """, SECCOMP, wanted="access", unprotected=VARIES),
    _socket("kernel_messages", """
        def f(i):
            one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            one.bind((0, 0))
            return True
        """, SECCOMP, wanted="access"),
    _socket("virtual_machine_sockets", """
        def f(i):
            socket.socket(40, socket.SOCK_STREAM)  # AF_VSOCK, which no namespace holds
            return True
        """, SECCOMP, wanted="access", unprotected=VARIES),
    _socket("kernel_ciphers", """
        def f(i):
            socket.socket(38, socket.SOCK_SEQPACKET)  # AF_ALG
            return True
        """, SECCOMP, wanted="access", unprotected=VARIES),
    _socket("raw_packets", """
        def f(i):
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            return True
        """, SECCOMP, PRIVILEGES, wanted="access", unprotected=AS_ROOT),
    _socket("raw_internet_packets", """
        def f(i):
            socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            return True
        """, SECCOMP, PRIVILEGES, wanted="access", unprotected=AS_ROOT),
    _socket("socket_by_the_old_call_table", """
        import mmap
        # int 0x80 with the numbers of i386: a filter that looks at numbers alone lets it pass.
        CODE = bytes.fromhex("53 b8 67010000 bb 02000000 b9 01000000 31d2 cd80 5b c3")
        def f(i):
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(CODE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            return ctypes.CFUNCTYPE(ctypes.c_int)(address)() >= 0
        """, SECCOMP, wanted="access", unprotected=VARIES),
    _socket("socket_by_the_x32_call_table", """
        def f(i): return ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 41), 2, 1, 0) >= 0
        """, SECCOMP, wanted="access", unprotected=VARIES),
)  # fmt: skip
