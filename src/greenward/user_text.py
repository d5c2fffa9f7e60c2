"""JSON and YAML that users hand in: plain data of bounded depth, or an error of the format.

A text can be valid and still end its reader: brackets without end exhaust the stack of a parser, a
YAML alias can contain itself, and a few aliases of aliases stand for billions of values.
"""

from __future__ import annotations

import json
from typing import Any

MAX_NESTING = 100
MAX_VALUES = 1_000_000  # of a YAML document, each alias counted as what it stands for

_TOO_DEEP = f"nested more than {MAX_NESTING} levels deep"


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


def parse_yaml_text(text: str, loader: Any = None, *, compose: bool = False) -> Any:
    """The data of a YAML text (its node tree if `compose`), by PyYAML's safe loader or another one.

    Raises `yaml.YAMLError` for what is not YAML, is nested more than `MAX_NESTING` levels deep, contains
    itself, stands for more than `MAX_VALUES` values, or holds a scalar that cannot be what its tag says.
    """
    import yaml

    loader = type("BoundedLoader", (_Bounded, loader or yaml.SafeLoader), {})
    try:
        if compose:
            return yaml.compose(text, loader)
        value = yaml.load(text, loader)
        check_nesting(value)
        _check_size(value)
    except yaml.YAMLError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise yaml.MarkedYAMLError(problem=str(error)) from None
    return value


class _Bounded:
    """Has a loader of PyYAML end at its limit of nesting, for it takes quadratic time to get deeper."""

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        self._demand(self.flow_level)  # type: ignore[attr-defined]
        super().fetch_flow_collection_start(token_class)  # type: ignore[misc]

    def add_indent(self, column: int) -> Any:
        self._demand(len(self.indents))  # type: ignore[attr-defined]
        return super().add_indent(column)  # type: ignore[misc]

    def _demand(self, depth: int) -> None:
        import yaml

        if depth > MAX_NESTING:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=self.get_mark())  # type: ignore[attr-defined]


def check_nesting(value: Any, containers: int = MAX_NESTING + 1) -> None:
    """Raises `ValueError` for lists, tuples (of YAML's `!!omap`) and objects nested too deep, or within
    themselves.

    `containers` is how many there can be at most, if that is known.
    """
    if containers <= MAX_NESTING:
        return
    deepest: dict[int, int] = {}
    waiting = [(value, 1)]
    while waiting:
        outer, depth = waiting.pop()
        if isinstance(outer, dict):
            outer = outer.values()
        elif not isinstance(outer, (list, tuple)):
            continue
        if depth > MAX_NESTING:
            raise ValueError(_TOO_DEEP)
        for inner in outer:
            if isinstance(inner, (list, tuple, dict)) and deepest.get(id(inner), 0) <= depth:
                deepest[id(inner)] = depth + 1
                waiting.append((inner, depth + 1))


def _check_size(value: Any) -> None:
    sizes: dict[int, int] = {}

    def size(outer: Any) -> int:
        if not isinstance(outer, (list, tuple, dict)):
            return 1
        if id(outer) not in sizes:
            sizes[id(outer)] = 1 + sum(map(size, outer.values() if isinstance(outer, dict) else outer))
        return sizes[id(outer)]

    if size(value) > MAX_VALUES:
        raise ValueError(f"its aliases stand for more than {MAX_VALUES} values")
