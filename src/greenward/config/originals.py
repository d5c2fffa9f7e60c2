"""Says what becomes of each configuration key of other systems: the key here, or why there is none.

One table for each system, `their key -> rows`. A key that its table lacks is reported as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

Given = Mapping[str, Any]
"""All values of the file by dotted key."""


class WithoutCounterpart(Exception):
    """Raised by a `convert` where this value has no counterpart; says why."""


class WrongValue(Exception):
    """Raised by a `convert` for a value that its system would not have taken; says what was expected."""


@dataclass(frozen=True)
class Row:
    """What becomes of one key: it sets `ours` to the converted value, or has no counterpart because of `why`.

    `convert` takes the value and all values of the file, and raises `WithoutCounterpart` or `WrongValue`.
    """

    ours: str | None
    convert: Callable[[Any, Given], Any] | None = None
    why: str = ""


Keys = Mapping[str, tuple[Row, ...]]


@dataclass(frozen=True)
class Original:
    """One system: how its files are told (`marks`), the shipped recipe that they become, and its keys.

    A file is of the system all of whose `marks` it has: a dotted key, a section (`icl.`) or a key with its
    value (`a.b=c`), with `|` between alternatives. `fixed` are keys of ours that hold for every such file.
    """

    title: str
    marks: tuple[str, ...]
    recipe: str
    keys: Keys
    fixed: Mapping[str, Any] = field(default_factory=dict)


def _number(value: Any, low: float = -math.inf) -> float:
    wanted = "a number" if low == -math.inf else f"a number of at least {low:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongValue(wanted)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low:
        raise WrongValue(wanted)
    return number


def _count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WrongValue(f"a whole number of at least {least}")
    return value


def _count_of(given: Given, key: str, default: int) -> int:
    """The whole number of another key; the default where it has none, or a wrong one, which its row says."""
    value = given.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _number_of(given: Given, key: str, default: float) -> float:
    """As `_count_of`, of a number."""
    try:
        return _number(given.get(key))
    except WrongValue:
        return default


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValue("a text")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValue("true or false")
    return value


def number(ours: str) -> tuple[Row, ...]:
    """A row whose value is a number here as there."""
    return (Row(ours, lambda value, _: _number(value)),)


def count(ours: str, least: int = 1) -> tuple[Row, ...]:
    """A row whose value is a whole number here as there."""
    return (Row(ours, lambda value, _: _count(value, least)),)


def text(ours: str) -> tuple[Row, ...]:
    """A row whose value is a text here as there."""
    return (Row(ours, lambda value, _: _text(value)),)


def switch(ours: str) -> tuple[Row, ...]:
    """A row whose value is true or false here as there."""
    return (Row(ours, lambda value, _: _switch(value)),)


def to(ours: str, convert: Callable[[Any, Given], Any]) -> tuple[Row, ...]:
    """A row whose value is converted."""
    return (Row(ours, convert),)


def none(why: str) -> tuple[Row, ...]:
    """A key without a counterpart."""
    return (Row(None, why=why),)


MODELS: Mapping[str, str] = MappingProxyType(
    {
        size.lower(): f"Qwen/Qwen2.5-Coder-{size}-Instruct"
        for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B")
    }
)
"""The pretrained models that short names of sizes stand for."""
DATASETS: Mapping[str, str] = MappingProxyType({"code_bugs": "bugs:families"})
"""The sources of problems that names of data sets stand for."""

_CLASSIC = {"training_problems.json": "classic_training", "eval_problems.json": "classic_evaluation"}
_RUN_DIRECTORY = none("logs and checkpoints are kept in the run directory, which --output names")
_SHOWN = none("what is printed has no influence on the training; --show N prints episodes")
_ALWAYS = none("always so here")
_SERVER = none(
    "greenward starts and stops vLLM itself (rollouts.engine: vllm); for a server: rollouts.server"
)
_NO_REMOTE_CODE = none("the code of a model's repository is never run")


def _installed(package: str, value: Any) -> bool:
    """Whether a switch is on. Raises `WithoutCounterpart` where its package is not installed here."""
    if _switch(value) and find_spec(package) is None:
        raise WithoutCounterpart(f"{package} is not installed here")
    return bool(value)


def _wandb(value: Any, given: Given) -> dict[str, str]:
    if not _installed("wandb", value):
        raise WithoutCounterpart("off, as without the key")
    prefix = given.get("wandb.project_name_prefix")
    return {"mode": "online", "project": prefix if isinstance(prefix, str) else "greenward"}


def _vllm(value: Any, given: Given) -> str:
    return "vllm" if _installed("vllm", value) else "native"


def _of_vllm(check: Callable[[Any, Given], Any]) -> Callable[[Any, Given], Any]:
    """The value of a key that counts where vLLM samples alone."""

    def convert(value: Any, given: Given) -> Any:
        if given.get("vllm.enabled") is not True:
            raise WithoutCounterpart("vllm.enabled is not true")
        if find_spec("vllm") is None:
            raise WithoutCounterpart("vllm is not installed here")
        return check(value, given)

    return convert


def _modules(value: Any, _: Given) -> Any:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise WrongValue("all-linear, or names of layers")
    return "all-linear" if names == ["all-linear"] else [name.strip() for name in names]


def _prompts(prefix: str) -> Callable[[Any, Given], int]:
    """Prompts of a step: answers of a device over its accumulated batches, over answers of a prompt."""

    def convert(value: Any, given: Given) -> int:
        answers = _count(value, 1) * _count_of(given, f"{prefix}gradient_accumulation_steps", 1)
        return max(1, answers // _count_of(given, f"{prefix}num_generations", 8))

    return convert


def _warmup(prefix: str) -> Callable[[Any, Given], int]:
    def convert(value: Any, given: Given) -> int:
        steps = given.get(f"{prefix}max_steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise WithoutCounterpart("a share of steps whose number the file leaves open")
        return round(_number(value, 0) * steps)

    return convert


def _steps(value: Any, _: Given) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise WithoutCounterpart("no number of steps: the recipe's stays; passes over data are not counted")
    return _count(value, 1)


def _schedule(value: Any, _: Given) -> str:
    known = {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
    }
    if (name := known.get(_text(value))) is None:
        raise WithoutCounterpart(f"schedules are {', '.join(sorted(set(known.values())))}")
    return name


def _loss(value: Any, given: Given) -> str:
    losses = ("grpo", "dr_grpo", "dapo", "cispo")
    if _text(value) == "bnpo":
        return "dapo"
    if value not in losses:
        raise WithoutCounterpart(f"losses are {', '.join((*losses, 'gspo'))}")
    by_sequence = given.get("grpo.importance_sampling_level") == "sequence"
    return "gspo" if value == "grpo" and by_sequence else str(value)


def _sequence_level(value: Any, given: Given) -> str:
    if _text(value) == "sequence":
        return "gspo"
    raise WithoutCounterpart("ratios are of tokens unless the loss is gspo")


def _scaled(value: Any, _: Given) -> str:
    if value in (True, "group", "batch"):
        return "grpo"
    if value in (False, "none"):
        return "dr_grpo"
    raise WrongValue("true, false, group, batch or none")


def _dtype(name: str) -> Callable[[Any, Given], str]:
    def convert(value: Any, _: Given) -> str:
        if not _switch(value):
            raise WithoutCounterpart("off: the other key, or model.dtype: auto, decides")
        return name

    return convert


def _betas(first: str, second: str) -> Callable[[Any, Given], list[float]]:
    def convert(value: Any, given: Given) -> list[float]:
        _number(value, 0)
        return [_number_of(given, first, 0.9), _number_of(given, second, 0.999)]

    return convert


def _trainer_keys(prefix: str) -> dict[str, tuple[Row, ...]]:
    """The arguments of TRL's and transformers' trainers, in a section of that prefix."""
    adam = _betas(f"{prefix}adam_beta1", f"{prefix}adam_beta2")
    rows = {
        "learning_rate": number("training.learning_rate"),
        "per_device_train_batch_size": (
            Row("training.micro_batch_sequences", lambda value, _: _count(value, 1)),
            Row("training.prompts_per_step", _prompts(prefix)),
        ),
        "gradient_accumulation_steps": none("in training.prompts_per_step, with the batch size of a device"),
        "generation_batch_size": none("training.prompts_per_step × training.num_generations answers a step"),
        "steps_per_generation": none(
            "each step samples its own answers (rollouts.max_staleness: up to 1 old)"
        ),
        "num_iterations": count("algorithm.updates_per_batch"),
        "num_generations": count("training.num_generations"),
        "max_prompt_length": none("prompts are never cut; `greenward config check` measures them"),
        "max_completion_length": count("sampling.max_tokens"),
        "max_steps": to("training.max_steps", _steps),
        "num_train_epochs": none("training.max_steps and training.max_seconds bound a run"),
        "optim": none("AdamW, whose states are small with model.lora"),
        "adam_beta1": to("training.adam_betas", adam),
        "adam_beta2": to("training.adam_betas", adam),
        "weight_decay": number("training.weight_decay"),
        "max_grad_norm": number("training.max_grad_norm"),
        "warmup_steps": count("training.warmup_steps", 0),
        "warmup_ratio": to("training.warmup_steps", _warmup(prefix)),
        "lr_scheduler_type": to("training.schedule", _schedule),
        "bf16": to("model.dtype", _dtype("bfloat16")),
        "fp16": to("model.dtype", _dtype("float16")),
        "gradient_checkpointing": switch("model.gradient_checkpointing"),
        "gradient_checkpointing_kwargs.use_reentrant": none("checkpoints of layers are never reentrant"),
        "beta": number("algorithm.kl.coefficient"),
        "temperature": number("sampling.temperature"),
        "seed": count("seed", 0),
        "save_steps": count("training.checkpoint_interval_steps"),
        "save_total_limit": count("training.keep_checkpoints"),
        "output_dir": _RUN_DIRECTORY,
        "logging_steps": none("every step is logged"),
        "report_to": none("tracking.wandb, tracking.tensorboard, tracking.trackio or tracking.mlflow"),
        "run_name": none("--output names the run"),
        "log_completions": none("all answers are kept in rollouts/ of the run"),
        "dataloader_pin_memory": none("no data loader: batches are made of sampled answers"),
        "remove_unused_columns": none("rewards see all columns of a problem"),
        "resume_from_checkpoint": none("--resume continues the run in its directory"),
        "disable_dropout": none(
            "dropout is off in training as in sampling, so that their probabilities agree"
        ),
        "use_liger_loss": none("the loss is computed in parts, so that no logits of a whole batch are kept"),
        "label_names": none("silences a warning of another library"),
        "ddp_find_unused_parameters": none("greenward launch decides it"),
        "ddp_bucket_cap_mb": none("greenward launch decides it"),
        "use_vllm": to("rollouts.engine", _vllm),
        "vllm_mode": _SERVER,
        "vllm_server_host": _SERVER,
        "multi_turn": none("the task decides: an agent's episodes have several turns"),
        "mask_tool_responses": none("what tools say is never trained on"),
        "scale_rewards": to("algorithm.advantage", _scaled),
        "loss_type": to("algorithm.loss", _loss),
        "importance_sampling_level": to("algorithm.loss", _sequence_level),
        "epsilon": (
            Row("algorithm.clip_low", lambda value, _: _number(value, 0)),
            Row(
                "algorithm.clip_high", lambda value, given: _number_of(given, f"{prefix}epsilon_high", value)
            ),
        ),
        "epsilon_high": number("algorithm.clip_high"),
    }
    return {f"{prefix}{key}": found for key, found in rows.items()}


def _suite(value: Any, given: Given) -> str:
    """The suite of an evaluation on MBPP: its file, or the part of the version that is asked for."""
    if isinstance(given.get("evaluation.dataset_path"), str):
        return str(given["evaluation.dataset_path"])
    part = given.get("evaluation.test_split", "test")
    if part not in ("test", "validation", "train"):
        raise WrongValue("a test_split of test, validation or train")
    return f"{'mbpp-sanitized' if given.get('evaluation.use_sanitized') else 'mbpp'}:{part}"


def _interval(value: Any, given: Given) -> int:
    if value is not None and given.get("evaluation.enabled_interval", True) is not False:
        return _count(value, 1)
    raise WithoutCounterpart(
        "no evaluation on the way: set evaluation.eval_interval_steps to training.max_steps"
    )


def _final(value: Any, _: Given) -> bool:
    raise WithoutCounterpart(
        "always so here" if _switch(value) else "the evaluation after the last step cannot be left out"
    )


def _suite_temperature(value: Any, given: Given) -> float:
    return 0.0 if given.get("evaluation.do_sample") is False else _number(value, 0)


def _path(value: Any, given: Given) -> str:
    if value is None:
        raise WithoutCounterpart("found by itself: in the cache of data sets, or MBPP_DATASET_PATH")
    _text(value)
    return _suite(value, given)


_MBPP: dict[str, tuple[Row, ...]] = {
    "evaluation.enabled": switch("evaluation.enabled"),
    "evaluation.enabled_initial": switch("evaluation.at_start"),
    "evaluation.eval_at_start": switch("evaluation.at_start"),
    "evaluation.enabled_final": to("", _final),
    "evaluation.eval_at_end": to("", _final),
    "evaluation.enabled_interval": none("in evaluation.eval_interval_steps"),
    "evaluation.eval_interval_steps": to("evaluation.eval_interval_steps", _interval),
    "evaluation.num_questions": (
        Row("evaluation.suites.0.name", _suite),
        Row("evaluation.suites.0.num_questions", lambda value, _: _count(value, 1)),
    ),
    "evaluation.dataset_path": to("evaluation.suites.0.name", _path),
    "evaluation.use_sanitized": to("evaluation.suites.0.name", _suite),
    "evaluation.test_split": to("evaluation.suites.0.name", _suite),
    "evaluation.temperature": (
        Row("evaluation.suites.0.name", _suite),
        Row("evaluation.suites.0.temperature", _suite_temperature),
    ),
    "evaluation.do_sample": none("in the temperature of the suite"),
    "evaluation.timeout_seconds": (
        Row("evaluation.suites.0.name", _suite),
        Row("evaluation.suites.0.timeout_seconds", lambda value, _: _number(value, 0)),
    ),
    "evaluation.max_new_tokens": (
        Row("evaluation.suites.0.name", _suite),
        Row("evaluation.suites.0.max_tokens", lambda value, _: _count(value, 1)),
    ),
    "evaluation.max_memory_mb": none(
        "the original never applied it; sandbox.memory_mb holds for all answers"
    ),
    "evaluation.consistent_questions": _ALWAYS,
    "evaluation.safe_execution": _ALWAYS,
    "evaluation.save_results": _ALWAYS,
    "evaluation.results_dir": none("evaluations/ in the run directory"),
    "evaluation.verbose": _SHOWN,
}

_LORA: dict[str, tuple[Row, ...]] = {
    "lora.r": count("model.lora.r"),
    "lora.lora_alpha": count("model.lora.alpha"),
    "lora.lora_dropout": number("model.lora.dropout"),
    "lora.target_modules": to("model.lora.target_modules", _modules),
    "lora.task_type": none("always a causal language model"),
}

_VLLM: dict[str, tuple[Row, ...]] = {
    "vllm.enabled": to("rollouts.engine", _vllm),
    **{
        f"vllm.{section}{key}": to(f"rollouts.vllm.{ours}", _of_vllm(check))
        for section in ("", "server.")
        for key, ours, check in (
            ("gpu_memory_utilization", "gpu_memory_utilization", lambda value, _: _number(value, 0)),
            ("max_model_len", "max_model_len", lambda value, _: _count(value, 1)),
            ("tensor_parallel_size", "tensor_parallel_size", lambda value, _: _count(value, 1)),
            ("max_num_batched_tokens", "options.max_num_batched_tokens", lambda value, _: _count(value, 1)),
            ("max_num_seqs", "options.max_num_seqs", lambda value, _: _count(value, 1)),
            ("swap_space", "options.swap_space", lambda value, _: _number(value, 0)),
        )
    },
    **{
        f"vllm.{section}{key}": _SERVER
        for section in ("", "server.")
        for key in ("host", "port", "disable_log_requests", "disable_log_stats")
    },
    "vllm.server.dtype": none("model.dtype, which the preset of a GPU without bfloat16 sets to float16"),
    "vllm.server.trust_remote_code": _NO_REMOTE_CODE,
    "vllm.trust_remote_code": _NO_REMOTE_CODE,
    "vllm.server.offline_mode": none("model.offline, which the preset of a cluster sets"),
    "vllm.client.base_url": _SERVER,
    "vllm.client.timeout": _SERVER,
    "vllm.client.max_retries": _SERVER,
    **{
        f"vllm.generation.{use}.{key}": none(
            "answers are sampled by `sampling`, those of a suite by evaluation.suites"
        )
        for use in ("grpo_completions", "mbpp_evaluation")
        for key in ("max_tokens", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop")
    },
    **{
        f"vllm.integration.{key}": none("one engine samples for training and evaluation; its speed is logged")
        for key in (
            *("use_for_grpo_completions", "use_for_evaluation", "auto_start_server", "wait_for_server"),
            *("fallback_to_hf", "log_performance_comparison"),
        )
    },
}

_WANDB: dict[str, tuple[Row, ...]] = {
    "wandb.enabled": to("tracking.wandb", _wandb),
    "wandb.project_name_prefix": none("in tracking.wandb.project; the time is in the name of the run"),
}

_LADDER = {
    "success_with_output": 1.0, "success_no_output": 0.5, "syntax_error": -0.5, "runtime_error": -1.0,
    "timeout_error": -1.0,
}  # fmt: skip


def _ladder(outcome: str) -> Callable[[Any, Given], list[dict[str, Any]]]:
    def convert(value: Any, _: Given) -> list[dict[str, Any]]:
        if _number(value) != _LADDER[outcome]:
            raise WithoutCounterpart(
                f"the term execution_ladder pays {_LADDER[outcome]:g}; other steps are a reward of your own"
            )
        return [{"name": "execution_ladder", "weight": 0.25}, {"name": "tests", "weight": 1.0}]

    return convert


_EXECUTION: dict[str, tuple[Row, ...]] = {
    "dataset.size": none("problems.train says what is trained on; the original repeated one prompt"),
    "execution.timeout": to("sandbox.cpu_seconds", lambda value, _: _number(value, 0)),
    "execution.debug_completions": _SHOWN,
    **{f"rewards.{outcome}": to("rewards", _ladder(outcome)) for outcome in _LADDER},
}


def _games(value: Any, _: Given) -> int:
    return max(2, _count(value, 1))


def _longest(value: Any, given: Given) -> int:
    names = ("max_new_tokens", "generator_max_tokens", "guesser_max_tokens")
    return max(_count_of(given, f"generation.{name}", 1) for name in names)


_SPIRAL_TRAINING: dict[str, tuple[Row, ...]] = {
    "training.num_steps": count("training.max_steps"),
    "training.learning_rate": number("training.learning_rate"),
    "training.learning_rate_scheduler": to("training.schedule", _schedule),
    "training.optimizer": none("AdamW"),
    "training.adam_beta1": to("training.adam_betas", _betas("training.adam_beta1", "training.adam_beta2")),
    "training.adam_beta2": to("training.adam_betas", _betas("training.adam_beta1", "training.adam_beta2")),
    "training.weight_decay": number("training.weight_decay"),
    "training.gradient_clip_norm": number("training.max_grad_norm"),
    "training.batch_size": none("games of a step × their moves"),
    "training.games_per_step_v100": none("the preset of a V100 makes the batches smaller, not the steps"),
    "training.inner_proximal_update_epochs": count("algorithm.updates_per_batch"),
    "training.kl_loss_coefficient": number("algorithm.kl.coefficient"),
    "training.kl_penalty_coefficient": none("the KL is a term of the loss: algorithm.kl.coefficient"),
    "training.policy_clipping_parameter": (
        Row("algorithm.clip_low", lambda value, _: _number(value, 0)),
        Row("algorithm.clip_high", lambda value, _: _number(value, 0)),
    ),
    "training.save_interval": count("training.checkpoint_interval_steps"),
    "training.checkpoint_dir": _RUN_DIRECTORY,
}

_MODEL: dict[str, tuple[Row, ...]] = {
    "model.id": text("model.id"),
    "model.cache_dir": text("model.cache_dir"),
    "seed": count("seed", 0),
}

_CODE_GAME: dict[str, tuple[Row, ...]] = {
    "generator_model.id": text("model.id"),
    "generator_model.cache_dir": text("model.cache_dir"),
    "guesser_model.id": none("the predictor is the policy as it was (code_game.predictor)"),
    "guesser_model.cache_dir": none("the predictor is the policy as it was (code_game.predictor)"),
    "game.timeout": to("sandbox.cpu_seconds", lambda value, _: _number(value, 0)),
    "generation.max_new_tokens": to("sampling.max_tokens", _longest),
    "generation.guesser_max_tokens": to("sampling.max_tokens", _longest),
    "generation.generator_max_tokens": (
        Row("code_game.max_program_tokens", lambda value, _: _count(value, 1)),
        Row("sampling.max_tokens", _longest),
    ),
    "generation.temperature": number("sampling.temperature"),
    "generation.top_p": number("sampling.top_p"),
    "generation.top_k": to("sampling.top_k", lambda value, _: max(0, _count(value, -1))),
    "generation.do_sample": _ALWAYS,
    **{
        f"icl.{key}": none("the predictor has no memory of games in its prompt; code_game.predictor: league")
        for key in ("memory_size", "refresh_every", "snapshot_max", "p_latest")
    },
    "dataset.size": none("programs are written anew at each step"),
    **{
        f"debug.{key}": _SHOWN
        for key in (
            *("show_detailed_games", "max_code_chars", "show_full_responses", "show_execution_details"),
            "show_all_games",
        )
    },
    "training.games_per_step": count("training.prompts_per_step"),
    "training.games_per_step_other": count("training.prompts_per_step"),
    "training.rae_alpha": none("in the game of code the answers to one prompt are the baseline (GRPO)"),
    "training.discount_factor": none("each player moves once, so there is nothing to discount"),
}


def _rounds(value: Any, _: Given) -> int:
    return max(1, round(_count(value, 1) / EPISODES_A_ROUND))


def _updates(value: Any, given: Given) -> int:
    """Updates in so many episodes, as the original updates after every `train_frequency` tokens."""
    steps = _count_of(given, "environment.max_steps", 50)
    return max(1, _count(value, 1) * steps // _count_of(given, "training.train_frequency", 1))


def _shorter(value: Any, given: Given) -> int:
    return min(_count(value, 1), _count_of(given, "environment.max_steps", value))


def _problem_file(value: Any, _: Given) -> str:
    return _CLASSIC.get(PurePosixPath(_text(value)).name, value)


def _device(value: Any, _: Given) -> str:
    if _text(value) == "mps":
        raise WithoutCounterpart("trains on cpu or cuda; Apple's GPU is not used")
    return str(value)


def _greedy(value: Any, _: Given) -> bool:
    raise WithoutCounterpart(
        "always so here: one greedy program a problem, beside evaluation.samples"
        if _switch(value)
        else "evaluation.epsilon is the share of random tokens"
    )


EPISODES_A_ROUND = 50
"""Episodes that the DQN plays side by side (training.episodes_per_step of its recipe)."""
_FROM_THE_PROBLEM = none("follows from the vocabulary and the problems")

_DQN: dict[str, tuple[Row, ...]] = {
    "environment.max_steps": count("environment.max_steps"),
    "environment.vocab_size": count("environment.vocab_size"),
    "environment.render_frequency": to("training.render_every", _rounds),
    "agent.state_dim": _FROM_THE_PROBLEM,
    "agent.action_dim": _FROM_THE_PROBLEM,
    **{
        f"agent.{key}": number(f"algorithm.{key}")
        for key in ("learning_rate", "gamma", "epsilon_start", "epsilon_end", "epsilon_decay", "dropout")
    },
    **{f"agent.{key}": count(f"algorithm.{key}") for key in ("hidden_dim", "buffer_capacity", "batch_size")},
    "agent.min_buffer_size": count("algorithm.learning_starts", 0),
    "agent.target_update_frequency": to("algorithm.target_update_interval", _updates),
    "agent.device": to("training.device", _device),
    "training.num_episodes": count("training.num_episodes"),
    "training.max_timesteps": to("environment.max_steps", _shorter),
    "training.train_frequency": none("updates follow rounds of episodes: training.updates_per_step"),
    "training.eval_frequency": to("evaluation.eval_interval_steps", _rounds),
    "training.save_frequency": to("training.checkpoint_interval_steps", _rounds),
    "training.log_frequency": to("training.log_frequency", _rounds),
    "training.log_dir": _RUN_DIRECTORY,
    "training.checkpoint_dir": _RUN_DIRECTORY,
    "training.save_best_only": none("the best and the newest checkpoints are kept"),
    "reward.type": text("reward.type"),
    **{
        f"reward.{key}": number(f"reward.{key}")
        for key in ("correctness_weight", "quality_weight", "efficiency_weight", "progress_weight")
    },
    "evaluation.num_episodes": count("evaluation.samples"),
    "evaluation.deterministic": to("", _greedy),
    "evaluation.render": none("replay.html of the run shows the programs that it wrote"),
    "data.problems_file": to("problems.train", _problem_file),
    "data.eval_problems_file": to("problems.held_out", _problem_file),
    "seed": count("seed", 0),
    "verbose": switch("training.verbose"),
}


def _known_model(value: Any, _: Given) -> str:
    return MODELS.get(_text(value).lower(), value)


def _known_data(value: Any, _: Given) -> str:
    return DATASETS.get(_text(value), value)


_CODE_FIX: dict[str, tuple[Row, ...]] = {
    "model": to("model.id", _known_model),
    "dataset": (Row("problems.train", _known_data), Row("problems.held_out", _known_data)),
    "learning_rate": number("training.learning_rate"),
    "max_grad_norm": number("training.max_grad_norm"),
    "seed": count("seed", 0),
    "max_steps": count("training.max_steps"),
    "steps": count("training.max_steps"),
    "training_steps": count("training.max_steps"),
    "output_dir": _RUN_DIRECTORY,
}

_NO_HUB = none("greenward push sends a run to the hub when it is asked to")


def _quantized(value: Any, given: Given) -> str:
    if not _switch(value):
        raise WithoutCounterpart("off, as without the key")
    if given.get("model.lora") is False:
        raise WithoutCounterpart("weights in 4 bits are trained by an adapter only")
    if find_spec("bitsandbytes") is None:
        raise WithoutCounterpart("bitsandbytes is not installed here")
    return "4bit"


def _adapter(check: Callable[[Any, Given], Any]) -> Callable[[Any, Given], Any]:
    def convert(value: Any, given: Given) -> Any:
        if given.get("model.lora") is False:
            raise WithoutCounterpart("model.lora is false")
        return check(value, given)

    return convert


def _lora(value: Any, _: Given) -> Any:
    if not _switch(value):
        return None
    raise WithoutCounterpart("in model.lora.r and the other keys of the adapter")


_HYDRA_MODEL: dict[str, tuple[Row, ...]] = {
    "model.model_name": text("model.id"),
    "model.attn_implementation": none("chosen by what the device has"),
    "model.load_in_4bit": to("model.lora.quantize", _quantized),
    "model.unsloth_max_seq_length": none("prompts are never cut, answers by sampling.max_tokens"),
    "model.lora": to("model.lora", _lora),
    "model.lora_dropout": to("model.lora.dropout", _adapter(lambda value, _: _number(value, 0))),
    "model.r": to("model.lora.r", _adapter(lambda value, _: _count(value, 1))),
    "model.lora_alpha": to("model.lora.alpha", _adapter(lambda value, _: _count(value, 1))),
    "model.target_modules": to("model.lora.target_modules", _adapter(_modules)),
}
_HYDRA_RUN: dict[str, tuple[Row, ...]] = {
    "run.wandb_project": none("tracking.wandb.project, with tracking.wandb.mode=online"),
    "run.dataset_type": none(
        "problems.train: bugs:SOURCE, repositories, vulnerabilities, sven, or your files"
    ),
    "run.dataset_name": none(
        "data sets are not shipped: `greenward problems from-source`, or your own files"
    ),
    "run.max_seq_length": none("pairs are never cut"),
    "run.reward_min": none("algorithm.min_reward of algorithm.name: rejection"),
    "run.output_model_name": _NO_HUB,
    "run.push_to_hub": _NO_HUB,
    "run.commit_hash": none("provenance.json of a run has it"),
    "run.resume_training": none("--resume continues the run in its directory"),
    "hydra.job.chdir": none("the run directory is named, not changed to"),
}
_HYDRA_AGENT: dict[str, tuple[Row, ...]] = {
    "agent.model": none("the policy that is trained"),
    "agent.api_base": none("greenward samples itself"),
    "agent.thinking": none("the chat template of the model decides"),
    "agent.token_limit": count("tools.max_tokens"),
    "agent.tool_limit": count("tools.max_calls"),
    "agent.time_limit": number("tools.seconds"),
    "agent.temperature": number("sampling.temperature"),
    "agent.top_p": none("answers that are trained on are sampled from the whole distribution"),
    "agent.top_k": none("answers that are trained on are sampled from the whole distribution"),
    "agent.min_p": none("answers that are trained on are sampled from the whole distribution"),
    "agent.verbose": _SHOWN,
    "agent.log": _SHOWN,
}
_HYDRA = {
    **_HYDRA_MODEL,
    **_HYDRA_RUN,
    **_trainer_keys("grpo."),
    "run.task_type": none("says which recipe this becomes"),
}
_SFT_RENAMED = {
    "training.micro_batch_sequences": None,
    "training.prompts_per_step": None,
    "training.learning_rate": "warm_start.learning_rate",
    "training.max_steps": "warm_start.max_steps",
    "training.weight_decay": "warm_start.weight_decay",
    "training.max_grad_norm": "warm_start.max_grad_norm",
    "training.warmup_steps": "warm_start.warmup_steps",
    "training.schedule": "warm_start.schedule",
}


def _supervised(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Rows of a trainer's argument where the training is supervised."""
    return tuple(Row(_SFT_RENAMED.get(row.ours or "", row.ours), row.convert, row.why) for row in rows)


def _pairs(value: Any, given: Given) -> int:
    return _count(value, 1) * _count_of(given, "sft.gradient_accumulation_steps", 1)


_HYDRA_SFT: dict[str, tuple[Row, ...]] = {
    **_HYDRA_MODEL,
    **_HYDRA_RUN,
    **{key: _supervised(rows) for key, rows in _trainer_keys("sft.").items()},
    "sft.per_device_train_batch_size": to("warm_start.batch_size", _pairs),
    "sft.gradient_accumulation_steps": none("in warm_start.batch_size"),
    "sft.logging_first_step": none("every step is logged"),
    "sft.eval_steps": count("evaluation.eval_interval_steps"),
    "sft.dataset_text_field": none("warm_start.data: JSON lines of {prompt, completion} or {messages}"),
    "sft.dataset_num_proc": none("read in one process"),
    "sft.dataset_kwargs": none("warm_start.data: JSON lines of {prompt, completion} or {messages}"),
    "sft.max_length": none("pairs are never cut"),
    "sft.packing": none("pairs are packed without padding, and none sees another"),
}

_ONE_UPDATE = MappingProxyType({"algorithm.minibatches": 1})
"""One step of the optimizer for the answers of a step, as with gradients that are accumulated."""
_RL_GAMES = {**_MODEL, **_LORA, **_MBPP, **_VLLM, **_WANDB}

ORIGINALS: tuple[Original, ...] = (
    Original(
        "CodeRepairRL, supervised",
        ("sft.num_train_epochs|sft.learning_rate|sft.max_length",),
        "sft",
        _HYDRA_SFT,
    ),
    Original(
        "CodeRepairRL, vulnerability detection",
        ("run.task_type=detection",),
        "grpo_vulnerability",
        _HYDRA,
        fixed=_ONE_UPDATE,
    ),
    Original(
        "CodeRepairRL, repair of functions",
        ("run.task_type=repair",),
        "grpo_code_repair",
        _HYDRA,
        fixed=_ONE_UPDATE,
    ),
    Original(
        "CodeRepairRL, agents in repositories",
        ("grpo.num_generations|grpo.learning_rate|grpo.loss_type|run.task_type",),
        "grpo_agent_repair",
        {**_HYDRA, **_HYDRA_AGENT},
        fixed=_ONE_UPDATE,
    ),
    Original(
        "token-by-token DQN",
        ("agent.gamma|agent.epsilon_start|agent.state_dim|agent.buffer_capacity|data.problems_file",),
        "dqn_code_generation",
        _DQN,
        fixed={"preset": "none"},
    ),
    Original(
        "GRPO, game of code",
        ("generator_model.|icl.|generation.generator_max_tokens", "training_args."),
        "grpo_code_game",
        {**_RL_GAMES, **_trainer_keys("training_args."), **_CODE_GAME, **_SPIRAL_TRAINING},
        fixed=_ONE_UPDATE,
    ),
    Original(
        "SPIRAL, game of code",
        ("generation.generator_max_tokens|game.", "training.num_steps"),
        "grpo_code_game",
        {**_RL_GAMES, **_SPIRAL_TRAINING, **_CODE_GAME},
        fixed={**_ONE_UPDATE, "code_game.predictor": "self", "code_game.phases": None},
    ),
    Original(
        "SPIRAL self-play",
        ("training.rae_alpha|training.games_per_step_other|training.num_steps",),
        "spiral_self_play",
        {
            **_RL_GAMES,
            **_SPIRAL_TRAINING,
            "training.rae_alpha": number("algorithm.baseline_decay"),
            "training.discount_factor": number("algorithm.discount"),
            "training.games_per_step_other": to("training.num_generations", _games),
        },
        fixed={**_ONE_UPDATE, "self_play.games": ["tictactoe"], "training.prompts_per_step": 1},
    ),
    Original(
        "GRPO with execution rewards",
        ("training_args.",),
        "grpo_code_execution",
        {**_RL_GAMES, **_trainer_keys("training_args."), **_EXECUTION},
        fixed=_ONE_UPDATE,
    ),
    Original(
        "MBPP evaluation", ("evaluation.test_split|evaluation.eval_at_start",), "grpo_code_execution", _MBPP
    ),
    Original(
        "PPO code fix (RLDK)", ("model|dataset|learning_rate|max_grad_norm",), "ppo_code_fix", _CODE_FIX
    ),
)
"""The first whose marks a file has is its system."""
PARTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("eval_at_start", "test_split"), "evaluation"),
    (("multi_turn", "importance_sampling_level", "mask_tool_responses"), "grpo"),
)
"""Files that hold one section of their system without its name: keys by which they are told, and the name."""
_GROUPS = ("run", "grpo", "agent", "sft")  # of hydra's tree; `model` is a key of ours


def counterpart(key: str) -> str:
    """What a key of another system is here, or why it is not, in a sentence; empty for a key of none."""
    if key in _GROUPS:
        return (
            f"{key} chooses a file of hydra's: name it in their defaults, and `greenward import` the folder."
        )
    if "." not in key:  # one of a section, whose name was left out, as likely as another system's
        return ""
    rows = [row for original in ORIGINALS for row in original.keys.get(key, ())]
    if ours := dict.fromkeys(row.ours for row in rows if row.ours and row.ours != key):
        return f"{key} is {', '.join(ours)} here."
    return f"{key} has no counterpart here: {rows[0].why}." if rows and rows[0].why else ""
