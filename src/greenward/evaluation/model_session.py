"""Evaluates a model or a policy, or a model behind a server, on a suite or on problems in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from greenward.common.errors import ConfigError, EngineError
from greenward.common.garbage import collection_paused
from greenward.common.http import RequestError, RetryPolicy
from greenward.config.section import Seed
from greenward.config.sections import InferenceDType, ModelConfig
from greenward.environments.agent import agent_maker
from greenward.evaluation import suites
from greenward.evaluation.contamination import contamination
from greenward.evaluation.evaluate import OnSamples, Seconds
from greenward.evaluation.grading_options import GradingOptions
from greenward.evaluation.policy_source import PolicySource
from greenward.evaluation.samples import EvaluationRows, Sample
from greenward.evaluation.session import EvaluationSession
from greenward.grading.answers import Style
from greenward.grading.edits import PATH, AnswerForm, diff_between, editable_files, print_diff
from greenward.grading.extracted import Extracted
from greenward.grading.verification import failing_references
from greenward.problems.catalog import load_problems
from greenward.problems.formats import part_of
from greenward.problems.names import GIVEN
from greenward.problems.problem import Problem, ProblemSet, PromptName
from greenward.rollouts.endpoint import (
    CONCURRENCY,
    Answer,
    Endpoint,
    EndpointEngine,
    ServedModel,
    is_endpoint,
    refuses_all,
)
from greenward.rollouts.protocols import RolloutEngine, SamplingParams
from greenward.runs.progress import Progress, peak_line
from greenward.tasks import find_task

if TYPE_CHECKING:
    from greenward.models.catalog import FoundModel, LoadedModel
    from greenward.models.policy import Policy


ANSWERS_PER_CHUNK = 128  # with one seed
MOST_TOKENS = 768  # as in EvalPlus
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
    0.8; `max_tokens` what the model has room for, at most 768, or as in the run's training for its own
    kind of problem; `seed` 0. `concurrency` (8 requests), `request_timeout` (300 seconds for an answer) and
    `api_key_env` (the environment variable that holds the key) concern models behind a server only, and
    `checkpoint`, `dtype` and `device` all others.
    """

    checkpoint: str | None = None
    suite: str | None = None
    ids: tuple[str, ...] = ()
    limit: PositiveInt | None = None
    samples: PositiveInt = 1
    temperature: float | None = None
    top_p: float = 1.0
    max_tokens: PositiveInt | None = None
    fewshot: NonNegativeInt = 0
    style: Style | None = None
    answer: AnswerForm | None = None
    prompt: PromptName | None = None
    seed: Seed | None = None
    dtype: InferenceDType | None = None
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

    `model` is a name, a model behind a server or a policy; `problems` are asked in place of a suite. Raises
    the typed errors of `greenward.common.errors` for a model, suite or combination that cannot be.
    """

    def __init__(
        self, model: str | ServedModel | Policy, options: AnswerOptions, problems: ProblemSet | None = None
    ) -> None:
        self.options = options
        self.model: FoundModel | LoadedModel | ServedModel
        self._on_disk: FoundModel | None = None
        if isinstance(model, ServedModel):
            _refuse(options, _LOADED_ONLY, *LOADED)
            self.model = model
        else:
            _refuse(options, _SERVERS_ONLY, *SERVED)
            with collection_paused():
                from greenward.models.catalog import LoadedModel, find_model

            if isinstance(model, str):
                self.model = self._on_disk = find_model(model, options.checkpoint)
            else:
                _refuse(options, "is settled: the policy is loaded", *LOADED)
                self.model = LoadedModel(model)
        self.name = self.model.name
        recipe = self.model.recipe
        self._trained_on = recipe if recipe and find_task(recipe.task).asks_problems else None
        suite = options.suite or suites.HELD_OUT
        shots: Sequence[Problem] = ()
        if problems is None:
            shots = suites.examples_for(suite, options.fewshot)
            asked = suites.find_suite(suite, recipe, skip_bad_rows=options.skip_bad_rows)
        elif given := [name for name in ("fewshot", "skip_bad_rows") if getattr(options, name)]:
            raise ConfigError(f"{given[0]} concerns problems of a suite by name.", remedy="Leave it out.")
        else:
            asked = problems
        asked = suites.part_of_suite(asked, ids=options.ids, limit=options.limit)
        self.problems = suites.without(asked, shots)
        if not self.problems:
            raise ConfigError(
                f"{suite if problems is None else 'problems'}: there is no problem to evaluate on."
            )
        self.renderer, stop_strings = suites.renderer_for(
            suite,
            recipe,
            self.model.tokenizer,
            self.problems,
            style=options.style,
            prompt=options.prompt,
            shots=shots,
            answer=options.answer,
        )
        self.tools = suites.agent_tools(recipe, self.problems)
        own = recipe.model if recipe else ModelConfig()
        self.dtype: str = options.dtype or own.dtype
        self._estimated_mb: float | None = None
        self._peak_mb: float | None = None
        self.device: str | None = None  # the name of a GPU on which the model is computed
        if not isinstance(self.model, ServedModel):
            import torch

            from greenward.models.devices import INT8, check_int8, resolve_device

            if isinstance(self.model, LoadedModel):
                self._device, self.dtype = self.model.policy.device, self.model.policy.computed_in
            else:
                self._device = resolve_device(options.device or own.device)
                if self.dtype == INT8:
                    check_int8(self.model.folder, self._device)
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

    def prepare(self, grading: GradingOptions, progress: Progress) -> None:
        """As `EvaluationSession.prepare`. Raises `ConfigError` for a k above the number of answers."""
        super().prepare(grading, progress)
        options, sampling = self.options, self.sampling
        if grading.k and max(grading.k) > options.samples:
            raise ConfigError(
                f"pass@{max(grading.k)} needs at least as many answers to each problem; --n is "
                f"{options.samples}."
            )
        prompt_hash, model = self.prompt_hash, self.model
        own: dict[str, Any] = {"model": model.name, "seed": options.seed}
        if not isinstance(model, ServedModel):
            own = {"seed": options.seed or 0, "dtype": self.dtype}
        if self._on_disk is not None:
            progress.message(f"model: {self._on_disk.description()}; computed in {self.dtype}")
            with progress.during("hashing the weights"):
                own["weights"] = self._on_disk.weights_hash
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
            "prompt": self.renderer.prompt,
            "fewshot": options.fewshot,
            "prompt_hash": prompt_hash,
            **({"answer": options.answer} if options.answer else {}),
            **({"tools": self.tools.model_dump()} if self.tools else {}),
        }
        overlap = None
        if self._trained_on is not None and self._trained_on.problems.train.startswith(GIVEN):
            self._note("contamination: unknown, since the run was trained on problems given in Python")
        elif self._trained_on is not None:
            section = self._trained_on.problems
            trained = load_problems(
                section.train,
                section.families,
                part="train",
                bugs=section.bugs,
                skip_bad_rows=section.skip_bad_rows,
            )
            overlap = contamination(trained, self.problems)
            self._note(overlap.summary)
        self.facts = {
            "model": model.to_json(),
            "prompt": self.renderer.prompt,
            "prompt_hash": prompt_hash,
            "contamination": overlap and overlap.to_json(),
        }

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        summary, folder = super().run(out, grading, progress)
        if self._on_disk is not None:
            progress.message(f"SHA-256 of the model's files: {self._on_disk.weights_hash}")
        if self._peak_mb is not None:
            progress.message(peak_line(self._peak_mb, self._estimated_mb))
        return summary, folder

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        import torch

        from greenward.models.memory import peak_mb
        from greenward.models.threads import use_free_cores

        numbers = range(self.options.samples)
        missing = sum((problem.task_id, n) not in store.samples for problem in problems for n in numbers)
        if not missing:
            return  # without loading the weights
        policy = self._policy(missing)
        threads = torch.get_num_threads()
        if line := use_free_cores(policy.device):
            self.progress.message(line)
        try:
            self.draw_by(policy, store, problems, seconds, on_samples, ANSWERS_PER_CHUNK)
        finally:
            torch.set_num_threads(threads)
            self._peak_mb = peak_mb(self._device)

    def _note(self, text: str) -> None:
        """Adds a sentence to the notes, once."""
        self.notes = [*(note for note in self.notes if note != text), text]

    def draw_by(
        self,
        engine: RolloutEngine,
        store: EvaluationRows,
        problems: ProblemSet,
        seconds: Seconds,
        on_samples: OnSamples,
        chunk: int,
    ) -> None:
        """What `engine` answers, or what agents leave that it plays.

        A repository that fails with its reference is lost to the infrastructure.
        """
        make = None
        if self.tools is not None:
            failing = failing_references([one for one in problems if one.reference], self.grader)
            broken = {line.partition(": ")[0]: line for line in failing}
            if lost := [one for one in problems if one.task_id in broken]:
                self.notes.append(
                    f"{len(lost)} repositories fail their tests as they should be: {failing[0]}"
                )
                numbers = range(self.options.samples)
                on_samples(
                    [
                        Sample(one, n, "", Extracted(None), lost=broken[one.task_id])
                        for one in lost
                        for n in numbers
                    ]
                )
            problems = problems.filter(lambda one: one.task_id not in broken)
            make = agent_maker(
                self.grader.executor, self.renderer, self.sampling, self.tools, engine.max_positions
            )
        source = PolicySource(
            engine,
            self.renderer,
            self.sampling,
            self.options.samples,
            self.options.seed or 0,
            chunk,
            partial(self.progress.drawing, "sampling"),
            make,
        )
        source.draw(store, problems, seconds, on_samples)

    def facts_of(self, store: EvaluationRows) -> dict[str, Any]:
        if self._peak_mb is None:
            return {}
        return {"memory": {"estimated_mb": self._estimated_mb, "peak_mb": self._peak_mb}}

    def further_files(self, store: EvaluationRows) -> Mapping[str, Iterable[Mapping[str, Any]]]:
        """Of agents, each first sample is a row for SWE-bench's harness."""
        if self.tools is None:
            return {}
        first = (sample for sample in store.samples.values() if sample.number == 0)
        return {PREDICTIONS: (prediction(one, self.model.name) for one in first)}

    def _policy(self, answers: int) -> Policy:
        """The policy that gives so many answers, loaded if it is on disk.

        Then it says what memory they will take, and raises `ConfigError` where the weights do not fit.
        """
        from greenward.models.catalog import LoadedModel
        from greenward.models.memory import check_sampling_memory
        from greenward.models.policy import Policy

        assert not isinstance(self.model, ServedModel)
        if isinstance(self.model, LoadedModel):
            return self.model.policy
        lengths = [len(self.renderer.prompt_ids(problem)) for problem in self.problems]
        self._estimated_mb, line = check_sampling_memory(
            self.model.folder,
            dtype=self.dtype,
            device=self._device,
            answers=answers,
            answers_per_prompt=self.options.samples,
            prompt_tokens=lengths,
            completion_tokens=self.sampling.max_tokens,
        )
        self.progress.message(line)
        with self.progress.during(f"loading {self.model.name}"):
            return Policy.for_inference(self.model.folder, dtype=self.dtype, device=self._device)

    def _max_tokens(self) -> int:
        lengths = [len(self.renderer.prompt_ids(problem)) for problem in self.problems]
        positions, recipe = self.model.max_positions, self._trained_on
        as_trained = self.renderer.prompt == "greenward"
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


REQUEST_SECONDS = 300.0
AGENTS_AT_ONCE = 32


def open_evaluation(
    model: str | Policy, options: AnswerOptions, problems: ProblemSet | None = None
) -> ModelEvaluation:
    """The evaluation of a policy, or of a model on disk, on the Hub or behind a server (MODEL@URL or a URL).

    `problems` are asked in place of a suite, though not of a model behind a server (`ConfigError`).
    """
    if not isinstance(model, str) or not is_endpoint(model):
        return ModelEvaluation(model, options, problems)
    if problems is not None:
        raise ConfigError("a model behind a server is evaluated on a suite or a file, which are named.")
    return EndpointEvaluation(model, options)


class EndpointEvaluation(ModelEvaluation):
    """A model behind a server and what it is asked.

    In chat style the server gets messages, in completion style a text to continue. Answers whose requests
    failed for good are lost to the infrastructure. A seed is sent only if there is one.
    """

    def __init__(self, model: str, options: AnswerOptions) -> None:
        if options.suite is None:
            raise ConfigError("Which problems are held out is known of a run only; name a --suite.")
        seconds = options.request_timeout or REQUEST_SECONDS
        self._endpoint = Endpoint(
            model,
            key_variable=options.api_key_env,
            concurrency=options.concurrency or CONCURRENCY,
            patience=RetryPolicy(attempt_seconds=seconds, total_seconds=300 + 3 * seconds),
        )
        super().__init__(ServedModel(self._endpoint), options)

    def run(
        self, out: str | Path | None, grading: GradingOptions, progress: Progress
    ) -> tuple[dict[str, Any], Path]:
        """As `ModelEvaluation.run`. Raises `EngineError` where the first request gets no answer, and
        `ConfigError` where the server refuses it, or whatever is asked.
        """
        with closing(self._endpoint):
            if line := self._endpoint.leaving_line:
                progress.message(line)
            return super().run(out, grading, progress)

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        if self.tools is not None:
            engine = EndpointEngine(self._endpoint)
            try:
                self.draw_by(engine, store, problems, seconds, on_samples, AGENTS_AT_ONCE)
            except EngineError as error:
                raise EngineError(
                    error.message, remedy="The same command goes on with what is missing."
                ) from None
            return
        numbers, seed = range(self.options.samples), self.options.seed
        asked = [(one, n) for one in problems for n in numbers if (one.task_id, n) not in store.samples]
        if not asked:
            return
        writing, began, lost = Lock(), time.perf_counter(), 0
        with self.progress.drawing(
            "sampling", self.answers, self.answers - len(asked), most_tokens=self.sampling.max_tokens
        ) as drawn:
            # The first question is asked alone, and what is wrong with the server ends the command.
            for is_first, part in ((True, asked[:1]), (False, asked[1:])):

                def keep(number: int, answer: Answer, part: list[Any] = part) -> None:
                    problem, n = part[number]
                    found = self.renderer.extracted(problem, answer.text)
                    tokens = answer.completion_tokens, answer.prompt_tokens
                    sample = Sample(
                        problem, n, answer.text, found, answer.truncated, *tokens, refused=answer.refused
                    )
                    with writing:
                        store.add_new([sample])

                prompts = [
                    (
                        self.renderer.messages(problem) or self.renderer.prompt_text(problem),
                        None if seed is None else seed + n,
                    )
                    for problem, n in part
                ]
                for batch in self._endpoint.ask_all(prompts, self.sampling, keep):
                    arrived = []
                    for number, answer in batch:
                        problem, n = part[number]
                        if not isinstance(answer, RequestError):
                            arrived.append(store.samples[problem.task_id, n])
                            continue
                        if is_first or refuses_all(answer):
                            raise self._endpoint.explained(answer)
                        if not lost:
                            self.notes.append(f"the first answer that was lost: {answer.message}")
                        lost += 1
                        arrived.append(Sample(problem, n, "", Extracted(None), lost=answer.message))
                    on_samples(arrived)
                    drawn.answers(len(arrived))
                    drawn.tokens(sum(one.tokens or 0 for one in arrived))
        seconds.sampling += time.perf_counter() - began

    def facts_of(self, store: EvaluationRows) -> dict[str, Any]:
        """The tokens of all answers, as far as the server has counted them, and what it did not take."""
        samples = [sample for sample in store.samples.values() if not sample.lost]
        self.not_taken = sorted(self._endpoint.refused.union(*(sample.refused for sample in samples)))
        if self.not_taken:
            self.notes.append(f"the server refused these parameters: {', '.join(self.not_taken)}")
        if "temperature" in self.not_taken:
            asked = f"temperature {self.sampling.temperature:g}, which was asked for, does not hold"
            self.notes.append(f"answers were drawn by the server's own decoding: {asked}")
        counted = [sample for sample in samples if None not in (sample.prompt_tokens, sample.tokens)]
        return super().facts_of(store) | {
            "usage": {
                "prompt_tokens": sum(sample.prompt_tokens or 0 for sample in counted),
                "completion_tokens": sum(sample.tokens or 0 for sample in counted),
                "answers_not_counted": len(samples) - len(counted),
            }
        }
