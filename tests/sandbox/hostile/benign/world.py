"""Use of what a process has: streams, files of its own, signals, time."""

from __future__ import annotations

from hostile.program import benign

PROGRAMS = (
    benign("heavy_printing", "for i in range(3000): print(i, 'x' * 100)\ndef f(x):\n    print('again' * 1000, flush=True)\n    return x", ((1,), 1)),
    benign("printing_to_standard_error", "import sys\ndef f(x):\n    print('x' * 70_000, file=sys.stderr); sys.stdout.write('y'); return x", ((1,), 1)),
    benign("printing_odd_characters", "import sys\ndef f(x):\n    print('\\x1b[1m\\x00é\\U0001f600'); sys.stdout.buffer.write(b'\\xff\\xfe'); return x", ((1,), 1)),
    benign("standard_output_replaced", "import io, sys\nsys.stdout = io.StringIO()\ndef f(x):\n    print('hidden'); return sys.stdout.getvalue()", ((1,), "hidden\n")),
    benign("standard_output_closed", "import sys\nsys.stdout.close()\ndef f(x): return x", ((1,), 1)),
    benign("input_from_nothing", "try: input()\nexcept EOFError: pass\ndef f(x): return x", ((1,), 1)),
    benign("standard_input_read_to_the_end", "import sys\nlines = sys.stdin.read().split() + list(sys.stdin)\ndef f(x): return lines", ((1,), [])),
    benign("a_file_written_and_read", """
        import os
        def f(s):
            with open("note.txt", "w") as file: file.write(s)
            with open("note.txt") as file: found = file.read()
            os.remove("note.txt")
            return found, os.listdir(".")
        """, (("héllo",), ("héllo", []))),
    benign("folders_made_and_walked", """
        import os, pathlib, shutil
        def f():
            pathlib.Path("a/b").mkdir(parents=True)
            pathlib.Path("a/b/c.txt").write_text("x")
            shutil.copytree("a", "d"); os.rename("d", "e")
            found = sorted(str(path) for path in pathlib.Path(".").rglob("*.txt"))
            shutil.rmtree("a"); shutil.rmtree("e")
            return found
        """, ((), ["a/b/c.txt", "e/b/c.txt"])),
    benign("temporary_files", """
        import os, tempfile
        def f(s):
            with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w+", dir=folder) as file, tempfile.TemporaryFile() as other:
                file.write(s); file.seek(0); other.write(b"x")
                return file.read(), os.path.exists(folder)
        """, (("x",), ("x", True))),
    benign("a_mapped_file", """
        import mmap
        def f():
            with open("data", "w+b") as file:
                file.write(b"abc" * 100); file.flush()
                with mmap.mmap(file.fileno(), 0) as region: region[0:1] = b"z"; return region[:3]
        """, ((), b"zbc")),
    benign("a_database_in_a_file", """
        import sqlite3, os
        def f():
            base = sqlite3.connect("base.db")
            base.execute("create table t (x)"); base.execute("insert into t values (5)"); base.commit()
            return base.execute("select x from t").fetchall()
        """, ((), [(5,)])),
    benign("a_shelf_and_a_pickle_on_disk", """
        import pickle
        def f(x):
            with open("p", "wb") as file: pickle.dump(x, file)
            with open("p", "rb") as file: return pickle.load(file)
        """, (([1, {"a": (2,)}],), [1, {"a": (2,)}])),
    benign("own_module_imported", """
        import importlib, sys
        with open("helper.py", "w") as file: file.write("def double(x): return 2 * x\\n")
        sys.path.insert(0, ".")
        importlib.invalidate_caches()
        import helper
        f = helper.double
        """, ((2,), 4)),
    benign("the_home_folder_used", """
        import os
        def f():
            path = os.path.join(os.path.expanduser("~"), ".cache-of-mine")
            with open(path, "w") as file: file.write("x")
            return os.path.getsize(path)
        """, ((), 1)),
    benign("an_alarm_used_well", """
        import signal, time
        class Late(Exception): pass
        def ring(*_): raise Late
        def f():
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try: time.sleep(1)
            except Late: return "rang"
            finally: signal.alarm(0)
        """, ((), "rang")),
    benign("a_signal_to_itself", """
        import os, signal
        heard = []
        signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number == signal.SIGUSR1))
        def f():
            os.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)
            return heard
        """, ((), [True, True])),
    benign("exit_handlers", "import atexit\natexit.register(print, 'bye')\ndef f(x): return x", ((1,), 1)),
    benign("times_measured", "import time, timeit\ndef f():\n    start = time.perf_counter(); time.sleep(0.01)\n    return time.perf_counter() > start and timeit.timeit('1', number=10) > 0 and time.process_time() >= 0", ((), True)),
    benign("environment_read_and_set", "import os\nos.environ['MINE'] = 'x'\ndef f(): return os.environ['MINE'], os.environ.get('NOT_THERE', 'no'), os.getenv('HOME') is not None", ((), ("x", "no", True))),
    benign("the_system_asked", "import os, platform, sys\ndef f(): return os.cpu_count() >= 1 and platform.system() == 'Linux' and os.getpid() > 0 and sys.version_info >= (3, 10) and len(os.getcwd()) > 1", ((), True)),
    benign("resource_use_asked", "import resource\ndef f(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0 and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 16", ((), True)),
    benign("a_lower_stack_limit_and_recursion_in_a_thread", """
        import sys, threading
        sys.setrecursionlimit(50_000)
        threading.stack_size(16 << 20)
        def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
        def f(n):
            found = []
            thread = threading.Thread(target=lambda: found.append(depth(n)))
            thread.start(); thread.join()
            return found[0]
        """, ((10_000,), 10_000)),
    benign("pipes_and_selectors", """
        import os, select, selectors
        def f():
            reader, writer = os.pipe()
            with selectors.DefaultSelector() as chosen:
                chosen.register(reader, selectors.EVENT_READ)
                os.write(writer, b"x")
                return len(chosen.select(1)), select.select([reader], [], [], 0)[0] == [reader], os.read(reader, 1)
        """, ((), (1, True, b"x"))),
    benign("memory_used_and_released", "def f(n):\n    for _ in range(3): block = bytearray(n); del block\n    return [0] * 3", ((50 << 20,), [0, 0, 0])),
    benign("memory_error_handled", """
        def f():
            try: return len(bytearray(1 << 40))
            except MemoryError: return "too much"
        """, ((), "too much")),
)  # fmt: skip
