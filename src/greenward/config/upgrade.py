"""Turns recipes, and the configs that runs recorded, of earlier versions into those of this one.

Before version 0.2 a recipe had one key `kind` in place of `task` and `algorithm.name`, and other names for
some keys: `warm_start.misconception_rate` is `warm_start.error_rate`, `algorithm.importance_cap` is
`algorithm.importance.high`, `vllm.enabled` is `rollouts.engine: vllm`, `environment.tools` is the section
`tools`, and the keys of `rejection` and `agent` (of `kind: dqn`) are in `algorithm`. If supervised training
reads a file of vulnerable functions and their fixes, `task: vulnerability` is to be set by hand. Runs of
earlier versions need no command.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from greenward.common.yaml_text import compose_yaml, construct_yaml, yaml_text

PRETRAINED = "pretrained"
EXTENDS = "extends"
_BETWEEN_SECTIONS = re.compile(r"(?:^(?:#[^\n]*|[ \t]*)\n)*\Z", re.MULTILINE)
_TASKS = {"self_play": "self_play", "code_game": "code_game", "dqn": "token_mdp"}
"""The tasks that had a kind of their own; other kinds are names of algorithms."""


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """The data of a recipe or of a recorded config with the keys of this version; its other keys are kept.

    Data of this version is returned unchanged.
    """
    pretrained = config.get(PRETRAINED)
    pretrained = pretrained if isinstance(pretrained, dict) else {}
    kind = config.get("kind")
    named = [_TASKS.get(str(kind)), _task_of(config), _task_of(pretrained)]
    task = "agent" if "agent" in named else next(filter(None, named), None)
    if kind is None and task and not {"task", EXTENDS} & config.keys():
        kind = "grpo"  # the default, with which a recipe of an earlier version needed no task either
    kind = None if kind is None else str(kind)
    sections = _with_present_sections(config, kind, task)
    if pretrained:
        sections[PRETRAINED] = _with_present_sections(pretrained, kind, task)
    if kind is None:
        return sections
    name = kind if kind not in _TASKS else "dqn" if kind == "dqn" else "grpo"
    algorithm = sections.get("algorithm")
    if algorithm is None or isinstance(algorithm, dict):
        sections["algorithm"] = {"name": name, **(algorithm or {})}
    return {"task": task or "functions", **sections}


def _with_present_sections(config: dict[str, Any], kind: Any, task: str | None) -> dict[str, Any]:
    """A config, or its section `pretrained`, with the keys of this version in all sections."""

    def section(name: str) -> dict[str, Any]:
        value = config.get(name)
        return dict(value) if isinstance(value, dict) else {}

    config = {key: value for key, value in config.items() if key != "kind"}
    warm_start, algorithm, environment = section("warm_start"), section("algorithm"), section("environment")
    if "misconception_rate" in warm_start:
        rate = warm_start.pop("misconception_rate")
        config["warm_start"] = {"error_rate": rate} | warm_start
    if "importance_cap" in algorithm:
        cap = algorithm.pop("importance_cap")
        config["algorithm"] = algorithm | ({} if cap is None else {"importance": {"high": cap}})
    vllm = section("vllm")
    if "enabled" in vllm:
        engine = "vllm" if vllm.pop("enabled") else "native"
        del config["vllm"]
        config["rollouts"] = {"engine": engine, "vllm": vllm} | section("rollouts")
    if kind == "dqn" and "agent" in config:
        config["algorithm"] = config.pop("agent")
    if kind == "rejection" and "rejection" in config:
        kept = section("rejection")
        del config["rejection"]
        config["algorithm"] = section("algorithm") | kept
    if kind not in (None, *_TASKS) and environment:
        tools = environment.pop("tools", None)
        if environment.get("answer") == "function":  # the default of the tasks that still have this key
            del environment["answer"]
        del config["environment"]
        if tools is not None:
            config["tools"] = tools
        elif environment and task not in ("agent", "vulnerability"):  # which ignored the other keys
            config["environment"] = environment
    return config


def _task_of(old: dict[str, Any]) -> str | None:
    """The task of a recipe that named an algorithm at most; None if nothing tells it."""
    environment, problems, rewards = old.get("environment"), old.get("problems"), old.get("rewards")
    environment = environment if isinstance(environment, dict) else {}
    source = str(problems.get("train", "")) if isinstance(problems, dict) else ""
    rewards = rewards if isinstance(rewards, list) else []
    names = {str(one.get("name")) for one in rewards if isinstance(one, dict)}
    if environment.get("tools") is not None:
        return "agent"
    labels = source.partition(":")[0] in ("vulnerabilities", "sven", "primevul")
    if labels or names & {"detection", "weakness", "evidence"}:
        return "vulnerability"
    if source == "modules":
        return "spec"
    if source.startswith(("bugs:", "quixbugs")):
        return "repair"
    answer = environment.get("answer")
    return None if answer is None else "functions" if answer == "function" else "repair"


def upgraded_text(text: str) -> str:
    """The YAML text of a recipe with its sections upgraded; those that stay the same keep their comments.

    Raises `yaml.YAMLError` for what is not YAML, and returns `text` if it is of this version.
    """
    node = compose_yaml(text)
    old = construct_yaml(node)
    if not isinstance(old, dict) or not isinstance(node, yaml.MappingNode):
        return text
    new = upgrade(old)
    if new == old:
        return text
    starts = [key.start_mark.index for key, _ in node.value]
    left = dict(new)
    present = {"kind": "task"} if "task" not in old else {}
    parts = [text[: min(starts, default=None)]]
    for (key, _), start, end in zip(node.value, starts, [*starts[1:], len(text)], strict=True):
        name, section = key.value, text[start:end]
        if name in left and new[name] == old.get(name):
            parts.append(section if section.endswith("\n") else section + "\n")
            del left[name]
            continue
        name = present.get(name, name)
        if name in left:
            parts.append(_section(name, left.pop(name)))
        after = _BETWEEN_SECTIONS.search(section)  # comments before the next section
        parts.append(after[0] if after else "")
    result = "".join((*parts, *(_section(*one) for one in left.items())))
    # A document in one line, or one with references between its sections, is dumped as a whole.
    try:
        if construct_yaml(compose_yaml(result)) == new:
            return result
    except yaml.YAMLError:
        pass
    return yaml_text(new, width=100)


def _section(name: str, value: Any) -> str:
    return yaml_text({name: value}, width=100)
