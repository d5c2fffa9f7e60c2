"""What an evaluation takes from the run that made its model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from greenward.common.errors import CheckpointError, RunError
from greenward.config.loading import load_recipe
from greenward.evaluation.grading_options import GradingOptions
from greenward.evaluation.model_session import AnswerOptions, ModelEvaluation
from greenward.models.catalog import find_model
from greenward.problems.catalog import load_problems
from greenward.recipes.run import train
from greenward.runs.progress import Progress

SMALL = (
    "problems.families.limit=60",
    "problems.families.seed=5",
    "model.shape={layers: 1, hidden_size: 16, heads: 2, kv_heads: 2, intermediate_size: 16}",
    "warm_start=null",
    "training.max_steps=2",
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "training.micro_batch_sequences=4",
    "sampling.max_tokens=9",
    "evaluation.enabled=false",
)
GRADING = GradingOptions(timeout=5.0, workers=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert train(load_recipe("quickstart", SMALL), path, quiet=True)
    return path


def test_a_run_is_asked_what_it_held_out_as_it_was_trained(run, tmp_path):
    evaluation = ModelEvaluation(str(run), AnswerOptions())
    recipe = load_recipe(run / "config.yaml")
    held_out = load_problems("families", recipe.problems.families, part="held_out")
    assert [p.task_id for p in evaluation.problems] == [p.task_id for p in held_out]
    assert evaluation.sampling.max_tokens == 9
    with Progress(quiet=True) as progress:
        summary, _ = evaluation.run(tmp_path / "out", GRADING, progress)
    assert summary["model"]["step"] == 2
    assert summary["contamination"]["counts"]["exact"] == 0
    assert any(note.startswith("contamination: ") for note in summary["notes"])


def test_a_checkpoint_of_a_run_knows_its_run_and_can_be_chosen(run, tmp_path):
    (step,) = (run / "checkpoints").glob("step_*")
    checkpoint, newest = find_model(str(step)), find_model(str(run))
    assert checkpoint.weights_hash == newest.weights_hash
    assert checkpoint.recipe == newest.recipe is not None
    named = ModelEvaluation(str(run), AnswerOptions(checkpoint=step.name))
    assert (named.model.folder, named.model.name) == (step, str(step))
    with pytest.raises(CheckpointError, match="was evaluated on the held-out problems"):
        find_model(str(run), "best")  # this run measured nothing
    with pytest.raises(CheckpointError, match="is no run directory"):
        find_model(str(step), "best")
    shutil.copytree(step, tmp_path / "model")  # a folder from elsewhere
    assert find_model(str(tmp_path / "model")).recipe is None


def test_other_weights_under_the_same_name_are_not_mixed_in(run, tmp_path):
    shutil.copytree(run / "checkpoints" / "step_000002", tmp_path / "model")
    options = AnswerOptions(suite="classic_evaluation", limit=2, max_tokens=4)
    with Progress(quiet=True) as progress:
        ModelEvaluation(str(tmp_path / "model"), options).run(tmp_path / "out", GRADING, progress)
        weights = tmp_path / "model" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        with pytest.raises(RunError, match="weights: "):
            ModelEvaluation(str(tmp_path / "model"), options).run(tmp_path / "out", GRADING, progress)


def test_the_subset_is_the_same_whatever_the_order_of_ids_and_files(run):
    few = ModelEvaluation(str(run), AnswerOptions(limit=1)).problems
    more = ModelEvaluation(str(run), AnswerOptions(limit=2)).problems
    assert {p.task_id for p in few} < {p.task_id for p in more}
    chosen = tuple(problem.task_id for problem in reversed(list(few)))
    named = ModelEvaluation(str(run), AnswerOptions(ids=chosen)).problems
    assert tuple(problem.task_id for problem in named) == chosen
