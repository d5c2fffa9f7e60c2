"""Evaluates a model on a suite: answers are sampled and judged, resumable at every answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from greenward.config.recipe import SelfPlayRecipe
from greenward.config.sections import DType, EvaluationConfig, ModelConfig, Seed
from greenward.environments.agent import AgentPrompts, agent_maker
from greenward.environments.prompts import PromptRenderer, Style
from greenward.errors import ConfigError, ProblemError
from greenward.evaluation.contamination import contamination
from greenward.evaluation.engine import Seconds, evaluate, sampled
from greenward.evaluation.folder import EvaluationFolder
from greenward.evaluation.rows import Sample
from greenward.evaluation.summary import usual_ks
from greenward.grading.edits.answers import PATH, editable_files
from greenward.grading.edits.unified_diff import diff_between, print_diff
from greenward.grading.extraction import Extracted
from greenward.policies.devices import resolve_device
from greenward.policies.endpoint import is_endpoint
from greenward.policies.engine import RolloutEngine, SamplingParams
from greenward.policies.policy import Policy
from greenward.problems.catalog import load_problems
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.suites.mbpp import part_of
from greenward.recipes import suites
from greenward.recipes.build import build_grader, failing_references
from greenward.recipes.evaluation_session import EvaluationSession, GradingOptions
from greenward.recipes.models import FoundModel, ServedModel, find_model
from greenward.runs.files import write_rows
from greenward.runs.progress import Progress

ANSWERS_PER_CHUNK = 128  # sampled in one call, while the chunk before is graded; decides the chunks' seeds
MOST_TOKENS = 512
USUAL_TEMPERATURE = 0.8  # for several answers to a problem; one answer is greedy

PREDICTIONS = "predictions.jsonl"
SERVED = ("concurrency", "request_timeout", "api_key_env")
LOADED = ("checkpoint", "dtype", "device")
_LOADED_ONLY = "concerns models that are loaded here; a server has chosen its own"
_SERVERS_ONLY = "concerns models behind a server (MODEL@URL, or --base-url), and this one is not"


@dataclass(frozen=True)
class AnswerOptions:
    """What is asked and how answers are sampled. None stands for a default that depends on the rest.

    `checkpoint` is the newest of a run; `suite` what a run held out; `temperature` 0 for one answer, else
    0.8; `max_tokens` what the model has room for, at most 512, or as in the run's training for its own
    kind of problem; `seed` 0. `concurrency` (8 requests), `request_timeout` (300 seconds for an answer) and
    `api_key_env` (the environment variable that holds the key) concern models behind a server only, and
    `checkpoint`, `dtype` and `device` all others.
    """

    checkpoint: str | None = None
    suite: str | None = None
    ids: tuple[str, ...] = ()
    limit: PositiveInt | None = None
    samples: int = 1
    temperature: float | None = None
    top_p: float = 1.0
    max_tokens: PositiveInt | None = None
    fewshot: NonNegativeInt = 0
    style: Style | None = None
    seed: Seed | None = None
    dtype: DType | None = None
    device: str | None = None
    skip_bad_rows: bool = False
    concurrency: PositiveInt | None = None
    request_timeout: PositiveFloat | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.temperature or 0) < math.inf or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"expected a temperature of at least 0 and top_p above 0 and up to 1, found "
                f"{self.temperature} and {self.top_p}."
            )

    @property
    def resolved_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return USUAL_TEMPERATURE if self.samples > 1 else 0.0

    def room(self, positions: int, longest_prompt: int) -> int:
        """The tokens of an answer; prompts that leave less than a quarter of the positions get none."""
        return self.max_tokens or min(MOST_TOKENS, max(positions - longest_prompt, positions // 4))


class ModelEvaluation(EvaluationSession):
    """A model and what it is asked, ready to be shown or evaluated.

    Raises the typed errors of `greenward.errors` for a model, suite or combination that cannot be.
    """

    def __init__(self, model: str | ServedModel, options: AnswerOptions) -> None:
        self.options = options
        if isinstance(model, str):
            _refuse(options, _SERVERS_ONLY, *SERVED)
            self.model: FoundModel | ServedModel = find_model(model, options.checkpoint)
        else:
            _refuse(options, _LOADED_ONLY, *LOADED)
            self.model = model
        self.name = self.model.name
        recipe = self.model.recipe
        self._trained_on = None if isinstance(recipe, SelfPlayRecipe) else recipe  # games are not problems
        suite = options.suite or suites.HELD_OUT
        shots = suites.examples_for(suite, options.fewshot)
        asked = suites.find_suite(suite, recipe, skip_bad_rows=options.skip_bad_rows)
        asked = suites.part_of_suite(asked, ids=options.ids, limit=options.limit)
        self.problems = suites.without(asked, shots)
        if not self.problems:
            raise ConfigError(f"{suite}: there is no problem left to evaluate on.")
        self.renderer, stop_strings = suites.renderer_for(
            suite, recipe, self.model.tokenizer, self.problems, style=options.style, shots=shots
        )
        self.tools = suites.agent_tools(recipe, self.problems)
        own = recipe.model if recipe else ModelConfig()
        self.dtype = options.dtype or own.dtype
        self._device = resolve_device(options.device or own.device)
        self.device = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else None
        temperature = options.resolved_temperature
        if temperature == 0 and options.samples > 1:
            raise ConfigError(
                f"--n {options.samples} at temperature 0 draws the same answer {options.samples} times.",
                remedy="Set --temperature above 0, or --n 1.",
            )
        self.notes: list[str] = []
        self.sampling = SamplingParams(
            max_tokens=self._max_tokens(),
            temperature=temperature,
            top_p=options.top_p,
            stop_strings=stop_strings,
        )
        name = self.problems.name
        if left_out := len(asked) - len(self.problems):
            self.notes.append(f"{left_out} problems that serve as examples are left out")
        if name in ("mbpp", "mbpp-sanitized") and {part_of(one.task_id) for one in self.problems} - {"test"}:
            self.notes.append(
                f"{name} holds more than MBPP's test problems; published figures are mostly on {name}:test"
            )
        self.answers = len(self.problems) * options.samples

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """What the model sees of each problem, by task id, special tokens included."""
        decode = self.model.tokenizer.decode
        return {
            problem.task_id: decode(self.renderer.prompt_ids(problem), skip_special_tokens=False)
            for problem in self.problems
        }

    @property
    def prompt_hash(self) -> str:
        """SHA-256, in hex, of all prompts."""
        return sha256("\0".join(self.prompts.values()).encode()).hexdigest()

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """As `EvaluationSession.run`. Raises `ConfigError` for a k above the number of answers."""
        options, sampling = self.options, self.sampling
        if grading.k and max(grading.k) > options.samples:
            raise ConfigError(
                f"pass@{max(grading.k)} needs at least as many answers to each problem; --n is "
                f"{options.samples}."
            )
        prompt_hash, model = self.prompt_hash, self.model
        own: dict[str, Any] = {"model": model.name, "seed": options.seed}
        if isinstance(model, FoundModel):
            own = {"weights": model.weights_hash, "seed": options.seed or 0, "dtype": self.dtype}
        self.settings = {
            "limit": options.limit,
            "ids": list(options.ids),
            "data_hash": self.problems.data_hash,
            **own,
            "n": options.samples,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop_strings),
            "style": self.renderer.style,
            "fewshot": options.fewshot,
            "prompt_hash": prompt_hash,
            **({"tools": self.tools.model_dump()} if self.tools else {}),
        }
        overlap = None
        if self._trained_on is not None:
            section = self._trained_on.problems
            trained = load_problems(section.train, section.families, part="train", bugs=section.bugs)
            overlap = contamination(trained, self.problems)
            self.notes = [*(note for note in self.notes if note != overlap.summary), overlap.summary]
        self.facts = {
            "model": model.to_json(),
            "prompt_hash": prompt_hash,
            "contamination": overlap and overlap.to_json(),
        }
        return super().run(out, grading, progress)

    def source(
        self, folder: EvaluationFolder, problems: ProblemSet, seconds: Seconds
    ) -> Iterable[list[Sample]]:
        assert isinstance(self.model, FoundModel)
        number = self.options.samples
        if all((problem.task_id, i) in folder.samples for problem in problems for i in range(number)):
            return ()  # without loading the weights
        policy = Policy.from_folder(self.model.folder, dtype=self.dtype, device=self._device)
        if self.tools is not None:
            return self.agents(policy, folder, problems, seconds, ANSWERS_PER_CHUNK)
        return sampled(
            folder, policy, self.renderer, problems, number, self.sampling,
            seed=self.options.seed or 0, chunk=ANSWERS_PER_CHUNK, seconds=seconds,
        )  # fmt: skip

    def agents(
        self,
        engine: RolloutEngine,
        folder: EvaluationFolder,
        problems: ProblemSet,
        seconds: Seconds,
        chunk: int,
    ) -> Iterator[list[Sample]]:
        """What agents leave. A repository that fails with its reference is lost to the infrastructure."""
        assert self.tools is not None
        failing = failing_references([one for one in problems if one.reference], self.grader)
        broken = {line.partition(": ")[0]: line for line in failing}
        numbers = range(self.options.samples)
        if lost := [one for one in problems if one.task_id in broken]:
            self.notes.append(f"{len(lost)} repositories fail their tests as they should be: {failing[0]}")
            yield [
                Sample(one, n, "", Extracted(None), lost=broken[one.task_id]) for one in lost for n in numbers
            ]
        make = agent_maker(
            self.grader.executor, self.renderer, self.sampling, self.tools, engine.max_positions
        )
        yield from sampled(
            folder, engine, self.renderer, problems.filter(lambda one: one.task_id not in broken),
            len(numbers), self.sampling, seed=self.options.seed or 0, chunk=chunk, seconds=seconds, make=make,
        )  # fmt: skip

    def facts_of(self, folder: EvaluationFolder) -> dict[str, Any]:
        """Nothing; of agents, the first sample of each repository becomes a row for SWE-bench's harness."""
        if self.tools is not None:
            first = (sample for sample in folder.samples.values() if sample.number == 0)
            write_rows(folder.path / PREDICTIONS, (prediction(one, self.model.name) for one in first))
        return {}

    def _max_tokens(self) -> int:
        lengths = [len(self.renderer.prompt_ids(problem)) for problem in self.problems]
        positions, recipe = self.model.max_positions, self._trained_on
        as_trained = type(self.renderer) in (PromptRenderer, AgentPrompts)
        if recipe is not None and as_trained:
            asked = self.options.max_tokens or recipe.sampling.max_tokens
        elif positions is not None:
            asked = self.options.room(positions, max(lengths))
        else:
            asked = self.options.max_tokens or MOST_TOKENS
        if positions is None:
            return asked
        unanswerable = sum(length + asked > positions for length in lengths)
        if unanswerable == len(lengths):
            raise ConfigError(
                f"no prompt fits: the shortest has {min(lengths)} tokens, and with {asked} for the answer "
                f"that is more than the model's {positions} positions.",
                remedy=f"Lower --max-tokens (to {most}) or --fewshot, or use a model with more positions."
                if (most := positions - min(lengths)) > 0
                else "Use a model with more positions.",
            )
        if unanswerable:
            self.notes.append(f"{unanswerable} prompts are too long for the model and count as not answered")
        return asked


def prediction(sample: Sample, model: str) -> dict[str, Any]:
    """A sample as SWE-bench's harness reads it: `model_patch` is a diff of all that was changed."""
    before, after = editable_files(sample.problem), dict(sample.extracted.files)
    if sample.code is not None:
        after[sample.problem.path or PATH] = sample.code
    changed = {path: text for path, text in after.items() if text != before.get(path)}
    diffs = [diff_between(before.get(path), text, path) for path, text in sorted(changed.items())]
    return {
        "instance_id": sample.problem.task_id,
        "model_name_or_path": model,
        "model_patch": print_diff(diffs) if diffs else "",
    }


def _refuse(options: AnswerOptions, reason: str, *names: str) -> None:
    """Raises `ConfigError` if one of the options of these names is given."""
    for name in names:
        if getattr(options, name) is not None:
            raise ConfigError(f"{name} {reason}.", remedy=f"Leave out --{name.replace('_', '-')}.")


def evaluate_in_memory(
    policy: Policy | str | Path,
    problems: str | Sequence[Problem] | None,
    options: AnswerOptions,
    grading: GradingOptions,
) -> dict[str, Any]:
    """Evaluates a policy, or a model by name, on problems or a suite; the record of `engine.evaluate`.

    Raises `ConfigError` for a model behind a server, and for options that do not apply.
    """
    if isinstance(policy, str) and is_endpoint(policy):
        raise ConfigError("a model behind a server is evaluated on a suite or a file, which are named.")
    _refuse(options, _SERVERS_ONLY, *SERVED)
    if isinstance(policy, Policy):
        _refuse(options, "is settled: the policy is loaded", *LOADED)
    by_name = {"fewshot": options.fewshot, "recheck": grading.recheck, "eval_results": grading.eval_results}
    for name in (name for name, value in by_name.items() if value):
        raise ConfigError(f"{name} concerns a model by name on a suite by name.", remedy="Leave it out.")
    recipe, asked = None, problems if isinstance(problems, str) else suites.HELD_OUT
    if not isinstance(policy, Policy):
        model = find_model(str(policy), options.checkpoint)
        recipe, dtype = model.recipe, options.dtype or "float32"
        policy = Policy.from_folder(model.folder, dtype=dtype, device=options.device or "auto")
    if isinstance(problems, str | None):
        chosen = suites.find_suite(asked, recipe, skip_bad_rows=options.skip_bad_rows)
    else:
        chosen = ProblemSet(problems)
    chosen = suites.part_of_suite(chosen, ids=options.ids, limit=options.limit)
    if not chosen:
        raise ProblemError("there is no problem to evaluate on: give at least one.")
    if options.samples < 1 or max(grading.k, default=1) > options.samples:
        raise ConfigError(
            f"expected at least one answer to a problem and no k above their number, "
            f"found {options.samples} answers and k {list(grading.k)}."
        )
    renderer, stops = suites.renderer_for(asked, recipe, policy.tokenizer, chosen, style=options.style)
    tools = suites.agent_tools(recipe, chosen)
    longest = max(len(renderer.prompt_ids(problem)) for problem in chosen)
    config = EvaluationConfig(
        num_questions=len(chosen),
        samples=options.samples,
        k=grading.k or usual_ks(options.samples),
        temperature=options.resolved_temperature,
        greedy=False,
        seed=options.seed or 0,
    )
    sampling = SamplingParams(
        max_tokens=options.room(policy.max_positions, longest),
        temperature=options.resolved_temperature,
        top_p=options.top_p,
        stop_strings=stops,
    )
    with build_grader(grading.sandbox) as grader:
        return evaluate(
            policy, grader.complete(chosen), renderer, grader, config, sampling=sampling, tools=tools
        )
