"""Reading Python source that others wrote: syntax trees, functions, signatures."""

from __future__ import annotations

import ast
import re
import string
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Definition = FunctionNode | ast.ClassDef
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What parsing raises for text that is not Python or is nested too deeply."""

MAX_NAME_PARTS = 8
MAX_PARSED_CHARS = 20_000

# Two threads that make trees at once share the counter of the nesting, for which CPython 3.11 raises
# SystemError. `catch_warnings` is not for threads either.
_PARSING = threading.Lock()


def module_of(place: str) -> str:
    """The dotted name of the module at a place."""
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def parse(source: str) -> ast.Module:
    """The syntax tree of a program, without warnings about its escape sequences.

    Raises `SyntaxError`, or `ValueError` for null characters.
    """
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def parse_or_none(source: str) -> ast.Module | None:
    """As `parse`; None for what is not Python or is nested too deeply."""
    try:
        return parse(source)
    except UNREADABLE:
        return None


def parse_bounded(code: str) -> ast.Module | None:
    """The syntax tree of hostile code; None if it does not parse or is too long to be looked at."""
    return parse_or_none(code) if len(code) <= MAX_PARSED_CHARS else None


def parse_prompt(source: str) -> ast.Module:
    """The syntax tree of a program that may end in a signature without a body. Raises as `parse` does."""
    try:
        return parse(source)
    except SyntaxError:
        return parse(source.rstrip() + "\n    pass\n")


def same_trees(one: object, other: object) -> bool:
    """Whether syntax trees, or lists of them, are equal at any depth.

    Places in the text do not count, nor whether a name is bound or read.
    """
    pending = [(one, other)]
    while pending:
        first, second = pending.pop()
        if isinstance(first, ast.expr_context):
            continue
        if type(first) is not type(second):
            return False
        if isinstance(first, ast.AST):
            pending += ((getattr(first, name, None), getattr(second, name, None)) for name in first._fields)
        elif isinstance(first, list) and isinstance(second, list):
            if len(first) != len(second):
                return False
            pending += zip(first, second, strict=True)
        elif first != second:
            return False
    return True


def function_named(tree: ast.Module, name: str) -> FunctionNode | None:
    """The last top-level function of this name; None if there is none."""
    functions = (node for node in reversed(tree.body) if isinstance(node, FunctionNode))
    return next((function for function in functions if function.name == name), None)


def source_lines(source: str) -> list[str]:
    """The lines of a source with their ends, as a syntax tree counts them: a form feed ends no line."""
    return StringIO(source).readlines()


def first_line(node: ast.stmt) -> int:
    """The line of a statement, or that of its first decorator."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def dotted_name(node: ast.AST) -> str:
    """The name that an expression is, as `sys.stdout.write`; empty without one, or with too many parts."""
    parts = list[str]()
    while isinstance(node, ast.Attribute) and len(parts) < MAX_NAME_PARTS:
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def qualified_functions(parent: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """(qualified name, node) of each function and method in order, but not of those inside of functions."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from qualified_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
            yield from qualified_functions(node, prefix)


@dataclass(frozen=True)
class FunctionSignature:
    """The parameters of a function, and how many positional arguments it takes (`most` None: no limit)."""

    parameters: str  # as in the source, without annotations
    least: int
    most: int | None

    @classmethod
    def of(cls, function: FunctionNode) -> FunctionSignature:
        # A signature stands alone, without the imports that its annotations may need.
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        positional = len(function.args.posonlyargs) + len(function.args.args)
        least = positional - len(function.args.defaults)
        return cls(ast.unparse(function.args), least, None if function.args.vararg else positional)

    def accepts(self, inputs: int) -> bool:
        """Whether the function can be called with so many positional inputs."""
        return self.least <= inputs and (self.most is None or inputs <= self.most)

    def __str__(self) -> str:
        if self.most == self.least:
            return str(self.least)
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


def default_parameters(count: int) -> str:
    """`a, b, c` … for parameters whose names are unknown."""
    if count <= len(string.ascii_lowercase):
        return ", ".join(string.ascii_lowercase[:count])
    return ", ".join(f"a{position}" for position in range(1, count + 1))


def in_quotes(text: str) -> str:
    """What stands between three quotation marks for a text, without space at its ends."""
    return re.sub(r'"(?="")|"\Z', r"\"", text.strip().replace("\\", "\\\\"))


def starter_code(function_name: str, parameters: str, docstring: str) -> str:
    """A signature and its docstring, indented and escaped, that an answer can continue."""
    lines = "\n".join(f"    {line}".rstrip() for line in in_quotes(docstring).splitlines())
    return f'def {function_name}({parameters}):\n    """{lines.lstrip()}"""\n'


def loaded_names(node: ast.AST) -> set[str]:
    """The names that a piece of code reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def bound_names(tree: ast.Module | ast.stmt) -> set[str]:
    """The names that the top level of a program, or a statement, defines, imports or assigns."""
    names = set[str]()
    pending: list[ast.AST] = [*tree.body] if isinstance(tree, ast.Module) else [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending += ast.iter_child_nodes(node)
    return names
