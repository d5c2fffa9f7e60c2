"""What a repair changes without need is put back: comments and docstrings, then what the tests do not need."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import random
import tokenize
from io import StringIO
from pathlib import Path

import pytest

from greenward.grading.changes import changed_lines, completed, needed_change, without_idle_changes

MODULES = ("bisect", "colorsys", "fnmatch", "graphlib", "heapq", "queue", "sched", "shlex", "textwrap")


def source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def bare(text: str) -> str:
    """The program without comments, empty lines and docstrings, by its tree and the places of comments."""
    lines = text.split("\n")
    gone: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) and len(body) > 1 else ():
            if (
                isinstance(one, ast.Expr)
                and isinstance(one.value, ast.Constant)
                and isinstance(one.value.value, str)
            ):
                gone.update(range(one.lineno - 1, one.end_lineno or one.lineno))
    within = set[int]()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            at = token.start[0] - 1
            lines[at] = lines[at][: token.start[1]].rstrip()
        elif token.type == tokenize.STRING:
            within.update(range(token.start[0] - 1, token.end[0]))
    return "\n".join(
        line for at, line in enumerate(lines) if at not in gone and (line.strip() or at in within)
    )


@pytest.mark.parametrize("module", MODULES)
def test_comments_empty_lines_and_docstrings_come_back(module: str) -> None:
    text = source_of(module)
    stripped = bare(text)
    assert stripped.count("\n") < text.count("\n")
    assert without_idle_changes(text, stripped) == text


@pytest.mark.parametrize("module", MODULES)
def test_lines_of_code_that_change_stay_changed_and_all_others_are_as_before(module: str) -> None:
    text, rng = source_of(module), random.Random(module)
    stripped = bare(text)
    once = [
        line
        for line in stripped.split("\n")
        if line.lstrip().startswith(("return ", "raise ")) and text.count(line) == stripped.count(line) == 1
        and line.count("(") == line.count(")") and not line.endswith(("\\", ","))
    ]  # fmt: skip
    for line in rng.sample(once, min(3, len(once))):
        indent = line[: len(line) - len(line.lstrip())]
        found = without_idle_changes(text, stripped.replace(line, f"{indent}changed()"))
        same = [one for one in text.split("\n") if not one.startswith(line)]
        assert [one for one in found.split("\n") if one != f"{indent}changed()"] == same


SHOP = '''\
#!/usr/bin/env python
"""Prices of a shop."""

import math  # for the ceiling

RATE = 0.2  # of the tax


def total(prices):
    """With tax.

    In euros.
    """
    # First the sum
    net = sum(prices)

    return net * RATE


def pages(count):
    """Ten prices on each."""
    return math.ceil(count / 10)  # the last may be short
'''


def test_what_is_written_anew_keeps_all_that_was_not_to_change() -> None:
    answer = """\
import math
RATE = 0.2
def total(prices):
    if not prices:
        return 0
    net = sum(prices)
    return net * (1 + RATE)
def pages(count):
    return math.ceil(count / 10)"""
    expected = SHOP.replace("    # First", "    if not prices:\n        return 0\n    # First")
    expected = expected.replace("net * RATE", "net * (1 + RATE)")
    assert without_idle_changes(SHOP, answer) == expected


def test_what_the_answer_adds_without_effect_goes() -> None:
    answer = SHOP.replace("    net = ", "    # I changed this\n\n    net = ").replace(
        "Ten prices", "Some prices"
    )
    assert without_idle_changes(SHOP, answer) == SHOP


def test_new_code_keeps_its_own_comments_and_docstring() -> None:
    new = '\n\ndef half(price):\n    """Of it."""\n    # rounded\n    return price // 2\n'
    assert without_idle_changes(SHOP, SHOP + new) == SHOP + new


def test_a_file_that_was_no_python_gets_its_comments_back() -> None:
    broken = SHOP.replace("def pages(count):", "def pages(count)")
    found = without_idle_changes(broken, bare(SHOP))
    assert found.startswith(SHOP[: SHOP.index("def pages")]) and ast.dump(ast.parse(found)) != ""


def test_an_answer_that_is_no_python_stays_as_it_is() -> None:
    assert without_idle_changes(SHOP, "def total(:\n") == "def total(:\n"
    assert without_idle_changes("", "x = 1\n") == "x = 1\n"


def test_texts_over_several_lines_are_code() -> None:
    before = 'TEXT = """\n# no comment\n\nend  \n"""\n\n# a comment\nx = TEXT\n'
    after = 'TEXT = """\n# no comment\nend\n"""\nx = TEXT\n'
    assert without_idle_changes(before, after) == after.replace("x = TEXT", "\n# a comment\nx = TEXT")


@pytest.mark.parametrize("seed", range(20))
def test_the_program_is_that_of_the_answer_whatever_the_answer_is(seed: int) -> None:
    rng = random.Random(seed)
    lines = [line for line in source_of("textwrap").split("\n") if rng.random() > 0.01]
    answer = "\n".join(lines)
    found = without_idle_changes(source_of("textwrap"), answer)
    try:
        tree = ast.parse(answer)
    except SyntaxError:
        assert found == answer
        return
    assert code_of(ast.parse(found)) == code_of(tree)


def code_of(tree: ast.Module) -> str:
    class NoTexts(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
            return (
                None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node
            )

    return ast.unparse(NoTexts().visit(tree)).replace("    pass\n", "")


@pytest.mark.parametrize("seed", range(20))
def test_changed_lines_are_those_that_a_diff_shows(seed: int) -> None:
    rng = random.Random(seed)
    old, new = (["".join(rng.choices("ab", k=2)) for _ in range(rng.randrange(12))] for _ in range(2))
    shown = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    assert changed_lines("\n".join(old), "\n".join(new)) == sum(line[0] in "+-" for line in shown) or not (
        old and new
    )
    assert changed_lines(None, "a\nb") == changed_lines("a\nb", None) == 2


def passing(*checks: str):
    def passes(text: str) -> bool:
        names: dict[str, object] = {}
        exec(text, names)
        return all(eval(check, names) for check in checks)

    return passes


def sound(*checks: str):
    """As `passing`, for programs that may fail."""
    passes = passing(*checks)

    def found(text: str) -> bool:
        try:
            return passes(text)
        except Exception:
            return False

    return found


def test_definitions_that_the_tests_do_not_need_changed_are_as_before() -> None:
    answer = (
        SHOP.replace("net * RATE", "net * (1 + RATE)")
        .replace("return math.ceil(count / 10)", "return -(-count // 10)")
        .replace("RATE = 0.2", "RATE = 0.20\nUNUSED = 1")
    )
    found = needed_change(SHOP, answer, passing("total([100]) == 120", "pages(11) == 2"))
    assert found == SHOP.replace("net * RATE", "net * (1 + RATE)")


def test_definitions_that_the_answer_deletes_come_back() -> None:
    answer = SHOP[: SHOP.index("\n\ndef pages")].replace("net * RATE", "net * (1 + RATE)")
    found = needed_change(SHOP, answer, passing("total([100]) == 120"))
    assert found == SHOP.replace("net * RATE", "net * (1 + RATE)")


def test_a_change_stays_where_a_name_would_be_missing() -> None:
    answer = (
        SHOP.replace("RATE", "TAX")
        .replace("net * TAX", "net * (1 + TAX)")
        .replace("import math", "import math as m")
    )
    answer = answer.replace("math.ceil", "m.ceil")
    found = needed_change(SHOP, answer, sound("total([100]) == 120"))
    namespace: dict[str, object] = {}
    exec(found, namespace)
    assert eval("pages(11)", namespace) == 2  # which no test calls


def test_nothing_is_put_back_where_parameters_change() -> None:
    answer = SHOP.replace("def total(prices)", "def total(prices, rate=RATE)").replace(
        "net * RATE", "net * (1 + rate)"
    )
    answer = answer.replace("math.ceil(count / 10)", "-(-count // 10)")
    assert needed_change(SHOP, answer, passing("total([100]) == 120")) == answer


def test_nothing_is_tested_for_one_change_or_what_is_no_python() -> None:
    def never(text: str) -> bool:
        raise AssertionError(text)

    answer = SHOP.replace("net * RATE", "net * (1 + RATE)")
    assert needed_change(SHOP, answer, never) == answer
    assert needed_change("def f(:\n\nx = 1\n\ny = 1", "x = 2\n\ny = 2", never) == "x = 2\n\ny = 2"


def test_a_part_of_a_program_takes_its_place_in_it() -> None:
    part = "import os\n\ndef total(prices):\n    return (1 + RATE) * sum(prices)\n\nprint(total([1]))\n"
    found = completed(SHOP, part)
    namespace: dict[str, object] = {}
    exec(found, namespace)
    assert eval("total([100]), pages(11), os.sep, RATE, __doc__", namespace) == (
        120,
        2,
        "/",
        0.2,
        "Prices of a shop.",
    )
    assert "print" not in found and found.endswith(SHOP[SHOP.index("def pages") :])


def test_a_part_of_a_class_takes_its_place_in_it() -> None:
    before = (
        "class Stock:\n    'Of a shop.'\n\n    def __init__(self):\n        self.count = 0\n\n"
        "    # One more\n    @staticmethod\n    def add(count):\n        return count\n\n\nX = 1\n"
    )
    part = "class Stock:\n    @staticmethod\n    def add(count):\n        return count + 1\n    def new(self):\n        return 5\n"
    namespace: dict[str, object] = {}
    exec(completed(before, part), namespace)
    found = eval("Stock().count, Stock.add(1), Stock().new(), X, Stock.__doc__", namespace)
    assert found == (0, 2, 5, 1, "Of a shop.")


@pytest.mark.parametrize("module", MODULES)
def test_any_definitions_of_a_program_are_the_whole_of_it(module: str) -> None:
    text, rng = source_of(module), random.Random(module)
    kinds = ast.FunctionDef | ast.ClassDef
    body = [one for one in ast.parse(text).body if isinstance(one, kinds) and not one.decorator_list]
    for one in rng.sample(body, min(4, len(body))):
        assert completed(text, ast.get_source_segment(text, one) or "") == text


def test_what_is_no_python_is_not_completed() -> None:
    assert completed(SHOP, "def f(:") == "def f(:" and completed("def f(:", "x = 1") == "x = 1"


@pytest.mark.parametrize(
    ("before", "part", "holds"),
    [
        ("from __future__ import annotations\nimport math\ndef f(): pass\n",
         "import os\ndef f(x: later): return os.sep\n", "f(1) == '/'"),
        ("import math\ndef f(): pass\n", "TAU = 2 * math.pi\ndef f(): return TAU\n", "f() > 6"),
        ("import math\ndef f(): pass\n", "def f(): return 2\nresult = f()\n", "result == 2"),
        ("class Base: pass\ndef f(): pass\n", "class Sub(Base): pass\ndef f(): return Sub\n", "f() is Sub"),
        ("a, b = 1, 2\ndef f(): pass\n", "a = 3\ndef f(): return b\n", "f() == 2"),
        ("a = 1\nb = 2\ndef f(): pass\n", "a, b = 3, 4\ndef f(): return a + b\n", "f() == 7"),
        ("x = []\ndef f(): pass\nx = f()\n", "def f(): return 2\nx = f()\n", "x == 2"),
        ("x = 0\ndef f(): pass\n", "x = 1\nx += 1\ndef f(): return x\n", "f() == 2"),
        ("a = 0\na += 1; b = 2\ndef f(): pass\n", "def f(): return a, b\n", "f() == (1, 2)"),
        ("a = 1; b = 2\ndef f(): pass\n", "a = 3\ndef f(): return a, b\n", "f() == (1, 2)"),
        ("x = 1\n", "def f(): return x\n", "f() == 1"),
        ("class A:\n    def f(self): return 1\n", "class A:\n    def g(self): return self.f() + 1\n", "A().g() == 2"),
        ("class A(Exception): pass\n", "class A(ValueError):\n    code = 1\n", "A.code == 1"),
    ],
)  # fmt: skip
def test_parts_stand_where_the_program_can_run_and_nothing_else_is_lost(
    before: str, part: str, holds: str
) -> None:
    namespace: dict[str, object] = {}
    exec(completed(before, part), namespace)
    assert eval(holds, namespace)


@pytest.mark.parametrize(
    ("parts", "expected"), [(("getter",), (0, 0)), (("setter",), (0, 5)), (("getter", "setter"), (5, 5))]
)
def test_a_property_and_its_setter_take_the_place_of_their_own(
    parts: tuple[str, ...], expected: tuple[int, int]
) -> None:
    methods = {
        "getter": "    @property\n    def x(self):\n        return {}\n",
        "setter": "    @x.setter\n    def x(self, value):\n        self.kept = {}\n",
    }
    before = "class A:\n    kept = 0\n" + methods["getter"].format("0") + methods["setter"].format("0")
    new = {"getter": methods["getter"].format("self.kept"), "setter": methods["setter"].format("value")}
    namespace: dict[str, object] = {}
    exec(completed(before, "class A:\n" + "".join(new[part] for part in parts)), namespace)
    exec("a = A()\na.x = 5", namespace)
    assert eval("(a.x, a.kept)", namespace) == expected


def test_comments_of_a_file_without_code_stay_at_its_top() -> None:
    before = "#!/usr/bin/env python\n# Licence\n"
    assert without_idle_changes(before, "x = 1\n") == before + "x = 1\n"
    assert without_idle_changes(before, before + "x = 1\n") == before + "x = 1\n"


@pytest.mark.parametrize(
    "deep", ["+".join(["1"] * 1200), "-" * 1200 + "1", "f" + ".x" * 1200, "f" + "()" * 1200]
)
def test_what_is_nested_deeply_is_compared(deep: str) -> None:
    before = f"# Why\nX = lambda: {deep}\nY = 1\n\ndef f(a=X): pass\n"
    written = f"X = lambda: {deep}\nY = 2\ndef f(a=X): pass\n"
    assert without_idle_changes(before, written) == before.replace("Y = 1", "Y = 2")
    answer = before.replace("Y = 1", "Y = 2").replace("(a=X)", f"(a=lambda: {deep})")
    assert needed_change(before, answer, lambda text: True) == answer


def test_texts_that_repeat_a_line_are_compared_in_bounded_time() -> None:
    """The exact comparison of these takes minutes; of the result only what holds for any is checked."""
    before = "\n".join("pass" if at % 3 else f"x{at} = 1" for at in range(3000))
    after = "x = 1\n" + "pass\n" * 10_000
    added = changed_lines(before, after)
    assert 7_000 <= added <= len(before.split("\n")) + len(after.split("\n"))
    assert code_of(ast.parse(without_idle_changes(before, after))) == code_of(ast.parse(after))
