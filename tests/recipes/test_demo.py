import pytest

from greenward.errors import ConfigError, RunError, SandboxError
from greenward.recipes import demo as module
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


@pytest.mark.parametrize("lost", [0.0, 0.02, 0.021])
def test_a_demo_whose_evaluations_lost_answers_fails_after_its_report(tmp_path, monkeypatch, lost):
    class Done:
        def __init__(self, *_, **__):
            pass

        start = stop = lambda self: None
        advance = lambda self, progress: False  # noqa: E731

    shown = []
    monkeypatch.setattr(module, "SeedRun", Done)
    monkeypatch.setattr(module, "show_report", lambda output, quiet: shown.append(output))
    monkeypatch.setattr(module, "read_report", lambda output: output)
    monkeypatch.setattr(module, "max_lost_share", lambda record: lost)
    if lost <= 0.02:
        assert demo(tmp_path, quiet=True)
    else:
        with pytest.raises(SandboxError, match=r"lost 2\.1% of the answers"):
            demo(tmp_path, quiet=True)
    assert shown == [tmp_path]
