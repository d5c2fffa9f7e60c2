"""Trainings whose answers are sampled elsewhere or ahead: figures, faults, resumption and refusals."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli, run
from greenward.common.errors import ConfigError
from greenward.config.loading import parse_recipe
from greenward.models.policy import Policy
from greenward.recipes.run import check_rollouts
from tiny_model import DATA, REINFORCED
from vllm_server import VLLMServer

pytestmark = pytest.mark.usefixtures("kept_sandbox")

SMALL = (*REINFORCED, "evaluation.enabled=false", "algorithm.minibatches=1")


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def train(folder: Path, *overrides: str) -> tuple[int, str]:
    """Exit code and messages of `greenward train`, as a user gets them."""
    with pytest.raises(SystemExit) as stop, CliRunner().isolation() as (out, err, _):
        run(cli, "greenward", ["train", "quickstart", *SMALL, *overrides, "--output", str(folder)])
    return int(stop.value.code or 0), (out.getvalue() + err.getvalue()).decode()


def served(max_model_len: int = 128, **options) -> VLLMServer:
    server = VLLMServer(DATA / "starter", **options)
    server.max_model_len = max_model_len
    return server


def test_a_training_by_a_server_measures_and_corrects_the_mismatch(tmp_path) -> None:
    with served() as fake:
        code, said = train(tmp_path / "run", "rollouts.engine=server", f"rollouts.server.base_url={fake.url}")
        assert code == 0, said
        assert fake.sampled_while_updating == 0
        assert fake.requests["/update_weights"] == 2, "before the first step and after it; not after the last"
    for row in rows(tmp_path / "run"):
        assert row["importance/max_difference"] < 1e-3 and abs(row["importance/kl"]) < 1e-5
        assert row["importance/mean_corrected"] == pytest.approx(1, abs=1e-3)
        assert row["importance/outside"] == 0
    recorded = json.loads((tmp_path / "run/provenance.json").read_text())["sessions"][-1]["rollouts"]
    assert recorded == {"engine": "server", "transfer": "file", "deterministic": False}


def test_a_server_that_dies_stops_the_run_at_a_checkpoint_and_resuming_goes_on(tmp_path) -> None:
    dead = lambda path, n: "cut" if fake.requests["/update_weights"] >= 3 else None  # noqa: E731
    with served(fault=dead) as fake:
        where = (
            "rollouts.engine=server",
            f"rollouts.server={{base_url: '{fake.url}', patience_seconds: 0.5}}",
            "training.max_steps=4",
            "training.checkpoint_interval_steps=3",
        )
        code, said = train(tmp_path / "run", *where)
        assert code == 75
        assert "Error: Stopped after step 2:" in said and "connection failed" in said and "--resume" in said
        assert "Traceback" not in said and len(rows(tmp_path / "run")) == 2
        assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "interrupted"
        assert (tmp_path / "run/checkpoints/step_000002").is_dir()
        fake.fault = lambda path, n: None
        fake.restart()
        code, said = train(tmp_path / "run", *where, "--resume")
        assert code == 0, said
        assert "will not equal those of an uninterrupted one" in " ".join(said.split())
    assert [row["step"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]
    assert all(row["episodes/infrastructure"] == 0 for row in rows(tmp_path / "run"))


def test_sampling_ahead_trains_on_answers_that_are_one_update_old(tmp_path) -> None:
    code, said = train(tmp_path / "run", "rollouts.max_staleness=1", "training.max_steps=4")
    assert code == 0, said
    found = rows(tmp_path / "run")
    assert [row["rollouts/staleness"] for row in found] == [0, 1, 1, 1]
    assert found[0]["importance/max_difference"] < 1e-3 < found[1]["importance/max_difference"]
    policy = Policy.from_folder(tmp_path / "run/checkpoints/last", device="cpu")
    assert policy.version == 0  # of a folder; that of the training is in the checkpoint's state


def test_prompts_that_do_not_fit_the_server_are_refused_before_the_training(tmp_path) -> None:
    with served(max_model_len=24) as fake:
        code, said = train(tmp_path / "run", "rollouts.engine=server", f"rollouts.server.base_url={fake.url}")
    assert code == 2 and "the longest prompt has" in said and "sampling.max_tokens 20" in said
    assert not (tmp_path / "run/metrics.jsonl").is_file() or not rows(tmp_path / "run")


@pytest.mark.parametrize("override", ["engine=vllm", "max_staleness=1"])
def test_several_training_processes_are_refused(monkeypatch, override) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="works with one training process, found 2"):
        check_rollouts(parse_recipe("seed: 0", [f"rollouts.{override}"]).rollouts)
    check_rollouts(parse_recipe("seed: 0").rollouts)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_package_that_is_missing_is_named(tmp_path) -> None:
    code, said = train(tmp_path / "run", "rollouts.engine=vllm")
    assert code == 2 and "pip install 'greenward[vllm]'" in said


@pytest.mark.parametrize("text", ["", "algorithm: ppo", "task: self_play", "task: code_game"])
def test_a_correction_is_on_where_engines_differ_unless_the_recipe_says_otherwise(text: str) -> None:
    other = "rollouts.engine=vllm"
    assert parse_recipe(text).algorithm.importance is None
    found = parse_recipe(text, [other]).algorithm.importance
    assert (found.mode, found.level, found.low, found.high) == ("truncate", "token", 0.0, 2.0)
    assert parse_recipe(text, [other, "algorithm.importance=null"]).algorithm.importance is None
    own = parse_recipe(text, [other, "algorithm.importance={mode: mask, level: sequence}"])
    assert (own.algorithm.importance.mode, own.algorithm.importance.level) == ("mask", "sequence")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["max_staleness=2"], "max_staleness 2 is more than the correction covers"),
        (["max_staleness=1", "importance=null"], "max_staleness 1 needs a correction"),
        (["max_staleness=1", "task=self_play"], "does not work with task: self_play"),
        (["engine=server"], "needs server.base_url"),
        (["server.base_url=http://x"], "set engine=server"),
        (["engine=vllm", "transfer=nccl"], "nccl needs a GPU for vLLM alone"),
        (["transfer=ipc"], "engine is native"),
        (["engine=server", "server.base_url=http://x", "transfer=ipc"], "a server needs file or nccl"),
        (["engine=vllm", "vllm.max_model_len=64"], "leaves no room for a prompt"),
        (["engine=server", "server.base_url=http://x", "vllm.sleep=true"], "vllm.sleep needs engine: vllm"),
    ],
)
def test_impossible_combinations_are_refused(overrides: list[str], said: str) -> None:
    names = {"importance": "algorithm.", "task": ""}
    given = [names.get(one.partition("=")[0], "rollouts.") + one for one in overrides]
    with pytest.raises(ConfigError, match=said):
        parse_recipe("seed: 0", given)
