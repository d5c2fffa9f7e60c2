import pytest

from greenward.errors import ConfigError, RunError
from greenward.recipes.demo import demo
from greenward.runs.directory import RunDirectory


def test_a_second_demo_in_the_same_directory_is_refused_before_anything_starts(tmp_path):
    RunDirectory.create(tmp_path / "seed_1", {"seed": 1}).close()
    with pytest.raises(RunError, match="already holds a demo") as caught:
        demo(tmp_path, seeds=(0, 1), quiet=True)
    assert "--resume" in str(caught.value)
    assert not (tmp_path / "seed_0").exists()


def test_a_seed_that_fails_is_reported_with_its_message(tmp_path):
    with pytest.raises(RunError, match=r"seed_0 stopped with exit code 2: .*none\.json"):
        demo(tmp_path, seeds=(0,), overrides=("problems.train=none.json",), quiet=True)


def test_a_demo_without_a_warm_start_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="warm_start cannot be null"):
        demo(tmp_path, seeds=(0,), overrides=("warm_start=null",), quiet=True)
