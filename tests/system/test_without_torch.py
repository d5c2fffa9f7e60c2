"""Whatever trains no model runs where torch is not installed, and the rest says what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

import greenward
from diagnostics.synthetic_runs import predictions, write_run
from openai_server import OpenAIServer

TRAIN = ("torch", "tokenizers", "safetensors", "transformers", "peft", "accelerate")
"""The packages of the extra `train`, and what needs them."""


def _without(packages: Iterable[str], folder: Path) -> Path:
    """Write the `sitecustomize` that hides the packages from every interpreter that starts with the folder."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        f"HIDDEN = {sorted(packages)!r}\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in HIDDEN:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return folder


PROBLEMS = [
    {
        "task_id": f"add_{number}",
        "function_name": "add",
        "docstring": "Add a number.",
        "starter_code": "def add(x):\n",
        "test_cases": [[1, 1 + number], [5, 5 + number]],
    }
    for number in range(3)
]
ALLOWED = 300  # seconds of a command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a suite, answers and a run."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "hidden").mkdir()
    _without((*TRAIN, "gymnasium", "pettingzoo", "ruff"), folder / "hidden")
    (folder / "suite.json").write_text(json.dumps(PROBLEMS))
    for name, wrong in (("a", 0), ("b", 1)):
        rows = [
            {"task_id": one["task_id"], "solution": f"def add(x):\n    return x + {number - wrong}\n"}
            for number, one in enumerate(PROBLEMS)
        ]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    time = np.linspace(0, 1, 100)
    noise = np.random.default_rng(0).standard_normal((4, 100))
    signals = {
        "reward/mean": 0.2 + 0.5 * time + 0.02 * noise[0],
        "pass_rate": 0.1 + 0.5 * time + 0.02 * noise[1],
        "grad_norm": 0.5 + 0.05 * noise[2],
        "entropy": 0.5 - 0.1 * time + 0.01 * noise[3],
    }
    write_run(folder / "run", signals, predictions(0, steps=100, each=8), algorithm={"name": "grpo"})
    (folder / "run/rollouts").mkdir()
    answer = {"task_id": "a", "answer": "x", "status": "passed", "rewards": {"policy": 1.0}}
    (folder / "run/rollouts/step_000001.jsonl").write_text(json.dumps(answer) + "\n")
    (folder / "my_rewards.py").write_text(
        "def right(prompts, completions, reference, **columns):\n"
        "    return [float(a.strip() == b.strip()) for a, b in zip(completions, reference)]\n"
    )
    return folder


@pytest.fixture(scope="module")
def environment(folder: Path) -> dict[str, str]:
    source = Path(greenward.__file__).parents[1]  # the clone, or an installed wheel
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder / "hidden", source)))}


@pytest.fixture(scope="module")
def run(folder: Path, environment: dict[str, str]) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program in a process of its own."""

    def run(program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=ALLOWED
        )

    return run


COMMANDS = """
import contextlib, io, json, sys, traceback
from greenward.cli.main import main
requests, replies = sys.stdin, sys.stdout
sys.stdin = io.StringIO()
for line in requests:
    said, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            main(json.loads(line))
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
    print(json.dumps([code, said.getvalue(), errors.getvalue()]), file=replies, flush=True)
"""


@pytest.fixture(scope="module")
def call(folder: Path, environment: dict[str, str]) -> Iterator[Callable[..., tuple[str, str]]]:
    """`greenward …` in one process for all commands: standard output and standard error."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMANDS],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def call(*arguments: str, allowed: tuple[int, ...] = (0,)) -> tuple[str, str]:
        process.stdin.write(json.dumps(arguments) + "\n")
        process.stdin.flush()
        late = Timer(ALLOWED, process.kill)
        late.start()
        code, said, errors = json.loads(process.stdout.readline() or '[null, "", "it ended"]')
        late.cancel()
        assert code in allowed and "Traceback" not in errors, said + errors
        return said, errors

    with process:
        yield call
        process.stdin.close()


def test_torch_is_hidden(run):
    assert "No module named 'torch'" in run("import torch").stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("grade a.jsonl --suite suite.json --out graded_a", "3 problems"),
        ("grade b.jsonl --suite suite.json --out graded_b", "3 problems"),
        ("compare graded_a graded_b", "McNemar"),
        ("show add_1 --in graded_b", "add_1"),
        ("diagnose run --output-dir diagnosis", ""),
        ("reward-health --run run", ""),
        ("diff --a run --b run", ""),
        ("watch run --once", ""),
        ("monitor run --once", ""),
        ("report run --format markdown", "run"),
        ("rollouts run", "passed"),
        ("doctor", "isolation"),
        pytest.param("selftest", "findings fire", marks=pytest.mark.slow),
        ("config schema", ""),
    ],
)  # fmt: skip
def test_a_command_that_loads_no_model_needs_no_torch(call, folder, command, said):
    for name in "ab":  # of another test, which another process may have taken
        if f" graded_{name}" in command.partition("--out")[0] and not (folder / f"graded_{name}").exists():
            call("grade", f"{name}.jsonl", "--suite", "suite.json", "--out", f"graded_{name}")
    assert said in "".join(call(*command.split(), allowed=(0, 1)))


def test_a_model_behind_a_server_is_evaluated(call, folder):
    def answer(prompt: str) -> str:
        return "```python\ndef add(x):\n    return x\n```"

    with OpenAIServer(answer) as server:
        call("eval", "tiny", "--base-url", server.url, "--suite", "suite.json", "--style", "chat",
             "--out", "served")  # fmt: skip
    summary = json.loads((folder / "served/summary.json").read_text())
    assert summary["metrics"]["pass@1"]["value"] == pytest.approx(1 / 3)


def test_a_reward_function_is_audited(call):
    said, _ = call("audit", "my_rewards:right", "--json", allowed=(0, 1))
    assert json.loads(said)["cheats"]


def test_the_rewards_of_other_trainers_are_given(run):
    code = (
        "import greenward\n"
        "from greenward.integrations import compute_score\n"
        "problems = list(greenward.load_problems('suite.json'))\n"
        "answers = ['```python\\ndef add(x):\\n    return x + %d\\n```' % n for n in (0, 5, 2)]\n"
        "reward = greenward.reward_function(['tests'], problems)\n"
        "print(reward([p.prompt for p in problems], answers, task_id=[p.task_id for p in problems]))\n"
        "print([compute_score('suite.json', a, p.task_id)['score'] for a, p in zip(answers, problems)])\n"
    )
    assert run(code).stdout.split("\n")[:2] == ["[2.0, 0.0, 2.0]"] * 2


@pytest.mark.parametrize(
    "command", ["train quickstart", "eval some/model --suite suite.json", "plan quickstart --gpu h100"]
)
def test_a_command_that_loads_a_model_says_what_to_install(call, command):
    _, errors = call(*command.split(), allowed=(2,))
    assert "greenward[train]" in errors
