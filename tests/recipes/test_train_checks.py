"""What a training needs is checked before the run directory is made."""

import json
import sys
from types import SimpleNamespace

import pytest

from greenward.config.loading import parse_recipe
from greenward.config.sections import SupervisedConfig
from greenward.errors import GreenwardError, ProblemError
from greenward.recipes.supervised_data import supervised_examples
from greenward.recipes.train import dry_run, train


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tracking": {"wandb": {}}}, r"pip install 'greenward\[wandb\]'"),
        ({"tracking": {"tensorboard": True}}, r"pip install 'greenward\[tensorboard\]'"),
        ({"model": {"device": "cuda:99"}}, "model.device is 'cuda:99'"),
        (
            {"kind": "sft", "warm_start": {}},
            r"warm_start\.data is not set.*\n.*warm_start\.data=pairs\.jsonl",
        ),
        ({"kind": "sft", "warm_start": {"data": "pairs.jsonl"}}, "there is no file pairs.jsonl"),
    ],
)
def test_a_missing_tracker_device_or_file_is_found_before_the_run_starts(
    tmp_path, monkeypatch, settings, message
):
    for package in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    recipe = parse_recipe(json.dumps(settings))
    with pytest.raises(GreenwardError, match=message):
        train(recipe, tmp_path / "run", quiet=True)
    with pytest.raises(GreenwardError, match=message):
        dry_run(recipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("\n\n", "holds no pairs")])
def test_a_file_without_pairs_is_refused(tmp_path, text, message):
    (tmp_path / "pairs.jsonl").write_text(text)
    settings = SupervisedConfig(data=str(tmp_path / "pairs.jsonl"))
    policy = SimpleNamespace(tokenizer=SimpleNamespace(eos_id=0))
    with pytest.raises(ProblemError, match=message):
        supervised_examples(settings, (), policy, None, seed=0)
