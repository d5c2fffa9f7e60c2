"""Common uses of the standard library."""

from __future__ import annotations

from hostile.program import benign

PROGRAMS = (
    benign("counters", "from collections import Counter\ndef f(s): return Counter(s)", (("aab",), {"a": 2, "b": 1})),
    benign("default_dicts", """
        from collections import defaultdict
        def f(words):
            groups = defaultdict(list)
            for word in words: groups[len(word)].append(word)
            return groups
        """, ((["a", "bb", "c"],), {1: ["a", "c"], 2: ["bb"]})),
    benign("ordered_dicts", "from collections import OrderedDict\ndef f(): return OrderedDict(a=1, b=2)", ((), {"a": 1, "b": 2})),
    benign("named_tuples", "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", ((), (1, 2))),
    benign("integer_enumerations", "from enum import IntEnum\nclass C(IntEnum):\n    RED = 1\ndef f(): return [C.RED, C(1)]", ((), [1, 1])),
    benign("queues_made_lists", "from collections import deque\ndef f(n):\n    d = deque(range(n), maxlen=3); d.rotate(1)\n    return list(d)", ((5,), [4, 2, 3])),
    benign("cached_functions", """
        from functools import cache, lru_cache, reduce, partial
        @lru_cache(maxsize=None)
        def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
        f = cache(partial(fibonacci))
        """, ((90,), 2880067194370816120)),
    benign("regular_expressions", r"""
        import re
        def f(s): return re.findall(r"(?P<word>\w+)\s(?=\d)", s), re.sub(r"\d", lambda m: str(int(m[0]) + 1), s)
        """, (("a 1 b 2",), (["a", "b"], "a 2 b 3"))),
    benign("iteration_tools", """
        from itertools import accumulate, combinations, groupby, permutations, product
        def f(xs): return [list(accumulate(xs)), list(combinations(xs, 2)), [k for k, _ in groupby(xs)], len(list(permutations(xs))), len(list(product(xs, xs)))]
        """, (([1, 1, 2],), [[1, 2, 4], [(1, 1), (1, 2), (1, 2)], [1, 2], 6, 9])),
    benign("heaps_and_bisection", """
        import bisect, heapq
        def f(xs):
            heapq.heapify(xs)
            found = [heapq.heappop(xs) for _ in range(len(xs))]
            return found, bisect.bisect_left(found, 3), heapq.nlargest(2, found)
        """, (([3, 1, 2],), ([1, 2, 3], 2, [3, 2]))),
    benign("mathematics", """
        import cmath, math, statistics
        def f(x): return [math.gcd(12, x), math.comb(5, 2), math.isqrt(x), math.prod([1, 2, x]), statistics.mean([1, x]), round(abs(cmath.exp(1j)), 6)]
        """, ((18,), [6, 10, 4, 36, 9.5, 1.0])),
    benign("decimals_and_fractions_inside", """
        from decimal import Decimal, getcontext
        from fractions import Fraction
        def f():
            getcontext().prec = 30
            return str(Decimal(1) / 7), float(Fraction(1, 3) + Fraction(1, 6))
        """, ((), ("0.142857142857142857142857142857", 0.5))),
    benign("dates_inside", "from datetime import date, timedelta\ndef f(): return (date(2024, 2, 28) + timedelta(days=2)).isoformat()", ((), "2024-03-01")),
    benign("asynchronous_functions", """
        import asyncio
        async def step(x):
            await asyncio.sleep(0)
            return x + 1
        async def both(x): return await asyncio.gather(step(x), step(x + 1))
        def f(x): return asyncio.run(both(x))
        """, ((1,), [2, 3])),
    benign("asynchronous_timeouts_and_queues", """
        import asyncio
        async def main():
            queue = asyncio.Queue()
            task = asyncio.create_task(queue.get())
            await queue.put(5)
            try: await asyncio.wait_for(asyncio.sleep(5), 0.01)
            except asyncio.TimeoutError: return await task
        def f(): return asyncio.run(main())
        """, ((), 5)),
    benign("a_thread", """
        import threading
        def f(x):
            found = []
            thread = threading.Thread(target=lambda: found.append(x + 1))
            thread.start(); thread.join()
            return found
        """, ((1,), [2])),
    benign("a_pool_of_threads", """
        from concurrent.futures import ThreadPoolExecutor
        def f(xs):
            with ThreadPoolExecutor(4) as pool: return list(pool.map(lambda x: x * x, xs))
        """, (([1, 2, 3],), [1, 4, 9])),
    benign("twelve_threads_at_once", """
        import threading
        def f(n):
            gate, found = threading.Barrier(n), []
            def work(): gate.wait(1); found.append(1)
            threads = [threading.Thread(target=work) for _ in range(n)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return len(found)
        """, ((12,), 12)),
    benign("a_daemon_thread_left_behind", """
        import threading, time
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        def f(x): return x
        """, ((1,), 1)),
    benign("locks_queues_and_timers", """
        import queue, threading
        def f():
            q, lock = queue.Queue(), threading.RLock()
            with lock, lock: threading.Timer(0.01, q.put, (1,)).start()
            return q.get(timeout=1)
        """, ((), 1)),
    benign("thread_local_and_context_variables", """
        import contextvars, threading
        local, variable = threading.local(), contextvars.ContextVar("v", default=1)
        def f(x):
            local.x = x; variable.set(x)
            return local.x + variable.get()
        """, ((2,), 4)),
    benign("context_managers", """
        import contextlib, io
        @contextlib.contextmanager
        def doubled(x): yield x * 2
        def f(x):
            with contextlib.redirect_stdout(io.StringIO()) as out, doubled(x) as y, contextlib.suppress(ValueError):
                print(y); int("x")
            return out.getvalue()
        """, ((2,), "4\n")),
    benign("json_there_and_back", "import json\ndef f(x): return json.loads(json.dumps(x, indent=2, sort_keys=True))", (({"a": [1, None, True, 1.5, "é"]},), {"a": [1, None, True, 1.5, "é"]})),
    benign("pickles_there_and_back", """
        import copy, pickle
        class Point:
            def __init__(self, x): self.x = x
        def f(x): return pickle.loads(pickle.dumps(Point(x))).x, copy.deepcopy(Point([x])).x
        """, ((3,), (3, [3]))),
    benign("text_tools", """
        import difflib, string, textwrap, unicodedata
        def f(s): return [textwrap.wrap(s, 5), string.capwords(s), string.Template("$x!").substitute(x=s), unicodedata.name(s[0]), difflib.get_close_matches(s, [s + "s"])]
        """, (("ab cd ef",), [["ab cd", "ef"], "Ab Cd Ef", "ab cd ef!", "LATIN SMALL LETTER A", ["ab cd efs"]])),
    benign("digests_and_encodings", """
        import base64, binascii, hashlib, hmac, zlib
        def f(b): return [hashlib.sha256(b).hexdigest()[:8], hashlib.md5(b).hexdigest()[:8], base64.b64encode(b), zlib.decompress(zlib.compress(b)), binascii.crc32(b), hmac.new(b, b, "sha1").hexdigest()[:8]]
        """, ((b"abc",), ["ba7816bf", "90015098", b"YWJj", b"abc", 891568578, "5b333a38"])),
    benign("seeded_random_numbers", "import random\ndef f(seed): return random.Random(seed).random(), sorted(random.sample(range(3), 3))", ((1,), (0.13436424411240122, [0, 1, 2]))),
    benign("random_bytes_of_the_system", "import os, secrets, uuid\ndef f(): return len(os.urandom(8)), len(secrets.token_hex(4)), uuid.uuid4().version", ((), (8, 8, 4))),
    benign("a_database_in_memory", """
        import sqlite3
        def f(rows):
            with sqlite3.connect(":memory:") as base:
                base.execute("create table t (x integer)")
                base.executemany("insert into t values (?)", [(row,) for row in rows])
                return base.execute("select sum(x), count(*) from t").fetchone()
        """, (([1, 2, 3],), (6, 3))),
    benign("packed_structures", "import array, struct\ndef f(): return struct.pack('<IH', 1, 2), array.array('i', [1, 2]).tolist(), memoryview(b'abc')[1:].tobytes()", ((), (b"\x01\x00\x00\x00\x02\x00", [1, 2], b"bc"))),
    benign("syntax_trees", "import ast, dis, tokenize\ndef f(s): return ast.literal_eval(s), ast.unparse(ast.parse(s, mode='eval'))", (("[1,  2]",), ([1, 2], "[1, 2]"))),
    benign("operators_as_functions", "import operator\ndef f(xs): return sorted(xs, key=operator.itemgetter(1)), operator.matmul.__name__", (([(1, 2), (2, 1)],), ([(2, 1), (1, 2)], "matmul"))),
    benign("doctests_and_unit_tests_of_its_own", """
        import doctest, unittest
        def f(x):
            '''
            >>> f(1)
            2
            '''
            return x + 1
        class Test(unittest.TestCase):
            def test(self): self.assertEqual(f(1), 2)
        unittest.TextTestRunner(stream=open("log", "w")).run(unittest.defaultTestLoader.loadTestsFromTestCase(Test))
        doctest.run_docstring_examples(f, {"f": f})
        """, ((1,), 2)),
    benign("mocks_of_its_own", "from unittest import mock\ndef f(x):\n    with mock.patch('math.sqrt', return_value=x):\n        import math\n        return math.sqrt(9)", ((7,), 7)),
    benign("command_line_arguments_parsed", "import argparse\ndef f():\n    p = argparse.ArgumentParser(); p.add_argument('--n', type=int, default=3)\n    return p.parse_args([]).n", ((), 3)),
    benign("logging_and_warnings", "import logging, warnings\ndef f(x):\n    warnings.warn('careful'); logging.getLogger().error('oh'); return x", ((1,), 1)),
    benign("abstract_classes_and_totally_ordered_ones", """
        from abc import ABC, abstractmethod
        from functools import singledispatch, total_ordering
        class Base(ABC):
            @abstractmethod
            def go(self): ...
        @total_ordering
        class A(Base):
            def __init__(self, x): self.x = x
            def go(self): return self.x
            def __lt__(self, o): return self.x < o.x
            def __eq__(self, o): return self.x == o.x
        @singledispatch
        def kind(x): return "other"
        @kind.register
        def _(x: int): return "int"
        def f(x): return A(x) >= A(x), A(x).go(), kind(x), kind("s")
        """, ((1,), (True, 1, "int", "other"))),
    benign("words_and_tables", "import csv, io, configparser, html\ndef f(s): return list(csv.reader(io.StringIO(s))), html.escape('<')", (("a,b\nc,d\n",), ([["a", "b"], ["c", "d"]], "&lt;"))),
    benign("compressed_archives", """
        import bz2, gzip, io, lzma, zipfile
        def f(b):
            held = io.BytesIO()
            with zipfile.ZipFile(held, "w") as archive: archive.writestr("x", b)
            return gzip.decompress(gzip.compress(b)) == bz2.decompress(bz2.compress(b)) == lzma.decompress(lzma.compress(b)) == zipfile.ZipFile(held).read("x")
        """, ((b"abc",), True)),
    benign("times_zones_and_calendars", "import calendar, time\ndef f(): return time.strftime('%Y', time.gmtime(0)), time.tzname[0], calendar.isleap(2024), time.monotonic() > 0", ((), ("1970", "UTC", True, True))),
    benign("paths_and_urls", "import pathlib, urllib.parse, posixpath\ndef f(): return str(pathlib.PurePath('a') / 'b'), urllib.parse.quote('a b'), posixpath.join('a', 'b')", ((), ("a/b", "a%20b", "a/b"))),
    benign("foreign_functions", "import ctypes\ndef f(x): return ctypes.c_int32(x).value, ctypes.sizeof(ctypes.c_double)", ((2**31,), (-(2**31), 8))),
)  # fmt: skip
