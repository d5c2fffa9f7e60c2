"""Finds code that a program hides from its readers: text that it runs, names that it assembles from text."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from greenward.problems.python_source import dotted_name

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
        self._imported = dict(_imports(nodes))
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
        return self._imports_what_it_writes() or any(
            self._hides(node) for node in self._nodes if node not in shown
        )

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
                is_inner = name.rpartition(".")[2] in _INNER
                return name in _REFUSED or name in _IMPORT or is_inner or only_called
            case ast.Constant(value=str(text)):
                return text in _OF_INTERPRETER
            case ast.Attribute(value=value, attr=attribute):
                name = self._full_name(node)
                return (
                    name in _REFUSED
                    or name in _IMPORT
                    or attribute in _INNER
                    or name in _ONLY_CALLED
                    or (attribute == "__subclasses__" and not isinstance(value, ast.Name))
                )
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
        return (
            arguments[:1]
            if isinstance(function, ast.Attribute) and self._is_namespace(function.value)
            else ()
        )

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
    makes_text = isinstance(node, (ast.BinOp, ast.Call, ast.JoinedStr))
    return makes_text and names == called and _holds_text(node)


def _holds_text(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, (str, bytes)) for one in ast.walk(node)
    )


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """(name in the program, full name) of what is imported under another name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((one.asname, one.name) for one in node.names if one.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


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
    return [
        one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


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
