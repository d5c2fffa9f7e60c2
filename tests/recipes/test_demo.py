import io
import json

import pytest
from rich.console import Console

from greenward.common.errors import ConfigError, RunError, SandboxError
from greenward.recipes import sweep
from greenward.recipes.sweep import demo, runs_of_seed
from greenward.runs.directory import RunDirectory
from greenward.runs.progress import Progress
from greenward.runs.reading import read_config, read_evaluations, read_metrics, read_summary
from tiny_model import TINY_STUDY


def test_a_second_demo_in_the_same_directory_is_refused_before_anything_starts(tmp_path):
    RunDirectory.create(tmp_path / "seed_1", {"seed": 1}).close()
    (tmp_path / "seed_1/metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RunError, match="already holds a demo") as caught:
        demo(tmp_path, seeds=(0, 1), quiet=True)
    assert "--resume" in str(caught.value)
    assert not (tmp_path / "seed_0").exists()


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ("problems.train=none.json", RunError, r"seed_0 stopped with exit code 2: .*none\.json"),
        ("warm_start=null", ConfigError, "warm_start cannot be null"),
    ],
)
def test_a_seed_that_fails_and_a_demo_without_a_warm_start_are_named(tmp_path, overrides, error, message):
    with pytest.raises(error, match=message):
        demo(tmp_path, seeds=(0,), overrides=(overrides,), quiet=True)


@pytest.mark.slow
def test_every_run_starts_from_the_warm_start_and_trains_for_as_long_as_grpo(tmp_path):
    assert demo(tmp_path, seeds=(3,), overrides=(*TINY_STUDY, "training.max_steps=2"), quiet=True)
    run = tmp_path / "seed_3"
    grpo = read_summary(run)
    assert grpo["arms"].keys() == {"warm_start"} and len(read_evaluations(run)) == 2
    for name, algorithm, limits in (("rejection", "rejection", "training"), ("control", "sft", "warm_start")):
        config, summary = read_config(run / name), read_summary(run / name)
        assert config["algorithm"]["name"] == algorithm and config["seed"] == 3
        assert config["model"]["id"] == str(run / "warm_start/checkpoints/last")
        assert config[limits]["max_seconds"] == pytest.approx(grpo["training_seconds"], abs=1e-3)
        # It stops with the first step that ends after the limit.
        rows = read_metrics(run / name / "metrics.jsonl").rows
        assert rows[-1]["time/training"] >= config[limits]["max_seconds"]
        assert all(row["time/training"] < config[limits]["max_seconds"] for row in rows[:-1])
        assert summary["status"] == "finished" and len(read_evaluations(run / name)) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    table = next(one["blocks"][0] for one in report["sections"] if one["title"] == "Before and after")
    stages = ["Before", "After GRPO", "Rejection sampling", "Control"]
    assert [row[0] for row in table["rows"][:4]] == stages


@pytest.mark.slow
def test_of_a_pretrained_model_adapters_are_trained_by_both_methods_for_the_same_time(published, tmp_path):
    pytest.importorskip("peft")
    folder = published("qwen2", max_position_embeddings=512)
    small = [
        "problems.families.limit=60",
        "training.max_seconds=2",
        "training.prompts_per_step=2",
        "training.num_generations=2",
        "sampling.max_tokens=8",
        "algorithm.overlong.penalty_buffer=4",
        "evaluation.num_questions=4",
        "evaluation.samples=2",
        "evaluation.k=[1,2]",
        "evaluation.eval_interval_steps=100000",
        "algorithm.clip_high=0.3",  # which rejection sampling has not
    ]
    study = tmp_path / "study"
    assert demo(study, seeds=(3,), overrides=(f"model={folder}", *small), quiet=True)
    run = study / "seed_3"
    starts = {len(read_evaluations(run)): run, len(read_evaluations(run / "rejection")): run / "rejection"}
    assert starts == {2: run, 1: run / "rejection"}
    for one, algorithm in ((run, "grpo"), (run / "rejection", "rejection")):
        config, summary = read_config(one), read_summary(one)
        assert config["algorithm"]["name"] == algorithm and config["model"]["lora"]["r"] == 16
        assert config["model"]["id"] == str(folder) and config["training"]["max_seconds"] == 2
        assert summary["status"] == "finished" and summary["training_seconds"] >= 2
        assert [*(one / "checkpoints/last").rglob("adapter_config.json")]
    report = json.loads((study / "report.json").read_text())
    table = next(one["blocks"][0] for one in report["sections"] if one["title"] == "Before and after")
    assert [row[0] for row in table["rows"][:3]] == ["Before", "After GRPO", "Rejection sampling"]


def test_steps_without_signal_are_said_in_the_line_of_their_run(tmp_path):
    rows = [
        {"step": step, "completion/truncated": 0.0, "pass_rate": 0.0, "reward/std": 0.0} for step in (1, 2, 3)
    ]
    for folder, shown in ((tmp_path, rows), (tmp_path / "rejection", rows[:2])):
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text("algorithm: {name: grpo}\n")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shown))
    text = io.StringIO()
    with Progress(console=Console(file=text, width=200)) as progress:
        for run in runs_of_seed(tmp_path, []):
            run.report(progress)
    lines = [line for line in text.getvalue().splitlines() if "  step " in line]
    assert ["! no answer passes" in line for line in lines] == [True, False]


@pytest.mark.parametrize("lost", [0.0, 0.02, 0.021])
def test_a_demo_whose_evaluations_lost_answers_fails_after_its_report(tmp_path, monkeypatch, lost):
    shown = []
    monkeypatch.setattr(sweep, "run_all", lambda runs, progress, **_: None)
    monkeypatch.setattr(sweep, "show_report", lambda output, quiet: shown.append(output))
    monkeypatch.setattr(sweep, "read_runs", lambda output: output)
    monkeypatch.setattr(sweep, "max_lost_share", lambda record: lost)
    if lost <= 0.02:
        assert demo(tmp_path, quiet=True)
    else:
        with pytest.raises(SandboxError, match=r"lost 2\.1% of the answers"):
            demo(tmp_path, quiet=True)
    assert shown == [tmp_path]
