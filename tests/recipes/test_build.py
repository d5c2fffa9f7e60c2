"""Which problems a recipe may train on, their references and bugs, and what a check finds before a training."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from greenward.common.errors import ConfigError, GreenwardError, ProblemError
from greenward.config.loading import load_recipe, shipped_recipes
from greenward.config.recipe import GRPORecipe
from greenward.evaluation.suites import find_suite
from greenward.grading.judge import build_grader
from greenward.grading.verification import build_problems, verify_references
from greenward.problems.catalog import check_source
from greenward.problems.problem import original_id
from greenward.recipes.run import ShowSampling, check_recipe, dry_run, train
from greenward.runs.progress import Progress
from greenward.runs.reading import read_metrics, read_prompts, read_rollouts
from greenward.tasks.corpus import generated_examples
from tiny_model import BUGS, DATA, REINFORCED

pytestmark = pytest.mark.usefixtures("kept_sandbox")

MBPP_ROW = {"text": "Double.", "code": "def f(x):\n  return 2 * x", "test_list": ["assert f(1) == 2"]}


def recipe(train, held_out="classic_evaluation", sandbox=None, **keys):
    sections = {
        "problems": {"train": str(train), "held_out": str(held_out), **keys},
        "sandbox": sandbox or {},
    }
    return GRPORecipe.model_validate(sections)


@pytest.fixture
def problem_file(tmp_path):
    """Writes a file with one problem."""

    def write(name="double", factor=2, **keys):
        row = {
            "function_name": name,
            "docstring": "Return twice n." if name != "triple" else "Return n and n more.",
            "test_cases": [[1, 2], [3, 6]],
            "starter_code": "",
            "reference": f"def {name}(n):\n    return {factor} * n\n",
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([row | keys]))
        return path

    return write


@pytest.fixture
def mbpp(tmp_path, monkeypatch):
    """A file of MBPP's form: 20 and 30 are test problems, 601 and 602 are for training."""
    rows = "\n".join(json.dumps({"task_id": number, **MBPP_ROW}) for number in (20, 30, 601, 602))
    (tmp_path / "mbpp.jsonl").write_text(rows)
    monkeypatch.delenv("MBPP_DATASET_PATH", raising=False)
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))


def test_a_reference_that_fails_its_own_tests_stops_the_run_before_it_begins(problem_file):
    good, bad = problem_file(), problem_file("triple", factor=3)
    settings = recipe(good, bad)
    with build_grader(settings.sandbox) as grader:
        with pytest.raises(ProblemError, match=r"1 of 2 reference solutions fail.*\n  triple: failed"):
            verify_references(settings, grader, *build_problems(settings))
        unchecked = recipe(good, bad, verify_references=False)
        verify_references(unchecked, grader, *build_problems(unchecked))


def test_a_reference_that_needs_longer_than_an_answer_gives_answers_to_its_problem_more_time(problem_file):
    """Passing it takes 0.3 seconds of CPU time, more than the limit and less than four times as much."""
    program = """def triple(n):
    import time
    end = time.process_time() + 0.15
    while time.process_time() < end:
        pass
    return 3 * n
"""
    cases = [[1, 3], [2, 6]]
    source = problem_file("triple", reference=program, test_cases=cases)
    settings = recipe(problem_file(), source, sandbox={"cpu_seconds": 0.2})
    with build_grader(settings.sandbox) as grader:
        train, held_out = build_problems(settings)
        assert [one.status.value for one in grader.grade([(held_out[0], program)])] == ["timeout"]
        verified = verify_references(settings, grader, train, held_out)
        assert verified.count == 2
        assert [line.partition(": ")[0] for line in verified.slow] == ["triple"]
        slow = verified.problem_sets[1][0]
        assert slow.cpu_seconds > 4 * 0.3
        endless = program.replace("0.15", "1e9")
        found = grader.grade([(slow, program), (slow, endless)])
        assert [one.status.value for one in found] == ["passed", "timeout"]
        with pytest.raises(ProblemError, match="triple: timeout"):
            verify_references(settings, grader, train, held_out, extend_limits=False)
    far_too_slow = problem_file("triple", reference=endless, test_cases=cases)
    settings = recipe(problem_file(), far_too_slow, sandbox={"cpu_seconds": 0.2})
    with build_grader(settings.sandbox) as grader, pytest.raises(ProblemError, match="triple: timeout"):
        verify_references(settings, grader, *build_problems(settings))


def test_a_package_that_tests_import_is_named_with_the_key_that_allows_it(problem_file):
    settings = recipe(problem_file(setup_code="import pytest"), problem_file("triple"))
    with build_grader(settings.sandbox) as grader, pytest.raises(ProblemError) as caught:
        verify_references(settings, grader, *build_problems(settings))
    assert "double: error. No module named 'pytest'" in str(caught.value)
    assert "sandbox.packages=[pytest]" in str(caught.value)


def test_a_missing_folder_of_a_package_is_named_with_its_prefix(tmp_path):
    with pytest.raises(ProblemError, match=r"^planted:\S*nowhere: there is no such folder of a package\."):
        check_source(f"planted:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("prefix", ["", "bugs:"])
def test_a_problem_on_both_sides_is_refused_whatever_its_bugs(problem_file, prefix):
    file = problem_file()
    with pytest.raises(ProblemError, match=r"both trained on and held out \(first: 'double"):
        build_problems(recipe(f"{prefix}{file}", file))


def test_other_problems_of_the_same_names_may_be_held_out(tmp_path, problem_file):
    """Ids are made of a file's name and rows, or of the names of functions: both may be alike by chance."""
    train = problem_file("solve")
    row = json.loads(train.read_text())[0]
    other = row | {
        "docstring": "Return n squared.",
        "test_cases": [[3, 9]],
        "reference": "def solve(n):\n    return n * n\n",
    }
    (tmp_path / "other").mkdir()
    held_out = tmp_path / "other" / "solve.json"
    held_out.write_text(json.dumps([other]))
    assert [[one.task_id for one in part] for part in build_problems(recipe(train, held_out))] == [
        ["solve"]
    ] * 2
    build_problems(recipe(f"bugs:{train}", held_out))


@pytest.mark.parametrize(
    "same",
    [
        {"docstring": "Return  twice\nn."},
        {"reference": "def solve(n):\n    return 2 * n\n"},
        {"test_cases": [[1, 2], [3, 6]]},
    ],
)
def test_a_problem_in_other_words_or_with_other_tests_is_the_same(tmp_path, problem_file, same):
    train = problem_file("solve")
    other = {
        "function_name": "solve",
        "docstring": "Double it.",
        "test_cases": [[3, 6]],
        "reference": "def solve(n):\n    return n + n\n",
    }
    (tmp_path / "other").mkdir()
    held_out = tmp_path / "other" / "solve.json"
    held_out.write_text(json.dumps([other | same]))
    with pytest.raises(ProblemError, match=r"both trained on and held out \(first: 'solve'"):
        build_problems(recipe(train, held_out))


def test_parts_of_a_suite_are_trained_on_and_held_out(mbpp):
    train, held_out = build_problems(recipe("mbpp:train", "mbpp:test"))
    assert [p.task_id for p in train] == ["Mbpp/601", "Mbpp/602"]
    assert [p.task_id for p in held_out] == ["Mbpp/20", "Mbpp/30"]


def test_training_on_test_problems_is_refused_unless_allowed_wherever_they_come_from(mbpp, problem_file):
    with pytest.raises(ProblemError, match=r"2 of the problems .*\n.*problems\.allow_test_ids=true"):
        build_problems(recipe("mbpp"))
    assert len(build_problems(recipe("mbpp", allow_test_ids=True))[0]) == 4
    with pytest.raises(ProblemError, match="test problems of MBPP"):
        build_problems(recipe("bugs:mbpp"))
    with pytest.raises(ProblemError, match="first: Mbpp/20"):
        build_problems(recipe(problem_file(task_id="Mbpp/20")))


def test_repair_is_trained_with_a_warm_start(tmp_path):
    warm_start = "warm_start={max_steps: 2, batch_size: 8}"
    settings = load_recipe("quickstart", (*REINFORCED, *BUGS, warm_start, "evaluation.enabled=false"))
    assert train(settings, tmp_path / "run", quiet=True)
    for folder in ("run", "run/warm_start"):
        assert [row["step"] for row in read_metrics(tmp_path / folder / "metrics.jsonl").rows] == [1, 2]
    for file in (tmp_path / "run" / "rollouts").iterdir():
        assert all("#" in json.loads(line)["problem"] for line in file.read_text().splitlines())


def test_both_sides_hold_verified_bugs_of_different_programs():
    bugs = ("problems.train=bugs:families", "problems.held_out=bugs:families", "problems.families.limit=40")
    settings = load_recipe("quickstart", (*bugs, "problems.bugs.show_failing_test=true"))
    train_problems, held_out = build_problems(settings)
    assert not set(map(original_id, train_problems)) & set(map(original_id, held_out))
    assert all(problem.buggy_code and problem.failing_test for problem in (*train_problems, *held_out))
    assert list(find_suite("held_out", settings)) == list(held_out)


def test_the_warm_start_repairs_or_leaves_the_bug_in(problem_file):
    train_problems, _ = build_problems(recipe(f"bugs:{problem_file()}"))
    (problem,) = train_problems
    examples = generated_examples(train_problems, 0.5, seed=0, examples_per_problem=40)
    assert {example.is_wrong for example in examples} == {True, False}
    for example in examples:
        program = example.prompt_text + example.completion_text
        assert program == (problem.buggy_code if example.is_wrong else problem.reference)


def test_given_bugs_are_shown_with_their_failing_test_where_that_is_asked_for(problem_file):
    file = problem_file(buggy_code="def double(n):\n    return 3 * n\n")
    for shown, told in ((True, "double(1): expected 2, got 3"), (False, "")):
        train_problems, held_out = build_problems(recipe(file, bugs={"show_failing_test": shown}))
        assert [problem.failing_test for problem in train_problems] == [told]
        assert not any(problem.failing_test for problem in held_out)


def test_a_warm_start_needs_programs_that_continue_the_starter_code(problem_file):
    train_problems, _ = build_problems(recipe(problem_file(buggy_code="def double(m):\n    return 3 * m\n")))
    with pytest.raises(ProblemError, match="double: expected a reference and a buggy program"):
        generated_examples(train_problems, 0.5, seed=0)


def test_a_person_sees_the_first_episodes_and_the_memory_of_a_training(tmp_path, capsys):
    keys = (*REINFORCED, "problems.train=classic_training", "evaluation.enabled=false")
    settings = load_recipe("quickstart", (*keys, "problems.held_out=classic_evaluation"))
    assert train(settings, tmp_path / "run", show=2)
    told, rows = capsys.readouterr().err, json.loads((tmp_path / "run/summary.json").read_text())
    first = (tmp_path / "run/rollouts/step_000001.jsonl").read_text().splitlines()
    shown = re.findall(r"^--- (\w+): (\w+), rewards ", told, re.MULTILINE)
    assert shown == [(one["problem"], one["status"]) for one in map(json.loads, first[:2])]
    assert (
        f"memory: {rows['peak_rss_mb']:,.0f} MiB at the peak, estimated {rows['estimated_mb']:,.0f} MiB"
        in told
    )
    assert "reading problems and model\n" in told and f"model: {DATA / 'starter'}: llama" in told


def test_a_kept_answer_says_what_it_was_asked_and_what_the_update_made_of_it(tmp_path):
    keys = (*REINFORCED, "problems.train=classic_training", "problems.held_out=classic_evaluation")
    masks = ("algorithm.overlong.mask_truncated=true", "training.num_generations=4", "sampling.max_tokens=24")
    settings = load_recipe("quickstart", (*keys, *masks, "evaluation.enabled=false"))
    assert train(settings, tmp_path / "run", quiet=True)
    prompts, problems = read_prompts(tmp_path / "run"), build_problems(settings)[0]
    by_name = {problem.task_id: problem for problem in problems}
    rows = [row for _, row in read_rollouts(tmp_path / "run")]
    assert rows and len(prompts) == len({row["problem"] for row in rows})
    groups = defaultdict(list)
    for row in rows:
        assert by_name[row["problem"]].entry_point in prompts[row["prompt_id"]]
        assert row.get("masked") == ("length" if row["stop"] == "length" else None)
        assert len(row["tests"]) == len(by_name[row["problem"]].tests)
        assert ("0" not in row["tests"]) == (row["status"] == "passed")
        groups[row["group"], row["policy_version"]].append(row)
    for group in groups.values():
        rewards = np.array([row["rewards"]["programmer"] for row in group])
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        assert [row["advantage"] for row in group] == pytest.approx(expected, abs=1e-5)


def test_numbers_by_token_are_those_of_the_update(tmp_path):
    """Before the first update the policy is the sampler: ratios are 1, and entropy is near the surprise."""
    keys = (*REINFORCED, "problems.train=classic_training", "problems.held_out=classic_evaluation")
    tokens = (
        "rollouts.tokens={every: 2, answers: 3}",
        "algorithm.kl.coefficient=0.01",
        "training.max_steps=4",
    )
    settings = load_recipe("quickstart", (*keys, *tokens, "evaluation.enabled=false"))
    assert train(settings, tmp_path / "run", quiet=True)
    run = tmp_path / "run"
    assert [path.name for path in sorted((run / "tokens").iterdir())] == [
        "step_000002.jsonl",
        "step_000004.jsonl",
    ]
    answers = [row for step, row in read_rollouts(run) if step == 4]
    rows = [json.loads(line) for line in (run / "tokens/step_000004.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2]
    schema = json.loads((Path(__file__).parents[2] / "docs/ci.schema.json").read_text("utf-8"))
    documented = schema["$defs"]["token_row"]
    for row in rows:
        assert set(documented["required"]) <= row.keys() <= documented["properties"].keys()
        answer = answers[row["row"]]
        assert sum(row["mask"]) == answer["tokens"] and len(row["pieces"]) == len(row["ids"])
        assert "".join(row["pieces"]).splitlines()[0].rstrip() in answer["answer"]
        if "ratio" not in row:  # of a group without signal
            assert answer["advantage"] == 0
            continue
        assert row["ratio"] == pytest.approx(np.ones(len(row["ids"])), abs=2e-3)
        assert row["advantage"] == pytest.approx([answer["advantage"]] * len(row["ids"]), abs=1e-4)
        assert min(row["kl"]) >= 0 and max(row["logprob"]) <= 0
        assert all(0 <= entropy <= np.log(1e5) for entropy in row["entropy"])


def test_a_long_step_shows_what_it_draws_and_that_it_updates(monkeypatch):
    """The clocks of this step are eleven seconds further at each look."""
    clock, out = itertools.count(step=11), io.StringIO()
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    engine, tokenizer = SimpleNamespace(), SimpleNamespace(decode_answer=lambda ids: f"text {list(ids)}")
    turn = SimpleNamespace(completion_ids=[1, 2])
    episode = SimpleNamespace(task_id="p", outcome="no_code", rewards={"x": 0.0}, trained_turns=[turn])
    with Progress(console=Console(file=out, width=100), clock=lambda: next(clock)) as progress:
        progress.phase("training", 1)
        shown = ShowSampling(engine, tokenizer, progress, 1)
        shown.on_step_begin(1)
        engine.on_tokens(7)
        assert shown.on_episodes([episode, episode]) == [episode, episode]
        shown.on_step_end(1, [], {})
        progress.advance(1)
    lines = out.getvalue().splitlines()
    assert lines[0] == "training: 1 steps" and lines[1].startswith("sampling  7 tokens")
    answer = ["--- p: no_code, rewards {'x': 0.0}", "text [1, 2]", "---", "updating the weights"]
    assert lines[-5:-1] == answer and lines[-1] == "training  step 1/1"


def test_bad_rows_are_named_with_the_option_that_skips_them_and_recorded(tmp_path, problem_file, capsys):
    file, two = problem_file(), [{"function_name": "one"}, {"function_name": "two", "docstring": 3}]
    file.write_text("\n".join(map(json.dumps, [*json.loads(file.read_text()), *two])))
    with pytest.raises(ProblemError, match=r"double\.json, row 2 \(line 2\)(.|\n)*by --skip-bad-rows"):
        build_problems(recipe(file))
    source = f"problems.train={file}"
    keys = (*REINFORCED, source, "problems.skip_bad_rows=true", "evaluation.enabled=false")
    settings = load_recipe("quickstart", (*keys, "problems.held_out=classic_training"))
    dry_run(settings)
    assert f"warning: Skipped rows of problems.train: 2. {file}, row 2 (line 2)" in capsys.readouterr().out
    assert train(settings, tmp_path / "run")
    assert "Skipped rows of problems.train: 2." in " ".join(capsys.readouterr().err.split())
    (session,) = json.loads((tmp_path / "run" / "provenance.json").read_text())["sessions"]
    first, second = session["skipped_rows"]["problems.train"]
    assert (f"{file}, row 2 (line 2)" in first) and "row 3 (line 3): field 'docstring' must be text" in second


REWARDS = """
import json

def good(answers):
    return [float(len(answer.completion)) for answer in answers]

def same(answers):
    return [0.5 for answer in answers]

def nothing(answers):
    return [None for answer in answers]

def not_a_number(completions, **kwargs):
    return [float("nan") for text in completions]

def one_score(answers):
    return [1.0]

def divides(completions, **kwargs):
    return [1 / len(text) for text in completions]

def parses(answers):
    return [helper(answer.text) for answer in answers]

def helper(text):
    return json.loads(text)["score"]  # the line that fails
"""


def rows_of(name, operation, count):
    return [
        {
            "function_name": f"{name}{number}",
            "docstring": f"Return x {operation} {number}.",
            "test_cases": [[value, eval(f"{value} {operation} {number}")] for value in (2, 3)],
            "reference": f"def {name}{number}(x):\n    return x {operation} {number}\n",
        }
        for number in range(count)
    ]


TRAIN, HELD_OUT = rows_of("add", "+", 6), rows_of("times", "*", 3)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Resolves a recipe on small files of problems in the current folder, which a test may write anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "checked_rewards.py").write_text(REWARDS)

    def resolve(*overrides, **files):
        for name, rows in ({"train": TRAIN, "held_out": HELD_OUT} | files).items():
            text = rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows))
            (tmp_path / f"{name}.jsonl").write_text(text)
        keys = (
            "problems.allow_shared=false",
            "problems.train=train.jsonl",
            "problems.held_out=held_out.jsonl",
        )
        limits = ("training.prompts_per_step=4", "training.num_generations=4", "rewards=[{name: tests}]")
        return load_recipe("quickstart", (*REINFORCED, *keys, *limits, *overrides))

    return resolve


def checked(settings):
    lines, warnings = [], []
    check_recipe(settings, say=lines.append, warn=warnings.append)
    return lines, warnings


def own_reward(name):
    return f"rewards=[{{name: tests}}, {{name: 'checked_rewards:{name}'}}]"


LONGEST = "{" * 40 + "long" * 300
BROKEN = {
    "shared": ((), {"held_out": [*HELD_OUT, TRAIN[2]]}, r"1 problems are both trained on .*'add2'\)"),
    "shared under another id": (
        (),
        {"held_out": [*HELD_OUT, TRAIN[2] | {"task_id": "new"}, TRAIN[4] | {"task_id": "newer"}]},
        r"2 problems are both trained on and held out \(first: 'new', which is 'add2' of the training set\)",
    ),
    "a suite that is trained on": (
        ("evaluation.suites=[{name: suite.jsonl}]",),
        {"suite": [TRAIN[1] | {"task_id": "new"}]},
        r"1 problems of suite\.jsonl are trained on \(first: 'new', which is 'add1'",
    ),
    "a misspelt field": (
        (),
        {"train": [*TRAIN, {"function_name": "f", "docstrng": "d", "test_cases": [[1, 2]]}]},
        r"train\.jsonl, row 7 \(line 7\).*\n.*'docstrng' meant to be 'docstring'",
    ),
    "an unknown field": (
        (),
        {"train": [TRAIN[0] | {"refrence": ""}]},
        r"row 1 \(line 1\): field 'refrence' is not known\.\n  Did you mean 'reference'",
    ),
    "cut JSON": ((), {"train": json.dumps(TRAIN[0])[:-9]}, r"train\.jsonl, line 1, column \d+: not JSON"),
    "a wrong case": (
        (),
        {"train": [*TRAIN[:5], TRAIN[5] | {"test_cases": [[1, 99]]}]},
        r"1 of 9 reference solutions fail their own tests:\n  add5: failed\. add5\(1\): expected 99, got 6",
    ),
    "no such function": ((own_reward("missing"),), {}, "checked_rewards has no function 'missing'"),
    "no number": (
        (own_reward("not_a_number"),),
        {},
        r"checked_rewards:not_a_number: on made-up answers, before training, it gave nan for answer 0",
    ),
    "too few scores": ((own_reward("one_score"),), {}, r"it gave 1 scores for 16 answers"),
    "an empty answer": (
        (own_reward("divides"),),
        {},
        r"ZeroDivisionError.*\(answer 3, problem add0, text ''\)(.|\n)*checked_rewards\.py\", line 20, in div",
    ),
    "an error below": (
        (own_reward("parses"),),
        {},
        r"JSONDecodeError.*answer 0(.|\n)*line 23, in parses(.|\n)*line 26, in helper",
    ),
    "tokens beyond the context": (
        ("sampling.max_tokens=99999",),
        {},
        r"problems\.train: the longest prompt has \d+ tokens \(add0\); with sampling\.max_tokens 99999 that is "
        r"100\d+, more than the 128 positions of the model. 6 of 6",
    ),
    "a prompt beyond the context": (
        (),
        {"train": [*TRAIN, TRAIN[0] | {"function_name": "add0", "task_id": "long", "docstring": LONGEST}]},
        r"tokens \(long\).*more than the 128 positions of the model. 1 of 7",
    ),
    "bad pairs": (
        ("warm_start={data: pairs.jsonl}",),
        {"pairs": [{"prompt": "a", "completion": "b"}, {"prompt": "a"}]},
        r"pairs\.jsonl, row 2 \(line 2\): field 'completion'",
    ),
    "no pairs": (("warm_start={data: nowhere.jsonl}",), {}, "there is no file nowhere.jsonl"),
    "no such problems": (("problems.train=nowhere.jsonl",), {}, "nowhere.jsonl: there is no such file"),
    "no such model": (("model=/nowhere",), {}, "no such folder"),
    "an unknown term": (("rewards=[{name: test}]",), {}, "Did you mean 'tests'"),
    "labels": (("task=vulnerability",), {}, "add0 has no label"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_check_refuses_what_a_dry_run_refuses_with_the_same_words(small, case, capsys):
    overrides, files, message = BROKEN[case]
    settings = small(*overrides, **files)
    with pytest.raises(GreenwardError, match=message):
        dry_run(settings)
    assert "task:" not in capsys.readouterr().out  # the settings, which would hide it
    with pytest.raises(GreenwardError, match=message):
        checked(settings)


@pytest.mark.parametrize("case", [name for name in BROKEN if name not in ("a wrong case", "bad pairs")])
def test_a_training_refuses_it_before_there_is_a_run(small, case, tmp_path):
    overrides, files, message = BROKEN[case]
    with pytest.raises(GreenwardError, match=message):
        train(small(*overrides, **files), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_good_recipe_says_what_was_read(small):
    lines, warnings = checked(small(own_reward("good")))
    assert not warnings
    assert lines[:2] == ["train: 6 problems from train.jsonl", "held out: 3 problems from held_out.jsonl"]
    assert re.fullmatch(r"model: \S*starter, 128 positions, longest prompt \d+ \+ 20 tokens", lines[2])
    assert lines[3:] == [
        "references: 9 pass their own tests",
        "rewards: tests, checked_rewards:good: called on 16 made-up answers",
    ]


@pytest.mark.parametrize(
    ("overrides", "files", "warning"),
    [
        ((), {"train": [*TRAIN, TRAIN[1] | {"task_id": "again"}]}, r"1 problems ask .*\(first: 'again' as 'add1'\)"),
        (("problems.allow_shared=true",), {"held_out": TRAIN}, r"6 problems of problems\.held_out are trained on"),
        ((own_reward("same"),), {}, r"checked_rewards:same gave 0\.5 for all 16 made-up answers"),
        ((own_reward("nothing"),), {}, r"checked_rewards:nothing applies to none of 16 made-up answers"),
        (("sampling.max_tokens=2",), {}, r"max_tokens 2 is less than the \d+ tokens of the shortest reference"),
        (("sampling.stop_strings=[return]",), {}, r"'return' occurs in all of the first 6 reference answers"),
        (("training.micro_batch_sequences=64",), {}, r"micro_batch_sequences 64 is more than the 16 answers"),
        (("training.prompts_per_step=8",), {}, r"prompts_per_step 8 is more than the 6 problems"),
        (
            (),
            {"held_out": [*HELD_OUT, HELD_OUT[0] | {"task_id": "long", "docstring": LONGEST}]},
            r"held_out: the longest prompt has \d+ tokens \(long\).*1 of 4 problems are too long",
        ),
    ],
)  # fmt: skip
def test_what_may_spoil_a_training_is_a_warning(small, overrides, files, warning):
    _, warnings = checked(small(*overrides, **files))
    assert len(warnings) == 1 and re.search(warning, warnings[0]), warnings


def test_public_suites_may_hold_a_problem_twice(mbpp):
    """The published parts of MBPP do: they are compared as they are."""
    train_problems, held_out = build_problems(recipe("mbpp:train", "mbpp:test"))
    assert {one.prompt for one in train_problems} == {one.prompt for one in held_out}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "grpo_vulnerability" else ())
        for name in shipped_recipes()
    ],
)
def test_shipped_recipes_pass_the_check(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smaller = {
        "sft": ("warm_start.data=corpus",),
        "grpo_spec": ("problems.families.limit=200",),
        "dqn_code_generation": ("problems.compositions=20",),
    }
    fewer = ["problems.families.limit=40"] if "families" in load_recipe(name).problems.train else []
    lines, _ = checked(load_recipe(name, [*fewer, *smaller.get(name, ())]))
    assert lines


def test_damaged_weights_are_found_without_reading_them(small, tmp_path):
    shutil.copytree(DATA / "starter", tmp_path / "model")
    (file,) = (tmp_path / "model").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(GreenwardError, match=r"model\.safetensors"):
        checked(small(f"model={tmp_path / 'model'}"))


def test_a_model_that_is_not_at_hand_is_not_fetched(small):
    away = ("model=Qwen/Qwen2.5-Coder-0.5B-Instruct", "model.lora={}", "model.cache_dir=empty")
    _, warnings = checked(small(*away))
    assert any("not in the cache" in one for one in warnings)
    with pytest.raises(ConfigError, match=r"max_tokens 99999 leaves no room .* 32768 positions"):
        checked(small(*away, "sampling.max_tokens=99999"))
