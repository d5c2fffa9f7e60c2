"""Functions and methods of a source file whose body can be masked: signature and docstring stay."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from greenward.problems.mining.tree import LeftOut, SourceFile, syntax_tree
from greenward.problems.python_source import UNREADABLE, FunctionNode, qualified_functions, source_lines

MAX_BODY_LINES = 60
MAX_DOCSTRING_CHARS = 10_000
_LITERAL = re.compile(r"(\"\"\"|\'\'\'|\"|\')(.*)\1", re.DOTALL)
_ABSTRACT = {"abstractmethod", "overload", "abstractproperty", "no_type_check"}


@dataclass(frozen=True)
class MaskedFunction:
    """A documented function or method of a file. Lines are counted from 0; `end` is behind the last one.

    `start` is the line of the first decorator, `body` the first line behind the docstring. `qualified` is the
    name within the module (`TextWrapper.fill`), `said_from` the first line of the docstring, `fingerprint` a
    hash of the syntax tree without the function's name, annotations and docstring.
    """

    file: SourceFile
    qualified: str
    docstring: str
    first_parameter: str
    start: int
    said_from: int
    body: int
    end: int
    fingerprint: str

    @property
    def name(self) -> str:
        return self.qualified.rpartition(".")[2]

    @property
    def where(self) -> str:
        return f"{self.file.shown}:{self.start + 1} {self.qualified}"

    @property
    def starter(self) -> str:
        """Decorators, signature and docstring, indented as in the file."""
        return "".join(self._lines[self.start : self.body])

    @property
    def said(self) -> str:
        """The docstring as the file writes it, without its quotes."""
        literal = _LITERAL.search("".join(self._lines[self.said_from : self.body]))
        return literal[2].strip() if literal else self.docstring

    @property
    def reference(self) -> str:
        """The body, indented as in the file."""
        return "".join(self._lines[self.body : self.end])

    def with_body(self, statement: str) -> str:
        """The function, indented as in the file, with one statement (or several lines) as its body."""
        first = next(line for line in self._lines[self.body : self.end] if line.strip())
        indentation = first[: len(first) - len(first.lstrip())]
        return self.starter + textwrap.indent(statement, indentation) + "\n"

    @cached_property
    def _lines(self) -> list[str]:
        return source_lines(self.file.text.rstrip("\n") + "\n")


def masked_functions(file: SourceFile) -> Iterator[MaskedFunction | LeftOut]:
    """The functions of a file, in order, each masked or with the reason why it is left out.

    Functions inside of functions are parts of these.
    """
    try:
        found = list(qualified_functions(syntax_tree(file)))
    except UNREADABLE as error:
        yield LeftOut(file.shown, "not Python", str(error)[:200])
        return
    count = Counter(qualified for qualified, _ in found)
    for qualified, node in found:
        start, fingerprint = first_line(node), ""
        reason = "defined more than once" if count[qualified] > 1 else _unsuitable(node)
        if not reason:
            fingerprint = _fingerprint(node)
            reason = "" if fingerprint else "nested too deeply"
        if reason:
            yield LeftOut(f"{file.shown}:{start + 1} {qualified}", reason)
            continue
        doc = node.body[0]
        parameters = [*node.args.posonlyargs, *node.args.args]
        is_method = "." in qualified and not any(_name(one) == "staticmethod" for one in node.decorator_list)
        yield MaskedFunction(
            file=file,
            qualified=qualified,
            docstring=ast.get_docstring(node) or "",
            first_parameter=next((one.arg for one in parameters[is_method:]), ""),
            start=start,
            said_from=doc.lineno - 1,
            body=doc.end_lineno or 0,
            end=node.end_lineno or 0,
            fingerprint=fingerprint,
        )


def first_line(node: ast.stmt) -> int:
    """The line of a statement, counted from 0, or that of its first decorator."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1


def _unsuitable(node: FunctionNode) -> str:
    """Why a function cannot be asked for; empty if it can."""
    if ast.get_docstring(node) is None:
        return "no docstring"
    statements = node.body[1:]
    if (
        not statements
        or all(map(_is_trivial, statements))
        or _ABSTRACT & set(map(_name, node.decorator_list))
    ):
        return "nothing to implement"
    first, last = node.body[0], statements[0]
    signature = [node.returns, *(one for one in ast.walk(node.args) if hasattr(one, "end_lineno"))]
    signature_end = max([node.lineno, *(one.end_lineno for one in signature if one is not None)])
    if last.lineno <= (first.end_lineno or 0) or first.lineno <= signature_end:
        return "body on the line of its docstring"
    if (node.end_lineno or 0) - (first.end_lineno or 0) > MAX_BODY_LINES:
        return "body too long"
    if len(ast.get_docstring(node) or "") > MAX_DOCSTRING_CHARS:
        return "docstring too long"
    return ""


def _is_trivial(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, `...`, `raise NotImplementedError` or the return of a constant."""
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()) | ast.Return(None | ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"))):
            return True
    return False


def _name(decorator: ast.expr) -> str:
    """The last name of a decorator: `abstractmethod` of `@abc.abstractmethod`."""
    decorator = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(decorator, "attr", getattr(decorator, "id", ""))


def _fingerprint(node: FunctionNode) -> str:
    """A hash of parameters and body; empty for what is nested too deeply."""
    arguments = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    try:
        body = "\n".join(map(ast.dump, node.body[1:]))
    except RecursionError:
        return ""
    return hashlib.sha256(f"{arguments}\n{body}".encode("utf-8", "surrogatepass")).hexdigest()
