"""Every documented command that names a pretrained model resolves to settings that suit one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from greenward.config import loading
from greenward.config.loading import parse_recipe, shipped_recipes
from greenward.config.recipe import (
    PolicyGradientRecipe,
    PPORecipe,
    Recipe,
    RejectionRecipe,
    SupervisedRecipe,
    is_from_random_weights,
)

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "configs").glob("*.yaml")),
)
LANGUAGE_MODELS = sorted(name for name in shipped_recipes() if name != "dqn_code_generation")
COMMAND = re.compile(r"greenward (?:train|config show|config check) ((?:\\\n|[^\n`#])*)")
MODEL = re.compile(r"\bmodel(?:\.id)?=(\S+)")


def load_recipe(name: str, overrides: list[str]) -> Recipe:
    """As on a machine with an A100; the presets of others are compared in test_presets.py."""
    return loading.load_recipe(name, overrides, machine=lambda: loading.Surroundings("a100"))


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(recipe, overrides) of each command in `text` that names a model."""
    found = []
    for match in COMMAND.finditer(text):
        words = shlex.split(re.sub(r"\\\n#?", " ", match[1]))
        if any(MODEL.match(word) for word in words):
            found.append((words[0], [word for word in words[1:] if re.match(r"[\w.]+=", word)]))
    return found


def documented() -> list[tuple[str, str, list[str]]]:
    return [(page.name, *command) for page in PAGES for command in commands(page.read_text("utf-8"))]


def unsuitable(recipe: Recipe) -> list[str]:
    """What in a resolved recipe does not suit a pretrained model."""
    supervised = recipe.warm_start
    answers = recipe.evaluation.num_questions * recipe.evaluation.samples
    larger = 1 if recipe.model.lora is None else 10  # rates of an adapter
    faults = {
        "dtype": recipe.model.dtype not in ("bfloat16", "float16"),  # the latter on a V100
        "gradient checkpointing": recipe.model.gradient_checkpointing is False,
        "token limit": recipe.sampling.max_tokens < 512,
        "temperature": recipe.sampling.temperature != 1.0,
        "evaluation": answers > 400 or max(recipe.evaluation.k) > recipe.evaluation.samples,
        "time of an answer": recipe.sandbox.cpu_seconds < 2 or recipe.sandbox.wall_seconds < 5,
    }
    if isinstance(recipe, SupervisedRecipe):
        faults["learning rate"] = supervised is None or not 1e-6 <= supervised.learning_rate / larger <= 5e-5
    else:
        supervises = isinstance(recipe, RejectionRecipe)  # of its own answers, at a rate of fine-tuning
        rate = recipe.training.learning_rate / larger
        # 3e-4 of an adapter is measured in docs/real_models.md.
        highest = 5e-5 if supervises or recipe.model.lora is not None else 5e-6
        faults["learning rate"] = not (1e-6 if supervises else 1e-7) <= rate <= highest
        faults["warm start"] = supervised is not None
        faults["micro batch"] = recipe.training.micro_batch_sequences > 16
        if isinstance(recipe, PolicyGradientRecipe):
            faults["KL"] = not 0 < recipe.algorithm.kl.coefficient <= 0.1
        if isinstance(recipe, PPORecipe):
            faults["critic"] = (recipe.algorithm.critic.learning_rate or rate) > 2e-5
    return [name for name, wrong in faults.items() if wrong]


def an_earlier_run(folder: Path, model_id: str | None = None) -> None:
    (folder / "checkpoints" / "step_000001").mkdir(parents=True)
    (folder / "checkpoints" / "last").symlink_to("step_000001")
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": {"id": model_id}}))


def test_the_pages_name_models_in_commands() -> None:
    assert {recipe for _, recipe, _ in documented()} >= {
        "quickstart",
        "grpo_code_execution",
        "ppo_code_fix",
        "sft",
    }
    assert "README.md" in {page for page, _, _ in documented()}


@pytest.mark.parametrize(("page", "name", "overrides"), documented())
def test_every_documented_command_suits_the_model_that_it_names(
    page: str, name: str, overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for override in overrides:
        if (model := MODEL.match(override)) and model[1].startswith("runs/"):
            an_earlier_run(tmp_path / model[1].partition("/checkpoints")[0])
    recipe = load_recipe(name, overrides)
    assert recipe.model.id is not None
    if not is_from_random_weights(recipe.model.id):
        assert unsuitable(recipe) == []


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.parametrize("key", ["model", "model.id"])
@pytest.mark.parametrize("model", ["owner/name", "."])
def test_every_shipped_recipe_suits_a_pretrained_model_and_a_local_folder(
    name: str, key: str, model: str
) -> None:
    assert unsuitable(load_recipe(name, [f"{key}={model}"])) == []


def test_a_command_with_toy_settings_would_be_found() -> None:
    text = "```bash\ngreenward train quickstart model.id=some/model \\\n    pretrained=null seed=3\n```"
    ((name, overrides),) = commands(text)
    assert overrides == ["model.id=some/model", "pretrained=null", "seed=3"]
    assert {"learning rate", "token limit", "warm start"} <= set(unsuitable(load_recipe(name, overrides)))


def test_a_run_from_random_weights_keeps_its_settings(tmp_path: Path) -> None:
    toy, tuned, continued = tmp_path / "toy", tmp_path / "tuned", tmp_path / "continued"
    an_earlier_run(toy)
    an_earlier_run(tuned, "Qwen/Qwen2.5-0.5B")
    an_earlier_run(continued, str(toy))
    for model in (toy, toy / "checkpoints" / "last", toy / "checkpoints" / "step_000001", continued):
        recipe = load_recipe("quickstart", [f"model={model}"])
        assert (recipe.warm_start is not None, recipe.sampling.max_tokens) == (True, 64)
    for model in (tuned, tuned / "checkpoints" / "last", tmp_path):
        assert unsuitable(load_recipe("quickstart", [f"model={model}"])) == []


def test_runs_that_name_each_other_are_no_endless_loop(tmp_path: Path) -> None:
    an_earlier_run(tmp_path / "a", str(tmp_path / "b"))
    an_earlier_run(tmp_path / "b", str(tmp_path / "a"))
    assert not is_from_random_weights(str(tmp_path / "a"))


def test_a_folder_with_a_hostile_recipe_is_no_run(tmp_path: Path) -> None:
    an_earlier_run(tmp_path)
    for text in ("[" * 5000, "model: {id: 2024-99-99}", "model: &a [*a]"):
        (tmp_path / "config.yaml").write_text(text)
        assert not is_from_random_weights(str(tmp_path))


def test_a_learning_rate_that_nobody_set_suits_the_model(tmp_path: Path) -> None:
    own = "warm_start: {data: pairs.jsonl}"
    named = parse_recipe(own, ["model=owner/name"])
    assert named.warm_start is not None
    assert (named.warm_start.learning_rate, named.training.learning_rate) == (2e-5, 1e-6)
    warmed = load_recipe("grpo_code_execution", ["model=owner/name", "warm_start.data=pairs.jsonl"])
    assert warmed.warm_start is not None
    assert warmed.warm_start.learning_rate == 2e-5
    said = parse_recipe("training: {learning_rate: 3.0e-4}", ["model=owner/name"])
    assert said.training.learning_rate == 3e-4
    an_earlier_run(tmp_path)
    for model in ("null", str(tmp_path)):
        toy = parse_recipe(own, [f"model.id={model}"])
        assert toy.warm_start is not None
        assert (toy.warm_start.learning_rate, toy.training.learning_rate) == (3e-3, 2.5e-4)
