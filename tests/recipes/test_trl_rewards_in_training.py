"""A training with a reward function of TRL's signature: columns, logs and the refusal before it starts."""

from __future__ import annotations

import json

import pytest

from greenward.common.errors import RewardError
from greenward.config.loading import load_recipe
from greenward.recipes.run import train
from greenward.runs.reading import read_metrics
from tiny_model import REINFORCED

MODULE = """
async def judged(prompts, completions, completion_ids, gold, trainer_state, log_metric, log_extra, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    assert len({*map(len, (prompts, contents, completion_ids, gold))}) == 1
    assert kwargs["answer"][0].startswith('{"fn_name"')
    log_metric("done", trainer_state.global_step / trainer_state.max_steps)
    log_metric("epoch", trainer_state.epoch)
    log_extra("gold", gold)
    return [float(len(ids) > 3) if text else None for ids, text in zip(completion_ids, contents)]

def needs_a_column(completions, **kwargs):
    return [float(one == "x") for one in kwargs["not_there"]]
"""
SMALL = (
    *REINFORCED,
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "training.micro_batch_sequences=4",
    "algorithm.minibatches=1",
    "evaluation.enabled=false",
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    (tmp_path / "judging_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for part in ("train", "held_out"):
        rows = [
            {
                "function_name": f"{part}_{number}",
                "docstring": f"Return n plus a number ({part}).",
                "test_cases": [[1, 1 + number]],
                "starter_code": f"def {part}_{number}(n):\n",
                "reference": f"def {part}_{number}(n):\n    return n + {number}\n",
                "columns": {"gold": f"n + {number}"},
            }
            for number in range(2)
        ]
        (tmp_path / f"{part}.json").write_text(json.dumps(rows))
    return (
        *SMALL,
        f"problems.train={tmp_path / 'train.json'}",
        f"problems.held_out={tmp_path / 'held_out.json'}",
    )


def test_a_training_gives_columns_and_keeps_what_the_function_logs(files, tmp_path):
    recipe = load_recipe("quickstart", [*files, "rewards=[{name: 'judging_rewards:judged', weight: 2.0}]"])
    assert train(recipe, tmp_path / "run", quiet=True)
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl").rows
    assert [row["judging_rewards:judged/done"] for row in metrics] == [0.0, 0.5]
    assert [row["judging_rewards:judged/epoch"] for row in metrics] == [0.0, 1.0]
    lines = (tmp_path / "run" / "rollouts" / "step_000001.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 4
    for row in rows:
        assert row["extra"] == {"gold": f"n + {row['problem'][-1]}"}
        assert row["rewards"]["programmer"] == 2.0 * row["terms"].get("judging_rewards:judged", 0.0)


def test_missing_data_is_an_error_before_anything_trains(files, tmp_path):
    recipe = load_recipe("quickstart", [*files, "rewards=[{name: 'judging_rewards:needs_a_column'}]"])
    with pytest.raises(RewardError, match="before training, it raised KeyError: 'not_there'") as caught:
        train(recipe, tmp_path / "run", quiet=True)
    assert "verification_info, gold" in caught.value.remedy
    assert not (tmp_path / "run").exists()
