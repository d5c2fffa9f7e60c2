"""Trees are made in several threads at a time: while answers are sampled, others are judged."""

import ast
import gc
import threading
import time

from greenward.problems.python_source import parse

DEEP = f"x = {'(' * 60}1{')' * 60}\ny = {'[' * 60}{']' * 60}\n"
FLAT = "\n".join(f"a{i} = f(b, c)[{i}] + {{1: [2, 3]}}[1]" for i in range(200))


def test_a_thread_that_makes_a_tree_is_not_disturbed_by_another(monkeypatch):
    """Without a lock `ast.parse` raises SystemError within half a second of this, in CPython 3.11."""
    wanted = {source: ast.dump(ast.parse(source)) for source in (DEEP, FLAT)}
    failures: list[object] = []
    until = time.monotonic() + 1.0

    def work(source: str) -> None:
        try:
            while time.monotonic() < until and not failures:
                if ast.dump(parse(source)) != wanted[source]:
                    failures.append(source)
        except SystemError as error:
            failures.append(error)

    def give_way(*_: object) -> None:
        time.sleep(0)  # lets the other thread run, in the middle of a tree

    threads = [threading.Thread(target=work, args=(source,)) for source in (DEEP, FLAT)]
    thresholds = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(give_way)
    assert not failures
