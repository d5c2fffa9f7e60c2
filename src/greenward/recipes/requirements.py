"""What a training needs beside its recipe: checked before anything is loaded or written."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib.machinery import PathFinder
from pathlib import Path

from greenward.algorithms import distributed
from greenward.config.recipe import (
    AnyRecipe,
    CodeRecipe,
    DQNRecipe,
    ModelRecipe,
    PolicyGradientRecipe,
    ReinforcementRecipe,
    SupervisedRecipe,
)
from greenward.config.sections import GENERATED_CORPUS, ModelConfig, RewardTermConfig, TrainingConfig
from greenward.errors import ConfigError, RewardError
from greenward.grading.reward_terms import make_reward
from greenward.platforms.detection import is_writable
from greenward.policies.adapter import check_lora
from greenward.policies.checkpoint import holding, local_folder, read_shape
from greenward.policies.devices import check_training_dtype, resolve_device
from greenward.problems.catalog import check_source
from greenward.recipes.build import read_token
from greenward.recipes.rollouts import check_rollouts
from greenward.recipes.suites import HELD_OUT
from greenward.recipes.supervised_data import check_pairs
from greenward.runs.trackers import check_trackers


def check_needs(recipe: AnyRecipe, given: Collection[str] = (), functions: Collection[str] = ()) -> None:
    """Raises the error of what a training by `recipe` needs and has not.

    `given` names the sets of problems and `functions` the reward functions that the caller has himself. What
    only shows when files are read, models are fetched or functions are imported is not found here.
    """
    if isinstance(recipe, SupervisedRecipe):
        data = recipe.warm_start.data
        if data is None:
            raise ConfigError(
                "kind: sft trains on your own pairs: warm_start.data is not set.",
                remedy="Set warm_start.data=pairs.jsonl, one {prompt, completion} or {messages} on each "
                f"line, or warm_start.data={GENERATED_CORPUS} for the corpus that is generated from the "
                "problems.",
            )
        if data != GENERATED_CORPUS:
            check_pairs(Path(data))
    check_trackers(recipe.tracking.model_dump())
    if recipe.sandbox.http is not None:
        read_token(recipe.sandbox.http)
    if isinstance(recipe, ModelRecipe):
        _check_model(recipe.model)
    sources = {"train": recipe.problems.train, "held_out": recipe.problems.held_out}
    suites = [suite.name for suite in recipe.evaluation.suites if recipe.evaluation.enabled]
    for source in (
        *(source for name, source in sources.items() if name not in given),
        *(suite for suite in suites if suite != HELD_OUT),
    ):
        check_source(source)
    if isinstance(recipe, ReinforcementRecipe):
        check_rollouts(recipe.rollouts)
    if isinstance(recipe, CodeRecipe):
        for term in recipe.rewards:
            if term.name not in functions:
                _check_reward(term)


def _check_model(model: ModelConfig) -> None:
    check_training_dtype(model.dtype, resolve_device(model.device))
    shape = None
    if model.id is not None and (folder := local_folder(model.id)):
        shape = read_shape(holding("config.json", folder))
    elif model.id and model.cache_dir and not model.offline and not is_writable(Path(model.cache_dir)):
        raise ConfigError(
            f"model.cache_dir {model.cache_dir} cannot be written.",
            remedy="Name a folder of your own, or set model.offline=true if the model is there already.",
        )
    if model.lora is not None:
        check_lora(model.lora, native=model.id is None or shape is not None)


def check_processes(recipe: AnyRecipe) -> None:
    """Raises `ConfigError` for a recipe that the processes which train together cannot train."""
    count, held = distributed.size(), distributed.sharding()
    if count == 1:
        if held != "ddp":
            raise ConfigError(
                f"{held} shares the weights out over processes, and there is one process.",
                remedy="Launch several (--processes 2), or train without a launcher.",
            )
        return
    wrong = None
    training = recipe.training
    if isinstance(recipe, DQNRecipe):
        raise ConfigError(f"{count} processes cannot train this recipe: kind dqn trains in one.")
    if isinstance(training, TrainingConfig) and training.prompts_per_step < count:
        wrong = f"training.prompts_per_step is {training.prompts_per_step}, fewer than the {count} processes"
    elif isinstance(recipe, PolicyGradientRecipe) and recipe.faults.planted:
        wrong = "faults are planted in one process only"
    elif held != "ddp" and recipe.model.lora is not None:
        wrong = f"model.lora trains few weights, which {held} need not share out (--config ddp can)"
    elif recipe.model.device.startswith("cuda:"):
        wrong = f"model.device is {recipe.model.device}, and each process needs a device of its own (auto)"
    elif held != "ddp" and isinstance(training, TrainingConfig) and training.weight_average:
        wrong = f"training.weight_average is of whole weights, and {held} shares them out"
    elif held != "ddp" and recipe.kind == "self_play":
        wrong = f"kind: self_play measures whole gradients of the roles, and {held} shares them out"
    elif held == "zero3" and recipe.kind == "ppo":
        wrong = "DeepSpeed clips one gradient by one norm, and kind: ppo has two (--config fsdp2 can)"
    elif held == "fsdp2" and os.environ.get("FSDP_VERSION", "2") != "2":
        wrong = "the file for Accelerate names FSDP 1 (fsdp_version: 2 is what can be used)"
    elif os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        wrong = "the file for Accelerate asks for weights in the memory of the processor (offload)"
    elif held == "zero3" and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3") != "3":
        wrong = "the file for Accelerate names another stage of ZeRO than 3"
    if wrong is not None:
        raise ConfigError(f"{count} processes cannot train this recipe: {wrong}.")


def _check_reward(term: RewardTermConfig) -> None:
    """Of a function, only whether its top module exists: to import it runs it."""
    if ":" not in term.name:
        make_reward(term)
        return
    package = term.name.partition(":")[0].partition(".")[0]
    built_in = package in sys.builtin_module_names
    if not built_in and PathFinder.find_spec(package, [os.getcwd(), *sys.path]) is None:
        raise RewardError(
            f"{term.name}: there is no module {package!r}.",
            remedy="Name a module of the current folder or an installed one, as module:function.",
        )
