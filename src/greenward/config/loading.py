"""Loads recipes from YAML with overrides and presets, explains their errors, and expands grids of sweeps.

An override is `key=value`, the key dotted, the value in YAML. The last one for a key wins. Quote what the
shell would interpret (`[`, `*`, spaces).

- A list: `'evaluation.k=[1,4]'`. One entry, counted from 0: `rewards.0.weight=2`. One more:
  `rewards.1.name=code_quality`.
- An optional section, on or off: `tracking.wandb.project=mine`, `warm_start=null`. A section as a value
  (`'algorithm={name: ppo}'`) replaces the whole section.
- `model=NAME` is short for `model.id=NAME`, `algorithm=ppo` for `algorithm.name=ppo`.

After an override of `task` or `algorithm.name`, keys and values of the file that only its own task or
algorithm has are left out; what both have keeps the file's value: `greenward train quickstart algorithm=ppo`
has the loss `dapo` of the file, not PPO's default. A key that an override gives and the recipe does not have
is an error. A recipe that extends another is treated likewise: sections are merged key by key, lists are
replaced as a whole.

In a grid of a sweep, `seed=0..4` are whole numbers (also mixed, `seed=0..2,7`), and commas within brackets
and quotes do not separate: `evaluation.k=[1],[1,4]` are two lists.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from greenward.common.errors import ConfigError
from greenward.common.files import read_file
from greenward.common.yaml_text import MAX_YAML_CHARS, compose_yaml, construct_yaml, yaml_text
from greenward.config.originals import counterpart
from greenward.config.recipe import ModelRecipe, Recipe, is_from_random_weights
from greenward.config.sections import OwnFunction
from greenward.config.upgrade import EXTENDS, PRETRAINED, upgrade
from greenward.tasks import DEFAULT_TASK, TASKS, recipes_of_task

AUTO = "auto"
_MOST_BASES = 20
_ABSENT = object()
_BFLOAT16 = {"model.dtype": "bfloat16", "evaluation.num_questions": 100, "model.id": "Qwen/Qwen2.5-3B"}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cpu": {
        "model.dtype": AUTO,
        "training.micro_batch_sequences": 8,
        "evaluation.num_questions": 20,
        "model.id": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    },
    "v100": {
        "model.dtype": "float16",
        "training.micro_batch_sequences": 4,
        "model.lora": {"r": 16},
        "evaluation.num_questions": 40,
        "model.id": "Qwen/Qwen2.5-1.5B",
    },
    "a100": {"training.micro_batch_sequences": 8, **_BFLOAT16},
    "h100": {"training.micro_batch_sequences": 16, **_BFLOAT16},
    "none": {},
}
"""What each preset gives, by dotted key. `v100`: GPUs without bfloat16, of 16 to 32 GiB."""
_TRACKED = ("a100", "h100")
"""The presets with which runs are mirrored on W&B, where there is a key."""


class Surroundings(NamedTuple):
    """What recipes take from the machine that they are loaded on.

    `preset` is the one that suits its GPU, `offline` why there is no connection ("" where there is one),
    `cache` the folder that then holds models ("" for the usual one), and `wandb` whether W&B has a key here.

    Every preset but `none` sets `model.offline`, with W&B off and the folder `./model_cache` where there is
    one, if `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE` is set (`HF_HUB_OFFLINE=0` says that there is a
    connection), the site is MIT Supercloud, the host name matches a pattern in
    `GREENWARD_OFFLINE_HOSTS` (`node*,*.gpu.cluster`), or there is neither a default route nor a proxy.
    `greenward doctor` names the reason. W&B is on (`tracking.wandb.mode=online`) with the presets
    `a100` and `h100` where the package is installed and there is a key: `WANDB_API_KEY`, in a `.env` as
    well, or an entry in `~/.netrc`.
    """

    preset: str
    offline: str = ""
    cache: str = ""
    wandb: bool = False

    def values(self, preset: str) -> dict[str, Any]:
        """What follows from them, by dotted key, with the preset that a recipe names."""
        if self.offline:
            return {
                "model.offline": True,
                "tracking.wandb": None,
                **({"model.cache_dir": self.cache} if self.cache else {}),
            }
        return {"tracking.wandb": {"mode": "online"}} if self.wandb and preset in _TRACKED else {}


_OF_SURROUNDINGS = ("model.offline", "tracking.wandb", "model.cache_dir")


def with_preset(
    text: RecipeText, made: type[Recipe], pretrained: bool, machine: Callable[[], Surroundings] | None
) -> RecipeText:
    """The recipe with the preset's value for each of its keys that is not set, or set to `auto`.

    `preset: auto` is that of `machine`, or `cpu` where the recipe asks for that device; with any preset but
    `none`, what follows from the machine's connection and keys is given, too. A model from random weights has
    no preset: there, as with `preset: none`, keys that are `auto` get their defaults.
    `preset_keys` records the keys that have their values from a preset; in the recorded config of a run they
    keep these until an override names the key, or another preset. Raises `ConfigError` for
    `model.id: auto` without a preset.
    """
    name = text.data.get("preset", AUTO)
    here = machine() if pretrained and machine and name != "none" else None
    if pretrained and name == AUTO:
        name = "cpu" if _value(text.data, "model.device") == "cpu" else here.preset if here else "none"
    values = dict(PRESETS.get(name, {})) if pretrained and isinstance(name, str) else {}
    values |= here.values(name) if here else {}
    place = f"preset {name}"
    recorded = text.data.get("preset_keys") if isinstance(text.data.get("preset_keys"), list) else None
    earlier = [key for key in recorded or () if not text.is_overridden(key_path(str(key)))]
    given = set(earlier)
    for key in dict.fromkeys((*(key for preset in PRESETS.values() for key in preset), *_OF_SURROUNDINGS)):
        chosen_anew = key in earlier and text.is_overridden(("preset",))
        asked = AUTO if chosen_anew else _value(text.data, key, absent=_ABSENT)
        if asked not in (_ABSENT, AUTO):
            continue
        path = key_path(key)
        if key in values and field_at(made, path) is not None:
            text = text.with_value(path, values[key], place, {})
            given.add(key)
        elif asked == AUTO and key == "model.id":
            raise ConfigError(
                f"{text.place_of(path)}: model.id is auto, which needs a preset, found preset: {name}.",
                remedy="Name a model, or set preset to v100, a100, h100 or cpu.",
            )
        elif asked == AUTO and key != "model.dtype":  # for which auto is a value of its own
            section, own = map(str, path)
            others = {other: value for other, value in text.data[section].items() if other != own}
            text = replace(text, data={**text.data, section: others})
    if given or (pretrained and machine):
        text = text.with_value(("preset",), name, place, {})
    if given or recorded:
        text = text.with_value(("preset_keys",), sorted(given), place, {})
    return text


def _value(data: Any, key: str, *, absent: Any = None) -> Any:
    """The value of a key, None in a section that is null, and `absent` where the recipe does not name it."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return None if data is None else absent
        data = data[part]
    return data


def preset_line(recipe: Recipe) -> str | None:
    """What the preset of a recipe gave, for people; None where it gave nothing."""
    if not isinstance(recipe, ModelRecipe) or not recipe.preset_keys:
        return None
    data = recipe.model_dump(mode="json")
    given = ", ".join(f"{key}={json.dumps(_value(data, key))}" for key in recipe.preset_keys)
    return f"Preset {recipe.preset}: {given}. Overrides win; preset=none leaves all of it out."


KeyPath = tuple[str | int, ...]


class Keyword(str):
    """The override that a keyword of a Python call stands for; messages show the keyword."""

    written: str

    def __new__(cls, key: str, value: Any) -> Keyword:
        """Raises `TypeError` for a value that is no number, text, list or mapping of such."""
        made = super().__new__(cls, f"{key}={json.dumps(value)}")
        section, *inner = key.split(".")
        shown = describe(value)
        for part in reversed(inner):
            shown = f"{{{part!r}: {shown}}}"
        made.written = f"{section}={shown}"
        return made


_OVERRIDE = "Override "
_NAMED: KeyPath = ("evaluation", "suites")
"""A list whose entries may be names alone."""
_SHORT: Mapping[str | int, str] = {"model": "id", "algorithm": "name"}
"""The key that an override means which gives a section one text."""


@dataclass(frozen=True)
class RecipeText:
    """The data of a YAML document called `name`, with overrides, and the place of each key."""

    name: str
    data: Any
    places: Mapping[KeyPath, str]

    @classmethod
    def read(cls, text: str, name: str) -> RecipeText:
        """Raises `ConfigError` with line and column when the text is not YAML."""
        try:
            node = compose_yaml(text)
            data = construct_yaml(node)  # before anything walks the nodes, which may contain themselves
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f"{name}, line {mark.line + 1}, column {mark.column + 1}" if mark else name
            raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from None
        except yaml.reader.ReaderError as error:  # a character that YAML does not allow
            line = text.count("\n", 0, error.position) + 1
            raise ConfigError(f"{name}, line {line}: not valid YAML: {error.reason}.") from None
        return cls(name, data, {path: f"{name}, line {line}" for path, line in _lines(node)})

    @classmethod
    def read_recipe(cls, text: str, name: str) -> RecipeText:
        """As `read`; raises `ConfigError` for a document that is no section as well."""
        source = cls.read(text, name)
        if not isinstance(source.data, dict | None):
            raise ConfigError(f"{name}: expected keys and values, found {describe(source.data)}.")
        data = source.data or {}
        short = {key: {name: data[key]} for key, name in _SHORT.items() if isinstance(data.get(key), str)}
        return replace(source, data=data | short)

    def place_of(self, path: KeyPath) -> str:
        """How a message names the place of a key, or else of its section: an override, or file and line."""
        prefixes = (path[:end] for end in range(len(path), 0, -1))
        return next((self.places[prefix] for prefix in prefixes if prefix in self.places), self.name)

    def place_of_named(self, path: KeyPath, message: str) -> str:
        """The place of the given key under `path` that a message names, an override before a line.

        The place of `path` itself where the message names no key that was given.
        """
        words = set(re.findall(r"[\w.]+", message))
        below = {key: place for key, place in self.places.items() if key[: len(path)] == path}
        named = [place for key, place in below.items() if {str(key[-1]), dotted(key)} & words]
        return min(named, key=lambda place: not place.startswith(_OVERRIDE), default=self.place_of(path))

    def is_overridden(self, path: KeyPath) -> bool:
        """Whether an override gives the value at `path` or a part of it."""
        places = (place for key, place in self.places.items() if key[: len(path)] == path)
        return any(place.startswith(_OVERRIDE) for place in places)

    def with_override(self, text: str, defaults: Mapping[str, Any]) -> RecipeText:
        """The recipe with `a.b.c=value` applied, the value as YAML; see `with_value`.

        `model=NAME` is short for `model.id=NAME`, and `algorithm=NAME` for `algorithm.name=NAME`. Raises
        `ConfigError` when there is no `=`, no key, or a value that is not YAML.
        """
        key, equals, value = text.partition("=")
        if not equals or not all(map(str.strip, key.split("."))):
            raise ConfigError(
                f"Override {text!r}: expected key=value, for example training.max_steps=50.",
                remedy="Keys are dotted; entries of a list are numbered from 0: rewards.0.weight=2.",
            )
        place = f"{_OVERRIDE}{text.written if isinstance(text, Keyword) else describe(text)}"
        data = RecipeText.read(value, place).data
        path = key_path(text)
        if len(path) == 1 and path[0] in _SHORT and isinstance(data, str):
            path = (*path, _SHORT[path[0]])
        if path == ("algorithm",) and isinstance(data, dict):  # other settings, of the same algorithm
            named = {"name": name} if (name := _identity_of(self.data)[1]) is not None else {}
            data = named | data
        return self.with_value(path, data, place, defaults)

    def with_value(self, path: KeyPath, value: Any, place: str, defaults: Mapping[str, Any]) -> RecipeText:
        """The recipe with `value` at `path`, which `place` gives.

        Missing sections on the way are made; `defaults` fills missing lists, by dotted key. Raises
        `ConfigError` for a key of a plain value and for a number beyond the end of a list.
        """

        def put(old: Any, depth: int) -> Any:
            above, part = path[:depth], path[depth] if depth < len(path) else None
            if part is None:
                return value
            if old is None:
                old = defaults.get(dotted(above), {})
            if isinstance(old, str) and above[:-1] == _NAMED:
                old = {"name": old}
            if isinstance(old, dict):
                return {**old, str(part): put(old.get(str(part)), depth + 1)}
            if not isinstance(old, list):
                found = f"{describe(old)}, which has no keys of its own"
                raise ConfigError(f"{place}: {dotted(above)} is {found}.")
            if not isinstance(part, int) or part > len(old):
                expected = f"a number from 0 to {len(old)}, found {part!r}"
                raise ConfigError(f"{place}: {dotted(above)} is a list of {len(old)}: expected {expected}.")
            return [*old[:part], put(dict(enumerate(old)).get(part), depth + 1), *old[part + 1 :]]

        others = {key: given for key, given in self.places.items() if key[: len(path)] != path}
        on_the_way = {path[:end]: place for end in range(1, len(path) + 1)}
        return replace(self, data=put(self.data, 0), places=on_the_way | others)


def key_path(override: str) -> KeyPath:
    """The path that an override sets."""
    parts = (part.strip() for part in override.partition("=")[0].split("."))
    return tuple(int(part) if part.isdigit() else part for part in parts)


def leaves(section: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The plain values, lists and empty sections in a section, with their paths."""
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def describe(value: Any) -> str:
    """A value as a message shows it: as YAML would write it, bounded."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, dict):
        return f"a section with the keys {', '.join(map(str, value))}" if value else "an empty section"
    shown = json.dumps(value) if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def dotted(path: KeyPath) -> str:
    """The path as users write it."""
    return ".".join(map(str, path))


def _lines(node: yaml.Node | None, path: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    """The path and line (from 1) of every key and list entry."""
    entries: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        entries = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(number, value, value) for number, value in enumerate(node.value)]
    for part, key, value in entries:
        yield (*path, part), key.start_mark.line + 1
        yield from _lines(value, (*path, part))


_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "model": "a section (keys and values)",
    "dict": "a section (keys and values)",
}
_MOST_COUNTERPARTS = 3  # of an unknown section that one line tells
_MOST_MISTAKES = 20  # that one error tells; to look for the nearest key takes milliseconds each


@cache
def fields_of(made: type[Recipe]) -> dict[str, FieldInfo]:
    """The fields of a recipe by dotted key, sections included, in order. List entries have the index 0."""
    return dict(_fields(made, ""))


def field_at(made: type[Recipe], path: KeyPath) -> FieldInfo | None:
    """The field of a recipe that `path` leads to, or into where its value is data of the user's."""
    fields = fields_of(made)
    parts = ["0" if isinstance(part, int) else part for part in path]
    if parts[-1:] == ["0"]:
        parts.pop()
    found = [field for end in range(1, len(parts) + 1) if (field := fields.get(".".join(parts[:end])))]
    is_whole = ".".join(parts) in fields
    return found[-1] if found and (is_whole or _section_in(found[-1].annotation) is None) else None


@cache
def all_recipes() -> dict[tuple[str, str], type[Recipe]]:
    """The recipe classes of all tasks that come with greenward, by task and name of the algorithm."""
    return {(task, name): made for task in TASKS for name, made in recipes_of_task(task).items()}


def recipe_class(data: Mapping[str, Any]) -> type[Recipe] | None:
    """The class of a recipe with these keys; None for a task or an algorithm that there is not."""
    task, name = _identity_of(data)
    try:
        recipes = recipes_of_task(task)
    except ConfigError:
        return None
    return recipes.get(next(iter(recipes)) if name is None else str(name))


def _needs(made: type[Recipe], path: KeyPath, value: Any = _ABSENT) -> str:
    """What a recipe has to name to have a key, and this choice of it; empty where none has it."""
    task, _ = identity(made)
    having = [
        key
        for key, other in all_recipes().items()
        if field_at(other, path) is not None and (value is _ABSENT or _is_choice(other, path, value))
    ]
    own = [f"algorithm.name: {name}" for other, name in having if other == task]
    return " or ".join(own or dict.fromkeys(f"task: {other}" for other, _ in having))


def identity(made: type[Recipe]) -> tuple[str, str]:
    """The task and the name of the algorithm of a recipe class."""
    algorithm: Any = made.model_fields["algorithm"].annotation
    return made.model_fields["task"].default, algorithm.model_fields["name"].default


def only_keys_of(
    made: type[Recipe],
    data: dict[str, Any],
    keep: Callable[[KeyPath], bool] = lambda path: False,
    path: KeyPath = (),
    others: Collection[type[Recipe]] | None = None,
) -> dict[str, Any]:
    """`data` without the keys and choices that only `others` have, unless `keep(their path)`.

    None are the recipes of all tasks.
    """
    kept = {}
    for key, value in data.items():
        here = (*path, key)
        is_ours = _has(made, here, value, _choices(made, here)) or keep(here)
        if not is_ours:  # of most data everything is; to ask for the recipes of others imports all tasks
            having = all_recipes().values() if others is None else others
            is_ours = not any(_has(one, here, value, _choices(made, here)) for one in having)
        if is_ours:
            kept[key] = only_keys_of(made, value, keep, here, others) if isinstance(value, dict) else value
    return kept


def _has(made: type[Recipe], path: KeyPath, value: Any, choices: Collection[Any]) -> bool:
    """Whether a recipe has a key and, where one of these `choices` is expected, takes this name for it."""
    is_name = isinstance(value, str) and bool(choices)
    return field_at(made, path) is not None and (not is_name or _is_choice(made, path, value))


def explain(error: ValidationError, text: RecipeText, made: type[Recipe]) -> ConfigError:
    """One `ConfigError` with a line for each of the first mistakes, in the order of the config classes."""
    mistakes = error.errors(include_url=False)
    messages = [_message(item, text, made) for item in mistakes[:_MOST_MISTAKES]]
    if len(mistakes) > _MOST_MISTAKES:
        messages.append(f"and {len(mistakes) - _MOST_MISTAKES} more")
    return ConfigError("\n".join(messages))


def _message(item: Any, text: RecipeText, made: type[Recipe]) -> str:
    path: KeyPath = tuple(item["loc"])
    problem, context, value = item["type"], item.get("ctx", {}), item["input"]
    place, key = text.place_of(path), dotted(path)
    if problem == "extra_forbidden":
        if needed := _needs(made, path):
            own = ", algorithm.name: ".join(identity(made))
            return f"{place}: {key} needs {needed}; this recipe has task: {own}."
        return f"{place}: unknown key {key}.{_elsewhere(key, value) or _nearest(_nearest_keys(made, path))}"
    if problem == "value_error":
        place = text.place_of_named(path, str(context["error"]))
        return f"{place}: {key and key + ': '}{context['error']}."
    if problem == "missing":
        if len(path) == 1 and (field := field_at(made, path)):
            what = " with algorithm.name: ".join(identity(made))
            return f"{place}: task: {what} needs the section {key} ({field.description})."
        return f"{place}: the key {key} is missing."
    message = re.sub(r"^(Input should be|\w+ should have) | after validation.*", "", item["msg"])
    expected, hint = _EXPECTED.get(problem.split("_")[0], message), ""
    if message.startswith(("greater", "less")):
        expected = f"a number {message}"
    elif problem == "literal_error":
        expected, hint = _one_of(_choices(made, path)), ""
        if needed := _needs(made, path, value):
            hint = f" It needs {needed}."
        else:
            hint = _nearest(get_close_matches(str(value), _choices(made, path), n=1))
            if _is_choice(made, path, "module:function"):
                hint += " Your own: 'module:function'."
    return f"{place}: {key}: expected {expected}, found {describe(value)}.{hint}"


def _one_of(choices: Sequence[Any]) -> str:
    return " or ".join(map(repr, choices)).replace(" or ", ", ", len(choices) - 2)


def _choices(made: type[Recipe], path: KeyPath) -> tuple[Any, ...]:
    field = field_at(made, path)
    parts = (field.annotation, *get_args(field.annotation)) if field else ()
    return tuple(choice for one in parts if get_origin(one) is Literal for choice in get_args(one))


def _is_choice(made: type[Recipe], path: KeyPath, value: Any) -> bool:
    """Whether a choice of names has this value, or takes functions of the user's and this names one."""
    field = field_at(made, path)
    takes_own = field is not None and OwnFunction in get_args(field.annotation)
    return value in _choices(made, path) or (takes_own and ":" in str(value))


def _elsewhere(key: str, value: Any) -> str:
    """What an unknown key, or the first ones of an unknown section, is here where other systems have it."""
    keys = [dotted((key, *inner)) for inner, _ in leaves(value)] if isinstance(value, dict) else [key]
    found = filter(None, map(counterpart, keys))
    return "".join(f" {sentence}" for sentence in islice(found, _MOST_COUNTERPARTS))


def _nearest(names: list[str]) -> str:
    return f" Nearest: {', '.join(names)}." if names else ""


def _nearest_keys(made: type[Recipe], path: KeyPath) -> list[str]:
    """Up to three known keys that `path` may have meant: of the same section, else of the same name."""
    *section, mistyped = ["0" if isinstance(part, int) else part for part in path]
    prefix = "".join(f"{part}." for part in section)
    keys = [(key, key.rpartition(".")[2]) for key in fields_of(made)]
    beside = [name for key, name in keys if key == prefix + name]
    if names := get_close_matches(mistyped, beside, n=3, cutoff=0.72):
        return [dotted((*path[:-1], name)) for name in names]
    if names := get_close_matches(mistyped, [name for _, name in keys], n=1, cutoff=0.8):
        return [key for key, name in keys if name == names[0]][:3]
    for (task, name), other in all_recipes().items():
        if same := [key for key in fields_of(other) if key.rpartition(".")[2] == mistyped]:
            return [f"{key} (task: {task}, algorithm.name: {name})" for key in same[:3]]
    return get_close_matches(dotted(path), fields_of(made), n=3, cutoff=0.6)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section inside `X`, `X | None`, `tuple[X, ...]` or `Annotated[X, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield prefix + name, field
        inner = _section_in(field.annotation)
        if inner is not None:
            entry = ".0." if get_origin(field.annotation) is tuple else "."
            yield from _fields(inner, f"{prefix}{name}{entry}")


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, machine: Callable[[], Surroundings] | None = None
) -> Recipe:
    """The recipe in the YAML file at `path` (or shipped under that name), with `overrides` applied.

    Overrides are `a.b.c=value` with the value as YAML (`training.max_steps=50`, `evaluation.k=[1,4]`,
    `rewards.0.weight=2`); the last one for a key wins, and `model=NAME` is short for `model.id=NAME`. A
    recipe that `extends` another, by name or file, has its keys where it gives none; lists are replaced.
    Values are taken strictly: text is no number. Where a pretrained model is named, the section
    `pretrained` of the file replaces keys before the overrides do; `pretrained=null` leaves it out, and so
    does a model that `is_from_random_weights`. Keys of a pretrained model that are not set, or `auto`, get
    the values of the preset (`with_preset`); `machine` says which one `preset: auto` is; without it, none.

    Keys that only other tasks or algorithms have are errors, with two exceptions: the `config.yaml` of a run
    may be from an earlier version (`upgrade`), and an override of `task` or `algorithm.name` leaves out what
    the file says for its own. A task of the user's own, `module:Class`, is imported, unless the `config.yaml`
    of a run names it, because the run may be a stranger's.

    Raises `ConfigError` naming file and line (or the override), the full dotted key, what was expected
    and what was found; for an unknown key, the nearest known ones.
    """
    file = find_recipe(path)
    source = read_recipe(file)
    recorded = _is_recorded(file)
    if recorded:
        refuse_code(source.data)
    return _resolved(source, overrides, recorded, machine)


def _is_recorded(file: Path) -> bool:
    """Whether the file is the resolved recipe of a run."""
    marks = (file.parent / "checkpoints", file.parent / "provenance.json")
    return file.name == "config.yaml" and any(one.exists() for one in marks)


def read_recipe_file(file: Path) -> str:
    """The text of a recipe. Raises `ConfigError` for a file that cannot be read, and for what is no text."""
    try:
        return read_file(file, 4 * MAX_YAML_CHARS).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text (byte {error.start}).") from None


def read_recipe(file: Path) -> RecipeText:
    """The data of a recipe file. Raises `ConfigError` as `read_recipe_file` and `RecipeText.read_recipe` do.

    Parsing YAML takes most of the time of loading a recipe, and those that are shipped are loaded again and
    again: by a sweep, a demo or a notebook. Each is parsed once, unless its text has changed.
    """
    text = read_recipe_file(file)
    if file.parent != shipped_folder():
        return RecipeText.read_recipe(text, str(file))
    source = _parsed(text, str(file))
    return replace(source, data=deepcopy(source.data))


_parsed = lru_cache(maxsize=64)(RecipeText.read_recipe)


def parse_recipe(
    text: str,
    overrides: Sequence[str] = (),
    *,
    name: str = "recipe",
    machine: Callable[[], Surroundings] | None = None,
) -> Recipe:
    """As `load_recipe`, from text. `name` stands for the file in messages."""
    return _resolved(RecipeText.read_recipe(text, name), overrides, False, machine)


def _resolved(
    source: RecipeText,
    overrides: Sequence[str],
    recorded: bool,
    machine: Callable[[], Surroundings] | None,
) -> Recipe:
    source = replace(source, data=upgrade(source.data)) if recorded else _with_base(source)
    validate = partial(_validate, file=None if recorded else recipe_class(source.data))
    resolved = _overridden(source, overrides)
    section = resolved.data.pop(PRETRAINED, None)
    if not isinstance(section, dict | None):
        place = resolved.place_of((PRETRAINED,))
        raise ConfigError(f"{place}: {PRETRAINED}: expected a section, found {describe(section)}.")
    if section:
        variant, lists = source, _lists(_class_of(resolved))
        for path, value in leaves(section):
            variant = variant.with_value(path, value, resolved.place_of((PRETRAINED, *path)), lists)
        # Checked in any case: a mistake in it must not wait for the day on which a model is named.
        named = _overridden(variant, ["model.id=any"])
        validate(with_preset(named, _class_of(named), True, lambda: Surroundings("cpu")))
        if _is_pretrained(resolved):
            resolved = _overridden(variant, overrides)
    return validate(with_preset(resolved, _class_of(resolved), _is_pretrained(resolved), machine))


def _with_base(source: RecipeText, extending: Sequence[Path] = ()) -> RecipeText:
    """A recipe file with the keys of the recipe that it `extends`, where it has none of its own.

    Where it names another task or algorithm, the keys that only those of the other have are left out. Raises
    `ConfigError` for recipes that extend each other in a circle, and for those of an earlier version.
    """
    if (upgraded := upgrade(source.data)) != source.data:
        changed = [key for key in source.data if upgraded.get(key) != source.data[key]]
        old = "kind" if "kind" in changed else changed[0]
        raise ConfigError(
            f"{source.place_of((old,))}: {old} is of an earlier version"
            + ("; a recipe names its task and algorithm.name." if old == "kind" else "."),
            remedy=f"greenward config upgrade {source.name} rewrites the file.",
        )
    if EXTENDS not in source.data:
        return source
    place, named = source.place_of((EXTENDS,)), source.data[EXTENDS]
    if not isinstance(named, str) or not named:
        expected = "expected the name or the file of a recipe"
        raise ConfigError(f"{place}: {EXTENDS}: {expected}, found {describe(named)}.")
    beside = Path(source.name).parent / named
    file = (beside if beside.is_file() else find_recipe(named)).resolve()
    if file in extending:
        raise ConfigError(f"{place}: {EXTENDS}: {named} extends this recipe in turn.")
    extending = (*extending, Path(source.name).resolve())
    if len(extending) > _MOST_BASES:
        raise ConfigError(f"{place}: {EXTENDS}: more than {_MOST_BASES} recipes extend each other.")
    base = read_recipe(file)
    if _is_recorded(file):
        refuse_code(base.data)
        base = replace(base, data=upgrade(base.data))
    base = _with_base(base, extending)

    def merged(base: RecipeText) -> RecipeText:
        for path, value in leaves({key: one for key, one in source.data.items() if key != EXTENDS}):
            base = base.with_value(path, value, source.place_of(path), {})
        return base

    made = recipe_class(merged(base).data)
    if made is not None and made is not recipe_class(base.data):
        kept = only_keys_of(made, base.data)
        if isinstance(kept.get(PRETRAINED), dict):
            kept[PRETRAINED] = only_keys_of(made, kept[PRETRAINED])
        base = replace(base, data=kept)
    return merged(base)


def _identity_of(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """The task and the algorithm that a recipe names; None stands for the first one of the task."""
    algorithm = data.get("algorithm")
    return data.get("task", DEFAULT_TASK), algorithm.get("name") if isinstance(algorithm, dict) else None


def _class_of(source: RecipeText) -> type[Recipe]:
    """The class of a recipe. Raises `ConfigError` for a task or an algorithm that there is not."""
    task, name = _identity_of(source.data)
    try:
        recipes = recipes_of_task(task)
    except ConfigError as error:
        raise ConfigError(f"{source.place_of(('task',))}: {error.message}", remedy=error.remedy) from None
    if name is None:
        return next(iter(recipes.values()))
    if isinstance(name, str) and name in recipes:
        return recipes[name]
    elsewhere = [other for other, algorithm in all_recipes() if algorithm == name]
    hint = (
        f" task: {elsewhere[0]} has it."
        if elsewhere
        else _nearest(get_close_matches(str(name), recipes, n=1))
    )
    raise ConfigError(
        f"{source.place_of(('algorithm', 'name'))}: algorithm.name: expected {_one_of(tuple(recipes))} with "
        f"task: {task}, found {describe(name)}.{hint}"
    )


def refuse_code(config: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a recorded config whose task would be imported from a module."""
    if names_code(config):
        raise ConfigError(
            f"the run was trained on the task {config['task']}, whose code would be imported and run here.",
            remedy="If you trust that code, copy the config to a file outside of the run and name that.",
        )


def names_code(config: Mapping[str, Any]) -> bool:
    """Whether a recorded config has a task that is imported from a module of somebody's own."""
    return ":" in str(config.get("task", ""))


def _is_pretrained(source: RecipeText) -> bool:
    model = source.data.get("model")
    named = model.get("id") if isinstance(model, dict) else None
    return named is not None and not is_from_random_weights(str(named))


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML, every key written out. Loading it gives an equal recipe."""
    return yaml_text(recipe.model_dump(mode="json"), width=100)


def with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The resolved config of an earlier version, with the defaults of the keys that were added since.

    One that this version cannot read, and one of a task of somebody's own, is returned as it is.
    """
    config = upgrade(config)
    if names_code(config) or (made := recipe_class(config)) is None:
        return config
    try:
        return made.model_validate(only_keys_of(made, config)).model_dump(mode="json")
    except ValidationError:
        return config


def has_key(made: type[Recipe], override: str) -> bool:
    """Whether recipes of this class have the key of an override."""
    return field_at(made, key_path(override)) is not None


def convert(recipe: Recipe, algorithm: str, **changes: Any) -> Recipe:
    """The recipe with another algorithm: the keys that both have, with `changes` to top-level keys."""
    recipes = recipes_of_task(recipe.task)
    made = recipes[algorithm]
    data = recipe.model_dump() | {"algorithm": {"name": algorithm}} | changes
    return made.model_validate(only_keys_of(made, data, others=recipes.values()))


def schema_json() -> str:
    """The JSON Schema of recipes, for editors that complete and check YAML."""
    union: Any = Union[tuple(all_recipes().values())]  # noqa: UP007 - of computed classes
    schema = TypeAdapter(union).json_schema()
    for (task, name), made in all_recipes().items():
        definition = schema["$defs"][made.__name__]
        definition["properties"][PRETRAINED] = {
            "type": "object",
            "description": "keys that replace the others when model.id names a pretrained model",
        }
        definition["properties"][EXTENDS] = {
            "type": "string",
            "description": "a recipe, by name or file, whose keys hold where this one has none",
        }
        if name != next(iter(recipes_of_task(task))):
            definition.setdefault("required", []).append("algorithm")
        if task != DEFAULT_TASK:
            definition.setdefault("required", []).append("task")
    return json.dumps(schema, indent=2)


def shipped_folder() -> Path:
    """The folder of the recipes, and of other settings, that come with greenward."""
    package = Path(__file__).resolve().parents[1]
    beside_source = package.parents[1] / "configs"  # a checkout; a wheel carries them inside
    return package / "configs" if (package / "configs").is_dir() else beside_source


def shipped_recipes() -> dict[str, Path]:
    """The recipes that come with greenward, by name."""
    return {file.stem: file for file in sorted(shipped_folder().glob("*.yaml"))}


def about_recipe(file: Path) -> str:
    """The sentence in the first line of a recipe, a comment, that says what it trains; empty without one."""
    first, _, _ = read_recipe_file(file).partition("\n")
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def find_recipe(path: str | Path) -> Path:
    """The file at `path`, or the shipped recipe of that name (`quickstart`).

    Raises `ConfigError` naming the YAML files beside the missing one and the shipped recipes.
    """
    file, shipped = Path(path), shipped_recipes()
    if file.exists() and not file.is_dir():  # a pipe will do
        return file
    if file.name == str(path) and file.suffix in {"", ".yaml", ".yml"} and file.stem in shipped:
        return shipped[file.stem]
    folder = file if file.is_dir() else file.parent
    candidates = {name: name for name in shipped}
    candidates |= {entry.stem: str(entry) for entry in folder.glob("[!.]*.y*ml") if entry.is_file()}
    near = get_close_matches("recipe" if file.is_dir() else file.stem, candidates, n=3)
    remedy = f"Nearest: {', '.join(map(candidates.__getitem__, near))}."
    raise ConfigError(
        f"{file} is a folder, not a recipe."
        if file.is_dir()
        else f"No recipe at {file}, and none of that name is shipped.",
        remedy=remedy if near else f"Shipped recipes: {', '.join(shipped)}.",
    )


def _overridden(source: RecipeText, overrides: Sequence[str]) -> RecipeText:
    for override in overrides:
        if key_path(override)[0] == "kind":
            raise ConfigError(
                f"{_OVERRIDE}{describe(override)}: there is no key kind; a recipe names its task and "
                "algorithm.name.",
                remedy="Such as algorithm=ppo, or task=self_play.",
            )
        made = recipe_class(source.data)
        source = source.with_override(_of_vllm(override), _lists(made) if made else {})
    return source


def _of_vllm(override: str) -> str:
    """An override of the section `vllm`, which recipes of other projects have, by the keys of this one."""
    key, equals, value = override.partition("=")
    section, _, name = key.strip().partition(".")
    if section != "vllm" or not name:
        return override
    if name == "enabled" and (switch := value.strip().lower()) in ("true", "false"):
        return f"rollouts.engine={'vllm' if switch == 'true' else 'native'}"
    return f"rollouts.vllm.{name}{equals}{value}"


@cache
def _lists(made: type[Recipe]) -> dict[str, Any]:
    """The default of every key that holds a list, by dotted key."""
    fields = {key: field.default for key, field in fields_of(made).items()}
    return {key: to_jsonable_python(value) for key, value in fields.items() if isinstance(value, tuple)}


def _validate(source: RecipeText, *, file: type[Recipe] | None) -> Recipe:
    """Raises `ConfigError`. Keys of other recipes are left out unless the class is that of the `file`."""
    made = _class_of(source)
    data = {"task": made.model_fields["task"].default, **source.data}
    data.pop(PRETRAINED, None)
    data = _with_questions_of_suites(data, made)
    if made is not file:
        data = only_keys_of(made, data, keep=source.is_overridden)
    for name in ("training", "warm_start"):  # `learning_rate: null` is to leave it out
        section = data.get(name)
        if isinstance(section, dict) and section.get("learning_rate", 0) is None:
            data[name] = {key: value for key, value in section.items() if key != "learning_rate"}
    try:
        # JSON in between: strict about types, yet a YAML list may fill a tuple.
        return made.model_validate_json(json.dumps(made.with_own_preset(data), default=str), strict=True)
    except ValidationError as error:
        raise explain(error, source, made) from None


def _with_questions_of_suites(data: dict[str, Any], made: type[Recipe]) -> dict[str, Any]:
    """The data with `evaluation.num_questions` in the place of `num_questions: auto` of its suites."""
    suites = _value(data, "evaluation.suites")
    if not isinstance(suites, list):
        return data
    default = fields_of(made)["evaluation.num_questions"].default
    count = _value(data, "evaluation.num_questions", absent=default)
    asked = [
        {**one, "num_questions": count} if isinstance(one, dict) and one.get("num_questions") == AUTO else one
        for one in suites
    ]
    return {**data, "evaluation": {**data["evaluation"], "suites": asked}}


MAX_RUNS = 1000  # below the largest array that Slurm takes by default
SEED = "seed"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_MAX_NAME = 100


@dataclass(frozen=True)
class GridRun:
    """One run of a grid: its folder below that of the sweep ("" for a grid of one run), and its overrides."""

    folder: str
    overrides: tuple[str, ...]


def grid_runs(overrides: Sequence[str]) -> list[GridRun]:
    """Every combination of the values in `overrides`, the seeds of a combination side by side.

    `key=a,b` and `key=0..4` (whole numbers, both ends included) give a key several values; each is YAML, and
    commas within brackets or quotes do not separate. Runs of one combination are `COMBINATION/seed_N`, as a
    study holds them, where the seed is swept too.

    Raises `ConfigError` for a list with gaps, a range that ends before it begins, a value or a swept key that
    is given twice, and more than `MAX_RUNS` runs.
    """
    paths = (dotted(key_path(override)) for override in overrides)
    given = [f"{path}.{_SHORT[path]}" if path in _SHORT else path for path in paths]
    texts = [_values(override) for override in overrides]
    overrides = [
        override
        if len(values) > 1 or not _RANGE.search(override)
        else f"{override.partition('=')[0]}={values[0]}"
        for override, values in zip(overrides, texts, strict=True)
    ]
    axes: dict[str, list[str]] = {}
    for key, values in zip(given, texts, strict=True):
        if len(values) > 1:
            if given.count(key) > 1:
                raise ConfigError(f"{key} is swept and given once more: give each key once.")
            axes[key] = values
    seeds = axes.pop(SEED, [])
    if (count := prod(map(len, (*axes.values(), seeds or [SEED])))) > MAX_RUNS:
        raise ConfigError(f"the grid has {count} runs; at most {MAX_RUNS} can be run as one sweep.")
    whole = {f"{section}.{name}": str(section) for section, name in _SHORT.items()}
    last = [whole.get(key, key.rpartition(".")[2]) for key in axes]
    short = [part if last.count(part) == 1 else key for key, part in zip(axes, last, strict=True)]
    found: dict[str, GridRun] = {}
    for *chosen, seed in product(*axes.values(), seeds or [SEED]):
        named = ",".join(f"{name}={value}" for name, value in zip(short, chosen, strict=True))
        inner = re.sub(r"[^\w-]+", "_", f"seed_{seed}") if seeds else ""
        folder = "/".join(filter(None, (_folder(named), inner)))
        if folder in found:  # another combination whose name differs in characters that are left out
            folder = "/".join(filter(None, (_folder(named, distinct=True), inner)))
        pairs = dict(zip((*axes, *([SEED] if seeds else [])), (*chosen, seed), strict=False))
        written = (
            f"{override.partition('=')[0].strip()}={pairs[key]}" if key in pairs else override
            for key, override in zip(given, overrides, strict=True)
        )
        found[folder] = GridRun(folder, tuple(written))
    return list(found.values())


def resolved_grid(
    recipe: str, overrides: Sequence[str], *, machine: Callable[[], Surroundings] | None = None
) -> dict[GridRun, Recipe]:
    """The runs of a grid with their recipes; `machine` names the preset as in `load_recipe`.

    Raises `ConfigError` for what `grid_runs` and recipes refuse, and for two combinations that come to the
    same settings.
    """
    resolved: dict[GridRun, Recipe] = {}
    first: dict[str, GridRun] = {}
    for run in grid_runs(overrides):
        resolved[run] = load_recipe(recipe, run.overrides, machine=machine)
        same = first.setdefault(dump(resolved[run]), run)
        if same != run:
            raise ConfigError(f"{same.folder} and {run.folder} come to the same settings: leave one out.")
    return resolved


def _values(override: str) -> list[str]:
    """The texts of the values that an override gives, ranges written out."""
    values: list[str] = []
    for text in _elements(override):
        match = _RANGE.fullmatch(text.strip())
        first, last = map(int, match.groups()) if match else (0, 0)
        if last < first or last - first >= MAX_RUNS:
            fault = "ends before it begins" if last < first else f"has more than {MAX_RUNS} values"
            raise ConfigError(f"{override!r}: the range {text} {fault}.")
        values += map(str, range(first, last + 1)) if match else [text]
    if len(values) > 1 and len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ConfigError(f"{override!r}: the value {twice} is given twice.")
    return values


def _elements(override: str) -> list[str]:
    """The texts between the commas of a value, those within brackets or quotes aside."""
    text = override.partition("=")[2]
    if "," not in text:
        return [text]
    try:
        node = compose_yaml(f"[{text}]")
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode) or text.rstrip().endswith(","):
        raise ConfigError(
            f"{override!r}: expected values with commas between.",
            remedy="Quote a text that holds commas or brackets: 'key=\"a, b\",c'.",
        )
    # Positions count from the bracket that was put before the text.
    return [text[one.start_mark.index - 1 : one.end_mark.index - 1].strip() for one in node.value]


def _folder(combination: str, *, distinct: bool = False) -> str:
    """The folder of a combination; `distinct` ends it with a digest of what the name leaves out."""
    name = re.sub(r"[^\w.,=+-]+", "_", re.sub(r"[\[\]{}\"'\s]+", "", combination), flags=re.ASCII)
    if not distinct and len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME]}-{hashlib.sha256(combination.encode()).hexdigest()[:8]}"
