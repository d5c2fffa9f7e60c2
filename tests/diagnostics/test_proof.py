"""Determinism, replays and bisections, with small programs in place of trainings; weights of two checkpoints."""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file
from synthetic_runs import healthy, with_explosion, write_run

from greenward.cli.main import cli
from greenward.common.errors import CheckpointError, DiagnosticsError, RunError
from greenward.diagnostics import proof
from greenward.diagnostics.proof import checkpoint_report, diff_checkpoints
from greenward.runs.directory import fork_run

PROGRAM = """
import json, random, sys
{seeding}
with open(sys.argv[1] + "/metrics.jsonl", "w") as file:
    for step in range(1, 6):
        noise = random.random() if step >= 4 else 0.0
        file.write(json.dumps({{"step": step, "loss": step + noise, "time/step": random.random()}}) + "\\n")
"""


def command(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture
def program(tmp_path):
    def write(seeding=""):
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.format(seeding=seeding))
        return f"{sys.executable} {file} {{out}}"

    return write


def test_the_first_step_and_signal_that_differ_are_named(program):
    done = command("check-determinism", "-c", program(), "-r", 2)
    assert done.exit_code == 1 and "DIFFERENT at step 4 in loss" in done.output


def test_equal_numbers_are_deterministic_whatever_the_clock_says(program):
    done = command("check-determinism", "-c", program("random.seed(1)"), "-r", 3)
    assert done.exit_code == 0 and "DETERMINISTIC" in done.output


@pytest.mark.parametrize("broken", ["false", f'{sys.executable} -c "pass"', "/nowhere/program"])
def test_a_command_that_fails_or_logs_nothing_proves_nothing(broken):
    with pytest.raises(DiagnosticsError):
        proof.check_determinism(broken, 2)


def faulty(folder, **training):
    run = write_run(
        folder, with_explosion(healthy(2)), training={"learning_rate": 0.03, "max_steps": 500, **training}
    )
    for step in (100, 280, 320):
        (run / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
        (run / "checkpoints" / f"step_{step:06d}" / "weights").write_text(str(step))
    return run


def test_a_fork_holds_the_run_up_to_its_checkpoint_with_other_settings(tmp_path):
    run = faulty(tmp_path / "run")
    fork = fork_run(run, 280, tmp_path / "fork", {"training.learning_rate": 1e-3})
    rows = [json.loads(line) for line in (fork / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 280
    assert "learning_rate: 0.001" in (fork / "config.yaml").read_text()
    assert [path.name for path in (fork / "checkpoints").iterdir()] == ["step_000280"]
    with pytest.raises(RunError, match="no checkpoint"):
        fork_run(run, 5, tmp_path / "other")
    with pytest.raises(RunError, match="no key"):
        fork_run(run, 280, tmp_path / "third", {"training.nothing": 1})


@pytest.fixture
def training(monkeypatch):
    """In place of a training: the run goes on as it did, or healthily once the learning rate is small."""
    asked = []

    def finished(arguments, folder, seconds):
        target = proof.Path(arguments[arguments.index("--output") + 1])
        last = int(next(a for a in arguments if a.startswith("training.max_steps=")).partition("=")[2])
        rate = proof.read_config(target)["training"]["learning_rate"]
        asked.append((last, rate))
        values = healthy(2) if rate < 0.01 else with_explosion(healthy(2))
        rows = ({"step": i + 1, **{name: float(v[i]) for name, v in values.items()}} for i in range(last))
        (target / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return proof.subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr(proof, "_finished", finished)
    return asked


def test_a_replay_begins_before_the_onset_and_shows_the_fault_again(tmp_path, training):
    found = proof.replay(faulty(tmp_path / "run"), tmp_path / "again")
    assert (found.first_step, found.last_step) == (280, 350)
    assert found.finding.name == "gradient-explosion" and found.difference is None


@pytest.mark.parametrize(("steps", "kept"), [(290, False), (340, True)])
def test_a_replay_that_ends_before_a_planted_fault_begins_leaves_it_out(tmp_path, training, steps, kept):
    """A recipe with a fault that is never reached is refused, and a replay of another fault may end before."""
    run = faulty(tmp_path / "run")
    config = json.loads((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(
        json.dumps(config | {"faults": {"gradient_explosion": {"after_step": 300}}})
    )
    proof.replay(run, tmp_path / "again", steps=steps)
    planted = proof.read_config(tmp_path / "again")["faults"]["gradient_explosion"]
    assert planted == ({"after_step": 300} if kept else None)


CODE = (
    {"rewards": [{"name": "evil:f"}]},
    {"rewards": ["a.b:f.g"]},
    {"self_play": {"games": [{"name": "evil:G"}]}},
    {"self_play": {"opponents": {"model@http://127.0.0.1:9": 1.0}}},
    {"monitor": {"rules": "rules.yaml"}},
    {"algorithm": {"name": "grpo", "loss": "evil:loss"}},
    {"algorithm": {"name": "grpo", "advantage": "evil:advantage"}},
    {"sandbox": {"backend": "ray"}},
    {"sandbox": {"packages": ["evil"]}},
    {"sandbox": {"backend": "http", "http": {"urls": ["http://127.0.0.1:9"], "token_env": "HOME"}}},
    {"tracking": {"mlflow": {"uri": "http://127.0.0.1:9"}}},
    {"rollouts": {"engine": "server", "server": {"base_url": "http://127.0.0.1:9"}}},
)


@pytest.fixture(scope="module")
def faulty_and_good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    good = write_run(folder / "good", healthy(2), training={"learning_rate": 1e-3, "max_steps": 500})
    return faulty(folder / "run", max_grad_norm=5.0), good


@pytest.mark.parametrize("code", CODE)
def test_a_replay_imports_nothing_that_a_config_names_where_that_is_not_trusted(
    tmp_path, training, faulty_and_good, code
):
    written, good = faulty_and_good
    run = shutil.copytree(written, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | code))
    with pytest.raises(DiagnosticsError, match="imports, runs or connects to"):
        proof.replay(run, tmp_path / "refused")
    with pytest.raises(DiagnosticsError, match="imports, runs or connects to"):
        proof.bisect_settings(run, tmp_path / "trials", good=good)
    assert training == []


def test_code_that_is_trusted_is_no_reason_to_refuse_a_replay(tmp_path, training):
    run = faulty(tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | CODE[0]))
    proof.replay(run, tmp_path / "again", trusts_code=True)
    assert len(training) == 1


def test_a_bisection_names_the_setting_that_cures_the_fault(tmp_path, training):
    run = faulty(tmp_path / "run", max_grad_norm=5.0, warmup_steps=3)
    good = write_run(
        tmp_path / "good",
        healthy(2),
        training={"learning_rate": 1e-3, "max_grad_norm": 1.0, "warmup_steps": 3, "max_steps": 500},
    )
    done = command("bisect", run, "--good", good, "--output", tmp_path / "trials")
    assert done.exit_code == 0 and "CURED by training.learning_rate: 0.03" in done.output, done.output
    assert len(training) == 2  # the unchanged replay and the likeliest suspect


def test_a_bisection_without_a_culprit_says_so(tmp_path, training):
    run = faulty(tmp_path / "run", max_grad_norm=5.0)
    good = write_run(
        tmp_path / "good",
        healthy(2),
        training={"learning_rate": 0.03, "max_grad_norm": 1.0, "max_steps": 500},
    )
    found = proof.bisect_settings(run, tmp_path / "trials", good=good)
    assert (
        found.returns
        and found.cure is None
        and [trial.key for trial in found.trials] == ["training.max_grad_norm"]
    )
    with pytest.raises(DiagnosticsError, match="nothing is wrong"):
        proof.bisect_settings(good, tmp_path / "x", good=good)


def test_the_change_of_weights_is_measured_per_tensor(tmp_path):
    a = {"w": torch.tensor([3.0, 4.0]), "b": torch.ones(3, dtype=torch.bfloat16), "only": torch.ones(1)}
    b = {"w": torch.tensor([4.0, -3.0]), "b": torch.ones(3, dtype=torch.bfloat16)}
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    changes, unmatched = diff_checkpoints(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert unmatched == ["only"]
    assert changes[0].name == "w" and changes[0].norm == 5.0
    assert changes[0].change == pytest.approx(math.sqrt(50)) and changes[0].cosine == pytest.approx(0.0)
    assert changes[1].change == 0.0 and changes[1].norm == pytest.approx(np.sqrt(3))
    done = command("diff-ckpt", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert done.exit_code == 0 and "1 of 2 tensors moved" in done.output


def test_complex_tensors_differ_by_their_imaginary_parts_too(tmp_path):
    for name, value in (("a", 3 + 4j), ("b", 3 - 4j)):
        save_file({"w": torch.tensor([value])}, tmp_path / f"{name}.safetensors")
    ((change,), _) = diff_checkpoints(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert (change.norm, change.change) == (5.0, 8.0)


@pytest.mark.parametrize(("dtype", "size"), [("F4", 2), ("F6_E2M3", 3)])
def test_values_that_torch_cannot_read_are_one_error(tmp_path, dtype, size):
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\1" * size)
    with pytest.raises(CheckpointError, match=r"cannot be read|not a sound"):
        diff_checkpoints(path, path)


def test_links_of_a_checkpoint_stay_in_its_folder(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "secret.safetensors")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "a.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(CheckpointError, match="leads out"):
        diff_checkpoints(theirs, theirs)
    cached = tmp_path / "models--a" / "snapshots" / "1"  # the hub's cache
    cached.mkdir(parents=True)
    (tmp_path / "models--a" / "blobs").mkdir()
    (tmp_path / "secret.safetensors").rename(tmp_path / "models--a" / "blobs" / "1")
    (cached / "model.safetensors").symlink_to("../../blobs/1")
    assert diff_checkpoints(cached, cached)[0][0].change == 0
    assert diff_checkpoints(cached / "model.safetensors", cached)[0][0].change == 0


def test_of_a_run_the_newest_checkpoint_is_compared(tmp_path):
    run = faulty(tmp_path / "run")
    for step, value in ((100, 5.0), (320, 3.0)):
        save_file({"w": torch.full((4,), value)}, run / "checkpoints" / f"step_{step:06d}" / "a.safetensors")
    save_file({"w": torch.full((4,), 6.0)}, tmp_path / "other.safetensors")
    facts = checkpoint_report(run, tmp_path / "other.safetensors").facts
    found = {fact.label: float(fact.value) for fact in facts[:2]}
    assert found == {"L2 of the change": 6.0, "L2 of A": 6.0}  # 3 × √4


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(CheckpointError):
        list(diff_checkpoints(tmp_path / "a.safetensors", tmp_path / "a.safetensors"))
    with pytest.raises(CheckpointError, match="no safetensors"):
        list(diff_checkpoints(empty, empty))


def test_the_warm_start_in_a_run_is_no_second_run_of_its_folder(tmp_path):
    """As a command writes both that is repeated with `--output {out}/run`."""
    write_run(tmp_path / "out" / "run", healthy(1, 40))
    write_run(tmp_path / "out" / "run" / "warm_start", healthy(2, 20))
    assert len(proof.read_run_signals(tmp_path / "out").steps) == 40
    write_run(tmp_path / "out" / "other", healthy(2, 20))
    with pytest.raises(DiagnosticsError, match=r"has [23] runs"):
        proof.read_run_signals(tmp_path / "out")
