"""From the section `rollouts` of a recipe to the engine that samples the policy's answers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from greenward.algorithms.callbacks import Callback
from greenward.config.recipe import ReinforcementRecipe
from greenward.config.rollouts import RolloutsConfig
from greenward.environments.episode import Episode
from greenward.errors import ConfigError, EngineError
from greenward.policies.engine import RolloutEngine, SamplingParams
from greenward.policies.policy import Policy
from greenward.policies.vllm_engine import DeviceTransfer, FileTransfer, VLLMEngine
from greenward.policies.vllm_forms import SERVE, VLLM, Colocated, Server
from greenward.policies.vllm_plugin import FILE_TRANSFER
from greenward.recipes.build import build_renderer
from greenward.recipes.tasks import CodeTasks, Tasks
from greenward.runs.directory import RunDirectory


def check_rollouts(config: RolloutsConfig) -> None:
    """Raises `ConfigError` for what cannot be here, `EngineError` for a server that does not answer."""
    if config.differs and (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"rollouts: engine {config.engine} with max_staleness {config.max_staleness} works with "
            f"one training process, found {processes}.",
            remedy="Start one process, or set rollouts.engine=native and rollouts.max_staleness=0.",
        )
    if (config.engine == "vllm" or config.transfer != "file") and find_spec("vllm") is None:
        raise ConfigError(
            f"rollouts: engine {config.engine} with transfer {config.transfer} needs vLLM, which is not "
            "installed.",
            remedy="pip install 'greenward[vllm]', or without a GPU see docs/vllm.md.",
        )
    if config.engine == "server":
        Server(config.server).check(config.server.model)


def build_engine(
    recipe: ReinforcementRecipe, policy: Policy, tasks: Tasks, run: RunDirectory, stack: ExitStack
) -> tuple[RolloutEngine, Sequence[Callback]]:
    """The engine that plays `policy`, itself where no other is asked for, and what has to follow steps.

    `stack` ends it, `run` records it. Raises `ConfigError` for what it cannot serve.
    """
    config = recipe.rollouts
    if config.engine == "native":
        return policy.frozen_copy() if config.max_staleness else policy, ()
    try:
        place = config.transfer_dir or _memory(2 * 4 * sum(one.numel() for one in policy.parameters()))
        parent = tempfile.TemporaryDirectory(prefix="greenward-weights-", dir=place)
    except OSError as error:
        raise ConfigError(f"rollouts.transfer_dir cannot be written: {error}.") from error
    folder = Path(stack.enter_context(parent)) / "model"
    transfer = FileTransfer(folder) if config.transfer == "file" else DeviceTransfer(config.transfer)
    if config.engine == "server":
        server = Server(config.server)
        length = server.check(config.server.model, policy.tokenizer)
        vllm: VLLM = server
    else:
        length = config.vllm.max_model_len or policy.max_positions
        policy.save(folder)
        vllm = Colocated(
            folder,
            config.vllm,
            dtype=str(policy.dtype).removeprefix("torch."),
            max_model_len=length,
            backend=FILE_TRANSFER if config.transfer == "file" else config.transfer,
        )
    stack.callback(vllm.close)
    engine = VLLMEngine(
        vllm,
        policy.tokenizer,
        transfer,
        max_positions=min(length, policy.max_positions),
        patience_seconds=config.server.patience_seconds if config.engine == "server" else 0.0,
    )
    _check_prompts(recipe, policy, tasks, engine.max_positions)
    try:
        engine.sync(policy)
        engine.sample([[policy.tokenizer.eos_id]], 1, SamplingParams(max_tokens=1), seed=0)
    except EngineError as error:
        raise ConfigError(
            f"vLLM cannot sample with the policy's weights: {error.message}",
            remedy=SERVE if config.engine == "server" else None,
        ) from error
    run.add_provenance(
        rollouts={"engine": config.engine, "transfer": config.transfer, "deterministic": False}
    )
    return engine, [SleepBetween(vllm)] if isinstance(vllm, Colocated) and config.vllm.sleep else []


def _memory(size: int) -> str | None:
    """The folder that is kept in memory, if there is one with room for `size` bytes."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > size else None


@dataclass(eq=False)
class SleepBetween(Callback):
    """Has vLLM give its GPU memory back once the episodes of a step are there."""

    name = "sleep_between"

    vllm: Colocated

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self.vllm.sleep()
        return episodes


def _check_prompts(recipe: ReinforcementRecipe, policy: Policy, tasks: Tasks, max_positions: int) -> None:
    if not isinstance(tasks, CodeTasks) or max_positions == policy.max_positions:
        return
    renderer, tokens = build_renderer(recipe, policy.tokenizer), recipe.sampling.max_tokens
    longest = max(len(renderer.prompt_ids(problem)) for problem in tasks.train)
    if longest + tokens > max_positions:
        raise ConfigError(
            f"the longest prompt has {longest} tokens; with sampling.max_tokens {tokens} that is more "
            f"than the {max_positions} that vLLM serves (max_model_len)."
        )
