"""A task of your own: sums of two numbers. In an empty folder, `python sums.py` trains a tiny decoder."""

import random
from pathlib import Path
from typing import ClassVar

import greenward
from greenward.config.recipe import recipes_with
from greenward.environments.prompts import PromptRenderer
from greenward.grading.execution import ExecutionJudge, JobSet
from greenward.grading.extracted import Extracted
from greenward.grading.judge import build_executor
from greenward.grading.rewards import per_answer
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem, ProblemSet
from greenward.tasks.problem_task import ProblemTask
from greenward.training.protocols import Example


class SumPrompts(PromptRenderer):
    """Shows a sum as it stands; the whole text is the answer."""

    def prompt_text(self, problem):
        return problem.prompt

    def extracted(self, problem, text):
        return Extracted(text.strip() or None, "" if text.strip() else "the answer is empty")


class SumJudge(ExecutionJudge):
    """Compares numbers: nothing has to run. A judge that runs something gives a `job` and its `verdict`."""

    def job_set(self, problem, answer):
        right = answer.code == problem.reference
        verdict = Verdict(Status.PASSED if right else Status.FAILED, (right,))
        return JobSet((), lambda _: verdict)


@per_answer
def exact(answer):
    """1 for the right number, else 0."""
    return float(answer.verdict.passed)


class Sums(ProblemTask):
    """Two numbers are added."""

    recipes = recipes_with("sums:Sums")
    rewards: ClassVar = {"exact": exact}
    loads_sources = True

    def load(self, given):
        pairs = [(a, b) for a in range(10) for b in range(10)]
        random.Random(0).shuffle(pairs)
        made = [Problem(f"{a}+{b}", f"{a} + {b} =", "", reference=str(a + b)) for a, b in pairs]
        return ProblemSet(made[:80], name="train"), ProblemSet(made[80:], name="dev")

    def judge(self):
        return SumJudge(build_executor(self.recipe.sandbox), owns_executor=True)

    def renderer(self, tokenizer):
        return SumPrompts(tokenizer, style="completion")

    def texts(self):
        return (f"{one.prompt} {one.reference}" for one in self.train)

    def examples(self, policy, config):
        prompts, tokenizer = self.renderer(policy.tokenizer), policy.tokenizer
        return [
            Example(prompts.prompt_ids(one), (*tokenizer.encode(f" {one.reference}"), tokenizer.eos_id))
            for one in self.train
        ]


RECIPE = """
task: sums:Sums
model: {shape: {layers: 1, hidden_size: 64, heads: 4, intermediate_size: 128, max_positions: 32}}
warm_start: {max_steps: 60, batch_size: 40, warmup_steps: 5}
sampling: {max_tokens: 8}
rewards: [{name: exact}]
training: {max_steps: 4, prompts_per_step: 8, num_generations: 8}
evaluation: {num_questions: 20, samples: 2, k: [1]}
"""

if __name__ == "__main__":  # the module is imported once more, as the recipe names it
    Path("recipe.yaml").write_text(RECIPE)
    assert greenward.train("recipe.yaml", output="run", quiet=True).finished
    assert (Path("run") / "evaluations" / "step_000004.json").is_file()
