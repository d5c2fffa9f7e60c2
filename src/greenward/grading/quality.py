"""Measures how a program is written: quality, readability, dead code and hidden code. Nothing is run.

Readability is measured by ruff's linter and formatter, absolutely and on live code alone. The programs are
hostile text: they lie under names of ours in a private folder, ruff reads no configuration but ours, comments
that switch its rules off are ignored, and both processes (one `ruff check` and one `ruff format` for all
programs) are bounded in time. A program on which ruff crashes (it does when code is nested too deeply) is
found by halving the batch, and takes nothing else with it.
Dead are bindings, functions and imports that nothing live reads, statements without effect, those that
cannot be reached, and on function problems output. Live is what the entry point needs, by name: a name that
is read anywhere in live code counts as used everywhere.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from greenward.common.errors import ConfigError, RewardError
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer, RewardFunction, Scores, per_answer
from greenward.problems.python_source import (
    Definition,
    FunctionNode,
    dotted_name,
    first_line,
    parse_bounded,
    same_trees,
)

SUB_TERMS = ("length", "complexity", "unused", "hygiene")
_EQUALLY = MappingProxyType(dict.fromkeys(SUB_TERMS, 1.0))

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DECISIONS = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.Assert,
)  # fmt: skip


def code_quality(
    *, weights: Mapping[str, float] = _EQUALLY, max_statements: int = 30, max_complexity: int = 10
) -> RewardFunction:
    """The weighted mean of sub-terms in [0, 1]; 0 for code that does not parse, or is over 20,000 characters.

    `weights` names the sub-terms that count; without it all do, equally. Nothing is run.

    - `length`: 1 up to `max_statements` statements, then max_statements / statements.
    - `complexity`: 1 up to cyclomatic complexity `max_complexity` of the worst function, then max_complexity
      / complexity (McCabe 1976: one more than the number of decisions).
    - `unused`: 1, halved for each dead statement (as of `readability`): a share could be raised by padding.
    - `hygiene`: 1, halved for each bare `except`, mutable default argument, `global` and wildcard import.

    Raises `ConfigError` for an unknown sub-term or weights that do not sum to more than 0.
    """
    unknown = [name for name in weights if name not in SUB_TERMS]
    if unknown:
        raise ConfigError(
            f"code_quality has no sub-term {unknown[0]!r}.", remedy=f"Sub-terms: {', '.join(SUB_TERMS)}."
        )
    if not sum(weights.values()) > 0 or min(weights.values()) < 0:
        raise ConfigError("the weights of code_quality must not be negative and must sum to more than 0.")

    @per_answer
    def score(answer: GradedAnswer) -> float:
        limits = {"max_statements": max_statements, "max_complexity": max_complexity}
        return quality_of(answer.code or "", answer.problem.entry_point, weights=weights, **limits)

    return score()


def quality_of(
    code: str,
    entry_point: str = "",
    *,
    weights: Mapping[str, float] = _EQUALLY,
    max_statements: int = 30,
    max_complexity: int = 10,
) -> float:
    """The quality of one program. Without an entry point every function of the top level counts as live."""
    tree = parse_bounded(code)
    if tree is None or not tree.body:
        return 0.0
    dead = remove_dead_code(tree, code.splitlines(), entry_point).dead
    nodes = list(ast.walk(tree))
    parts = {
        "length": min(1.0, max_statements / max(1, sum(isinstance(n, ast.stmt) for n in nodes))),
        "complexity": min(1.0, max_complexity / worst_complexity(tree)),
        "unused": 0.5**dead,
        "hygiene": 0.5 ** sum(map(_offences, nodes)),
    }
    return sum(weight * parts[name] for name, weight in weights.items()) / sum(weights.values())


def worst_complexity(tree: ast.Module) -> int:
    """The largest cyclomatic complexity of a function or the top level, inner functions not counted in."""
    worst = 1
    pending: list[Sequence[ast.AST]] = [tree.body]
    while pending:
        decisions, inside = 0, list[ast.AST](pending.pop())
        while inside:
            node = inside.pop()
            if isinstance(node, _FUNCTIONS):
                pending.append(node.body if isinstance(node.body, list) else [node.body])
                continue
            if isinstance(node, ast.BoolOp):
                decisions += len(node.values) - 1
            elif isinstance(node, _DECISIONS):
                decisions += 1
            inside.extend(ast.iter_child_nodes(node))
        worst = max(worst, 1 + decisions)
    return worst


def _offences(node: ast.AST) -> int:
    match node:
        case ast.ExceptHandler(type=None) | ast.Global():
            return 1
        case ast.arguments(defaults=defaults, kw_defaults=named):
            return sum(isinstance(default, (ast.List, ast.Dict, ast.Set)) for default in (*defaults, *named))
        case ast.ImportFrom(names=names):
            return sum(alias.name == "*" for alias in names)
    return 0


_BUILTINS = ("builtins", "__builtins__")
_OF_INTERPRETER = frozenset({
    "__builtins__", "__code__", "__globals__", "__loader__", "__self__", "ag_code", "cr_code", "f_builtins",
    "f_code", "f_globals", "gi_code",
})  # fmt: skip
"""Attributes that lead to code objects or to the namespace of what runs text."""
_INNER = _OF_INTERPRETER | {
    "CDLL", "ForwardRef", "PyDLL", "SourceFileLoader", "SourcelessFileLoader", "_eval_type", "cdll",
    "evaluate_forward_ref", "get_annotations", "get_type_hints", "pydll", "pythonapi",
    "spec_from_file_location", "spec_from_loader", "zipimporter",
}  # fmt: skip
_REFUSED = frozenset({"exec", "eval", "builtins"}) | _INNER
_RUN_TEXT = frozenset({"bdb", "cProfile", "code", "codeop", "pdb", "profile", "runpy", "trace"})  # modules
_METHODS_RUN_TEXT = frozenset({"_evaluate", "eval", "exec", "run", "runcall", "runctx", "runeval"})
_CALLED_WITH_TEXT = frozenset({
    "_pickle.Unpickler", "_pickle.load", "_pickle.loads", "marshal.load", "marshal.loads", "pickle.Unpickler",
    "pickle.load", "pickle.loads", "timeit.Timer", "timeit.repeat", "timeit.timeit",
})  # fmt: skip
_MADE_OF_CODE = frozenset({"types.CodeType", "types.FunctionType", "types.LambdaType"})
_IMPORT = frozenset({"__import__", "importlib.import_module"})
_BY_NAME = frozenset({"operator.attrgetter", "operator.methodcaller"})
_ONLY_CALLED = frozenset({"compile", "getattr"}) | _BY_NAME
"""Functions that are given a name or a text: where they are handed on as values, it is not seen which."""
_NAMESPACES = frozenset({"globals", "locals", "vars"})
_ARRANGE = frozenset({
    "dict", "enumerate", "frozenset", "items", "keys", "list", "set", "sorted", "split", "tuple", "values",
    "zip",
})  # fmt: skip
"""Functions and methods that make no new text out of texts."""
_TEXTS = (ast.BinOp, ast.Constant, ast.JoinedStr)
_DEFINITIONS = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef)
_WRITING = frozenset({"a", "ab", "a+", "r+", "w", "w+", "wb", "wt", "x", "xb"})
_Vertex = str | ast.expr


def hides_code(tree: ast.Module) -> bool:
    """Whether a program runs text, or reaches what runs text by a name that its readers do not see.

    Hidden is what `exec` and `eval` and their like would run; the module of the built-in functions as a
    value; a module that is imported by a computed name; and an attribute or an entry of a namespace whose
    name the program assembles from its own text, as in `getattr(x, "ex" + "ec")`. Names that depend on what a
    function is given, as in `getattr(self, "visit_" + kind)`, are not. Hidden is also what a program
    writes to a file and imports. It takes linear time.
    """
    return _Reader(list(ast.walk(tree))).hides_code()


class _Reader:
    """Knows of each name what it was imported as, whether it depends on arguments, and whether it holds
    assembled text.
    """

    def __init__(self, nodes: list[ast.AST]) -> None:
        self._nodes = nodes
        self._imported: dict[str, str] = {}  # under another name
        for node in nodes:
            if isinstance(node, ast.Import):
                self._imported |= {one.asname: one.name for one in node.names if one.asname}
            elif isinstance(node, ast.ImportFrom):
                self._imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        used_by: dict[_Vertex, list[_Vertex]] = defaultdict(list)
        is_open, is_assembled = list[_Vertex](), list[_Vertex]()
        bindings = list(_bindings(nodes))
        for targets, value in bindings:
            if value is None:
                is_open += targets
                continue
            used_by[value] += targets
            for node in ast.walk(value):
                if isinstance(node, ast.Name):
                    used_by[node.id].append(value)
                elif _assembles(node):
                    is_assembled.append(value)
        self._open = _spread(is_open, used_by)
        self._assembled = _spread(is_assembled, used_by)
        self._texts = {
            name for targets, value in bindings if value and _writes_text(value) for name in targets
        }
        self._own = {name for targets, _ in bindings for name in targets}
        self._own |= {one.name for one in nodes if isinstance(one, _DEFINITIONS)}

    def hides_code(self) -> bool:
        shown = {one for node in self._nodes for one in self._shown(node)}
        hidden = (self._hides(node) for node in self._nodes if node not in shown)
        return self._imports_what_it_writes() or any(hidden)

    def _imports_what_it_writes(self) -> bool:
        if not any(map(self._writes_file, self._nodes)):
            return False
        return any(
            module.partition(".")[0] not in sys.stdlib_module_names for module in self._modules()
        ) or any(isinstance(one, ast.Constant) and str(one.value).endswith(".py") for one in self._nodes)

    def _modules(self) -> Iterator[str]:
        """The modules that a program imports by names that are written out."""
        for node in self._nodes:
            match node:
                case ast.Import(names=modules):
                    yield from (one.name for one in modules)
                case ast.ImportFrom(module=str(module)):
                    yield module
                case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_]):
                    if self._full_name(function) in _IMPORT:
                        yield module

    def _writes_file(self, node: ast.AST) -> bool:
        match node:
            case ast.Attribute(attr="write_bytes" | "write_text"):
                return True
            case ast.Call(func=ast.Name(id="open") | ast.Attribute(attr="fdopen" | "open"), args=arguments):
                modes = [*arguments[:2], *(one.value for one in node.keywords if one.arg == "mode")]
                return any(isinstance(one, ast.Constant) and one.value in _WRITING for one in modes)
        return False

    def _hides(self, node: ast.AST) -> bool:
        match node:
            case ast.Name():
                name = self._full_name(node)
                only_called = name in _ONLY_CALLED and name not in self._own
                return name in _REFUSED or name in _IMPORT or name.rpartition(".")[2] in _INNER or only_called
            case ast.Constant(value=str(text)):
                return text in _OF_INTERPRETER
            case ast.Attribute(value=value, attr=attribute):
                name = self._full_name(node)
                leads = name in _REFUSED or name in _IMPORT or attribute in _INNER or name in _ONLY_CALLED
                return leads or (attribute == "__subclasses__" and not isinstance(value, ast.Name))
            case ast.Import(names=modules):
                return any(one.name.partition(".")[0] in _RUN_TEXT for one in modules)
            case ast.ImportFrom(module=module):
                return module in _RUN_TEXT
            case ast.List(elts=words) | ast.Tuple(elts=words):  # of the command line of an interpreter
                runs = any(isinstance(one, ast.Constant) and one.value == "-c" for one in words)
                return runs and any(map(self._is_interpreter, words))
            case ast.Call(func=function, args=arguments, keywords=keywords):
                name = self._full_name(function)
                return (
                    name in _MADE_OF_CODE
                    or (name == "compile" and len(arguments) + len(keywords) > 2)
                    or (name in _CALLED_WITH_TEXT and any(map(self._is_text, arguments)))
                    or self._is_method_on_text(function, name, arguments)
                    or any(one.arg == "eval_str" for one in keywords)
                    or any(map(self._is_hidden_name, self._names_in_call(name, function, arguments)))
                )
            case ast.Subscript(value=value, slice=key):
                return (self._is_namespace(value) or _is_new_text(key)) and self._is_hidden_name(key)
        return False

    def _shown(self, node: ast.AST) -> tuple[ast.AST, ...]:
        """The part of a node that hides nothing, since what it leads to is written beside it."""
        match node:
            case ast.Attribute(value=value) if self._full_name(value) in _BUILTINS:
                return (value,)
            case ast.Call(func=function) if self._full_name(function) in _ONLY_CALLED:
                return (function, function.value) if isinstance(function, ast.Attribute) else (function,)
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if (
                self._full_name(function) in _IMPORT and name not in _BUILTINS and name not in _RUN_TEXT
            ):
                return (function,)
        return ()

    def _is_interpreter(self, node: ast.expr) -> bool:
        is_named = isinstance(node, ast.Constant) and "python" in str(node.value)
        return is_named or self._full_name(node) == "sys.executable"

    def _is_text(self, node: ast.expr) -> bool:
        """Whether an expression is text that is written out, or a name of such text."""
        return _writes_text(node) or (isinstance(node, ast.Name) and node.id in self._texts)

    def _is_method_on_text(self, function: ast.expr, name: str, arguments: Sequence[ast.expr]) -> bool:
        """Whether a method with the name of those that run text, not the program's own, is given a text."""
        if not isinstance(function, ast.Attribute) or function.attr in self._own or name == "subprocess.run":
            return False
        is_text = any(isinstance(one, _TEXTS) and _writes_text(one) for one in arguments[:1])
        return is_text and function.attr in _METHODS_RUN_TEXT

    def _names_in_call(
        self, name: str, function: ast.expr, arguments: Sequence[ast.expr]
    ) -> Sequence[ast.expr]:
        """The arguments of a call that name an attribute or an entry of a namespace."""
        if name == "getattr":
            return arguments[1:2]
        if name in _BY_NAME or name.endswith("__getattribute__"):
            return arguments
        is_entry = isinstance(function, ast.Attribute) and self._is_namespace(function.value)
        return arguments[:1] if is_entry else ()

    def _is_hidden_name(self, node: ast.expr) -> bool:
        """Whether an expression is a text that the program assembles, or the name of what runs text."""
        inside = list(ast.walk(node))
        names = [one.id for one in inside if isinstance(one, ast.Name)]
        is_own = self._open.isdisjoint(names)
        return is_own and (not self._assembled.isdisjoint(names) or any(map(_assembles, inside)))

    def _is_namespace(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._full_name(node.func) in _NAMESPACES
        is_own = isinstance(node, ast.Attribute) and node.attr == "__dict__"
        return is_own or self._full_name(node) == "sys.modules"

    def _full_name(self, node: ast.AST) -> str:
        first, dot, rest = dotted_name(node).partition(".")
        name = f"{self._imported.get(first, first)}{dot}{rest}"
        module, _, built_in = name.partition(".")
        return built_in if built_in and module in _BUILTINS else name


def _assembles(node: ast.AST) -> bool:
    """Whether a node makes new text out of texts, or is text that names what runs text."""
    match node:
        case ast.BinOp() | ast.JoinedStr() | ast.Subscript():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name not in _ARRANGE
        case ast.Call():
            return True
        case ast.Constant(value=str(text)):
            return not _REFUSED.isdisjoint(re.findall(r"\w+", text))
    return False


def _writes_text(node: ast.AST) -> bool:
    """Whether an expression holds text that is written out, and serialises no value and opens no file."""
    called = {dotted_name(one.func).rpartition(".")[2] for one in ast.walk(node) if isinstance(one, ast.Call)}
    return _holds_text(node) and called.isdisjoint(("dumps", "open"))


def _is_new_text(node: ast.AST) -> bool:
    """Whether an expression makes text out of literals alone."""
    inside = list(ast.walk(node))
    names = sum(isinstance(one, ast.Name) for one in inside)
    called = sum(isinstance(one, ast.Call) and isinstance(one.func, ast.Name) for one in inside)
    return isinstance(node, (ast.BinOp, ast.Call, ast.JoinedStr)) and names == called and _holds_text(node)


def _holds_text(node: ast.AST) -> bool:
    constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
    return any(isinstance(one, (str, bytes)) for one in constants)


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[list[str], ast.expr | None]]:
    """(names, value) of variables; the value is None where it comes from outside, as that of a parameter."""
    for node in nodes:
        match node:
            case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield [name], None
            case ast.withitem(optional_vars=ast.expr() as target):
                yield _stored(target), None
            case ast.Assign(targets=targets, value=value):
                yield [name for target in targets for name in _stored(target)], value
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.For(target=target, iter=value)
                | ast.comprehension(target=target, iter=value)
            ):
                yield _stored(target), value


def _stored(target: ast.AST) -> list[str]:
    names = (one for one in ast.walk(target) if isinstance(one, ast.Name))
    return [one.id for one in names if isinstance(one.ctx, ast.Store)]


def _spread(names: Iterable[_Vertex], used_by: Mapping[_Vertex, Iterable[_Vertex]]) -> set[_Vertex]:
    """The names and values, and all those that use one of them, directly or not."""
    found = set(names)
    pending = list(found)
    while pending:
        for one in used_by.get(pending.pop(), ()):
            if one not in found:
                found.add(one)
                pending.append(one)
    return found


# Style, not types: pycodestyle, pyflakes, names, likely bugs, comprehensions, complexity, simpler
# statements, returns, needless code, modern syntax.
RULES = ("E", "F", "W", "N", "B", "C4", "C90", "SIM", "RET", "PIE", "UP")
INVALID_SYNTAX = "invalid-syntax"
# Complexity (C901) is reported on the line of `def`, even where the prompt wrote that line.
_COUNTS_ANYWHERE = ("C901", INVALID_SYNTAX)
_SHARED = ("--isolated", "--no-cache", "--quiet", "--target-version", "py310")
_CHECK = ("check", *_SHARED, "--ignore-noqa", "--exit-zero", "--output-format", "json", "--select")
_SECONDS, _SECONDS_PER_PROGRAM = 10.0, 1.0
MAX_NESTED, MAX_NESTED_NODES = 30, 20_000
"""Of calls and comprehensions in one another, which ruff parses anew at each level: real files have up to 18
levels, and 12,000 nodes, each counted once for every call or comprehension around it."""
_NESTED = (ast.Call, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_UNFORMATTED = 2  # ruff format could not parse some file; the others are done
_NEWLINE = re.compile(r"\r\n|\r|\n")
_SWITCHES_FORMATTING_OFF = re.compile(r"#\s*(?:fmt|yapf)\s*:")


def readability() -> RewardFunction:
    """s(violations + dead statements) × (1 + s(badly formatted lines)) / 2 with s(x) = 1 / (1 + x).

    Only code that the answer added to the starter code counts. Dead statements are names, functions, classes
    and imports that no live code reads, statements without effect, unreachable statements and, on problems
    that ask for a function, output. They are cut out, with comments and docstrings, before the linter and the
    formatter look at the rest. Violations are those of `ruff check` by the rules E, F, W, N, B, C4, C90, SIM,
    RET, PIE and UP with their defaults (lines of 88 characters, complexity 10), for Python 3.10. Badly
    formatted are lines on which code begins and that `ruff format` changes.

    0 goes to code that does not parse, is longer than 20,000 characters, nests more than 30 calls and
    comprehensions, adds nothing that is live, switches the formatter off (`# fmt:`, `# yapf:`; `# noqa` is
    ignored), or hides code in text, which neither tool can see: `exec`, `eval`, `compile`, imports by a
    computed name, `__code__` and similar attributes, names assembled from text.

    Equal answers are examined once. Raises `RewardError` where ruff is missing.
    """
    check_ruff()
    known: dict[tuple[str, str, str], float] = {}

    def score(answers: Sequence[GradedAnswer], grader: Grader) -> Scores:
        keys = [(one.code or "", one.problem.starter_code, one.problem.entry_point) for one in answers]
        if len(known) > 5_000:
            known.clear()
        new = {key: _own_code(*key) for key in keys if key not in known}
        known.update(dict.fromkeys(new, 0.0))
        judged = {key: own for key, own in new.items() if own is not None}
        findings = lint([live.code for live, _, _ in judged.values()])
        for (key, own), found in zip(judged.items(), findings, strict=True):
            if found is not None:
                known[key] = _score(*own, found)
        return [known[key] for key in keys]

    return score


def _own_code(code: str, starter_code: str, entry_point: str) -> tuple[LiveCode, int, list[str]] | None:
    """The live part of a program, how many lines of the prompt stand before what its author is judged by, and
    those of the author's lines on which code begins. None for code that gets 0 unseen.
    """
    tree = parse_bounded(code)
    if tree is None or _SWITCHES_FORMATTING_OFF.search(code) or hides_code(tree) or _is_too_nested(tree):
        return None
    lines = _NEWLINE.split(code)
    given = min(len(_NEWLINE.findall(starter_code)), len(lines)) if code.startswith(starter_code) else 0
    live = remove_dead_code(tree, lines, entry_point, given)
    own = [line for number, line in _lines_of_code(live.code) if number > given]
    return (live, given, own) if own else None


def _is_too_nested(tree: ast.Module) -> bool:
    total, pending = 0, list[tuple[ast.AST, int]]([(tree, 0)])
    while pending:
        node, around = pending.pop()
        around += isinstance(node, _NESTED)
        total += around
        if around > MAX_NESTED or total > MAX_NESTED_NODES:
            return True
        pending += ((one, around) for one in ast.iter_child_nodes(node))
    return False


def _score(live: LiveCode, given: int, own: Sequence[str], findings: LintResult) -> float:
    rules = [one.rule for one in findings.violations if one.line > given or one.rule in _COUNTS_ANYWHERE]
    if INVALID_SYNTAX in rules:
        return 0.0
    kept = Counter(own) & Counter(line for _, line in _lines_of_code(findings.formatted))
    badly_formatted = len(own) - kept.total()
    return 1 / (1 + len(rules) + live.dead) * (1 + 1 / (1 + badly_formatted)) / 2


def _lines_of_code(code: str) -> list[tuple[int, str]]:
    """(number, text) of the lines on which code begins; none for code that does not parse."""
    tree = parse_bounded(code)
    lines = _NEWLINE.split(code)
    nodes = ast.walk(tree) if tree is not None else ()
    begun = {node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.expr))}
    return [(number, lines[number - 1]) for number in sorted(begun) if number <= len(lines)]


@dataclass(frozen=True)
class Violation:
    """A rule that a line (from 1) breaks; the rule is INVALID_SYNTAX where ruff cannot read it."""

    rule: str
    line: int


@dataclass(frozen=True)
class LintResult:
    """What ruff check found in a program, and the program as ruff format writes it."""

    violations: tuple[Violation, ...]
    formatted: str


class _RuffFailure(Exception):
    """Ruff crashed or took too long over some program of a batch."""


def lint(programs: Sequence[str]) -> list[LintResult | None]:
    """The findings on each program; None for one that makes ruff crash or takes it too long.

    Programs must be encodable as UTF-8. Raises `RewardError` when ruff is missing or does not work.
    """
    if not programs:
        return []
    try:
        return list(_lint_together(programs))
    except _RuffFailure:
        if len(programs) == 1:
            check_ruff()
            return [None]
        middle = len(programs) // 2
        return lint(programs[:middle]) + lint(programs[middle:])


def check_ruff() -> None:
    """Lints a line with known findings. Raises `RewardError`, naming the remedy, unless ruff works."""
    try:
        (findings,) = _lint_together(["import os\nx=1\n"])
    except _RuffFailure as error:
        raise RewardError(f"ruff does not work: {error}.", remedy="pip install --upgrade ruff") from None
    if findings != LintResult((Violation("F401", 1),), "import os\n\nx = 1\n"):
        raise RewardError(
            f"ruff answers otherwise than expected: {findings}.", remedy="pip install --upgrade ruff"
        )


def _lint_together(programs: Sequence[str]) -> list[LintResult]:
    with tempfile.TemporaryDirectory(prefix="greenward-ruff-") as name:
        folder = Path(name)
        paths = [folder / f"{index}.py" for index in range(len(programs))]
        for path, program in zip(paths, programs, strict=True):
            path.write_bytes(program.encode())
        violations: list[list[Violation]] = [[] for _ in programs]
        seconds = _SECONDS + _SECONDS_PER_PROGRAM * len(programs)
        for found in json.loads(_run((*_CHECK, ",".join(RULES), "."), folder, seconds, accepted=(0,))):
            index = int(Path(found["filename"]).stem)
            violations[index].append(Violation(found["code"] or INVALID_SYNTAX, found["location"]["row"]))
        _run(("format", *_SHARED, "."), folder, seconds, accepted=(0, _UNFORMATTED))
        formatted = [path.read_bytes().decode() for path in paths]
        return [LintResult(tuple(one), text) for one, text in zip(violations, formatted, strict=True)]


def _run(arguments: Sequence[str], folder: Path, seconds: float, *, accepted: Sequence[int]) -> bytes:
    try:
        done = subprocess.run(
            [_binary(), *arguments],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _RuffFailure(f"ruff {arguments[0]} took longer than {seconds:.0f} seconds") from None
    if done.returncode not in accepted:
        said = done.stderr.decode(errors="replace").strip()[-300:]
        raise _RuffFailure(f"ruff {arguments[0]} ended with {done.returncode}: {said}")
    return done.stdout


@lru_cache(maxsize=1)
def _binary() -> str:
    try:
        from ruff import find_ruff_bin

        return find_ruff_bin()
    except (ImportError, FileNotFoundError):
        raise RewardError(
            "the reward terms readability and code_score need ruff, which is not installed.",
            remedy="pip install ruff",
        ) from None


_PURE = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytes", "callable", "chr", "complex", "dict",
    "divmod", "enumerate", "filter", "float", "format", "frozenset", "hash", "hex", "id", "int",
    "isinstance", "issubclass", "len", "list", "map", "max", "min", "oct", "ord", "pow", "range",
    "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
})  # fmt: skip
_PURE_METHODS = frozenset({
    "capitalize", "casefold", "copy", "count", "endswith", "find", "format", "get", "index",
    "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper", "items", "join", "keys",
    "lower", "lstrip", "replace", "rfind", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper", "values", "zfill",
})  # fmt: skip
_OUTPUT = frozenset({"print", "sys.stdout.write", "sys.stderr.write"})
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_COMPOUND = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try)


@dataclass(frozen=True)
class LiveCode:
    """A program without its dead statements, comment lines and blank lines.

    `dead` counts the dead statements, docstrings aside, whether or not they could be cut out.
    """

    code: str
    dead: int


def remove_dead_code(
    tree: ast.Module, lines: Sequence[str], entry_point: str = "", given: int = 0
) -> LiveCode:
    """The live part of a parsed program. The first `given` lines stay as they are and are not judged.

    Without an entry point, or where the program does not define it, every function and class of the top
    level counts as live. It takes linear time.
    """
    defined = {name for node in tree.body for name in bound_names(node)}
    everything = {node.name for node in tree.body if isinstance(node, Definition)}
    scan = _LivenessScan(tree, bool(entry_point), given)
    scan.run({entry_point} if entry_point in defined else everything)
    return scan.cut(lines)


class _LivenessScan:
    """Finds the live statements of a program. A name that becomes live wakes the statements that bind it."""

    def __init__(self, tree: ast.Module, output_is_dead: bool, given: int) -> None:
        self._tree = tree
        self._output_is_dead = output_is_dead
        self._given = given
        self._pure = _pure_functions(tree)
        self._live: set[ast.stmt] = set()
        self._names: set[str] = set()
        self._waiting: dict[str, list[ast.stmt]] = {}
        self._woken: list[ast.stmt] = []
        self._around: dict[ast.stmt, ast.stmt] = {}  # the compound statement of one that makes it live
        self._blocks: list[tuple[Sequence[ast.stmt], ast.stmt | None, bool]] = [(tree.body, None, False)]

    def run(self, names: set[str]) -> None:
        """Finds what is live if `names` are."""
        self._names = set(names)
        while self._woken or self._blocks:
            if self._woken:
                self._mark(self._woken.pop())
            else:
                self._look_at(*self._blocks.pop())

    def cut(self, lines: Sequence[str]) -> LiveCode:
        """The program without what is dead. What shares a line with live code stays there."""
        removed, emptied, dead = self._dead()
        kept = set(_statements(self._tree.body, skip=set(removed)))
        shared = {line for one in kept for line in _own_lines(one)}
        gone: set[int] = set()
        for statement in removed:
            span = set(range(first_line(statement), (statement.end_lineno or statement.lineno) + 1))
            if not span & shared:
                gone |= span
            dead += sum(isinstance(one, ast.stmt) and not _is_text(one) for one in ast.walk(statement))
        fillers = {first_line(one): " " * one.col_offset + "pass" for one in emptied}
        text = [
            fillers.get(number, line) if number in gone else line
            for number, line in enumerate(lines, start=1)
            if number <= self._given
            or (line.lstrip()[:1] not in ("", "#") and (number not in gone or number in fillers))
        ]
        return LiveCode("\n".join(text) + "\n", dead)

    def _dead(self) -> tuple[list[ast.stmt], list[ast.stmt], int]:
        """The dead statements, the first one of each block without live ones, and how many names are imported
        in vain beside others that are not.
        """
        removed, emptied, extra = list[ast.stmt](), list[ast.stmt](), 0
        blocks: list[Sequence[ast.stmt]] = [self._tree.body]
        while blocks:
            body = blocks.pop()
            dropped = [one for one in body if self._is_judged(one) and one not in self._live]
            removed += dropped
            if dropped and len(dropped) == len(body) and body is not self._tree.body:
                emptied.append(dropped[0])  # an empty program needs no `pass`
            for one in body:
                if one not in self._live:
                    continue
                if isinstance(one, (ast.Import, ast.ImportFrom)):
                    used = sum(name in self._names or name == "*" for name in bound_names(one))
                    extra += len(one.names) - used if used else 0
                elif isinstance(one, Definition):
                    blocks.append(one.body)
                elif isinstance(one, _COMPOUND):
                    blocks += (*_blocks_of(one), *(handler.body for handler in _handlers(one)))
        return removed, emptied, extra

    def _is_judged(self, node: ast.stmt) -> bool:
        return (node.end_lineno or 0) > self._given

    def _look_at(self, body: Sequence[ast.stmt], around: ast.stmt | None, is_class: bool) -> None:
        """Marks those statements of a block that are live in any case; others wait for their names."""
        has_ended = False
        for node in body:
            if has_ended and self._is_judged(node):
                continue
            has_ended = isinstance(node, _ENDS)
            if around is not None:
                self._around[node] = around
            if not self._is_judged(node):
                self._mark_around(node)
                continue
            live = self._is_live(node, is_class, len(body) > 1)
            if live is True or (live and live & self._names):
                self._mark(node)
            elif live:
                for name in live:
                    self._waiting.setdefault(name, []).append(node)

    def _is_live(self, node: ast.stmt, is_class: bool, has_neighbours: bool) -> bool | set[str]:
        """Whether a statement that is reached does anything in any case, or with which names it does."""
        if isinstance(node, ast.Pass):
            return not has_neighbours
        if isinstance(node, Definition):
            return is_class or {node.name}
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = set(bound_names(node))
            return "*" in names or (isinstance(node, ast.ImportFrom) and node.module == "__future__") or names
        if isinstance(node, _COMPOUND):
            test = None if getattr(node, "orelse", ()) else getattr(node, "test", None)
            if isinstance(test, ast.Constant) and not test.value:
                return False
            self._blocks += [(block, node, False) for block in _blocks_of(node)]
            return not all(_is_pure(one, self._pure) for one in _heads(node))
        if isinstance(node, ast.Expr):
            value = node.value
            is_output = isinstance(value, ast.Call) and dotted_name(value.func) in _OUTPUT
            return not (_is_pure(value, self._pure) or (is_output and self._output_is_dead))
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return is_class or self._binds(node)
        return True

    def _mark(self, node: ast.stmt) -> None:
        """Notes that a statement is live, and the names that it reads."""
        if node in self._live:
            return
        self._live.add(node)
        if isinstance(node, Definition):
            self._read(*(one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)))
            self._blocks.append((node.body, None, isinstance(node, ast.ClassDef)))
        elif isinstance(node, _COMPOUND):
            handlers = _handlers(node)
            self._read(*_heads(node), *(one.type for one in handlers if one.type is not None))
            self._blocks += [(handler.body, None, False) for handler in handlers]
        else:
            self._read(node)
        self._mark_around(node)

    def _mark_around(self, node: ast.stmt) -> None:
        """Has the compound statement around become live, unless the statement is idle in it."""
        around = self._around.get(node)
        idle = (ast.Pass,) if isinstance(around, ast.If) else (ast.Pass, ast.Break, ast.Continue)
        if around is not None and not isinstance(node, idle):
            self._woken.append(around)

    def _binds(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool | set[str]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is None:
            return False
        if not isinstance(node, ast.AugAssign) and any(same_trees(one, node.value) for one in targets):
            return False
        if not _is_pure(node.value, self._pure):
            return True
        return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}

    def _read(self, *nodes: ast.AST) -> None:
        for node in nodes:
            for one in ast.walk(node):
                if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Load, ast.Del)):
                    self._names.add(one.id)
                    self._woken += self._waiting.pop(one.id, ())


def _blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a compound statement, without those of its handlers."""
    return [block for name in ("body", "orelse", "finalbody") if (block := getattr(node, name, []))]


def _handlers(node: ast.stmt) -> list[ast.ExceptHandler]:
    return getattr(node, "handlers", [])


def _heads(node: ast.stmt) -> list[ast.AST]:
    return [one for one in ast.iter_child_nodes(node) if isinstance(one, (ast.expr, ast.withitem))]


def _calls_if_pure(node: ast.AST) -> set[str] | None:
    """The functions of the program that have to be pure if evaluating it changes nothing, as far as names can
    tell; None if it changes something.
    """
    calls: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return None
        if isinstance(one, ast.Call):
            called = one.func
            if isinstance(called, ast.Name):
                calls |= {called.id} - _PURE
            elif not (isinstance(called, ast.Attribute) and called.attr in _PURE_METHODS):
                return None
    return calls


def _is_pure(node: ast.AST, functions: Collection[str]) -> bool:
    calls = _calls_if_pure(node)
    return calls is not None and all(name in functions for name in calls)


def _pure_functions(tree: ast.Module) -> set[str]:
    """The functions of a program that change nothing but their own names."""
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)}
    callers: dict[str, list[str]] = {name: [] for name in found}
    impure = []
    for name, function in found.items():
        calls = None if _changes_others(function) else _calls_if_pure(function)
        if calls is None or any(one not in found for one in calls):
            impure.append(name)
        else:
            for one in calls:
                callers[one].append(name)
    pure = set(found)
    while impure:
        name = impure.pop()
        if name in pure:
            pure.remove(name)
            impure += callers[name]
    return pure


def _changes_others(function: ast.AST) -> bool:
    return any(
        isinstance(
            one, (ast.Global, ast.Nonlocal, ast.Raise, ast.Assert, ast.Delete, ast.Import, ast.ImportFrom)
        )
        or (isinstance(one, (ast.Attribute, ast.Subscript)) and not isinstance(one.ctx, ast.Load))
        for one in ast.walk(function)
    )


def bound_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of the top level binds."""
    if isinstance(node, Definition):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _is_text(node: ast.AST) -> bool:
    """A docstring, or a text that stands where a comment might."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _statements(body: Sequence[ast.AST], skip: set[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a block but those of `skip`, inner ones included."""
    pending = list(body)
    while pending:
        node = pending.pop()
        if node not in skip:
            if isinstance(node, ast.stmt):
                yield node
            pending += ast.iter_child_nodes(node)


def _own_lines(node: ast.stmt) -> range:
    """The lines of a statement without those of its blocks."""
    inner: list[ast.stmt] = getattr(node, "body", [])
    last = max(node.lineno, inner[0].lineno - 1) if inner else node.end_lineno or node.lineno
    return range(first_line(node), last + 1)
