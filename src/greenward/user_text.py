"""Parsers for the JSON and YAML of users: plain data of bounded depth and size, or an error of the format.

A text can be valid and still exhaust its reader: unclosed brackets fill the stack of a parser, a YAML alias
can contain itself, and a few aliases of aliases stand for billions of values.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MAX_NESTING = 100
MAX_VALUES = 1_000_000  # of a YAML document, each alias counted as what it stands for

RENAMED_KEYS = {("warm_start", "misconception_rate"): "error_rate"}
"""Keys of recipes of earlier versions, by section and key, and their present names."""

_TOO_DEEP = f"nested more than {MAX_NESTING} levels deep"
_CONTAINERS = (list, tuple, dict)  # a tuple is an entry of YAML's `!!omap`


def parse_json_text(text: str | bytes) -> Any:
    """The value of a JSON text, as `json.loads` gives it.

    Raises `ValueError`: `json.JSONDecodeError` for what is not JSON, is nested more than `MAX_NESTING`
    levels deep or holds an integer that Python does not convert; `UnicodeDecodeError`.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text)
        check_nesting(value, text.count("[") + text.count("{"))
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError(_TOO_DEEP, text, 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), text, 0) from None
    return value


def parse_yaml_text(text: str) -> Any:
    """The data of a YAML text, as PyYAML's safe loader builds it, except that `1e-4` is a number.

    Raises `yaml.YAMLError` for what is not YAML, is nested more than `MAX_NESTING` levels deep, contains
    itself, stands for more than `MAX_VALUES` values, names a key twice in one section, or holds a scalar
    that cannot be what its tag says.
    """
    return construct_yaml(compose_yaml(text))


def with_present_names(config: dict[str, Any]) -> dict[str, Any]:
    """A recipe, or the config of a run, whose `RENAMED_KEYS` have their present names."""
    for (section, old), new in RENAMED_KEYS.items():
        values = config.get(section)
        if isinstance(values, dict) and old in values:
            renamed = {new if key == old else key: value for key, value in values.items()}
            config = {**config, section: renamed}
    return config


def compose_yaml(text: str) -> yaml.Node | None:
    """The node tree of a YAML text, whose marks give lines. Raises `yaml.YAMLError`."""
    return _BoundedLoader(text).get_single_node()


def construct_yaml(node: yaml.Node | None) -> Any:
    """The data of a node tree. Raises `yaml.YAMLError` as `parse_yaml_text` does."""
    if node is None:
        return None
    try:
        value = _BoundedLoader("").construct_document(node)
        check_nesting(value, most_values=MAX_VALUES)
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
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=self.get_mark())

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = lines.setdefault(str(key.value), key.start_mark.line + 1)
            if line <= key.start_mark.line:
                problem = f"the key {key.value!r} occurs twice (first on line {line})"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return node


_BoundedLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def check_nesting(value: Any, containers: int = MAX_NESTING + 1, *, most_values: int | None = None) -> None:
    """Raises `ValueError` for containers nested too deep or within themselves, and for too many values.

    `containers` is how many there can be at most, if that is known.
    """
    if containers <= MAX_NESTING:
        return
    measured: dict[int, tuple[int, int]] = {}

    def measure(outer: Any, depth: int) -> tuple[int, int]:
        """The number of values in a container, and its levels."""
        if depth > MAX_NESTING:
            raise ValueError(_TOO_DEEP)
        if id(outer) not in measured:
            entries = outer.values() if isinstance(outer, dict) else outer
            inner = [measure(entry, depth + 1) for entry in entries if isinstance(entry, _CONTAINERS)]
            values = len(outer) + sum(values for values, _ in inner)
            measured[id(outer)] = values, 1 + max((levels for _, levels in inner), default=0)
        return measured[id(outer)]

    values, levels = measure(value, 1) if isinstance(value, _CONTAINERS) else (1, 0)
    if levels > MAX_NESTING:
        raise ValueError(_TOO_DEEP)
    if most_values is not None and values > most_values:
        raise ValueError(f"its aliases stand for more than {most_values} values")
