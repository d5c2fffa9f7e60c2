"""The Python API: own problems and own rewards in a few lines, and nothing deeper under the commands."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import greenward
from greenward import (
    Case,
    EvaluationCallback,
    Problem,
    evaluate,
    load_problems,
    load_recipe,
    reward_function,
    train,
)
from greenward.common.errors import ConfigError, GreenwardError, RewardError

pytestmark = pytest.mark.usefixtures("kept_sandbox")

SOURCE = Path(greenward.__file__).parent
ROOT = Path(__file__).parents[1]
TINY = {
    "model": {"shape": {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 2, "intermediate_size": 64}},
    "sampling": {"max_tokens": 12},
    "training": {
        "max_steps": 2,
        "prompts_per_step": 2,
        "num_generations": 2,
        "micro_batch_sequences": 4,
        "threads": 1,
    },
}
PROBLEMS = [
    Problem(f"add/{n}", f"Return x plus {n}.", "f", (Case((1,), 1 + n),), starter_code="def f(x):\n")
    for n in range(4)
]


def vowels(prompts, completions, **columns):
    return [sum(letter in "aeiou" for letter in text) / max(1, len(text)) for text in completions]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    output = tmp_path_factory.mktemp("api") / "run"
    return train(problems=PROBLEMS, rewards={vowels: 1.0, "tests": 0.5}, output=output, quiet=True, **TINY)


def test_grpo_on_own_problems_with_an_own_reward_leaves_a_run(trained):
    assert trained.finished and [row["step"] for row in trained.metrics] == [1, 2]
    assert trained.evaluations == []  # no problems were held out
    rows = [
        json.loads(line) for line in (trained.run / "rollouts/step_000001.jsonl").read_text().splitlines()
    ]
    assert {row["problem"] for row in rows} <= {problem.task_id for problem in PROBLEMS}
    for row in rows:
        own = row["terms"][f"{__name__}:vowels"]
        assert own == vowels([], [row["answer"].removeprefix("def f(x):\n")])[0]
        assert sum(row["rewards"].values()) == pytest.approx(own + 0.5 * row["terms"]["tests"])


def test_a_run_of_a_program_resumes_with_its_problems_only(trained):
    assert train(problems=PROBLEMS, rewards={vowels: 1.0, "tests": 0.5}, output=trained.run, resume=True,
                 quiet=True, **TINY).finished  # fmt: skip
    with pytest.raises(greenward.common.errors.RunError, match=r"problems\.train"):
        train(problems=PROBLEMS[:2], rewards={vowels: 1.0, "tests": 0.5}, output=trained.run, resume=True,
              quiet=True, **TINY)  # fmt: skip


def test_the_config_of_a_run_continues_that_run_wherever_it_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = {"problems": PROBLEMS, "rewards": {"tests": 1.0}, "resume": True, "quiet": True}
    run = train(output="elsewhere/run", **one, **TINY).run
    more = train(run / "config.yaml", ["training.max_steps=3"], **one)
    assert more.run == run and [row["step"] for row in more.metrics] == [1, 2, 3]
    (tmp_path / "mine").mkdir()  # a recipe of that name that is no run's
    (tmp_path / "mine/config.yaml").write_text((run / "config.yaml").read_text())
    assert (
        train("mine/config.yaml", **one, dry_run=True).run
        == Path("runs") / load_recipe(run / "config.yaml").name
    )


def test_a_policy_is_evaluated_in_memory_with_intervals(trained):
    result = evaluate(trained.policy, PROBLEMS, samples=2, max_tokens=8)
    estimate = result.metrics["pass@1"]
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert result.summary["answers"] == 8 and result.folder is None
    assert 0 <= result.rates["compile"].value <= 1
    assert evaluate(trained.run, PROBLEMS, max_tokens=8).summary["answers"] == 4
    part = {"limit": 1, "max_tokens": 8}
    assert evaluate(trained.policy, PROBLEMS, **part).summary["problems"] == 1
    assert evaluate(trained.run, PROBLEMS, **part).summary["problems"] == 1
    assert evaluate(trained.policy, "classic_evaluation", ids=["multiply"]).summary["problems"] == 1
    assert any("given in Python" in note for note in evaluate(trained.run, PROBLEMS, **part).summary["notes"])
    options = ({"device": "cpu"}, {"checkpoint": "last"}, {"fewshot": 1}, {"skip_bad_rows": True})
    for option in (*options, {"suite": "mbpp"}):
        with pytest.raises(GreenwardError, match=next(iter(option))):
            evaluate(trained.policy, PROBLEMS, **option)


def test_a_file_of_problems_may_be_a_path(trained, tmp_path):
    row = {"text": "Return x.", "code": "def f(x):\n    return x\n", "test_list": ["assert f(1) == 1"]}
    rows = [{"task_id": number, **row} for number in range(1, 5)]
    file = tmp_path / "own.json"
    file.write_text(json.dumps(rows))
    for problems in (file, str(file)):
        found = evaluate(trained.policy, problems, max_tokens=8).summary
        assert found["problems"] == 4


def test_the_callback_evaluates_first_every_n_steps_and_last(trained, tmp_path):
    logged = {}
    callback = EvaluationCallback(PROBLEMS, every=2, output=tmp_path, log=logged.__setitem__, max_tokens=8)
    policy = trained.policy
    returned = [callback(step, policy, last=step == 3) is not None for step in range(4)]
    assert returned == [True, False, True, True]
    assert list(callback.results) == list(logged) == [0, 2, 3]
    assert logged[2]["eval/pass@1_low"] <= logged[2]["eval/pass@1"]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [f"step_00000{n}.json" for n in (0, 2, 3)]


def test_the_callback_fits_a_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")

    from transformers.trainer_callback import CallbackHandler

    from greenward.models.tokenizer import train_tokenizer
    from greenward.tasks.corpus import texts_to_tokenize

    train_tokenizer(texts_to_tokenize(load_problems("classic_training")), 300).save(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    shape = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, n_positions=256))
    callback = EvaluationCallback(PROBLEMS, every=2, max_tokens=4)
    assert isinstance(callback, transformers.TrainerCallback)
    handler = CallbackHandler([callback], model, tokenizer, None, None)
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    handler.on_train_begin(None, state, control)
    for step in (1, 2, 3):
        state.global_step = step
        handler.on_step_end(None, state, control)
    handler.on_train_end(None, state, control)
    assert list(callback.results) == [0, 2, 3]
    assert [row["step"] for row in state.log_history] == [0, 2, 3]
    assert all(0 <= row["eval_pass@1"] <= 1 for row in state.log_history)


def test_rewards_are_plain_functions_for_other_trainers():
    score = reward_function({"all_tests": 1.0, vowels: 2.0}, PROBLEMS)
    right, wrong = "```python\ndef f(x):\n    return x + 1\n```", "    return x"
    assert score(["p", "p"], [right, wrong], task_id=["add/1", "add/1"]) == [
        1 + 2 * vowels([], [right])[0],
        2 * vowels([], [wrong])[0],
    ]
    chat = [[{"role": "assistant", "content": right}]]
    assert score([[{"role": "user", "content": "p"}]], chat, task_id=["add/1"])[0] > 1
    # With starter code as without, an answer may write the function itself, and need not have a block.
    bare, tests = (
        Problem("bare", "Return x.", "f", (Case((1,), 1),)),
        reward_function(["all_tests"], PROBLEMS),
    )
    for text in (
        "def f(x):\n    return x + 1",
        "<think>1</think>\ndef f(x):\n    return x + 1\n",
        "    return x + 1",
    ):
        assert tests(["p"], [text], task_id=["add/1"]) == [1.0]
    helped = "STEP = 0\n\ndef f(x):\n    return x + STEP"
    assert reward_function(["all_tests"], [bare])(["p"], [helped], task_id=["bare"]) == [1.0]


@pytest.mark.parametrize(
    ("answer", "scores"),
    [
        ("<<<<<<< SEARCH\n    return x\n=======\n    return x + 1\n>>>>>>> REPLACE", [1.0, 1.0]),
        ("Here.\n@@ -1,2 +1,2 @@\n def f(x):\n-    return x\n+    return x + 1\n", [1.0, 1.0]),
        (
            "<think>It is off.</think>\n```\n<<<<<<< SEARCH\n    return x\n=======\n    return x + 1\n"
            ">>>>>>> REPLACE\n```",
            [1.0, 1.0],
        ),
        ("<<<<<<< SEARCH\n    return x\n=======\n    return x + 2\n>>>>>>> REPLACE", [0.0, 1.0]),
        ("<<<<<<< SEARCH\n    return y\n=======\n    return x + 1\n>>>>>>> REPLACE", [0.0, 0.5]),
        ("<<<<<<< SEARCH\n    return x\n=======\n    return x\n>>>>>>> REPLACE", [0.0, 0.0]),
        ("```python\ndef f(x):\n    return x + 1\n```", [1.0, 0.0]),  # the whole function is no edit
    ],
)
def test_rewards_for_other_trainers_apply_edits(answer, scores):
    problem = Problem(
        "bug", "Add 1.", "f", (Case((1,), 2), Case((5,), 6)), buggy_code="def f(x):\n    return x\n",
        reference="def f(x):\n    return x + 1\n",
    )  # fmt: skip
    found = [
        reward_function([name], [problem])(["p"], [answer], task_id=["bug"])[0]
        for name in ("all_tests", "edit_format")
    ]
    assert found == scores


def test_problems_may_come_from_a_generator(tmp_path):
    train(problems=(problem for problem in PROBLEMS), output=tmp_path / "run", dry_run=True)


def test_mistakes_are_named_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match=r"Nearest: training\.max_steps"):
        train(training={"max_stpes": 3}, output=tmp_path / "run")
    with pytest.raises(ConfigError, match="two functions are called"):
        train(rewards={vowels: 1.0, _Named("vowels"): 1.0}, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"problem": PROBLEMS}, r"problem: expected numbers, text, lists and mappings"),
        ({"problems": []}, r"problems is empty"),
        ({"problems": [*PROBLEMS, 1]}, r"expected a Problem at row 5, found 1"),
        ({"rewards": [3]}, r"expected the name of a term or a function, found 3"),
        ({"rewards": "tests"}, r"rewards: expected a list or a mapping to weights, found 'tests'"),
        ({"rewards": vowels}, r"rewards: expected a list or a mapping to weights"),
        ({"overrides": "training.max_steps=3"}, r"expected a list of key=value"),
    ],
)
def test_what_is_not_of_the_kind_expected_is_named(arguments, message):
    with pytest.raises(GreenwardError, match=message):
        train(dry_run=True, **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(3), r"recipe: expected a recipe, .* found 3"),
        (lambda: train(problems=3), r"expected problems, found 3"),
        (lambda: greenward.audit(3), r"reward: expected a recipe, .* found 3"),
        (lambda: greenward.audit(lambda answers: []), r"can import by its name.\n.*top level of a module"),
        (lambda: greenward.audit("a:b", timeout=3), r"no option 'timeout'.\n.*timeout_seconds"),
        (lambda: evaluate("runs/none", sample=3), r"no option 'sample'.\n.*Did you mean samples"),
        (lambda: evaluate("runs/none", epsilon=0.1), r"epsilon concerns runs of Q-learning"),
        (lambda: evaluate(3), r"policy: expected a policy, .* found 3"),
        (lambda: evaluate("runs/none", temperature=float("nan")), r"temperature of at least 0 .* found nan"),
        (lambda: evaluate("runs/none", samples=2.5), r"samples: .*integer.*found 2.5"),
        (lambda: evaluate("runs/none", seed=2**70), r"seed: .*less than"),
        (lambda: evaluate("runs/none", k=2), r"k: .*found 2"),
        (lambda: evaluate("runs/none", k=[0]), r"k: .*greater than 0, found \[0\]"),
        (lambda: evaluate("runs/none", max_tokens=0), r"max_tokens: .*found 0"),
        (lambda: evaluate("runs/none", dtype="int4"), r"dtype: .*found 'int4'"),
        (lambda: evaluate("runs/none", PROBLEMS, eval_results=True), r"eval_results: .* writes nothing"),
        (lambda: evaluate("runs/none", PROBLEMS, output="x"), r"output: .* writes nothing"),
        (
            lambda: greenward.load_problems("families", part="x"),
            r"part: expected train or held_out, found 'x'",
        ),
        (lambda: greenward.best_of_n(PROBLEMS[0], "def f(): pass", None), r"answers: expected a list"),
        (lambda: evaluate("runs/none", workers=0), r"workers: .*greater than 0, or none, found 0"),
        (lambda: greenward.grade("a.jsonl", "mbpp", recheckk=2), r"Did you mean recheck"),
        (lambda: greenward.grade("a.jsonl", "mbpp", timeout=float("nan")), r"timeout: .*found nan"),
        (
            lambda: greenward.grade("a.jsonl", "mbpp", require="E"),
            r"require: expected A, B, C or D, found 'E'",
        ),
        (lambda: greenward.grade("a.jsonl", "mbpp", packages="numpy"), r"packages: .*list.*found 'numpy'"),
        (lambda: reward_function(["tests"], PROBLEMS)(["p"], ["c"]), r"expected a task_id for each of 1"),
        (lambda: reward_function(["tests"], 3), r"expected problems, found 3"),
        (lambda: Case(1, 2), r"Case: args: expected a tuple of arguments, .* found 1"),
        (lambda: Problem("a", "b", 3), r"Problem: entry_point: expected text, found 3"),
        (lambda: Problem("a", "b", "f", Case((1,), 1)), r"Problem: tests: expected a tuple, found Case"),
        (
            lambda: Problem("a", "b", "f", ((1, 1),)),
            r"tests: expected a test \(Case, .* at position 0, found \(1, 1\)",
        ),
    ],
)
def test_a_wrong_argument_is_an_error_of_greenward(call, message):
    with pytest.raises(GreenwardError, match=message):
        call()


def test_an_evaluation_without_problems_or_with_too_few_answers_is_refused(trained):
    with pytest.raises(GreenwardError, match="no problem to evaluate on"):
        evaluate(trained.run, [])
    with pytest.raises(GreenwardError, match=r"pass@5 needs .* --n is 2"):
        evaluate(trained.run, PROBLEMS, samples=2, k=[5])
    with pytest.raises(GreenwardError, match=r"samples: .*greater than 0, found 0"):
        evaluate(trained.run, PROBLEMS, samples=0)


def test_an_error_of_an_own_reward_names_it(tmp_path):
    def failing(prompts, completions, **columns):
        raise ZeroDivisionError("no")

    with pytest.raises(RewardError, match=r"failing: .*ZeroDivisionError"):
        train(problems=PROBLEMS, rewards=[failing], output=tmp_path / "run", quiet=True, **TINY)


class _Named:
    def __init__(self, name):
        self.__module__, self.__qualname__ = __name__, name

    def __call__(self, prompts, completions, **columns):
        return [0.0] * len(completions)


def test_importing_greenward_loads_nothing_heavy_and_names_its_api():
    code = (
        "import sys, greenward; assert not {'torch', 'pydantic', 'yaml', 'numpy'} & set(sys.modules);"
        "assert {'train', 'evaluate', 'audit', 'Problem', 'Policy', 'Grader'} <= set(dir(greenward))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    names: dict[str, object] = {}
    exec("from greenward import *", names)
    assert {"train", "Policy", "Problem"} <= set(names)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        greenward.trian  # noqa: B018


@pytest.mark.slow
def test_all_names_can_be_imported_into_a_new_process():
    everything = "from greenward import *; assert Policy and train and Problem"
    subprocess.run([sys.executable, "-c", everything], check=True)


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_commands_use_the_api_and_nothing_deeper(name):
    imported = set()
    for node in ast.walk(ast.parse((SOURCE / "cli" / f"{name}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("greenward."):
            imported.add((node.module or "").split(".")[1])
    allowed = {"api", "cli", "common", "config", "reports", "runs"}
    # The demo compares several commands, `launch` starts processes, and `compare` and `show` read what is
    # stored; they are no part of the API.
    assert imported <= allowed | ({"recipes", "hardware"} if name == "train" else {"evaluation"})


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    cells = json.loads((ROOT / "docs" / "python.ipynb").read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    file = tmp_path / "notebook.py"
    file.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "pass@1" in done.stdout
