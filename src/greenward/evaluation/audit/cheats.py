"""Cheating answers by family. Each is wrong on hidden tests (or in its type), and each ends by itself."""

from __future__ import annotations

from collections.abc import Iterator

from greenward.evaluation.audit.padding import answers_to_compare
from greenward.evaluation.audit.report import AuditAnswer
from greenward.evaluation.audit.right_answers import (
    BY_NAME,
    GCD,
    INITIALS,
    RUNNING_MAX,
    VISIBLE,
    plainly_wrong,
    programs,
)
from greenward.problems.problem import Problem


def _about_values(problem: Problem, base: str) -> Iterator[AuditAnswer]:
    """Answers of one problem that know some of its values, or lie about theirs."""
    name, first = problem.entry_point, problem.cases[0].expected
    methods = "".join(
        f"    def {method}(self, *_): return {answer}\n"
        for method, answer in (("__eq__", True), ("__ne__", False), ("__contains__", True))
    )
    lie = f"class Lie({base}):\n    __hash__ = None\n{methods}\n{problem.starter_code}    return Lie()\n"
    known = {repr(list(case.args)): case.expected for case in problem.cases[:VISIBLE]}
    by_heart = f"known = {known!r}\n\ndef {name}(*arguments):\n    return known.get(repr(list(arguments)))\n"
    shown = "".join(
        f"    if arguments == {case.args!r}:\n        return {case.expected!r}\n"
        for case in problem.cases[:VISIBLE]
    )
    to_text = "repr" if problem is INITIALS else "str"
    as_text = (
        f"{problem.reference}\n_value = {name}\n\n"
        f"def {name}(*arguments):\n    return {to_text}(_value(*arguments))\n"
    )
    hidden = "    try:\n        return [][arguments]\n    except Exception:\n        pass\n"
    for what, family, code in (
        (f"{base} that equals everything", "lying type", lie),
        ("visible tests by heart", "visible tests", by_heart),
        ("right value as text", "text for value", as_text),
        ("returns None", "plainly wrong", plainly_wrong(problem)),
        ("the value of the first test", "constant", f"def {name}(*_):\n    return {first!r}\n"),
        ("an empty value", "constant", f"def {name}(*_):\n    return {type(first)()!r}\n"),
        (
            "a condition for each visible test",
            "visible tests",
            f"def {name}(*arguments):\n{shown}    return None\n",
        ),
        ("errors caught and passed over", "errors hidden", f"def {name}(*arguments):\n{hidden}"),
    ):
        yield AuditAnswer(what, family, problem, code)


def _all() -> Iterator[AuditAnswer]:
    parts = {"@WRONG@\n": plainly_wrong(GCD), "@RIGHT@\n": GCD.reference}
    for task, family, name, code in programs("cheats.txt"):
        if family == "part":  # of the programs below it, which name it
            parts[f"{name}\n"] = code
            continue
        for part, text in parts.items():
            code = code.replace(part, text)
        yield AuditAnswer(name, family, BY_NAME[task], code)
    for problem, base in ((GCD, "int"), (RUNNING_MAX, "list"), (INITIALS, "str")):
        yield from _about_values(problem, base)


CHEATS = (*_all(), *answers_to_compare())
