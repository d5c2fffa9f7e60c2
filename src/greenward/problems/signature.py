"""The signature of an entry point: read from source, or made up when there is no source."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import dataclass

from greenward.problems.python_source import parse


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, and how many positional arguments bind (`most` None: no end)."""

    parameters: str  # as in the source, without annotations
    least: int
    most: int | None

    def accepts(self, inputs: int) -> bool:
        """Whether a call with so many positional inputs binds."""
        return self.least <= inputs and (self.most is None or inputs <= self.most)

    def __str__(self) -> str:
        if self.most == self.least:
            return str(self.least)
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


def read_signature(source: str, function_name: str) -> Signature | None:
    """The signature of the last top-level `function_name` in `source`; None if there is none.

    `source` may end in a signature without a body. Raises `SyntaxError` for anything else that is
    not Python.
    """
    try:
        tree = parse(source)
    except SyntaxError:
        tree = parse(source.rstrip() + "\n    pass\n")
    for node in reversed(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function_name:
            positional = [*node.args.posonlyargs, *node.args.args]
            return Signature(
                parameters=_without_annotations(node.args),
                least=len(positional) - len(node.args.defaults),
                most=None if node.args.vararg else len(positional),
            )
    return None


def _without_annotations(arguments: ast.arguments) -> str:
    # A signature stands alone, without the imports that the annotations may need.
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(arguments)


def made_up_parameters(count: int) -> str:
    """`a, b, c` … for arguments whose names are unknown."""
    if count <= len(string.ascii_lowercase):
        return ", ".join(string.ascii_lowercase[:count])
    return ", ".join(f"a{position}" for position in range(1, count + 1))


def starter_code(function_name: str, parameters: str, docstring: str) -> str:
    """A signature and its docstring, indented and escaped, ready to be continued."""
    text = re.sub(r'"(?="")|"\Z', r"\"", docstring.strip().replace("\\", "\\\\"))
    lines = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return f'def {function_name}({parameters}):\n    """{lines.lstrip()}"""\n'
