"""Sweeps: what is refused before anything runs, what goes on, and what a failed run leaves to the others."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from greenward.common.errors import RunError
from greenward.recipes import sweep
from greenward.runs.progress import Progress
from greenward.runs.reading import FAILURE
from tiny_model import REINFORCED

TINY = (*REINFORCED, "training.max_steps=1", "evaluation.num_questions=2")


@pytest.fixture
def nothing_runs(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a run was started")

    monkeypatch.setattr(sweep, "run_all", refuse)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.learning_rat=1,2"], "learning_rate"),
        (["training.learning_rate=1e-4,fast"], "fast"),
        (["seed=0"], "nothing to sweep"),
        ([], "nothing to sweep"),
        (["seed=1,2", "problems.train=a.json,none.json"], r"a\.json"),
        (["training.learning_rate=1e-4,0.0001"], "come to the same settings"),
        (["training.learning_rate=1e-4,2e-4", "training={learning_rate: 1}"], "come to the same settings"),
    ],
)
def test_what_a_recipe_refuses_is_refused_before_anything_runs(tmp_path, nothing_runs, overrides, message):
    from greenward.common.errors import GreenwardError

    with pytest.raises(GreenwardError, match=message):
        sweep.sweep("quickstart", [*overrides], tmp_path / "sweep", quiet=True)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("jobs", ["0", "-1", "x"])
def test_jobs_are_at_least_one(jobs):
    from click.testing import CliRunner

    from greenward.cli.main import cli

    refused = CliRunner().invoke(cli, ["sweep", "quickstart", "seed=0..1", "--jobs", jobs])
    assert refused.exit_code == 2 and "--jobs" in refused.output


def begun(folder: Path, *overrides: str, status: str = "finished") -> None:
    """A run as it is found by a sweep that goes on."""
    import greenward
    from greenward.runs.directory import RunDirectory, write_summary

    config = greenward.load_recipe("quickstart", [*TINY, *overrides]).model_dump(mode="json")
    with RunDirectory.create(folder, config) as run:
        run.metrics.append(1, {"loss": 0.5})
        write_summary(run, status=status, steps=1, wall_seconds=1.0)


def test_an_output_folder_of_something_else_is_refused(tmp_path, nothing_runs):
    begun(tmp_path / "sweep/seed_0", "seed=0")
    with pytest.raises(RunError, match="already holds a sweep") as caught:
        sweep.sweep("quickstart", [*TINY, "seed=0..1"], tmp_path / "sweep", quiet=True)
    assert "--resume" in str(caught.value)
    with pytest.raises(RunError, match="seed_0 is none of this one"):
        sweep.sweep("quickstart", [*TINY, "seed=1..2"], tmp_path / "sweep", resume=True, quiet=True)
    with pytest.raises(RunError, match=r"learning_rate: 0\.001 -> 0\.01"):
        overrides = [*TINY, "training.learning_rate=1e-2", "seed=0..1"]
        sweep.sweep("quickstart", overrides, tmp_path / "sweep", resume=True, quiet=True)
    with pytest.raises(RunError, match="found a run"):
        sweep.sweep("quickstart", [*TINY, "seed=0..1"], tmp_path / "sweep/seed_0", resume=True, quiet=True)


def test_finished_runs_are_kept_others_run_and_the_grid_may_grow(tmp_path, monkeypatch):
    begun(tmp_path / "seed_0", "seed=0")
    begun(tmp_path / "seed_1", "seed=1", status="interrupted")
    seen: list[list[sweep.Run]] = []

    def run_all(runs, progress, **options):
        seen.append([run for run in runs if not run.finished])
        assert options["resume"] and options["keep_going"]
        for run in seen[-1]:
            run.finished = True

    monkeypatch.setattr(sweep, "run_all", run_all)
    assert sweep.sweep("quickstart", [*TINY, "seed=0..2"], tmp_path, resume=True, quiet=True)
    assert [run.folder.name for run in seen[0]] == ["seed_1", "seed_2"]
    raised = [*TINY, "training.max_steps=5", "seed=0..2"]  # limits may be raised: all go on
    assert sweep.sweep("quickstart", raised, tmp_path, resume=True, quiet=True)
    assert [run.folder.name for run in seen[1]] == ["seed_0", "seed_1", "seed_2"]


def test_a_sweep_of_a_pretrained_model_knows_the_preset_of_its_runs(tmp_path, monkeypatch):
    """The runs are commands, which take the preset of this machine; going on must not refuse them for it."""
    import greenward
    from greenward.runs.directory import RunDirectory

    model = next(text for text in REINFORCED if text.startswith("model="))
    config = greenward.load_recipe("quickstart", [model, "seed=0"]).model_dump(mode="json")
    assert config["preset_keys"]
    with RunDirectory.create(tmp_path / "sweep" / "seed_0", config):
        pass

    def reached(runs, progress, **_):
        raise InterruptedError(f"{len(runs)} runs")

    monkeypatch.setattr(sweep, "run_all", reached)
    monkeypatch.setattr(sweep, "check_needs", lambda *_: None)
    with pytest.raises(InterruptedError, match="2 runs"):
        sweep.sweep("quickstart", [model, "seed=0,1"], tmp_path / "sweep", resume=True, quiet=True)


def test_cores_and_devices_are_shared_out(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(sweep, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = {}
    monkeypatch.setattr(sweep, "run_all", lambda runs, progress, **options: given.update(options, runs=runs))
    with pytest.raises(RunError):  # of the report: nothing ran
        sweep.sweep("quickstart", [*TINY, "seed=0..3", "sandbox.workers=1"], tmp_path, jobs=4, quiet=True)
    assert given["devices"] == ["0", "1"] and given["parallel"] == 4
    assert len(given["runs"]) == 4 and "training.threads=1" in given["runs"][0].overrides  # as given
    assert not any(text.startswith("sandbox.workers=2") for text in given["runs"][0].overrides)
    free = [text for text in TINY if not text.startswith("training.threads")]
    with pytest.raises(RunError):
        sweep.sweep("quickstart", [*free, "sandbox.workers=1,2"], tmp_path, jobs=2, quiet=True)
    assert [run.overrides[0] for run in given["runs"]] == ["training.threads=4"] * 2


SCRIPT = """
import os, sys, time, json, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "device").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
time.sleep(0.2)
sys.exit("it broke" if "bad" in folder.name else 0)
"""


def test_a_failed_run_stops_the_others_unless_they_keep_going_and_places_have_devices(tmp_path, monkeypatch):
    package = tmp_path / "greenward"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.02)
    text = io.StringIO()
    runs = [
        sweep.Run(tmp_path / name, "any", (), phases=[sweep.Phase(name, tmp_path / name)])
        for name in ("a", "c", "d", "bad")
    ]
    with Progress(console=Console(file=text, width=200)) as progress:
        sweep.run_all(runs, progress, parallel=2, resume=True, keep_going=True, devices=("3", "5"))
    assert [run.finished for run in runs] == [True, True, True, False]
    assert {(run.folder / "device").read_text() for run in runs} == {"3", "5"}
    said = "stopped with exit code 1: it broke"
    assert [path.parent.name for path in tmp_path.glob(f"*/{FAILURE}")] == ["bad"]
    assert (tmp_path / "bad" / FAILURE).read_text() == f"It {said}\n"
    lines = text.getvalue().splitlines()
    assert [line.partition("(")[2] for line in lines] == [f"{number} of 4 runs)" for number in (1, 2, 3, 4)]
    assert any(line.startswith(f"bad {said} (") for line in lines)
    with (
        Progress(quiet=True) as progress,
        pytest.raises(RunError, match="bad stopped with exit code 1: it broke"),
    ):
        sweep.run_all([sweep.Run(tmp_path / "bad", "any", ())], progress, parallel=1, resume=False)
