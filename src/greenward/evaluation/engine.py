"""The evaluation of answers: sampled from a policy or given, judged while the next are sampled.

Whoever evaluates (training, `greenward eval`, `greenward grade`) gives a place for samples and rows, a
source of samples and a grader. What the place holds already is neither sampled nor judged again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from greenward.config.sections import EvaluationConfig, ToolsConfig
from greenward.environments.agent import AgentDialogue, agent_maker
from greenward.environments.dialogue import run_dialogues
from greenward.environments.episode import POLICY
from greenward.environments.prompts import PromptRenderer
from greenward.errors import ProblemError, RunError
from greenward.evaluation.classification import with_classification
from greenward.evaluation.rows import EvaluationRow, EvaluationRows, Sample
from greenward.evaluation.suites import stable_subset
from greenward.evaluation.summary import summarise
from greenward.grading.extraction import Extracted
from greenward.grading.grader import Answer, Graded, Grader
from greenward.grading.verdict import Family, Status, Verdict
from greenward.policies.engine import Completion, RolloutEngine, SamplingParams, StopReason
from greenward.problems.problem import Problem, ProblemSet

MakeAgent = Callable[[int, Problem], AgentDialogue]
_MOST_VERDICTS = 50_000
ANSWERS_PER_CHUNK = 512  # sampled in one call during training, while the chunk before is graded


class VerdictMemory:
    """The verdicts on answers to the same problem objects, by one set of limits: equal answers are run once.

    What ended by time, memory or another limit may be the machine's doing, and is run again when it comes
    again, as is what the infrastructure failed. An answer whose verdict depends on chance keeps its first one
    (`Grader.flaky` runs answers anew). At most 50,000 verdicts are kept.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], tuple[Problem, Verdict]] = {}

    def grade_stream(self, grader: Grader, answers: Sequence[Answer]) -> Iterator[Graded]:
        """As `Grader.grade_stream`."""
        new: list[int] = []
        for index, (problem, answer) in enumerate(answers):
            known = self._known.get((id(problem), answer))
            if known is None:
                new.append(index)
            else:
                yield index, known[1]
        stream = grader.grade_stream([answers[index] for index in new])
        with closing(stream) as verdicts:  # type: ignore[type-var]
            for position, verdict in verdicts:
                problem, answer = answers[new[position]]
                if verdict.status.family is Family.JUDGED:
                    if len(self._known) >= _MOST_VERDICTS:
                        self._known.clear()
                    self._known[id(problem), answer] = problem, verdict  # holding it keeps its id its own
                yield new[position], verdict


@dataclass
class Seconds:
    """Wall time spent so far. Sampling and grading overlap."""

    sampling: float = 0.0
    grading: float = 0.0


def evaluate(
    policy: RolloutEngine,
    problems: ProblemSet,
    renderer: PromptRenderer,
    grader: Grader,
    config: EvaluationConfig,
    *,
    sampling: SamplingParams,
    step: int = 0,
    elapsed_seconds: float = 0.0,
    tools: ToolsConfig | None = None,
    memory: VerdictMemory | None = None,
) -> dict[str, Any]:
    """Samples `config.samples` answers to each of `config.num_questions` problems and judges them.

    `sampling` is used with `config.temperature`. The same weights and `config.seed` give the same
    answers. `step` and `elapsed_seconds` say when in a run this is and are only recorded. With `tools`, an
    answer is what an agent leaves, and `renderer` the prompts of agents. `memory` holds the verdicts of
    earlier evaluations on these problems; within one evaluation, too, equal answers are judged once.

    Returns the record that a run keeps: the figures of `summarise`, greedy pass@1 if it is asked for, the
    prompts, and the rows with the program of each answer.

    Raises `ProblemError` when there is no problem, `SandboxError` when no answer could be judged.
    """
    chosen = stable_subset(problems, config.num_questions)
    if not chosen:
        raise ProblemError(f"{problems.name}: there is no problem to evaluate on.")
    seconds, memory = Seconds(), memory or VerdictMemory()

    def judged(per_problem: int, temperature: float) -> tuple[EvaluationRows, list[EvaluationRow]]:
        found = EvaluationRows()
        params = replace(sampling, temperature=temperature)
        make = None
        if tools is not None:
            make = agent_maker(grader.executor, renderer, params, tools, policy.max_positions)
        source = sampled(
            found, policy, renderer, chosen, per_problem, params,
            seed=config.seed, chunk=ANSWERS_PER_CHUNK, seconds=seconds,
            make=make,
        )  # fmt: skip
        judge(found, source, grader, seconds, memory=memory)
        return found, [found.rows[one.task_id, number] for one in chosen for number in range(per_problem)]

    found, rows = judged(config.samples, config.temperature)
    found.demand_any_judged(f"{problems.name}: ")
    figures = summarise(rows, config.k, problems=len(chosen))
    figures = with_classification(figures, [found.samples[row.key] for row in rows])
    record = {"rows": _with_code(found, rows)}
    if config.greedy:
        greedy, greedy_rows = judged(1, 0.0)
        metrics = summarise(greedy_rows, (1,), problems=len(chosen))["metrics"]
        figures["metrics"]["greedy_pass@1"] = metrics["pass@1"]
        record["greedy_rows"] = _with_code(greedy, greedy_rows)
    return {
        "suite": problems.name,
        "step": step,
        "elapsed_seconds": elapsed_seconds,
        "samples": config.samples,
        "temperature": config.temperature,
        **figures,
        "seconds": asdict(seconds),
        "prompts": {problem.task_id: renderer.prompt_text(problem) for problem in chosen},
        **record,
    }


def judge(
    found: EvaluationRows,
    source: Iterable[list[Sample]],
    grader: Grader,
    seconds: Seconds,
    on_row: Callable[[EvaluationRow], None] = lambda _: None,
    *,
    memory: VerdictMemory | None = None,
) -> None:
    """Judges the samples of `found` that have no row yet, then those of `source`, chunk by chunk.

    Each chunk is graded in a thread while the next is sampled. A row is added as soon as the verdict is
    there, never two at once; samples that were lost are rows of the infrastructure. When `source` ends early,
    by an error or Ctrl-C, grading ends at its next verdict.
    """
    leaving, memory = threading.Event(), memory or VerdictMemory()
    waiting = [sample for key, sample in found.samples.items() if key not in found.rows]

    def grade(chunk: list[Sample]) -> None:
        began = time.perf_counter()
        for sample in (sample for sample in chunk if sample.lost):
            found.samples[sample.key] = sample
            row = EvaluationRow.of(sample, Verdict(Status.INFRASTRUCTURE, error_message=sample.lost))
            found.add_row(row)
            on_row(row)
        chunk = [sample for sample in chunk if not sample.lost]
        stream = memory.grade_stream(grader, [(one.problem, one.extracted.answer) for one in chunk])
        with closing(stream) as verdicts:  # type: ignore[type-var]
            for index, verdict in verdicts:
                row = EvaluationRow.of(chunk[index], verdict)
                found.add_row(row)
                on_row(row)
                if leaving.is_set():
                    return
        seconds.grading += time.perf_counter() - began

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="grading") as background:
        try:
            pending = background.submit(grade, waiting)
            for chunk in source:
                pending.result()
                pending = background.submit(grade, chunk)
            pending.result()
        except BaseException:
            leaving.set()
            raise


def sampled(
    found: EvaluationRows,
    policy: RolloutEngine,
    renderer: PromptRenderer,
    problems: ProblemSet,
    per_problem: int,
    params: SamplingParams,
    *,
    seed: int,
    chunk: int,
    seconds: Seconds,
    make: MakeAgent | None = None,
) -> Iterator[list[Sample]]:
    """Samples answers to the problems in their order, about `chunk` at a time, but those that `found` holds.

    The answers to a problem are added to `found` as soon as the last of them has ended. The seed of a
    chunk depends on its place in the problem set only, so that what is sampled after an interruption is
    what would have been sampled without one. With `make`, answers are what agents leave.
    """
    size = max(1, chunk // per_problem)
    for start in range(0, len(problems), size):
        asked = problems[start : start + size]
        keys = [(problem.task_id, number) for problem in asked for number in range(per_problem)]
        new = [key for key in keys if key not in found.samples]
        unanswered = {task_id for task_id, _ in new}
        if new:
            chunk_seed = int(np.random.SeedSequence((seed, start)).generate_state(1)[0])
            began = time.perf_counter()
            missing = [problem for problem in asked if problem.task_id in unanswered]
            if make is not None:
                found.add_new(agent_samples(make, policy, missing, per_problem, chunk_seed))
            else:
                _sample_chunk(found, policy, renderer, missing, per_problem, params, chunk_seed)
            seconds.sampling += time.perf_counter() - began
            yield [found.samples[key] for key in new]


def agent_samples(
    make: MakeAgent, policy: RolloutEngine, problems: Sequence[Problem], per_problem: int, seed: int
) -> list[Sample]:
    """What `per_problem` agents leave of each problem; the text of a sample is the transcript."""
    asked = [(problem, number) for problem in problems for number in range(per_problem)]
    dialogues = [make(index // per_problem, problem) for index, (problem, _) in enumerate(asked)]
    run_dialogues(dialogues, {POLICY: policy}, seed=seed)
    samples = []
    for (problem, number), one in zip(asked, dialogues, strict=True):
        if one.final is None:
            samples.append(
                Sample(problem, number, one.text(), Extracted(None), lost=one.verdict.error_message)
            )
            continue
        truncated = one.completions[-1].stop_reason is StopReason.LENGTH
        tokens = sum(len(completion.token_ids) for completion in one.completions)
        samples.append(Sample(problem, number, one.text(), one.final, truncated, tokens))
    return samples


def _sample_chunk(
    found: EvaluationRows,
    policy: RolloutEngine,
    renderer: PromptRenderer,
    problems: Sequence[Problem],
    per_problem: int,
    params: SamplingParams,
    seed: int,
) -> None:
    prompts: list[tuple[Problem, Sequence[int]]] = []
    for problem in problems:
        prompt = renderer.prompt_ids(problem)
        if len(prompt) + params.max_tokens <= policy.max_positions:
            prompts.append((problem, prompt))
            continue
        reason = (
            f"the prompt has {len(prompt)} tokens; with {params.max_tokens} for the answer that is more than "
            f"the model's {policy.max_positions} positions"
        )
        found.add_new(Sample(problem, number, "", Extracted(None, reason)) for number in range(per_problem))

    def read(group: int, completions: list[Completion]) -> None:
        problem, _ = prompts[group]
        samples = []
        for number, completion in enumerate(completions):
            text = renderer.completion_text(completion.token_ids.tolist())
            extracted = renderer.extracted(problem, text)
            truncated = completion.stop_reason is StopReason.LENGTH
            samples.append(Sample(problem, number, text, extracted, truncated, len(completion.token_ids)))
        found.add_new(samples)

    if prompts:
        policy.sample([prompt for _, prompt in prompts], per_problem, params, seed=seed, on_group=read)


def add_given(found: EvaluationRows, samples: Sequence[Sample], place: str) -> None:
    """Adds answers from elsewhere to `found`, which messages call `place`.

    Raises `RunError` when it holds another answer under the same number.
    """
    for sample in samples:
        known = found.samples.get(sample.key)
        if known is not None and known.code != sample.code:
            raise RunError(
                f"{place} holds another answer {sample.number} to {sample.problem.task_id}.",
                remedy="These are other samples than were graded there before: choose another --out.",
            )
    found.add_new(samples)


def flaky_samples(samples: Iterable[Sample], grader: Grader, repeats: int) -> list[dict[str, object]]:
    """The samples whose verdict differs from run to run, each judged `repeats` times, as plain data."""
    judged = list(samples)
    return [
        {
            "task_id": judged[flaky.index].problem.task_id,
            "sample": judged[flaky.index].number,
            "statuses": [verdict.status.value for verdict in flaky.verdicts],
        }
        for flaky in grader.flaky([(sample.problem, sample.extracted.answer) for sample in judged], repeats)
    ]


def _with_code(found: EvaluationRows, rows: Iterable[EvaluationRow]) -> list[dict[str, Any]]:
    return [row.to_json() | {"code": found.samples[row.key].code or ""} for row in rows]
