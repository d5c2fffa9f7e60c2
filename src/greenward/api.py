"""Provides the Python API: training, evaluation, grading and audits with the caller's own objects.

`from greenward import …` gives these names; docs/python.md documents them. Heavy modules are imported when a
function is called. Wrong options raise the errors of `greenward.common.errors`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from greenward.common.errors import ConfigError, ProblemError, RewardError, RunError
from greenward.common.files import expecting
from greenward.common.garbage import collection_paused
from greenward.problems.names import GIVEN
from greenward.problems.problem import Problem, ProblemSet
from greenward.runs.files import from_json_number, read_json, read_jsonl
from greenward.runs.progress import Progress
from greenward.runs.reading import (
    METRICS,
    evaluation_files,
    flattened,
    is_run,
    read_evaluations,
    read_metrics,
    read_rollouts,
    read_summary,
    run_of_config,
    task_of_run,
)

if TYPE_CHECKING:
    from pandas import DataFrame

    from greenward.common.statistics import Estimate
    from greenward.config.recipe import Recipe
    from greenward.evaluation.audit_report import AuditReport as AuditReport
    from greenward.evaluation.audit_report import Trial as Trial
    from greenward.evaluation.grading_options import GradingOptions
    from greenward.evaluation.model_session import AnswerOptions
    from greenward.grading.user_rewards import RewardFunction, Rewards
    from greenward.models.policy import Policy


@dataclass(frozen=True)
class TrainingResult:
    """A run directory. `finished` is False for a dry run, after Ctrl-C and while the training goes on."""

    run: Path
    finished: bool

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step, oldest first."""
        return list(read_metrics(self.run / METRICS).rows)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations on the held-out problems, oldest first."""
        return read_evaluations(self.run)

    @property
    def policy(self) -> Policy:
        """The policy of the newest checkpoint."""
        from greenward.models.policy import Policy

        return Policy.from_folder(self.run / "checkpoints" / "last")

    def to_frame(self, of: Literal["metrics", "rollouts", "evaluations"] = "metrics") -> DataFrame:
        """A row for each step, for each kept answer, or for each evaluation, oldest first.

        Columns have the names of the files; what lies in a mapping has its keys with dots between. An
        evaluation has `step`, `suite` (None for held-out problems), `pass@1`, `pass@1.low`, `pass@1.high` and
        so on for each metric and rate. Raises `ConfigError` without pandas and for another `of`, `RunError`
        for files that cannot be read.
        """
        if of not in ("metrics", "rollouts", "evaluations"):
            raise unexpected("of", "'metrics', 'rollouts' or 'evaluations'", of)
        with expecting(f"{of} of a run", self.run, RunError):
            if of == "metrics":
                return _frame(self.metrics)
            if of == "rollouts":
                return _frame({"step": step, **dict(flattened(row))} for step, row in read_rollouts(self.run))
            found = (
                (step, suite, read_json(file, within=self.run) or {})
                for step, suite, file in evaluation_files(self.run)
            )
            return _frame({"step": step, "suite": suite, **_figures(one)} for step, suite, one in found)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it: by its report, if it has one by now."""
        from greenward.reports.page import mime_bundle
        from greenward.reports.recorded import report_of

        return mime_bundle(report_of(self.run)) if is_run(self.run) else {"text/plain": repr(self)}


@dataclass(frozen=True)
class EvaluationResult:
    """The figures of an evaluation, and the folder that holds its answers and reports, if there is one."""

    summary: Mapping[str, Any]
    folder: Path | None = None

    @property
    def metrics(self) -> dict[str, Estimate]:
        """pass@k by name (`pass@1`), each with its 95 % interval."""
        return _estimates(self.summary["metrics"])

    @property
    def rates(self) -> dict[str, Estimate]:
        """Rates over all answers (`compile`, `timeout`, `truncated`, …), each with its 95 % interval."""
        return _estimates(self.summary["rates"])

    def to_frame(self, of: Literal["figures", "answers"] = "figures") -> DataFrame:
        """A row for each metric and rate (`name`, `value`, `low`, `high`), or for each judged answer.

        Answers are the rows of results.jsonl. Raises `ConfigError` without pandas, for answers of an
        evaluation in memory, and for another `of`; `RunError` for a file that cannot be read.
        """
        if of == "figures":
            with expecting("the figures of an evaluation", self.folder or "the evaluation", RunError):
                found = {**self.summary["metrics"], **self.summary["rates"]}
                return _frame({"name": name, **_bounds(one)} for name, one in found.items())
        if of != "answers":
            raise unexpected("of", "'figures' or 'answers'", of)
        if self.folder is None:
            raise ConfigError(
                "an evaluation in memory keeps no answers.",
                remedy="Evaluate a model by name on a suite by name, which writes a folder.",
            )
        return _frame(read_jsonl(self.folder / "results.jsonl").rows)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it."""
        from greenward.reports.evaluation import evaluation_report, summary_report
        from greenward.reports.page import mime_bundle

        return mime_bundle(
            summary_report(self.summary) if self.folder is None else evaluation_report(self.folder)
        )


def read_run(path: str | Path) -> TrainingResult:
    """The run directory at `path`, also while it is written. Raises `RunError` where there is none."""
    run = Path(path)
    if not is_run(run):
        raise RunError(
            f"{run} holds no run (config.yaml).", remedy="Give the folder that a training wrote to."
        )
    return TrainingResult(run, finished=(read_summary(run) or {}).get("status") == "finished")


def read_evaluation(path: str | Path) -> EvaluationResult:
    """The evaluation in the folder `path`. Raises `RunError` where there is none that is finished."""
    summary = read_summary(Path(path))
    if summary is None or not {"metrics", "rates"} <= summary.keys():
        raise RunError(
            f"{path} holds no finished evaluation.",
            remedy="Give the folder that an evaluation wrote to, or a run to read_run.",
        )
    return EvaluationResult(summary, Path(path))


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    try:
        from pandas import DataFrame
    except ImportError:
        raise ConfigError(
            "to_frame needs pandas, which is not installed.", remedy="Install it: pip install pandas"
        ) from None
    return DataFrame(list(rows))


def _bounds(estimate: Mapping[str, Any]) -> dict[str, Any]:
    return {key: from_json_number(estimate.get(key)) for key in ("value", "low", "high")}


def _figures(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, one in {**evaluation.get("metrics", {}), **evaluation.get("rates", {})}.items():
        value, low, high = _bounds(one).values()
        figures |= {name: value, f"{name}.low": low, f"{name}.high": high}
    return figures


def load_problems(
    source: str | Path, *, part: Literal["train", "held_out"] = "train", skip_bad_rows: bool = False
) -> ProblemSet:
    """The problems of a file, a public suite (`mbpp:test`), a shipped set, or `families` (its `part`).

    `bugs:` before a source gives the repair of its programs. Raises `ProblemError`.
    """
    from greenward.config.recipe import GRPORecipe
    from greenward.grading.verification import load_verified

    return load_verified(str(source), GRPORecipe(), part=part, skip_bad_rows=skip_bad_rows)


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in the file `path`, or shipped under that name, with `key=value` overrides applied.

    A pretrained model gets the preset of this machine, or the one that the key `preset` names. Raises
    `ConfigError`.
    """
    from greenward.config import loading
    from greenward.hardware import detection

    return loading.load_recipe(path, overrides, machine=detection.this_machine)


_FUNCTIONS = (("algorithm", "loss"), ("algorithm", "advantage"))


def train(
    recipe: Recipe | str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    problems: str | Sequence[Problem] | None = None,
    held_out: str | Sequence[Problem] | None = None,
    rewards: Rewards | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    show: int = 0,
    dry_run: bool = False,
    **sections: Any,
) -> TrainingResult:
    """Trains a policy by a recipe, in the run directory `output` (`runs/NAME` without one).

    `recipe` is a recipe, the path of its file or the name of a shipped one; None is GRPO with all defaults.
    `overrides` are `key=value` as on the command line, and `sections` the same as keywords:
    `train(model="runs/mine", training={"max_steps": 50})`. `algorithm={"loss": f, "advantage": g}` may have
    functions (docs/own_algorithm.md).

    `problems` and `held_out` are problems to train on and to evaluate on, or what those keys of the section
    `problems` may name. A run on given problems without `held_out` is not evaluated. `rewards` are reward
    functions and names of shipped terms, each with weight 1, or with weights in a mapping; a function is
    called in this process as `f(prompts, completions, **columns)` (TRL) or `f(answers)`.

    `resume` continues the run in `output`, exactly, or the one whose `config.yaml` is the recipe; `overwrite`
    deletes a run that is there; `show` is the number of first episodes that are shown; `dry_run` shows
    settings, size and first prompt. Raises the errors of
    `greenward.common.errors`; written files are kept.
    """
    from greenward.config import loading
    from greenward.config.loading import Keyword, dotted, leaves
    from greenward.config.recipe import Recipe
    from greenward.grading.user_rewards import name_in, reward_terms
    from greenward.hardware import detection

    if isinstance(overrides, str):
        raise ConfigError(f"overrides: expected a list of key=value, found the text {overrides!r}.")
    functions: dict[str, Callable[..., Any]] = {}
    changes: list[str] = []
    for path, value in leaves(sections):
        if path in _FUNCTIONS and callable(value):
            value = name_in(functions, value)
        try:
            changes.append(Keyword(dotted(path), value))
        except TypeError:
            raise ConfigError(
                f"{dotted(path)}: expected numbers, text, lists and mappings, found {value!r:.200}.",
                remedy="Objects are given as problems, held_out and rewards.",
            ) from None
    given: dict[str, ProblemSet] = {}
    for key, source in (("train", problems), ("held_out", held_out)):
        if isinstance(source, str):
            changes.append(f"problems.{key}={json.dumps(source)}")
        elif source is not None:
            own = ProblemSet(source)
            given[key] = ProblemSet(own, name=f"{GIVEN}{own.data_hash[:12]}")
            changes.append(f"problems.{key}={json.dumps(given[key].name)}")
    if "train" in given and not given["train"]:
        raise ProblemError("problems is empty: give at least one problem to train on.")
    if "train" in given and held_out is None:
        given["held_out"] = ProblemSet([])
        changes.append("evaluation.enabled=false")
    if rewards is not None:
        changes.append(f"rewards={json.dumps(reward_terms(rewards, functions))}")
    changes += overrides
    if isinstance(recipe, str | Path):
        resolved = loading.load_recipe(recipe, changes, machine=detection.this_machine)
    elif recipe is None or isinstance(recipe, Recipe):
        text = "" if recipe is None else loading.dump(recipe)
        resolved = loading.parse_recipe(text, changes, machine=detection.this_machine)
    else:
        raise unexpected("recipe", "a recipe, the path of its file or the name of a shipped one", recipe)
    old = run_of_config(recipe) if resume and isinstance(recipe, str | Path) else None
    run = Path(output) if output is not None else old or Path("runs") / resolved.name

    with collection_paused():
        from greenward.recipes import run as recipes

    if dry_run:
        recipes.dry_run(resolved, given, functions)
        return TrainingResult(run, finished=False)
    how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "show": show}
    finished = recipes.train(resolved, run, **how, given=given, functions=functions)
    return TrainingResult(run, finished)


def evaluate(
    policy: Policy | str | Path,
    problems: str | Path | Sequence[Problem] | None = None,
    *,
    samples: int = 1,
    k: Sequence[int] = (),
    output: str | Path | None = None,
    quiet: bool = True,
    **options: Any,
) -> EvaluationResult:
    """Samples answers to problems, runs them, and estimates pass@k.

    `policy` is a policy, a run directory, a model folder, a Hugging Face id or, as MODEL@URL, a model behind
    an OpenAI-compatible server. `problems` are a suite by name or path, or problems; None is what the run
    held out. Without `k`, it is those of 1, 5, 10 and 100 that `samples` (answers to each problem) allow, and
    of 2 to 4 samples 1 and their number. A model by name on a suite by name is evaluated in the folder
    `output`, and resumed there. A run of self-play is evaluated in its games, or in the one that `problems`
    names, with `samples` games in each match if it is above 1.

    `options` are those of `greenward eval`: `temperature` (0 for one answer, 0.8 for several), `max_tokens`
    (768 or what the model has room for), `top_p`, `seed`, `style`, `prompt`, `answer` (`function` for the
    whole, `search_replace` or `diff`), `ids`, `limit`, `recheck`, `timeout`, `workers`, `require` and
    `packages`; for a model by name also `checkpoint`, `dtype`, `device`, `concurrency`, `request_timeout` and
    `api_key_env`; for a suite by name also `skip_bad_rows` and `fewshot` and, where both are names,
    `eval_results`, `overwrite` and `show`. Raises the errors of `greenward.common.errors`.
    """
    from greenward.evaluation.model_session import AnswerOptions, open_evaluation
    from greenward.rollouts.endpoint import is_endpoint

    is_named = isinstance(policy, str | Path)
    problems = str(problems) if isinstance(problems, Path) else problems
    if not is_named:
        from greenward.models.policy import Policy

        if not isinstance(policy, Policy):
            expected = "a policy, a run directory, a model folder or a Hugging Face id"
            raise unexpected("policy", expected, policy)
    is_served = is_named and is_endpoint(str(policy))  # and needs no torch here
    epsilon = options.pop("epsilon", None)
    grading, answers = _grading(k, options, AnswerOptions)
    asked = checked(AnswerOptions, samples=samples, **answers)
    if isinstance(policy, str | Path) and isinstance(problems, str | None) and not is_served:
        given = {"samples": samples, **({"epsilon": epsilon} if epsilon is not None else {}), **options}
        if k:
            given["k"] = k
        task = task_of_run(policy)
        if task and (own := task.evaluation(str(policy), problems, given)) is not None:
            with Progress(quiet=quiet) as progress:
                return EvaluationResult(*own.run(output, grading, progress))
    if epsilon is not None:
        raise ConfigError("epsilon concerns runs of Q-learning.", remedy="Leave it out.")
    if not is_named or not isinstance(problems, str | None):
        written = {"output": output, **{name: getattr(grading, name) for name in _OF_FOLDERS}}
        for name in (name for name, value in written.items() if value):
            raise ConfigError(
                f"{name}: an evaluation of a policy or of problems in memory writes nothing.",
                remedy="Leave it out, or name a run or model, and a suite or file.",
            )
        model = str(policy) if isinstance(policy, str | Path) else policy
        if isinstance(problems, str | None):
            session = open_evaluation(model, replace(asked, suite=problems))
        else:
            session = open_evaluation(model, asked, ProblemSet(problems))
        return EvaluationResult(session.run_in_memory(grading))
    with Progress(quiet=quiet) as progress:
        asked_of = "" if is_served else f" for {policy}"  # a wrong URL may hold a key
        with progress.during(f"reading {problems or 'what was held out'}{asked_of}"):
            session = open_evaluation(str(policy), replace(asked, suite=problems))
        return EvaluationResult(*session.run(output, grading, progress))


def games_of(policy: str | Path, suite: str | None = None, *, checkpoint: str | None = None) -> list[str]:
    """The games that `evaluate` plays with a model; none where it asks problems of code."""
    from greenward.rollouts.endpoint import is_endpoint

    if is_endpoint(str(policy)):
        return []
    task = task_of_run(policy)
    return list(task.games(str(policy), suite, checkpoint)) if task else []


def prompts(policy: str | Path, suite: str | None = None, **options: Any) -> dict[str, Any]:
    """The prompts that `evaluate` would give a model, by task id, with their name, style and hash."""
    from greenward.evaluation.model_session import AnswerOptions, open_evaluation

    _, answers = _grading((), options, AnswerOptions)
    session = open_evaluation(str(policy), checked(AnswerOptions, suite=suite, **answers))
    asked = {"prompt": session.renderer.prompt, "style": session.renderer.style}
    return {**asked, "prompt_hash": session.prompt_hash, "prompts": dict(session.prompts)}


def check_references(
    problems: str | None,
    *,
    policy: str | None = None,
    checkpoint: str | None = None,
    ids: Sequence[str] = (),
    limit: int | None = None,
    skip_bad_rows: bool = False,
    **grading: Any,
) -> tuple[str, list[str]]:
    """Runs the reference solutions of a suite by name or path against their own tests.

    None is what the run `policy` held out. Returns the result in one line, and a line for each solution that
    failed.
    """
    from greenward.evaluation import suites

    recipe = None
    if policy:
        from greenward.models.catalog import find_model

        recipe = find_model(policy, checkpoint).recipe
    suite = suites.find_suite(problems or suites.HELD_OUT, recipe, skip_bad_rows=skip_bad_rows)
    asked = suites.part_of_suite(suite, ids=ids, limit=limit)
    return suites.check_references(asked, _grading((), grading)[0])


def grade(
    samples: str | Path,
    suite: str,
    *,
    k: Sequence[int] = (),
    extract: Literal["auto", "always", "never"] = "auto",
    skip_bad_rows: bool = False,
    output: str | Path | None = None,
    quiet: bool = True,
    **grading: Any,
) -> EvaluationResult:
    """Runs answers from elsewhere, a file or folder as `greenward grade` reads it, against a suite.

    `grading` are the options of `evaluate` from `timeout` on. Raises `ProblemError` for an unknown suite and
    for answers that cannot be read.
    """
    options, _ = _grading(k, grading)
    with options.starting_executor() as executor:
        from greenward.evaluation.session import SampleGrading, undefined

        session = SampleGrading(
            Path(samples), suite, extract=extract, skip_bad_rows=skip_bad_rows, executor=executor
        )
        with Progress(quiet=quiet) as progress:
            for note in (*session.notes, *undefined(k, session.most_answers)):
                progress.message(note)
            return EvaluationResult(*session.run(output, options, progress))


def audit(reward: Recipe | RewardFunction | str | Path, **settings: Any) -> AuditReport:
    """Gives cheating and right answers to a reward, and reports which it accepts and refuses.

    `reward` is a recipe (its weighted terms), an importable function or its `module:function`; `settings` are
    those of `greenward.evaluation.audit.audit`. The folder of a project stands for its grader; `settings` are
    those of `audit_repository` then. Raises `RewardError` and `ConfigError`.
    """
    from greenward.config.recipe import Recipe
    from greenward.evaluation.audit import audit as audit_function
    from greenward.evaluation.audit import audit_recipe
    from greenward.grading.user_rewards import function_name

    if isinstance(reward, str | Path) and is_project(reward):
        from greenward.evaluation.audit_repository import audit_repository

        check_names(settings, list(signature(audit_repository).parameters)[1:])
        return audit_repository(reward, **settings)
    check_names(settings, list(signature(audit_function).parameters)[1:])
    if callable(reward):
        reward = function_name(reward)
        if "<" in reward:
            raise RewardError(
                f"{reward}: expected a function that another process can import by its name.",
                remedy="Define it by def at the top level of a module.",
            )
    if isinstance(reward, str) and ":" in reward:
        return audit_function(reward, **settings)
    if not isinstance(reward, str | Path | Recipe):
        raise unexpected("reward", "a recipe, a function or its module:function", reward)
    return audit_recipe(reward, **settings)


def is_project(reward: str | Path) -> bool:
    """Whether this names a folder, and not a function or a shipped recipe."""
    from greenward.config.loading import shipped_recipes

    return ":" not in str(reward) and Path(reward).is_dir() and str(reward) not in shipped_recipes()


_OF_FOLDERS = ("eval_results", "overwrite", "show")


def _grading(
    k: Sequence[int], options: Mapping[str, Any], others: type[AnswerOptions] | None = None
) -> tuple[GradingOptions, dict[str, Any]]:
    """How answers are judged, and the options that are fields of `others`. Raises `ConfigError`."""
    from greenward.evaluation.grading_options import GradingOptions

    judging = [one.name for one in fields(GradingOptions) if one.name != "k"]
    rest = [one.name for one in fields(others) if one.name != "suite"] if others else []
    check_names(options, [*judging, *rest])
    given, left = ({name: options[name] for name in names if name in options} for names in (judging, rest))
    return GradingOptions(k=k, **given), left


def _estimates(found: Mapping[str, Mapping[str, float]]) -> dict[str, Estimate]:
    from greenward.common.statistics import Estimate

    return {name: Estimate.from_json(one) for name, one in found.items()}


Made = TypeVar("Made")


def checked(make: Callable[..., Made], **options: Any) -> Made:
    """What is made of these options. Raises `ConfigError` for the first one that cannot be."""
    from pydantic import ValidationError

    try:
        return make(**options)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(f"{wrong['loc'][0]}: {wrong['msg']}, found {wrong['input']!r:.200}.") from None


def check_names(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises `ConfigError` for an option that is not known, naming the nearest."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"Options: {', '.join(known)}."
            raise ConfigError(f"there is no option {name!r}.", remedy=remedy)


def unexpected(name: str, expected: str, found: Any) -> ConfigError:
    """The error of an argument that is of another kind than expected."""
    return ConfigError(f"{name}: expected {expected}, found {found!r:.200}.")
