"""What a training needs is checked before the run directory is made."""

import sys

import pytest

from greenward.config.schema import Recipe
from greenward.errors import ConfigError
from greenward.recipes.train import train


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
    ],
)
def test_a_missing_tracker_device_or_file_is_found_before_the_run_starts(
    tmp_path, monkeypatch, settings, message
):
    for package in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=message):
        train(Recipe.model_validate(settings), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()
