"""Draws the answers of a policy to problems, one by one or by agents, and evaluates a policy in training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from greenward.common.errors import ProblemError
from greenward.config.sections import EvaluationConfig, ToolsConfig
from greenward.environments.agent import AgentDialogue, agent_maker
from greenward.environments.prompts import PromptRenderer
from greenward.evaluation.evaluate import OnSamples, Seconds, VerdictMemory, evaluate
from greenward.evaluation.samples import EvaluationRows, Sample
from greenward.evaluation.suites import stable_subset
from greenward.grading.execution import ExecutionJudge
from greenward.grading.extracted import Extracted
from greenward.problems.problem import Problem, ProblemSet
from greenward.rollouts.driver import run_dialogues
from greenward.rollouts.protocols import POLICY, Completion, RolloutEngine, SamplingParams, StopReason
from greenward.runs.progress import Drawn, Progress

MakeAgent = Callable[[int, Problem], AgentDialogue]
ANSWERS_PER_CHUNK = 512  # with one seed, during training


def evaluate_policy(
    policy: RolloutEngine,
    problems: ProblemSet,
    renderer: PromptRenderer,
    grader: ExecutionJudge,
    config: EvaluationConfig,
    *,
    sampling: SamplingParams,
    step: int = 0,
    elapsed_seconds: float = 0.0,
    tools: ToolsConfig | None = None,
    memory: VerdictMemory | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Samples `config.samples` answers to each of `config.num_questions` problems and judges them.

    `sampling` is used with `config.temperature`. The same weights and `config.seed` give the same
    answers. `step` and `elapsed_seconds` say when in a run this is and are only recorded. With `tools`, an
    answer is what an agent leaves, and `renderer` the prompts of agents. `memory` holds the verdicts of
    earlier evaluations on these problems; within one evaluation, too, equal answers are judged once.
    `progress` shows what takes long.

    Returns the record that a run keeps: the figures of `summarise`, greedy pass@1 if it is asked for, the
    prompts, and the rows with the program of each answer.

    Raises `ProblemError` when there is no problem, `SandboxError` when no answer could be judged.
    """
    if not (chosen := stable_subset(problems, config.num_questions)):
        raise ProblemError(f"{problems.name}: there is no problem to evaluate on.")
    seconds, memory = Seconds(), memory or VerdictMemory()

    def evaluated(
        per_problem: int, temperature: float, ks: Sequence[int], *, demanded: bool = False
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        params = replace(sampling, temperature=temperature)
        make = None
        if tools is not None:
            make = agent_maker(grader.executor, renderer, params, tools, policy.max_positions)
        name = f"{'greedy ' if temperature == 0 else ''}evaluation on {problems.name}"
        shown = partial((progress or Progress(quiet=True)).drawing, name, at_once=False)
        source = PolicySource(
            policy, renderer, params, per_problem, config.seed, ANSWERS_PER_CHUNK, shown, make
        )
        store = EvaluationRows()
        figures = evaluate(source, chosen, store, grader, ks, seconds=seconds, memory=memory)
        if demanded:
            store.demand_any_judged(f"{problems.name}: ")
        keys = [(one.task_id, number) for one in chosen for number in range(per_problem)]
        rows = [store.rows[key].to_json() | {"code": store.samples[key].code or ""} for key in keys]
        return figures, rows

    figures, rows = evaluated(config.samples, config.temperature, config.k, demanded=True)
    record = {"rows": rows}
    if config.greedy:
        greedy, record["greedy_rows"] = evaluated(1, 0.0, (1,))
        figures["metrics"]["greedy_pass@1"] = greedy["metrics"]["pass@1"]
    return {
        "suite": problems.name,
        "step": step,
        "elapsed_seconds": elapsed_seconds,
        "samples": config.samples,
        "temperature": config.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "prompt": renderer.prompt,
        "style": renderer.style,
        **figures,
        "seconds": asdict(seconds),
        "prompts": {problem.task_id: renderer.prompt_text(problem) for problem in chosen},
        **record,
    }


_NOT_SHOWN = partial(Progress(quiet=True).drawing, "sampling")


@dataclass(frozen=True)
class PolicySource:
    """A policy that answers each problem `per_problem` times.

    The seed of an answer depends on `seed` and on which `chunk` of so many answers it is in only, so that
    what is sampled after an interruption is what would have been sampled without one. With `make`, answers
    are what agents leave, a chunk at a time. `shown` is `Progress.drawing` with a name.
    """

    engine: RolloutEngine
    renderer: PromptRenderer
    params: SamplingParams
    per_problem: int
    seed: int
    chunk: int
    shown: Callable[..., AbstractContextManager[Drawn]] = _NOT_SHOWN
    make: MakeAgent | None = None

    def draw(
        self, store: EvaluationRows, problems: ProblemSet, seconds: Seconds, on_samples: OnSamples
    ) -> None:
        """As `Source.draw`, in the order of the problems.

        The answers to a problem come as soon as the last of them has ended; what an agent leaves, at once.
        """
        size = max(1, self.chunk // self.per_problem)
        keys = [(problem.task_id, number) for problem in problems for number in range(self.per_problem)]
        there = sum(key in store.samples for key in keys)
        if there == len(keys):
            return
        # The length of an agent's whole episode has no bound that is worth showing.
        most = None if self.make else self.params.max_tokens
        with self.shown(len(keys), there, most_tokens=most) as drawn:

            def add(samples: Iterable[Sample]) -> None:
                new = store.add_new(samples)
                drawn.answers(len(new))
                on_samples(new)

            self.engine.on_tokens = drawn.tokens
            began = time.perf_counter()
            try:
                asked: list[tuple[Problem, int]] = []
                for start in range(0, len(problems), size):
                    seed = int(np.random.SeedSequence((self.seed, start)).generate_state(1)[0])
                    missing = {
                        place: problem
                        for place, problem in enumerate(problems[start : start + size])
                        if any((problem.task_id, n) not in store.samples for n in range(self.per_problem))
                    }
                    if self.make is not None:
                        draw_by_agents(self.make, self.engine, missing, self.per_problem, seed, add)
                    asked += [(problem, seed) for problem in missing.values()]
                if self.make is None:
                    self._sample(add, asked)
            finally:
                self.engine.on_tokens = None
                seconds.sampling += time.perf_counter() - began

    def _sample(self, add: Callable[[Iterable[Sample]], None], asked: Sequence[tuple[Problem, int]]) -> None:
        """Answer all problems, each with its seed, in one call: one that ends makes room for another."""
        renderer, tokens, positions = self.renderer, self.params.max_tokens, self.engine.max_positions
        prompts: list[tuple[Problem, Sequence[int]]] = []
        seeds: list[int] = []
        for problem, seed in asked:
            prompt = renderer.prompt_ids(problem)
            if len(prompt) + tokens <= positions:
                prompts.append((problem, prompt))
                seeds.append(seed)
                continue
            reason = (
                f"the prompt has {len(prompt)} tokens; with {tokens} for the answer that is more than "
                f"the model's {positions} positions"
            )
            numbers = range(self.per_problem)
            add(Sample(problem, number, "", Extracted(None, reason)) for number in numbers)

        def read(group: int, completions: list[Completion]) -> None:
            problem, _ = prompts[group]
            samples = []
            for number, completion in enumerate(completions):
                text = renderer.completion_text(completion.token_ids.tolist())
                extracted = renderer.extracted(problem, text)
                truncated = completion.stop_reason is StopReason.LENGTH
                samples.append(Sample(problem, number, text, extracted, truncated, len(completion.token_ids)))
            add(samples)

        if prompts:
            ids = [prompt for _, prompt in prompts]
            self.engine.sample(ids, self.per_problem, self.params, seed=seeds, on_group=read)


def draw_by_agents(
    make: MakeAgent,
    policy: RolloutEngine,
    problems: Mapping[int, Problem],
    per_problem: int,
    seed: int,
    add: Callable[[Iterable[Sample]], None],
) -> None:
    """Give to `add` what each of `per_problem` agents leaves of each problem, as soon as it has ended.

    The text of a sample is the transcript. The keys of `problems` are the numbers of their groups.
    """
    asked = {
        make(group, problem): (problem, number)
        for group, problem in problems.items()
        for number in range(per_problem)
    }

    def ended(dialogue: Any) -> None:
        problem, number = asked[dialogue]
        text = dialogue.text()
        if dialogue.final is None:
            add([Sample(problem, number, text, Extracted(None), lost=dialogue.verdict.error_message)])
            return
        truncated = dialogue.completions[-1].stop_reason is StopReason.LENGTH
        tokens = sum(len(completion.token_ids) for completion in dialogue.completions)
        add([Sample(problem, number, text, dialogue.final, truncated, tokens)])

    run_dialogues(list(asked), {POLICY: policy}, seed=seed, on_end=ended)
