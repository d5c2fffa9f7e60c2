"""Judges by a program's text, before it is loaded, whether its runs may share a process.

They may if nothing in the text can leave anything to a later run or reach the harness, which knows the
inputs of later runs and what ends an output. This is a list of what is allowed; a program that uses anything
else has a process for each run.
- A module is named only to read a listed name from it. Values on the list hold no state that is not set back
  between runs (`programs.RunState`), and take no attribute. What is written in Python takes attributes, so
  it may only be called, never be handed on.
- No name and no attribute leads to the interpreter: to a frame, a module, the names of a module, or the type
  of an object. No attribute is named by text.
"""

from __future__ import annotations

import _ast
import builtins
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

MOST_CHARS = 1 << 16  # of a program that is read; a longer one has a process for each run
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Include/object.h


def _takes_no_attribute(value: Any) -> bool:
    """Whether it is a constant, or a function or type of C that cannot be changed."""
    if type(value) is type:
        return not value.__flags__ & _HEAP_TYPE or bool(value.__flags__ & _IMMUTABLE_TYPE)
    return type(value) in (types.BuiltinFunctionType, int, float, str)


def _values_of(module: str) -> set[str]:
    found = vars(importlib.import_module(module)).items()
    return {name for name, value in found if not name.startswith("_") and _takes_no_attribute(value)}


# What may be handed on, by module.
_VALUES: dict[str, set[str]] = {
    **{name: _values_of(name) for name in ("array", "bisect", "collections", "decimal", "heapq")},
    **{name: _values_of(name) for name in ("itertools", "math", "string")},
    "operator": _values_of("operator") - {"attrgetter", "methodcaller"},  # they name attributes by text
    "functools": _values_of("functools") & {"cmp_to_key", "partial", "reduce"},
    "random": {
        "choice", "choices", "randint", "random", "randrange", "sample", "seed", "shuffle", "uniform",
    },
    "sys": {
        "exit", "getrecursionlimit", "maxsize", "set_int_max_str_digits", "setrecursionlimit",
        "stderr", "stdin", "stdout",
    },
    "typing": {"DefaultDict", "Deque", "Dict", "FrozenSet", "List", "Optional", "Set", "Tuple", "Union"},
    **{name: set[str]() for name in ("__future__", "copy", "fractions")},
}  # fmt: skip
# What may only be called, or decorate.
_CALLED: dict[str, set[str]] = {
    "__future__": {"annotations"},
    "collections": {"Counter", "namedtuple"},
    "copy": {"copy", "deepcopy"},
    "fractions": {"Fraction"},
    "functools": {"cache", "lru_cache"},
    "heapq": {"merge", "nlargest", "nsmallest"},
    "typing": {"Counter", "OrderedDict"},
}
_CALLED_WITH_ONE = {"copy", "deepcopy"}  # a second argument would be handed an object of the module
_BUILTINS = {
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod",
    "complex", "dict", "divmod", "enumerate", "exit", "filter", "float", "format", "frozenset", "hash",
    "hex", "input", "int", "isinstance", "issubclass", "iter", "len", "list", "map", "max", "min",
    "next", "object", "oct", "open", "ord", "pow", "print", "property", "quit", "range", "repr",
    "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "zip",
    "Ellipsis", "NotImplemented",
    *(
        name
        for name, one in vars(builtins).items()
        if isinstance(one, type) and issubclass(one, BaseException) and _takes_no_attribute(one)
    ),
}  # fmt: skip
_REFUSED_BUILTINS = {name for name in vars(builtins) if not name.startswith("__")} - _BUILTINS
_METHODS = {
    f"__{name}__"
    for name in (
        "abs", "add", "and", "bool", "call", "contains", "delitem", "divmod", "eq", "float",
        "floordiv", "ge", "getitem", "gt", "hash", "iadd", "iand", "ifloordiv", "imod", "imul",
        "index", "int", "invert", "ior", "isub", "iter", "itruediv", "ixor", "le", "len", "lshift", "lt",
        "missing", "mod", "mul", "ne", "neg", "next", "or", "pos", "pow", "radd", "rand", "repr",
        "reversed", "rmod", "rmul", "ror", "round", "rshift", "rsub", "rtruediv", "rxor", "setitem",
        "str", "sub", "truediv", "xor",
    )
}  # fmt: skip
_SPECIAL_NAMES = _METHODS | {"__init__", "__name__", "__slots__"}
_SPECIAL_ATTRIBUTES = _METHODS | {"__name__"}
_INNER_ATTRIBUTES = ("_", "ag_", "co_", "cr_", "f_", "gi_", "tb_")  # generators, code, frames, tracebacks
# `format` reads attributes that its text names, an `AttributeError` holds the object that lacks one. The
# exceptions of `decimal` hold classes that take attributes, and its contexts flags and traps for them.
_INNER_NAMES = {"args", "cell_contents", "flags", "format", "format_map", "mro", "obj", "traps"}
_ATTRIBUTE_IN_FORMAT = re.compile(r"\{[^{}:!]*[.\[]")


class _Refused(Exception):
    """The text holds something that is not on the list."""


class _Rule(Enum):
    """What may be done with an imported name that is neither a module nor a value."""

    CALLED = 1
    CALLED_WITH_ONE = 2  # argument
    UNUSABLE = 3


class _Use(NamedTuple):
    """A name, or an attribute of one; `call` is None for what decorates."""

    name: str
    attribute: str | None
    is_called: bool
    is_set: bool = False
    call: Any = None


def may_share_process(code: str, preamble: str = "") -> bool:
    """Whether runs of the program may share a process; the preamble, which precedes it, is trusted."""
    if len(code) > MOST_CHARS:
        return False
    try:
        tree = compile(code, "<answer>", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        reader = _Reader()
        reader.read(tree)
        if not preamble or not reader.allows_all():
            return reader.allows_all()
        for name, found in _names_of(preamble):
            reader.take(name, found)
        return reader.allows_all()
    except Exception:  # refused, or what no parser foresees
        return False


def _names_of(preamble: str) -> Iterator[tuple[str, str | _Rule]]:
    """The names that a preamble defines, but for those of values and of built-in functions."""
    namespace = dict[str, Any]()
    exec(compile(preamble, "<preamble>", "exec", dont_inherit=True), namespace)
    rules = {
        id(vars(sys.modules[module])[name]): _rule(module, name)
        for listed in (_VALUES, _CALLED)
        for module, names in listed.items()
        if module in sys.modules
        for name in names & vars(sys.modules[module]).keys()
    }
    for name, value in namespace.items():
        if name == "__builtins__":
            continue
        if type(value) is types.ModuleType and value.__name__ in _VALUES:
            yield name, value.__name__
        elif name not in vars(builtins) or vars(builtins)[name] is not value:
            rule = rules.get(id(value), _Rule.UNUSABLE)
            if rule is not None:
                yield name, rule


def _rule(module: str, name: str) -> _Rule | None:
    """What may be done with a name of a listed module; None for a value."""
    if name in _VALUES[module]:
        return None
    if name not in _CALLED.get(module, ()):
        return _Rule.UNUSABLE
    return _Rule.CALLED_WITH_ONE if name in _CALLED_WITH_ONE else _Rule.CALLED


class _Reader:
    """Reads a syntax tree: first what it imports and uses, then whether each use is allowed."""

    def __init__(self) -> None:
        self._imported: dict[str, str | _Rule] = {}  # the name of a module, or a rule, for what is no value
        self._names = set[str]()  # in other places than those of `_uses`
        self._uses: list[_Use] = []

    def read(self, tree: Any) -> None:
        """Raises `_Refused` for what is never allowed."""
        nodes = [tree]
        while nodes:
            node = nodes.pop()
            read = _READ.get(type(node))
            nodes += _children(node) if read is None else read(self, node)

    def take(self, name: str, found: str | _Rule) -> None:
        """Takes note of what a name stands for. Raises `_Refused` where it stands for something else, too."""
        if self._imported.setdefault(name, found) != found:
            raise _Refused

    def allows_all(self) -> bool:
        """Whether all that was read is allowed."""
        uses = [*self._uses, *(_Use(name, None, is_called=False) for name in self._names)]
        return all(map(self._allows, uses))

    def _allows(self, use: _Use) -> bool:
        found = self._imported.get(use.name)
        if found is None:
            is_input = use.name != "open" or (use.call is not None and _is_standard_input(use.call))
            if not is_input or use.name in _REFUSED_BUILTINS or (use.is_set and use.name in _BUILTINS):
                return False
            return _is_outer(use.attribute) and not (use.is_set and use.attribute in _SPECIAL_ATTRIBUTES)
        if isinstance(found, str):
            if use.attribute is None or use.is_set:
                return False
            rule = _rule(found, use.attribute)
        elif use.attribute is not None:
            return False
        else:
            rule = found
        if rule is _Rule.CALLED_WITH_ONE:
            return use.call is not None and _has_one_argument(use.call)
        return rule is None or (rule is _Rule.CALLED and use.is_called)

    def _name(self, node: Any) -> list[Any]:
        self._names.add(_checked(node.id))
        return []

    def _attribute(self, node: Any, *, is_called: bool = False, call: Any = None) -> list[Any]:
        value, name = node.value, node.attr
        is_set = type(node.ctx) is not _ast.Load
        if type(value) is _ast.Name:
            self._uses.append(_Use(_checked(value.id), name, is_called, is_set, call))
            return []
        is_text = type(value) is _ast.Constant and type(value.value) is str
        if (is_set and name in _SPECIAL_ATTRIBUTES) or not (
            _is_outer(name)
            or (name == "__init__" and _is_super(value))
            or (name == "format" and is_text and not _ATTRIBUTE_IN_FORMAT.search(value.value))
        ):
            raise _Refused
        return [value]

    def _called(self, node: Any, call: Any = None) -> list[Any]:
        """What is called, or decorates."""
        if type(node) is _ast.Name:
            self._uses.append(_Use(_checked(node.id), None, is_called=True, call=call))
            return []
        if type(node) is _ast.Attribute:
            return self._attribute(node, is_called=True, call=call)
        return [node]

    def _call(self, node: Any) -> list[Any]:
        return [*self._called(node.func, node), *node.args, *node.keywords]

    def _scope(self, node: Any) -> list[Any]:
        """A module or a function: only there may imports stand. In a class they would become attributes."""
        below: list[Any] = []
        for child in _children(node):
            if type(child) is _ast.Import:
                for alias in child.names:
                    if alias.name not in _VALUES:
                        raise _Refused
                    self.take(_checked(alias.asname or alias.name), alias.name)
            elif type(child) is _ast.ImportFrom:
                self._import_from(child)
            else:
                below.append(child)
        return below

    def _decorated(self, node: Any) -> list[Any]:
        decorators, node.decorator_list = node.decorator_list, []
        if type(node) is not _ast.ClassDef:
            below = self._scope(node)
        elif node.keywords:  # a metaclass
            raise _Refused
        else:
            below = _children(node)
        return below + [one for decorator in decorators for one in self._called(decorator)]

    def _import_from(self, node: Any) -> None:
        module, names = node.module, node.names
        if node.level or module not in _VALUES:
            raise _Refused
        pairs = [(alias.asname or alias.name, alias.name) for alias in names]
        if pairs[0][0] == "*":
            found = vars(sys.modules[module])
            names = found.get("__all__") or [name for name in found if not name.startswith("_")]
            pairs = [(name, name) for name in names]
        for own, name in pairs:
            rule = _rule(module, name)
            if rule is not None:
                self.take(_checked(own), rule)

    def _refuse(self, _: Any) -> list[Any]:
        raise _Refused


_READ: dict[type, Callable[[_Reader, Any], list[Any]]] = {
    _ast.Name: _Reader._name,
    _ast.Attribute: _Reader._attribute,
    _ast.Call: _Reader._call,
    _ast.Module: _Reader._scope,
    _ast.FunctionDef: _Reader._decorated,
    _ast.AsyncFunctionDef: _Reader._decorated,
    _ast.ClassDef: _Reader._decorated,
    _ast.Import: _Reader._refuse,
    _ast.ImportFrom: _Reader._refuse,
    _ast.MatchClass: _Reader._refuse,  # it reads attributes that a class names
}


def _children(node: Any) -> list[Any]:
    """The nodes below one. Raises `_Refused` for an identifier that is not allowed."""
    found: list[Any] = []
    for field in node._fields:
        child = getattr(node, field, None)
        if isinstance(child, _ast.AST):
            found.append(child)
        elif type(child) is list:
            found += [one for one in child if isinstance(one, _ast.AST)]
            for name in child:
                if type(name) is str:
                    _checked(name)
        elif type(child) is str and type(node) is not _ast.Constant:
            _checked(child)
    return found


def _checked(name: str) -> str:
    """An identifier. Raises `_Refused`: with two underscores it may have another name outside its class."""
    if name.startswith("__") and name not in _SPECIAL_NAMES:
        raise _Refused
    return name


def _is_outer(attribute: str | None) -> bool:
    """Whether an attribute of any object leads to nothing but values."""
    if attribute is None or attribute in _SPECIAL_ATTRIBUTES:
        return True
    return attribute not in _INNER_NAMES and not attribute.startswith(_INNER_ATTRIBUTES)


def _is_super(node: Any) -> bool:
    is_call = type(node) is _ast.Call and type(node.func) is _ast.Name
    return is_call and node.func.id == "super" and not node.args


def _has_one_argument(call: Any) -> bool:
    return len(call.args) == 1 and type(call.args[0]) is not _ast.Starred and not call.keywords


def _is_standard_input(call: Any) -> bool:
    """Whether a call of `open` opens standard input."""
    is_constant = _has_one_argument(call) and type(call.args[0]) is _ast.Constant
    return is_constant and type(call.args[0].value) is int and call.args[0].value == 0
