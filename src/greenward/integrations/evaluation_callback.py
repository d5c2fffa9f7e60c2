"""An evaluation callback for other training loops."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.api import EvaluationResult, evaluate
from greenward.integrations.rewards import problem_set
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer
from greenward.problems.problem import Problem
from greenward.runs.files import write_atomically
from greenward.runs.output import claim_folder

if TYPE_CHECKING:
    TrainerCallback: Any = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object


class EvaluationCallback(TrainerCallback):
    """Evaluates a policy before the first step, every `every` steps and after the last.

    As a callback of a `transformers` or TRL trainer: `Trainer(…, callbacks=[EvaluationCallback(problems)])`.
    In a plain loop: `callback(step, policy)` with step 0 before the first step and after each step; it
    evaluates when `step` is a multiple of `every`, and with `last=True`.

    `results` holds each evaluation by step. `log(step, metrics)` gets plain numbers (`eval/pass@1`,
    `eval/pass@1_low`, …). With `output`, each record is written to `output/step_000020.json`. `options` are
    those of `greenward.evaluate`.
    """

    def __init__(
        self,
        problems: str | Sequence[Problem],
        *,
        every: int = 20,
        output: str | Path | None = None,
        log: Callable[[int, Mapping[str, float]], None] = lambda step, metrics: None,
        **options: Any,
    ) -> None:
        self.results: dict[int, EvaluationResult] = {}
        self._problems = problem_set(problems)
        self._every = every
        self._output = None if output is None else Path(output)
        self._log = log
        self._options = options

    def __call__(self, step: int, policy: Policy, *, last: bool = False) -> EvaluationResult | None:
        """The evaluation of `policy` after `step` steps; None when none is due."""
        if step in self.results or (step % self._every and not last):
            return None
        result = self.results[step] = evaluate(policy, self._problems, **self._options)
        if self._output is not None:
            claim_folder(self._output, "evaluation")
            record = json.dumps(result.summary, indent=1, default=str)
            write_atomically(self._output / f"step_{step:06d}.json", record.encode())
        metrics: dict[str, float] = {}
        for name, one in {**result.metrics, **result.rates}.items():
            metrics |= {f"eval/{name}": one.value, f"eval/{name}_low": one.low, f"eval/{name}_high": one.high}
        self._log(step, metrics)
        return result

    def on_step_end(self, args: Any, state: Any, control: Any, *, last: bool = False, **given: Any) -> None:
        step = int(state.global_step)
        if not state.is_world_process_zero or (step % self._every and not last):
            return
        policy = _wrapped(given["model"], given.get("processing_class") or given["tokenizer"])
        if result := self(step, policy, last=last):
            metrics = {f"eval_{name}": one.value for name, one in result.metrics.items()}
            state.log_history.append({"step": step, **metrics})

    on_train_begin = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.on_step_end(args, state, control, last=True, **given)


def _wrapped(model: Any, tokenizer: Any) -> Policy:
    """A policy over a `transformers` model and its tokenizer. The weights are shared, not copied."""
    from greenward.models.policy import TransformersPolicy

    with tempfile.TemporaryDirectory(prefix="greenward-") as folder:
        tokenizer.save_pretrained(folder)
        model.config.save_pretrained(folder)
        own = Tokenizer.load(folder)
    return TransformersPolicy(model, own, dtype=next(model.parameters()).dtype)
