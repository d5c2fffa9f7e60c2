"""Recipe text as a tree of YAML nodes, into which overrides are grafted: every value knows its origin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from greenward.errors import ConfigError
from greenward.user_text import compose_yaml, construct_yaml

KeyPath = tuple[str | int, ...]
Override = tuple[KeyPath, yaml.Node]

_NULL = "tag:yaml.org,2002:null"
_OVERRIDE = "Override "


def compose(text: str, name: str) -> yaml.Node:
    """The tree of a YAML document. `name` stands for the text in messages.

    Raises `ConfigError` with line and column when the text is not YAML.
    """
    with _yaml_errors(name, text):
        return compose_yaml(text, name) or yaml.ScalarNode(_NULL, "", _mark(name))


def construct(tree: yaml.Node) -> Any:
    """The data of a tree, as PyYAML's safe loader builds it. Raises `ConfigError`."""
    with _yaml_errors(tree.start_mark.name):
        return construct_yaml(tree)


def parse_override(text: str) -> Override:
    """Path and value of `a.b.c=value`, the value as YAML; `model=NAME` is short for `model.id=NAME`.

    Raises `ConfigError` when there is no `=`, no key, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(
            f"Override {text!r}: expected key=value, for example training.max_steps=50.",
            remedy="Keys are dotted; entries of a list are numbered from 0: rewards.0.weight=2.",
        )
    path = tuple(int(part) if part.isdigit() else part for part in parts)
    tree = compose(value, f"{_OVERRIDE}{describe(text)}")
    is_name = isinstance(construct(tree), str)
    return ("model", "id") if path == ("model",) and is_name else path, tree


def child(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """Where the key `part` of a section (or the entry of a list) is written, and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if key.value == str(part):
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    return None


def place_of(tree: yaml.Node, path: KeyPath) -> str:
    """How a message names the place of a key: `Override 'a=b'`, `file, line 3`, or the file."""
    node, mark = tree, None
    for part in path:
        found = child(node, part)
        if found is None:
            return tree.start_mark.name
        mark, node = found
    if mark is None or mark.name.startswith(_OVERRIDE):
        return (mark or tree.start_mark).name
    return f"{mark.name}, line {mark.line + 1}"


def is_overridden(tree: yaml.Node, path: KeyPath) -> bool:
    """Whether an override gives the value at `path` or a part of it."""
    node = tree
    for part in path:
        found = child(node, part)
        if found is None:
            return False
        node = found[1]
    return any(inner.start_mark.name.startswith(_OVERRIDE) for inner in _nodes(node))


def _nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    yield node
    for entry in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from _nodes(entry[1] if isinstance(node, yaml.MappingNode) else entry)


def graft(
    node: yaml.Node, path: KeyPath, value: yaml.Node, default: Callable[[KeyPath], str], above: KeyPath = ()
) -> yaml.Node:
    """A copy of the tree with `value` at `path`.

    Missing containers on the way are filled with `default(their path)`, a YAML text. Raises `ConfigError`
    for a key of a plain value and for a number beyond the end of a list.
    """
    if not path:
        return value
    part, blamed = path[0], value.start_mark.name
    if node.tag == _NULL:
        node = compose(default(above), blamed)
    found = child(node, part)
    mark, inner = found or (value.start_mark, yaml.ScalarNode(_NULL, "", value.start_mark))
    new = graft(inner, path[1:], value, default, (*above, part))
    if isinstance(node, yaml.MappingNode):
        others = [entry for entry in node.value if entry[0].value != str(part)]
        key = yaml.ScalarNode("tag:yaml.org,2002:str", str(part), mark if path[1:] else value.start_mark)
        return yaml.MappingNode(node.tag, [*others, (key, new)], node.start_mark, node.end_mark)
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(
            f"{blamed}: {dotted(above)} is {describe(construct(node))}, which has no keys of its own."
        )
    length = len(node.value)
    if not isinstance(part, int) or part > length:
        raise ConfigError(
            f"{blamed}: {dotted(above)} is a list of {length}: "
            f"expected a number from 0 to {length}, found {part!r}."
        )
    entries = [*node.value[:part], new, *node.value[part + 1 :]]
    return yaml.SequenceNode(node.tag, entries, node.start_mark, node.end_mark)


def leaves(node: yaml.Node, path: KeyPath = ()) -> Iterator[Override]:
    """The plain values, lists and empty sections of a tree, with their paths."""
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from leaves(value, (*path, key.value))
    else:
        yield path, node


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


def dotted(path: KeyPath) -> str:
    """The path as users write it."""
    return ".".join(map(str, path))


def _mark(name: str) -> yaml.Mark:
    return yaml.Mark(name, 0, 0, 0, None, 0)


@contextmanager
def _yaml_errors(name: str, text: str = "") -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from None
    except yaml.reader.ReaderError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}, line {line}: not valid YAML: {error.reason}.") from None
