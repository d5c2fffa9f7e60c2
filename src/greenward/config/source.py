"""Recipe text as data that remembers where each key was written.

YAML 1.1 as PyYAML reads it, with two differences: `1e-4` is a number, as everybody who types it
means, and a key that occurs twice in one section is an error, since one of the two values would be
lost without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from greenward.errors import ConfigError
from greenward.user_text import parse_yaml_text

KeyPath = tuple[str | int, ...]


class RecipeLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the two differences above."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first_line: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # super() says that it cannot be a key
            if key.value in first_line:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} occurs twice (first on line {first_line[key.value]})",
                    problem_mark=key.start_mark,
                )
            first_line[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)


RecipeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


class RecipeText:
    """One YAML document: its data, and the line of each key.

    `name` stands for the text in messages. Raises `ConfigError` with line and column when the text
    is not YAML, and when it is not a section (keys and values).
    """

    def __init__(self, text: str, *, name: str) -> None:
        self.name = name
        self._root = parse_yaml(text, name=name, compose=True)
        data = parse_yaml(text, name=name)
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise ConfigError(f"{name}: expected keys and values, found {describe(data)}.")
        self.data: dict[str, Any] = data

    def line_of(self, path: Sequence[str | int]) -> int | None:
        """The line (from 1) on which the key at `path` is written; None when it is not in the text."""
        node, line = self._root, None
        for part in path:
            node, line = _child(node, part)
            if node is None:
                return None
        return line


def parse_yaml(text: str, *, name: str, compose: bool = False) -> Any:
    """The data of `text` (its node tree if `compose`). Raises `ConfigError` with line and column."""
    try:
        return parse_yaml_text(text, RecipeLoader, compose=compose)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from None
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}, line {line}: not valid YAML: {error.reason}.") from None


def describe(value: Any) -> str:
    """A value as a message shows it: as YAML would write it, bounded."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return f"a section with the keys {', '.join(map(str, value))}" if value else "an empty section"
    if isinstance(value, bool):
        return str(value).lower()
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, int | None]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    return None, None
