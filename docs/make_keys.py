"""Writes the keys of recipes and of rules from their JSON Schema: .venv/bin/python docs/make_keys.py"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from greenward.config.loading import PRESETS, Surroundings, schema_json
from greenward.diagnostics.monitor import PRESETS as MONITORS
from greenward.diagnostics.monitor import Rule, Rules

FOLDER = Path(__file__).parent / "keys"
HEAD = """# Keys of recipes

`docs/make_keys.py` writes this page from the classes of `greenward.config` and of the tasks.
`greenward config schema` prints the same as JSON Schema,
`greenward config show RECIPE` the values of a recipe.
[Configuration](../configuration.md) says how they are given.
"""
RULES = """# Keys of rules

`docs/make_keys.py` writes this page from the classes of a monitor's rules.
[Monitor](../monitor.md#two-kinds-of-alarms) has an example.
"""
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}

Schema = Mapping[str, Any]


def page() -> str:
    """A table for each section; where tasks or algorithms have sections of one name, for each of these."""
    definitions: Schema = json.loads(schema_json())["$defs"]
    recipes = {name: one for name, one in definitions.items() if "task" in one["properties"]}
    users: dict[str, dict[str, set[tuple[str, str]]]] = {}
    top: dict[str, Schema] = {}
    for recipe in recipes.values():
        user = (recipe["properties"]["task"]["const"], algorithm_of(recipe, definitions))
        plain = {
            key: one for key, one in recipe["properties"].items() if not section_of(one) and key != "task"
        }
        top = plain | top
        for path, name in sections(recipe, definitions):
            users.setdefault(path, {}).setdefault(name, set()).add(user)
    parts = [HEAD, *table("Every recipe", "", top), *owners(users), *presets()]
    for path, classes in users.items():
        for name, of in classes.items():
            others = [user for other, more in classes.items() if other != name for user in more]
            title = f"`{path}`" + (f" of {label(of, others)}" if others else "")
            parts += table(title, definitions[name].get("description", ""), definitions[name]["properties"])
    return "\n".join(parts) + "\n"


def rules() -> str:
    """The page of a file of rules: a table for its top, for a rule and for each action, and the presets."""
    schema: Schema = Rules.model_json_schema()
    parts = [RULES, *table("The file", Rules.__doc__ or "", schema["properties"])]
    for name in ("Rule", "Webhook", "Mail", "Shell", "Run"):
        one = schema["$defs"][name]
        parts += table(name, one["description"], one["properties"])
    limits = (
        f"- `{name}`: " + ("; ".join(map(limit, preset.rules)) or "the tests alone")
        for name, preset in MONITORS.items()
    )
    return "\n".join([*parts, "## Presets", "", *limits]) + "\n"


def limit(rule: Rule) -> str:
    """What a rule of a preset says."""
    bound = f"above {rule.above:g}" if rule.above is not None else f"below {rule.below:g}"
    actions = ", ".join(map(str, rule.actions))
    return f"`{rule.signal}` {bound} ({rule.aggregate} of {rule.window}, {rule.severity}: {actions})"


def owners(users: Mapping[str, Mapping[str, set[tuple[str, str]]]]) -> list[str]:
    """The lines of the table of sections of the top: the tasks and algorithms whose recipes have each."""
    found = {path: set().union(*classes.values()) for path, classes in users.items() if "." not in path}
    every = set().union(*found.values())
    lines = ["## Who has which section", "", "| section | recipes |", "|---|---|"]
    for path, of in found.items():
        by_tasks: dict[tuple[str, ...], list[str]] = {}
        for name in sorted({algorithm for _, algorithm in of}):
            by_tasks.setdefault(tuple(sorted(task for task, by in of if by == name)), []).append(name)
        rows = "; ".join(f"{', '.join(tasks)} by {', '.join(names)}" for tasks, names in by_tasks.items())
        lines.append(f"| `{path}` | {'all' if of == every else rows} |")
    return [*lines, ""]


def presets() -> list[str]:
    """The lines of the table of presets: a row for each key, a column for each preset."""
    keys = dict.fromkeys(key for one in PRESETS.values() for key in one)
    names = [name for name, one in PRESETS.items() if one]
    rows = (
        [f"`{key}`", *(f"`{PRESETS[name][key]}`" if key in PRESETS[name] else "" for name in names)]
        for key in keys
    )
    head = ["key", *(f"`{name}`" for name in names)]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    said = (inspect.getdoc(Surroundings) or "").rpartition("\n\n")[2]
    return ["## Presets", "", "`model.id` is that of a recipe which says `auto`.", "", *lines, "", said, ""]


def label(of: set[tuple[str, str]], others: list[tuple[str, str]]) -> str:
    """The algorithms whose recipes have the section, or its tasks where these tell it from `others`."""
    algorithms = {algorithm for _, algorithm in of}
    tasks = {task for task, _ in of}
    if algorithms & {algorithm for _, algorithm in others}:
        return ", ".join(sorted(tasks)) + (
            "" if algorithms == {"grpo"} else f" by {', '.join(sorted(algorithms))}"
        )
    return ", ".join(sorted(algorithms))


def algorithm_of(recipe: Schema, definitions: Schema) -> str:
    """The name of the algorithm of a recipe."""
    name = definitions[section_of(recipe["properties"]["algorithm"])]["properties"]["name"]
    return str(name.get("const", name["default"]))


def sections(one: Schema, definitions: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, name of the class) of each section below `one`, parents first."""
    for key, value in one["properties"].items():
        if name := section_of(value):
            yield f"{path}{key}", name
            yield from sections(definitions[name], definitions, f"{path}{key}.")


def section_of(value: Schema) -> str:
    """The class of a key that is a section, or a list of sections; "" of any other."""
    for one in (
        value,
        value.get("items", {}),
        *value.get("anyOf", ()),
        *value.get("items", {}).get("anyOf", ()),
    ):
        if "$ref" in one:
            return str(one["$ref"]).rpartition("/")[2]
    return ""


def table(title: str, text: str, keys: Mapping[str, Schema]) -> list[str]:
    """The lines of a section: its heading, its text and a row for each key."""
    lines = [
        f"## {title}",
        "",
        *([text, ""] if text else []),
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for key, value in keys.items():
        cells = (f"`{key}`", kind(value), default(value), value.get("description", "").replace("\n", " "))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def kind(value: Schema) -> str:
    """What a value may be: its type with bounds, or the words that it may be."""
    if section_of(value):
        return "list of sections" if value.get("type") == "array" else "section"
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(kind(one) for one in value["anyOf"]))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{one}`" for one in value.get("enum", [value.get("const")]))
    name = value.get("type", "any")
    if name == "array":
        return f"list of {kind(value.get('items', {}))}"
    bounds = ", ".join(form.format(value[bound]) for bound, form in BOUNDS.items() if bound in value)
    return f"{'mapping' if name == 'object' else name} {bounds}".strip()


def default(value: Schema) -> str:
    """The default as JSON; empty for sections, whose own tables have theirs."""
    found = value.get("default")
    if "default" not in value or isinstance(found, dict):
        return ""
    return f"`{json.dumps(found, ensure_ascii=False)}`" if not section_of(value) or found is None else ""


PAGES = {"README.md": page, "rules.md": rules}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")
