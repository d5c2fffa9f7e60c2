"""Parses YAML of users into plain data of bounded depth and size, or raises an error of the format.

A YAML alias can contain itself, and a few aliases or merge keys (`<<`) stand for billions of values.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, NoReturn

import yaml

from greenward.common.parsing import MAX_DIGITS, MAX_NESTING, TOO_DEEP

MAX_YAML_CHARS = 1 << 18
MAX_VALUES = 100_000  # of a document, each alias and merge key counted as what it stands for
_TEXT_TAG, _MERGE_TAG = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse_yaml_text(text: str) -> Any:
    """The data of a YAML text, as PyYAML's safe loader builds it, except that `1e-4` is a number.

    Raises `yaml.YAMLError` as `compose_yaml` does, and for a scalar that cannot be what its tag says.
    """
    return construct_yaml(compose_yaml(text))


def compose_yaml(text: str) -> yaml.Node | None:
    """The node tree of a YAML text, whose marks give lines.

    Raises `yaml.YAMLError` for what is not YAML, has more than `MAX_YAML_CHARS` characters, is nested more
    than `MAX_NESTING` levels deep, contains itself, stands for more than `MAX_VALUES` values, names a key
    twice in one section, or has a key that is no scalar.
    """
    if len(text) > MAX_YAML_CHARS:
        raise yaml.MarkedYAMLError(
            problem=f"it has {len(text)} characters; at most {MAX_YAML_CHARS} are read"
        )
    node = _BoundedLoader(text).get_single_node()
    if node is not None:
        _measure(node, {})
    return node


def construct_yaml(node: yaml.Node | None) -> Any:
    """The data of a node tree of `compose_yaml`. Raises `yaml.YAMLError` as `parse_yaml_text` does."""
    if node is None:
        return None
    try:
        value = _BoundedLoader("").construct_document(node)
    except yaml.YAMLError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    return value


class _BoundedLoader(yaml.SafeLoader):
    """Ends at the limit of nesting, because PyYAML takes quadratic time to get deeper."""

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(token_class)

    def add_indent(self, column: int) -> Any:
        self._check_depth(len(self.indents))
        return super().add_indent(column)

    def _check_depth(self, depth: int) -> None:
        if depth > MAX_NESTING:
            raise yaml.MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.get_mark())

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a text", problem_mark=key.start_mark)
            if key.tag != _MERGE_TAG:
                key.tag = _TEXT_TAG  # what is written, where YAML would read a number, a date or on as true
            line = lines.setdefault(str(key.value), key.start_mark.line + 1)
            if line <= key.start_mark.line:
                problem = f"the key {key.value!r} occurs twice (first on line {line})"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes a text that `_BoundedLoader` would read as a number."""


for _one in (_BoundedLoader, _Dumper):
    _one.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def yaml_text(value: Any, *, width: int = 80) -> str:
    """Plain data as YAML that `construct_yaml` reads back, its keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def _measure(node: yaml.Node, measured: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """(values that a node stands for, levels of containers in it). Raises `yaml.YAMLError` beyond the limits.

    An alias is the node that it names, which stands earlier in the text and was `measured` before; one that
    is being measured (None) contains itself.
    """

    def refuse(problem: str) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)

    if isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBER_TAGS and len(node.value) > MAX_DIGITS:
            refuse(f"a number of {len(node.value)} digits; at most {MAX_DIGITS} are read")
        return 1, 0
    if id(node) in measured:
        return measured[id(node)] or refuse("it contains itself")
    measured[id(node)] = None
    parts = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
    inner = [_measure(one, measured) for one in parts]
    values, levels = 1 + sum(one for one, _ in inner), 1 + max((deep for _, deep in inner), default=0)
    if levels > MAX_NESTING:
        refuse(TOO_DEEP)
    if values > MAX_VALUES:
        refuse(f"its aliases and merge keys stand for more than {MAX_VALUES} values")
    measured[id(node)] = values, levels
    return values, levels
