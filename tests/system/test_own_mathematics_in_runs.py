"""Runs with a loss and an advantage of the user's: equal training, what is kept, resumes, reports, the notebook."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import runpy
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from greenward.common.errors import ConfigError, RunError
from greenward.config.loading import all_recipes, load_recipe
from greenward.config.sections import GRPOAlgorithmConfig
from greenward.diagnostics.diff import diff_runs
from greenward.recipes.run import check_recipe, train
from greenward.reports.document import Fact
from greenward.reports.recorded import report_of
from greenward.training.own import OwnMathematics
from tiny_model import REINFORCED

pytestmark = pytest.mark.usefixtures("kept_sandbox")

ROOT = Path(__file__).parents[2]
OWN = """
import numpy as np
import torch


def clipped(logprobs_BT, old_logprobs_BT, advantages_BT, total_tokens, clip_low, clip_high):
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return -torch.min(ratio_BT * advantages_BT, clipped_BT * advantages_BT).sum() / total_tokens


def centred(rewards_N, groups_N):
    return rewards_N - np.array([rewards_N[groups_N == group].mean() for group in groups_N])


def wrong(logprobs_BT):
    return logprobs_BT.mean()
"""
NAMES = ("algorithm.loss={0}:clipped", "algorithm.advantage={0}:centred")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module in the current folder with a loss and an advantage."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    (tmp_path / f"{name}.py").write_text(OWN)
    importlib.invalidate_caches()
    return name


def resolve(*overrides):
    algorithm = "algorithm={loss: dapo, advantage: dr_grpo, updates_per_batch: 2}"
    fixed = ("algorithm=grpo", algorithm, "training.max_steps=3", "evaluation.enabled=false")
    return load_recipe("quickstart", (*REINFORCED, *fixed, *overrides))


def weights(run):
    return load_file(next((run / "checkpoints/last").glob("*.safetensors")))


def test_a_run_by_own_functions_is_kept_and_resumed_and_shown(module, tmp_path):
    own = [override.format(module) for override in NAMES]
    assert train(resolve(), tmp_path / "built_in", quiet=True)
    assert train(resolve(*own, "training.max_steps=2"), tmp_path / "run", quiet=True)
    run = tmp_path / "run"
    assert (run / "own_loss.py").read_text() == (run / "own_advantage.py").read_text() == OWN
    kept = json.loads((run / "provenance.json").read_text())["sessions"][-1]["own"]
    assert kept == dict.fromkeys(("loss", "advantage"), hashlib.sha256(OWN.encode()).hexdigest())

    (tmp_path / f"{module}.py").write_text(OWN.replace("1 + clip_high", "2 + clip_high"))
    with pytest.raises(
        RunError, match=r"source of algorithm\.loss has changed(.|\n)*old source.*own_loss\.py"
    ):
        train(resolve(*own), run, resume=True, quiet=True)
    assert (run / "own_loss.py").read_text() == OWN
    shutil.copy(run / "own_loss.py", tmp_path / f"{module}.py")
    assert train(resolve(*own), run, resume=True, quiet=True)
    expected = weights(tmp_path / "built_in")
    for name, found in weights(run).items():
        assert (found - expected[name]).abs().max() <= 1e-6, name

    report = report_of(run)
    assert Fact("own loss", f"{module}:clipped") in report.facts
    assert Fact("own advantage", f"{module}:centred") in report.facts
    diff = diff_runs(tmp_path / "built_in", run)
    settings = {setting.key: setting.b for setting in diff.settings}
    assert settings["algorithm.loss"] == f"{module}:clipped"
    assert settings["provenance.own.loss"] == kept["loss"]
    assert diff.headline == "SAME at 3 common steps"
    assert train(resolve(), run, overwrite=True, quiet=True)
    assert not (run / "own_loss.py").exists()


def test_the_sources_of_reward_functions_are_kept_and_hold_for_a_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {}
    for letter in "ab":
        texts[letter] = (
            "import os\nfrom pathlib import Path\n\ndef count(completions, **columns):\n"
            f"    Path('process_{letter}').write_text(str(os.getpid()))\n"
            f"    return [text.count('{letter}') for text in completions]\n"
        )
        Path(f"counting_{letter}.py").write_text(texts[letter])
    named = "rewards=[{name: 'counting_a:count', weight: 0.5}, {name: 'counting_b:count'}, {name: tests}]"
    assert train(resolve(named, "training.max_steps=1"), tmp_path / "run", quiet=True)
    for letter in "ab":  # their processes have ended with the training
        with pytest.raises(ProcessLookupError):
            os.kill(int(Path(f"process_{letter}").read_text()), 0)
    kept = {file.name: file.read_text() for file in (tmp_path / "run").glob("own_*.py")}
    assert kept == {"own_reward_count.py": texts["a"], "own_reward_count_.py": texts["b"]}
    Path("counting_b.py").write_text(texts["b"].replace("'b'", "'c'"))
    with pytest.raises(
        RunError, match=r"source of the reward count_ has changed(.|\n)*own_reward_count_\.py"
    ):
        train(resolve(named), tmp_path / "run", resume=True, quiet=True)
    Path("counting_b.py").write_text(texts["b"])
    assert train(resolve(named), tmp_path / "run", resume=True, quiet=True)


def test_a_check_tries_both_and_a_training_refuses_before_there_is_a_run(module, tmp_path):
    lines: list[str] = []
    check_recipe(resolve(*[one.format(module) for one in NAMES]), say=lines.append, warn=lines.append)
    assert f"loss: {module}:clipped, called on a made-up batch" in lines
    assert f"advantage: {module}:centred, called on a made-up batch" in lines
    wrong = resolve(f"algorithm.loss={module}:wrong")
    for refused in (
        lambda: check_recipe(wrong, say=lines.append, warn=lines.append),
        lambda: train(wrong, tmp_path / "run", quiet=True),
    ):
        with pytest.raises(ConfigError, match=rf"algorithm\.loss: {module}:wrong: (.|\n)*micro-batches"):
            refused()
    assert not (tmp_path / "run").exists()


def test_every_policy_gradient_takes_an_own_loss():
    sections = [
        made.model_fields["algorithm"].annotation
        for (_, name), made in all_recipes().items()
        if name in ("grpo", "ppo")
    ]
    assert len(sections) > 10
    assert {section(loss="mine:f").loss for section in sections} == {"mine:f"}


def test_an_own_advantage_may_compare_answers_of_other_groups():
    with pytest.raises(ConfigError, match="compares the answers of a group"):
        resolve("training.num_generations=1")
    assert (
        resolve("training.num_generations=1", "algorithm.advantage=mine:batch").training.num_generations == 1
    )
    with pytest.raises(ConfigError, match=r"expected 'gae', found 'mine:f'\. It needs algorithm\.name: grpo"):
        resolve("algorithm=ppo", "algorithm.advantage=mine:f")


def test_the_notebook_has_at_most_25_lines_and_runs_and_resumes_by_the_same_functions(tmp_path, monkeypatch):
    cells = json.loads((ROOT / "examples/own_loss.ipynb").read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25

    monkeypatch.chdir(tmp_path)

    def run_it(text):
        """Runs the cells as a program that is the main module, which a notebook is as well."""
        (tmp_path / "notebook.py").write_text(text, "utf-8")
        runpy.run_path("notebook.py", run_name="__main__")

    def steps():
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return [(row["step"], row["grad_norm"] > 0) for row in map(json.loads, lines)]

    run = tmp_path / "runs/own_loss"
    run_it(code)
    assert steps() == [(1, True), (2, True), (3, True)]
    for name, function in (("loss", "penalised"), ("advantage", "batch_centred")):
        kept = (run / f"own_{name}.py").read_text()
        assert kept.startswith(f"def {function}(") and kept in code
    assert (run / "own_reward_vowels.py").read_text().startswith("def vowels(completions, **columns):")
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert (
        first["reward/vowels"] == pytest.approx(first["reward/mean"])
        and "reward/__main__:vowels" not in first
    )
    longer = code.replace('"max_steps": 3', '"max_steps": 4').replace(
        "train(\n", "train(\n    resume=True,\n"
    )
    with pytest.raises(RunError, match=r"the source of algorithm\.loss has changed"):
        run_it(longer.replace("(2 * clip_high)", "(3 * clip_high)"))
    with pytest.raises(RunError, match="the source of the reward vowels has changed"):
        run_it(longer.replace("(1 + len(text))", "(2 + len(text))"))
    run_it(f"{longer}\n# what is outside of the functions may change")
    assert len(steps()) == 4


def test_the_example_trains_by_both_of_its_functions(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "examples")
    names = ("algorithm.loss=own_loss:penalised", "algorithm.advantage=own_loss:batch_scaled")
    recipe = resolve(*names, "training.max_steps=1")
    assert train(recipe, tmp_path / "run", quiet=True)
    assert (tmp_path / "run/own_loss.py").read_text() == (ROOT / "examples/own_loss.py").read_text()


def test_the_functions_of_the_page_pass_the_check(module, tmp_path):
    page = (ROOT / "docs/own_algorithm.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(def .*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / f"{module}.py").write_text(
        "import numpy as np\nimport torch\n\n" + "\n\n".join(blocks), "utf-8"
    )
    names = {"loss": f"{module}:clipped", "advantage": f"{module}:late_tokens"}
    own = OwnMathematics.of(GRPOAlgorithmConfig.model_validate(names), {})
    assert own.sources.keys() == names.keys() and len(blocks) == 2
    assert own.loss is not None and not own.loss.learns_everywhere
