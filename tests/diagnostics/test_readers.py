"""Logs of every tracker give the values that were logged; what is broken in them is left out and said."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shutil
import sqlite3
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from greenward.common.errors import DiagnosticsError, GreenwardError
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.readers import answers, read_run_signals
from greenward.diagnostics.readers.answers import read_rollouts
from greenward.diagnostics.readers.rows import number_in
from greenward.diagnostics.readers.trackers import _masked_crc
from greenward.diagnostics.signals import Reading

FIXTURES = Path(
    os.environ.get("GREENWARD_FIXTURES", Path(__file__).parents[3] / "shared/data/tracker_fixtures")
)
needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="the folder of tracker fixtures is not there (GREENWARD_FIXTURES names it)"
)
RUNS = ("healthy", "grad_explosion_from_step_40", "memory_leak")
OURS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "groups/without_signal",
    "completions/mean_length": "completion/mean_length",
    "completions/clipped_ratio": "completion/truncated",
    "clip_ratio/region_mean": "clip/fraction",
    "rewards/tests_passed/mean": "reward/tests_passed",
    "gpu_mem_gb": "perf/device_memory_mb",
}
ROWS = [{"step": i, "reward": 0.5 + 0.01 * i, "kl": 0.001 * i, "grad_norm": 1.0} for i in range(1, 41)]


def fixture(form, run):
    """(path, run to pick)."""
    if form == "trackio":
        return FIXTURES / "trackio" / "fixtures.db", run
    return FIXTURES / form / (f"{run}.jsonl" if form == "verl" else run), None


@needs_fixtures
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("form", ["hf", "tensorboard", "wandb", "trackio", "verl"])
def test_the_same_run_reads_back_equal_in_every_format(form, run):
    truth = json.loads((FIXTURES / "truth.json").read_text())[run]
    path, pick = fixture(form, run)
    signals = read_run_signals(path, run_name=pick)
    assert signals.steps.tolist() == [row["step"] for row in truth]
    closing = "1 row(s) were set aside: the closing summary of the trainer"
    assert signals.notes == ((closing,) if form == "hf" else ())
    compared = 0
    for name in truth[0]:
        ours = OURS.get(name, name)
        if form == "verl" and ours == "kl":
            ours = "approx_kl"  # the fixture logs it as actor/ppo_kl
        if name == "step" or (form == "verl" and ours not in signals.values):
            continue
        expected = np.array([row[name] for row in truth]) * (1024 if name == "gpu_mem_gb" else 1)
        tolerance = 1e-6 if form == "tensorboard" else 0  # event files hold float32
        np.testing.assert_allclose(signals.values[ours], expected, rtol=tolerance, atol=0)
        compared += 1
    assert compared == (10 if form == "verl" else 13)


def written(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_verl(row):
    return {
        "step": row["step"],
        "data": {"critic/score/mean": row["reward"], "actor/grad_norm": row["grad_norm"]},
    }


def events(rows):
    return [
        {"step": r["step"], "name": name, "value": r[name]} for r in rows for name in ("reward", "grad_norm")
    ]


def trl_stdout(rows):
    return "loading\n" + "".join(
        f"  {r['step']}%|█ | {r['step']}/40 [00:01<00:02]\r{{'loss': 0.0, 'grad_norm': '{r['grad_norm']}', "
        f"'reward': {r['reward']}, 'kl': nan, 'epoch': 0.1}}\n"
        for r in rows
    )


def verl_stdout(rows):
    return "".join(
        f"(TaskRunner pid=1) step:{r['step']} - actor/grad_norm:{r['grad_norm']} - "
        f"critic/score/mean:np.float64({r['reward']}) - actor/kl_loss:nan\n"
        for r in rows
    )


def table(rows, names, delimiter=","):
    lines = [delimiter.join(names.values())]
    lines += [delimiter.join(str(row[name]) for name in names) for row in rows]
    return "\n".join(lines) + "\n"


GENERIC = {
    "flat.jsonl": jsonl(ROWS),
    "verl.jsonl": jsonl(map(as_verl, ROWS)),
    "nested.jsonl": jsonl(
        {"global_step": r["step"], "train": {"reward": r["reward"], "grad_norm": 1}} for r in ROWS
    ),
    "events.jsonl": jsonl(events(ROWS)),
    "tinker.jsonl": jsonl(
        {
            "step": r["step"],
            "progress/batch": r["step"],
            "env/all/reward/total": r["reward"],
            "optim/grad_norm": 1,
        }
        for r in ROWS
    ),
    "prime.jsonl": jsonl(
        {"step": r["step"], "reward/all/mean": r["reward"], "optim/grad_norm": 1} for r in ROWS
    ),
    "openrlhf.csv": table(
        ROWS, {"step": "train/global_step", "reward": "train/reward", "grad_norm": "train/actor_grad_norm"}
    ),
    "progress.csv": table(
        ROWS,
        {"step": "time/total_timesteps", "reward": "rollout/ep_rew_mean", "grad_norm": "train/grad_norm"},
    ),
    "table.tsv": table(ROWS, {"step": "step", "reward": "reward", "grad_norm": "grad_norm"}, "\t"),
    "document.json": json.dumps({"log_history": ROWS}),
    "trl.log": trl_stdout(ROWS),
    "verl.out": verl_stdout(ROWS),
}


@pytest.mark.parametrize("name", GENERIC)
def test_files_of_text_are_detected_and_read(tmp_path, name):
    signals = read_run_signals(written(tmp_path, name, GENERIC[name]))
    assert signals.steps.tolist() == [row["step"] for row in ROWS]
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]
    assert set(signals.values["grad_norm"]) == {1.0}


@pytest.mark.parametrize("form", ["{}/124", "{}/124 [00:12<01:00,  2.10it/s]", " {} / 124"])
@pytest.mark.parametrize("key", ["global_step/max_steps", "step"])
def test_a_step_of_all_steps_is_a_step(tmp_path, key, form):
    """ms-swift writes it so."""
    rows = [{key: form.format(row["step"]), "reward": row["reward"], "grad_norm": 1.0} for row in ROWS]
    steps = [row["step"] for row in ROWS]
    assert read_run_signals(written(tmp_path, "logging.jsonl", jsonl(rows))).steps.tolist() == steps
    if "[" not in form and form[0] != " ":
        printed = read_run_signals(written(tmp_path, "run.log", "".join(f"{row}\n" for row in rows)))
        assert printed.steps.tolist() == steps and printed.notes == ()


def test_printed_lines_that_name_their_step_have_it_and_others_are_counted(tmp_path):
    rows = [{"reward": row["reward"], "step": 10 * row["step"]} for row in ROWS]
    text = "".join(f"{row}\n{{'eval_reward': 0.5}}\n" for row in rows)
    signals = read_run_signals(written(tmp_path, "run.log", text))
    assert (
        signals.steps.tolist() == [row["step"] for row in rows] and signals.recorded["evaluation/score"].all()
    )
    counted = read_run_signals(written(tmp_path, "b.log", trl_stdout(ROWS)))
    assert any("40 printed lines name no step" in note for note in counted.notes)


def test_event_files_written_by_tensorboard_read_back(tmp_path):
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    protos = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    summaries = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
    tensors = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    for first, last in ((1, 30), (21, 40)):  # resumed from step 20
        writer = writers.EventFileWriter(str(tmp_path), filename_suffix=f".{first}")
        for row in ROWS[first - 1 : last]:
            old = summaries.Summary.Value(tag="train/reward", simple_value=row["reward"])
            tensor = tensors.TensorProto(dtype=1, float_val=[row["kl"]])
            new = summaries.Summary.Value(tag="train/kl", tensor=tensor)
            summary = summaries.Summary(value=[old, new])
            writer.add_event(protos.Event(step=row["step"], summary=summary, wall_time=1.0))
        writer.close()
    signals = read_run_signals(tmp_path)
    assert signals.steps.tolist() == [row["step"] for row in ROWS]
    np.testing.assert_allclose(signals.values["kl"], [row["kl"] for row in ROWS], rtol=1e-6)
    assert any("10 step(s) were written again" in note for note in signals.notes)


def test_the_logger_of_stable_baselines_reads_back(tmp_path):
    logger = pytest.importorskip("stable_baselines3.common.logger")
    output = logger.CSVOutputFormat(str(tmp_path / "progress.csv"))
    for row in ROWS:
        output.write(
            {"rollout/ep_rew_mean": row["reward"], "time/total_timesteps": 64 * row["step"]},
            {"rollout/ep_rew_mean": (), "time/total_timesteps": ()},
        )
    output.close()
    signals = read_run_signals(tmp_path)
    assert signals.steps.tolist() == [64 * row["step"] for row in ROWS]
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def test_parquet_reads_back_or_names_the_package_that_it_needs(tmp_path):
    path = tmp_path / "log.parquet"
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        path.write_bytes(b"PAR1" + bytes(20))
        with pytest.raises(DiagnosticsError, match="pip install pyarrow"):
            read_run_signals(path)
        return
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert read_run_signals(path).values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def wandb_record(data, kind=1, crc=None):
    crc = zlib.crc32(data, zlib.crc32(bytes([kind]))) if crc is None else crc
    return struct.pack("<IHB", crc, len(data), kind) + data


def field(number, value):
    size, length = len(value), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return (
        bytes([number << 3 & 127 | 2 | (128 if number > 15 else 0)])
        + (bytes([number >> 4]) if number > 15 else b"")
        + length
        + bytes([size])
        + value
    )


def wandb_history(step, **values):
    items = b"".join(
        field(1, field(1, key.encode()) + field(16, json.dumps(value).encode()))
        for key, value in values.items()
    )
    return field(2, items + field(2, b"\x08" + bytes([step])))


def test_a_wrong_checksum_and_a_torn_end_of_a_wandb_file_are_left_out_and_said(tmp_path):
    good = [wandb_record(wandb_history(i, reward=i / 10, long="x" * 300)) for i in (1, 2, 3)]
    bad = wandb_record(wandb_history(4, reward=9.0), crc=1)
    content = b":W&B\xe1\xbe\0" + b"".join(good) + bad + good[0][:20]
    (tmp_path / "run-a.wandb").write_bytes(content)
    signals = read_run_signals(tmp_path)
    assert signals.values["reward/mean"].tolist() == [0.1, 0.2, 0.3]
    assert any("1 record(s) with a wrong checksum" in note for note in signals.notes)
    assert any("torn" in note for note in signals.notes)


def test_checkpoints_of_a_resumed_trainer_give_the_newest_history_and_its_checkpoints(tmp_path):
    for step in (20, 40):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        history = [
            *ROWS[:20],
            {"step": 20, "eval_reward": 0.4},
            *ROWS[20:step],
            {"step": step, "train_runtime": 1.0},
        ]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    signals = read_run_signals(tmp_path)
    assert signals.steps[-1] == 40 and signals.reading == Reading(41, set_aside=1)
    assert [step for step, _ in signals.checkpoints] == [20, 40]
    assert signals.series("evaluation/score")[0].tolist() == [20]
    assert not signals.not_finite("evaluation/score").any()  # steps without one are no NaN


def test_several_runs_give_a_list_to_pick_from(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, "metrics.jsonl", jsonl(ROWS))
    with pytest.raises(DiagnosticsError, match=r"2 runs\n.*one \(40 row\(s\)\), two"):
        read_run_signals(tmp_path)
    assert len(read_run_signals(tmp_path, run_name="two").steps) == 40
    with pytest.raises(DiagnosticsError, match="no run 'three'"):
        read_run_signals(tmp_path, run_name="three")


def test_of_several_runs_without_a_reward_that_is_said(tmp_path):
    supervised = [{"step": row["step"], "loss": row["kl"]} for row in ROWS]
    said = r"expect findings about the loss and the gradients only"
    for rows, matches in ((supervised, True), (ROWS, False)):
        named = ({**row, "run_id": name} for name in "abc" for row in rows)
        written(tmp_path, "several.jsonl", jsonl(named))
        for name in ("a", "b"):
            (tmp_path / name).mkdir(exist_ok=True)
            written(tmp_path / name, "metrics.jsonl", jsonl(rows))
        for path in (tmp_path / "several.jsonl", tmp_path):
            with pytest.raises(DiagnosticsError, match=r"(?s)[23] runs.*Name one by --run") as error:
                read_run_signals(path)
            assert bool(re.search(said, str(error.value))) is matches


def test_names_that_are_not_known_are_listed_and_can_be_mapped(tmp_path):
    path = written(tmp_path, "log.jsonl", jsonl({"step": i, "my_score": i} for i in range(3)))
    assert "my_score" in read_run_signals(path).notes[0]
    mapped = read_run_signals(path, mapping={"my_score": "reward/mean"})
    assert mapped.values["reward/mean"].tolist() == [0, 1, 2] and mapped.theirs == {"reward/mean": "my_score"}
    with pytest.raises(DiagnosticsError, match="my_score"):
        read_run_signals(path, mapping={"my_scrore": "reward/mean"})


def test_held_out_scores_are_no_rewards(tmp_path):
    rows = [
        {
            "step": i,
            "reward": 0.5,
            "eval_rewards/x/mean": 0.9,
            "eval_rewards/x/std": 0.1,
            "val-core/gsm8k/acc/mean@4": 0.3,
        }
        for i in range(3)
    ]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert set(signals.values["evaluation/score"]) == {0.3}
    assert set(signals.values["reward/mean"]) == {0.5}
    assert not any(name.startswith("reward/x") for name in signals.values)


def test_rollouts_of_other_trainers_are_one_kind_of_record(tmp_path):
    written(tmp_path, "metrics.jsonl", jsonl(ROWS))
    verl = tmp_path / "rollout_data"
    verl.mkdir()
    row = {"input": "add", "output": "<script>1</script>", "score": 0.5, "step": 3}
    written(verl, "3.jsonl", jsonl([row]) + "not json\n")
    signals = read_run_signals(tmp_path)
    assert [step for step, _ in signals.rollouts] == [3]
    (rollout,) = read_rollouts(signals.rollouts[0][1])
    assert (rollout.task, rollout.answer, rollout.reward) == ("add", "<script>1</script>", 0.5)


def sb3(rows, gap=""):
    boxes = []
    for r in rows:
        lines = {"rollout/": "", "   ep_rew_mean": f"{r['reward']:.4g}", "time/": "", "   fps": 83,
                 "   total_timesteps": 64 * r["step"], "train/": "", "   grad_norm": r["grad_norm"]}  # fmt: skip
        inner = "".join(f"| {key:<22} | {value!s:<11} |\n" for key, value in lines.items())
        boxes.append(f"{'-' * 42}\n{inner}{'-' * 42}\n{gap}")
    return "Using cpu device\nWrapping the env in a DummyVecEnv.\n" + "".join(boxes)


def rsl_rl(rows):
    return "".join(
        f"{'#' * 80}\n        \x1b[1m Learning iteration {r['step']}/1500 \x1b[0m        \n\n"
        f"{'Computation:':>35} 14963 steps/s (collection: 6.407s, learning 0.163s)\n"
        f"{'Value function loss:':>35} 0.0123\n{'Mean reward:':>35} {r['reward']:.2f}\n"
        f"{'Mean grad norm:':>35} 1.0\n{'-' * 80}\n{'Total timesteps:':>35} {98304 * r['step']}\n"
        f"{'Iteration time:':>35} 6.57s\n{'ETA:':>35} 10580.5s\n\n"
        for r in rows
    )


def html_table(rows):
    body = "".join(f"<tr><td>{r['step']}</td><td>No log</td><td>{r['reward']}</td></tr>\n" for r in rows)
    return (
        "<div><progress value='40' max='40'></progress> [40/40 00:12, Epoch 1/1]</div>\n<table border='1'>"
        "<thead><tr style='text-align: left;'><th>Step</th><th>Training Loss</th><th>reward</th></tr></thead>"
        f"<tbody>{body}</tbody></table><p>"
    )


def notebook(*outputs):
    return json.dumps({"cells": [{"cell_type": "code", "source": [], "outputs": [*outputs]}], "nbformat": 4})


def shown(text, kind="text/html"):
    return {
        "output_type": "display_data",
        "data": {kind: text.splitlines(keepends=True), "text/plain": ["<x>"]},
    }


def lines_of(form, rows=ROWS):
    return "".join(form.format(**row, total=len(rows)) for row in rows)


# (text as it is printed or pasted, the names of the reward and of the step in it)
FORMS = {
    "minimind": (
        lines_of("Epoch:[1/1]({step}/{total}), Reward: {reward:.4f}, KL_ref: {kl:.4f}, Avg Len: 129, LR: 1e-06\n"),
        "Reward",
    ),
    "prime-rl": (
        lines_of("12:03:01 SUCCESS Step {step} | Time: 12.30s | Reward: {reward:.4f} | Throughput: 123.4 tokens/s | "
                 "Seq. Length: 512.0 tokens/sample\n"),
        "Reward",
    ),
    "TF-Agents": (
        lines_of("step = {step}: loss = 0.25\nstep = {step}: Average Return = {reward}\n"), "Average Return"
    ),
    "CleanRL": (lines_of("global_step={step}, episodic_return=[{reward}]\n"), "episodic_return"),
    "ML-Agents": (
        lines_of("[INFO] Walker. Step: {step}. Time Elapsed: 87.4 s. Mean Reward: {reward:.3f}. Std of Reward: "
                 "0.1. Training.\n"),
        "Mean Reward",
    ),
    "mlx-lm": (
        lines_of("Iter {step}: Train loss 0.012, Total rewards mean {reward:.2f}, Total rewards std 0.400, "
                 "KL 0.010, Learning Rate 1.000e-05, It/sec 1.705, Trained Tokens 1024, Peak mem 20.1 GB\n"),
        "Total rewards mean",
    ),
    "a list with bars": (
        lines_of("update {step} | policy loss -0.01 | mean return of episodes {reward:.2f} | steps per s 812\n"),
        "mean return of episodes",
    ),
    "key=value": (
        lines_of("2026-01-02 03:04:05,678 - trainer - INFO - step={step} reward={reward} kl={kl}\n"), "reward"
    ),
    "nanoGPT": (lines_of("step {step}: train reward {reward}, val loss 1.2\n"), "train reward"),
    "PyTorch": (lines_of("Epoch [1/3], Step [{step}/{total}], Reward: {reward:.4f}, Loss: 0.2\n"), "Reward"),
    "tabs": (lines_of("Episode {step}\tAverage Score: {reward:.2f}\n"), "Average Score"),
    "blocks": (lines_of("=== Episode {step} ===\nReward: {reward}\nLoss: 0.5\n\n"), "Reward"),
    "DeepSpeed-Chat": (
        lines_of("Epoch: 0 | Step: {step} | PPO Epoch: 1 | Actor Loss: 0.1 | Critic Loss: 0.2\n"
                 "End-to-End => Latency: 3.1s\naverage reward score: {reward}\n"),
        "average reward score",
    ),
    "JSON after a prefix": (
        "starting\n" + "".join(f"[INFO] 01:02:03 metrics {json.dumps(row)}\n" for row in ROWS), "reward"
    ),
    "a step before a mapping": ("".join(f"step {r['step']}: {{'reward': {r['reward']}}}\n" for r in ROWS), "reward"),
    "JSON over several lines": (
        "config ok\n" + "".join(json.dumps(row, indent=2) + "\nsaved\n" for row in ROWS), "reward"
    ),
    "arrays": (
        "".join(f"{{'step': {r['step']}, 'reward': tensor({r['reward']}, device='cuda:0'), 'kl': '1e-3'}}\n" for r in ROWS),
        "reward",
    ),
    "tqdm": (
        lines_of("\rTraining: 12%|█▏ | {step}/{total} [00:10<01:00,  1.2it/s, loss=0.5, reward={reward}]"), "reward"
    ),
    "rsl_rl": (rsl_rl(ROWS), "Mean reward"),
    "Markdown": ("| Step | reward |\n|---:|---|\n" + lines_of("| {step} | {reward} |\n"), "reward"),
    "Markdown without edges": ("Step | reward\n--- | ---\n" + lines_of("{step} | {reward}\n"), "reward"),
    "columns": ("step  reward  kl\n" + lines_of("{step}  {reward}  {kl}\n"), "reward"),
    "pandas": ("   step  reward\n" + lines_of("{step}  {step}  {reward}\n"), "reward"),
    "CSV": ("step,reward\n" + lines_of("{step},{reward}\n"), "reward"),
    "HTML": (html_table(ROWS), "reward"),
}  # fmt: skip


def as_pasted(text):
    yield "plain", text.encode()
    yield "Windows", text.replace("\n", "\r\n").encode()
    yield "UTF-16", text.encode("utf-16")
    yield "UTF-16 without a mark", text.encode("utf-16-le")
    yield "UTF-8 with a mark", text.encode("utf-8-sig")


@pytest.mark.parametrize("form", FORMS)
def test_what_trainers_print_is_read_from_a_file_a_folder_and_a_paste(tmp_path, monkeypatch, form):
    text, name = FORMS[form]
    expected = np.array([round(row["reward"], 2) for row in ROWS])
    for way, content in as_pasted(text):
        folder = tmp_path / way
        folder.mkdir()
        (folder / "train.log").write_bytes(content)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        for place in (folder / "train.log", folder, "-"):
            signals = read_run_signals(place, mapping={name: "reward/mean"})
            assert signals.steps.tolist() == [row["step"] for row in ROWS], (way, place)
            np.testing.assert_allclose(signals.values["reward/mean"], expected, atol=1e-9)
            assert signals.reading.rows == 40 and signals.reading.set_aside == 0


def test_numbers_in_prose_are_no_list_of_signals(tmp_path):
    prose = "It took 3 hours, used 2 GPUs, and the reward rose, from 0.1 to 0.4, in 200 steps.\n"
    prose += "We saw KL 0.5 at the end, clip 0.2, batch 64.\n"
    text = "".join(f"step {row['step']}: reward {row['reward']}\n{prose}" for row in ROWS)
    signals = read_run_signals(written(tmp_path, "train.log", text))
    assert signals.steps.tolist() == [row["step"] for row in ROWS]
    np.testing.assert_allclose(signals.values["reward/mean"], [row["reward"] for row in ROWS])
    assert not any("batch" in name or "used" in name for name in signals.values)


def test_the_terms_of_the_reward_that_mlx_prints_are_known(tmp_path):
    text = lines_of(
        "Iter {step}: Train loss 0.0, Total rewards mean {reward}, Total rewards std 0.1, KL {kl}, "
        "r1_accuracy_reward_func mean {reward}, r1_accuracy_reward_func std 0.1, It/sec 1.7, Tokens/sec 300.0\n"
    )
    signals = read_run_signals(written(tmp_path, "train.log", text))
    for ours in ("reward/mean", "reward/r1_accuracy_reward_func"):
        np.testing.assert_allclose(signals.values[ours], [row["reward"] for row in ROWS])
    assert {"reward/std", "kl", "loss", "perf/tokens_per_second"} <= signals.values.keys()
    assert not any("not known" in note for note in signals.notes)


def test_a_paste_that_cannot_be_read_is_called_standard_input(monkeypatch):
    for content, found in (
        (b"hello", r"^standard input has 1 line"),
        (
            jsonl({**row, "seed": seed} for row in ROWS for seed in (0, 1)).encode(),
            r"^standard input has 2 runs",
        ),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(DiagnosticsError, match=found):
            read_run_signals("-")


def test_quoted_text_between_fences_is_read(tmp_path):
    text = "".join(f"> {line}\n" for line in ("```", *map(str, ROWS), "```", "what is wrong?"))
    signals = read_run_signals(written(tmp_path, "issue.md", text))
    assert signals.steps.tolist() == [row["step"] for row in ROWS]
    pasted = "$ tail -n 2 log\n" + "".join(f"{row}\n" for row in ROWS) + str(ROWS[0])[:30]
    torn = read_run_signals(written(tmp_path, "paste", pasted))
    assert len(torn.steps) == 40 and "the last line is torn and was left out" in torn.notes


@pytest.mark.parametrize("gap", ["", "\r  12% ━━━━ 12/50 [ 0:01:02 < 0:03:00 , 83 it/s ]\r"])
def test_boxes_of_stable_baselines_are_read(tmp_path, gap):
    evaluated = "Eval num_timesteps=2560, episode_reward=115.83 +/- 0.00\n" + "-" * 42 + "\n"
    evaluated += (
        "| eval/ | |\n|    mean_reward | 116 |\n| time/ | |\n|    total_timesteps | 2560 |\n" + "-" * 42
    )
    signals = read_run_signals(written(tmp_path, "train.log", sb3(ROWS, gap) + evaluated))
    assert signals.steps.tolist() == [64 * row["step"] for row in ROWS]
    assert signals.values["reward/mean"].tolist() == [float(f"{row['reward']:.4g}") for row in ROWS]
    assert signals.series("evaluation/score")[1].tolist() == [116]


def test_what_the_logger_of_stable_baselines_prints_is_read(tmp_path):
    logger = pytest.importorskip("stable_baselines3.common.logger")
    with (tmp_path / "train.log").open("w") as file:
        output = logger.HumanOutputFormat(file)
        for row in ROWS:
            values = {"rollout/ep_rew_mean": row["reward"], "time/total_timesteps": 64 * row["step"]}
            output.write(values, dict.fromkeys(values, ()))
    signals = read_run_signals(tmp_path)
    assert signals.steps.tolist() == [64 * row["step"] for row in ROWS]
    np.testing.assert_allclose(signals.values["reward/mean"], [row["reward"] for row in ROWS], rtol=5e-3)


def test_notebooks_are_read_from_their_tables_and_else_from_what_was_printed(tmp_path):
    for name, output in (
        ("html", shown(html_table(ROWS))),
        ("stream", {"output_type": "stream", "name": "stdout", "text": [f"{row}\n" for row in ROWS]}),
    ):
        place = written(tmp_path, f"{name}.ipynb", notebook(output))
        signals = read_run_signals(place)
        assert signals.steps.tolist() == [row["step"] for row in ROWS]
        assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def test_steps_that_begin_again_in_each_epoch_count_on(tmp_path):
    for name, form in (
        ("a", "Epoch:[{}/2]({}/20), Reward: {}, Loss: 0.1\n"),
        ("b", "Epoch {}/2 Step {}/20 Reward: {}\n"),
    ):
        text = "".join(form.format(1 + i // 20, 1 + i % 20, row["reward"]) for i, row in enumerate(ROWS))
        assert read_run_signals(written(tmp_path, f"{name}.log", text)).steps.tolist() == [
            row["step"] for row in ROWS
        ]


TEXTS_OF_NUMBERS = {
    "0.1": 0.1, "1e-3": 0.001, "-.5": -0.5, "nan": math.nan, "NaN": math.nan, "inf": math.inf, "-Infinity": -math.inf,
    "np.float64(0.3)": 0.3, "tensor(0.3)": 0.3, "tensor(0.3, device='cuda:0')": 0.3, "tensor([0.3])": 0.3, "[0.3]": 0.3,
    "Array(0.5, dtype=float32)": 0.5, "12.5%": 0.125, "1,234.5": 1234.5, "1,234,567": 1234567, "1.2k": 1200, "3M": 3e6,
    "True": 1.0, " 7 ": 7.0,
}  # fmt: skip
NO_NUMBERS = ("", "0:11:19", "cuda", "1,23", "1/2/3", "v1.2", "0x", "12 apples", "[1, 2]", "2026-01-02")


def test_texts_that_mean_numbers_are_numbers(tmp_path):
    for text, number in TEXTS_OF_NUMBERS.items():
        assert number_in(text) == pytest.approx(number, nan_ok=True), text
    assert [text for text in NO_NUMBERS if number_in(text) is not None] == []
    rows = [{"step": i, "reward": text} for i, text in enumerate(["0.1", "tensor(0.2)", "cuda", "50%", None])]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.series("reward/mean")[1].tolist() == [0.1, 0.2, 0.5]
    assert any("1 value(s) of reward are no numbers, such as 'cuda'" in note for note in signals.notes)


KEYS = ("global_step", "iteration", "training_iteration", "episode", "frame", "num episodes", "total_timesteps",
        "timesteps_total", "time/total_timesteps", "current_steps", "Learning iteration", "Epoch", "update")  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_step_is_found_by_its_names(tmp_path, key):
    rows = [{"reward": row["reward"], key: 10 * row["step"]} for row in ROWS]
    steps = [10 * row["step"] for row in ROWS]
    assert read_run_signals(written(tmp_path, "a.jsonl", jsonl(rows))).steps.tolist() == steps
    assert (
        read_run_signals(
            written(tmp_path, "a.csv", table(rows, {"reward": "reward", key: key}))
        ).steps.tolist()
        == steps
    )


def test_a_step_within_each_episode_is_no_step_of_the_run(tmp_path):
    rows = [{"step": 17 * i % 23, "episode": i, "reward": 1.0} for i in range(1, 60)]
    assert read_run_signals(written(tmp_path, "a.jsonl", jsonl(rows))).steps.tolist() == [*range(1, 60)]


# Different runs, and rows that are no step of their own.


def test_runs_that_are_appended_to_one_file_are_not_merged(tmp_path):
    path = written(tmp_path, "log.jsonl", jsonl(ROWS) + jsonl(ROWS[:30]))
    last = read_run_signals(path)
    assert last.steps.tolist() == [*range(1, 31)] and last.reading == Reading(70, set_aside=40, runs=2)
    second = read_run_signals(path, run_name="2")
    assert second.steps.tolist() == [*range(1, 31)] and second.reading == Reading(30, runs=2)
    false_start = read_run_signals(written(tmp_path, "b.jsonl", jsonl(ROWS[:2]) + jsonl(ROWS)))
    assert len(false_start.steps) == 40 and false_start.reading == Reading(42, set_aside=2, runs=2)
    assert any("2 row(s) of other runs were set aside: 1" in note for note in false_start.notes)


def test_a_run_of_ours_that_began_again_is_one_run(tmp_path):
    written(tmp_path, "provenance.json", json.dumps({"sessions": [{"command": "train"}] * 2}))
    written(tmp_path, "metrics.jsonl", jsonl(ROWS[:30]) + jsonl(ROWS))
    assert read_run_signals(tmp_path).reading == Reading(70, replaced=30)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_with_resumes_has_the_last_row_of_each_step(tmp_path, seed):
    """Against a mapping that each row of the log is written into."""
    rng = np.random.default_rng(seed)
    rows, step, number = [], 0, 0
    for _ in range(4):
        begin = max(5, step - int(rng.integers(3, 10))) if step else 0
        for step in range(begin + 1, begin + int(rng.integers(20, 40))):
            number += 1
            rows.append({"step": step, "reward": float(number), "kl": 0.1 * number})
    kept = {row["step"]: row["reward"] for row in rows}
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.steps.tolist() == sorted(kept)
    assert signals.values["reward/mean"].tolist() == [kept[one] for one in sorted(kept)]
    assert signals.reading == Reading(len(rows), replaced=len(rows) - len(kept))


def test_a_resumed_run_that_does_not_come_as_far_again_leaves_the_older_end_out(tmp_path):
    rows = ROWS + [{**row, "reward": 9.0} for row in ROWS[19:29]]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.steps[-1] == 29 and set(signals.values["reward/mean"][19:]) == {9.0}
    assert signals.reading == Reading(50, replaced=10, set_aside=11)
    assert any("11 row(s) were set aside" in note for note in signals.notes)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_one_step_are_averaged(tmp_path, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(30, 4))
    rows = [{"step": step, "reward": value, "kl": 0.1} for step, some in enumerate(values) for value in some]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    np.testing.assert_allclose(signals.values["reward/mean"], values.mean(1))
    assert signals.reading == Reading(120, averaged=120)
    assert "30 step(s) have several rows, 120 in all; the mean of each step counts" in signals.notes


def test_a_value_that_is_not_finite_is_not_averaged_away(tmp_path):
    rows = [{"step": i // 2, "loss": math.nan if i == 7 else 1.0} for i in range(40)]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.steps[signals.not_finite("loss")].tolist() == [3]


def test_evaluations_and_a_closing_summary_are_no_rows_of_the_training(tmp_path):
    rows = [{"step": i, "loss": 1.0, "reward": 0.5, "split": "train"} for i in range(1, 51)]
    rows += [{"step": 50, "loss": 9.0, "reward": 0.9, "split": "eval"}]
    signals = read_run_signals(written(tmp_path, "a.jsonl", jsonl(rows)))
    assert set(signals.values["loss"]) == {1.0} and signals.series("evaluation/score")[1].tolist() == [0.9]
    episodes = [{"episode": i, "reward": 0.5} for i in range(1, 51)] + [{"step": 50_000, "final_reward": 3.0}]
    closing = read_run_signals(written(tmp_path, "b.jsonl", jsonl(episodes)))
    assert len(closing.steps) == 50 and closing.reading == Reading(51, set_aside=1)
    assert any("they count steps by step, the others by episode" in note for note in closing.notes)
    counted = [{"reward": 0.5} for _ in range(50)] + [{"step": 50_000, "final_reward": 3.0}]
    plain = read_run_signals(written(tmp_path, "c.jsonl", jsonl(counted)))
    assert plain.steps.tolist() == [*range(1, 51)] and plain.reading == Reading(51, set_aside=1)


def test_rows_that_name_their_run_are_parted_by_it(tmp_path):
    rows = [{**row, "run_id": name} for row in ROWS for name in ("a", "b")]
    path = written(tmp_path, "log.jsonl", jsonl(rows))
    with pytest.raises(DiagnosticsError, match=r"a \(40 row.*, b \(40 row"):
        read_run_signals(path)
    assert read_run_signals(path, run_name="b").reading == Reading(40, runs=2)


def test_of_attempts_that_follow_one_another_in_a_file_the_last_one_counts(tmp_path):
    attempts = [
        [{**row, "reward": row["reward"] + number} for row in ROWS[: 40 - number]] for number in range(3)
    ]
    false_start = ROWS[:2]
    path = written(tmp_path, "log.jsonl", jsonl([*attempts[0], *attempts[1], *attempts[2], *false_start]))
    last = read_run_signals(path)
    assert last.values["reward/mean"].tolist() == [row["reward"] for row in attempts[2]]
    assert last.reading == Reading(119, set_aside=81, runs=4)
    assert last.notes[0].startswith("the last of 4 runs is judged, 3 (38 row(s), steps 1 to 38); 81 row(s)")
    first = read_run_signals(path, run_name="1")
    assert first.values["reward/mean"].tolist() == [row["reward"] for row in attempts[0]]
    only = read_run_signals(written(tmp_path, "one.jsonl", jsonl([*ROWS, *false_start])))
    assert only.notes[0].startswith("2 row(s) of other runs were set aside")


@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_with_a_seed_are_parted_by_it(tmp_path, interleaved):
    rows = [{**row, "seed": seed} for row in ROWS for seed in range(3)]
    if not interleaved:
        rows.sort(key=lambda row: row["seed"])
    text = table(rows, {name: name for name in rows[0]})
    with pytest.raises(DiagnosticsError, match=r"seed 0 \(40 row.*seed 2 \(40 row"):
        read_run_signals(written(tmp_path, "log.csv", text))
    assert len(read_run_signals(tmp_path / "log.csv", run_name="seed 1").steps) == 40
    changing = [{**row, "seed": 17 * row["step"]} for row in ROWS]
    assert read_run_signals(written(tmp_path, "a.jsonl", jsonl(changing))).reading == Reading(40)


def test_printed_mappings_without_a_step_are_parted_where_the_epoch_goes_back(tmp_path):
    lines = [f"{{'reward': {row['reward']}, 'epoch': {row['step'] / 40}}}\n" for row in ROWS]
    assert read_run_signals(written(tmp_path, "one.log", "".join(lines))).reading == Reading(40)
    two = read_run_signals(written(tmp_path, "two.log", "".join(lines * 2)))
    assert two.reading == Reading(80, set_aside=40, runs=2)
    resumed = read_run_signals(written(tmp_path, "resumed.log", "".join(lines[:30] + lines[20:])))
    assert len(resumed.steps) == 40 and resumed.reading == Reading(50, replaced=10)


def test_rows_of_another_kind_do_not_overwrite_the_rows_of_their_step(tmp_path):
    rows = []
    for row in ROWS:
        rows += [row, {"step": row["step"], "reward": 9.0}] if row["step"] % 10 == 0 else [row]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]
    assert signals.reading == Reading(44, set_aside=4)


def test_the_same_rows_twice_count_once_and_rows_in_another_order_are_sorted(tmp_path):
    for seed in range(3):
        rows = [ROWS[place] for place in np.random.default_rng(seed).permutation(40)]
        shuffled = read_run_signals(written(tmp_path, "a.jsonl", jsonl(rows)))
        assert shuffled.steps.tolist() == [*range(1, 41)] and shuffled.reading == Reading(40)
    assert read_run_signals(written(tmp_path, "b.jsonl", jsonl(ROWS[::-1]))).reading == Reading(40)
    twice = read_run_signals(written(tmp_path, "c.jsonl", jsonl(row for row in ROWS for _ in range(2))))
    assert twice.reading == Reading(80)
    assert "40 row(s) repeat the numbers of their step" in twice.notes


def tensorboard_file(path, rows, tag="train/reward"):
    def message(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def record(data):
        head = struct.pack("<Q", len(data))
        return head + struct.pack("<I", _masked_crc(head)) + data + struct.pack("<I", _masked_crc(data))

    content = b""
    for row in rows:
        value = message(1, tag.encode()) + b"\x15" + struct.pack("<f", row["reward"])
        content += record(b"\x10" + bytes([row["step"]]) + message(5, message(1, value)))
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content)


def test_event_files_of_different_runs_are_not_merged_and_those_of_a_resumed_run_are(tmp_path):
    for number in range(3):
        tensorboard_file(tmp_path / "same" / f"events.out.tfevents.{number}", ROWS)
        tensorboard_file(tmp_path / "apart" / f"run_{number}" / "events.out.tfevents.1", ROWS)
    assert read_run_signals(tmp_path / "same").reading == Reading(120, set_aside=80, runs=3)
    with pytest.raises(DiagnosticsError, match=r"run_0 \(40 row"):
        read_run_signals(tmp_path / "apart")
    assert len(read_run_signals(tmp_path / "apart", run_name="run_1").steps) == 40
    tensorboard_file(tmp_path / "resumed" / "events.out.tfevents.1", ROWS[:30])
    tensorboard_file(tmp_path / "resumed" / "events.out.tfevents.2", ROWS[20:])
    tensorboard_file(tmp_path / "resumed" / "events.out.tfevents.3", ROWS[:5], tag="eval/reward")
    assert read_run_signals(tmp_path / "resumed").reading == Reading(50, replaced=10)


# Exports of trackers.


def test_an_export_of_wandb_has_its_runs_as_columns(tmp_path):
    names = [f"{run} - train/reward{end}" for run in ("one", "two - b") for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in ("Step", *names))]
    lines += [
        ",".join(f'"{cell}"' for cell in (r["step"], *[r["reward"]] * 3, *[2 * r["reward"]] * 3))
        for r in ROWS
    ]
    path = written(tmp_path, "wandb_export.csv", "\n".join(lines) + "\n")
    with pytest.raises(DiagnosticsError, match=r"one \(40 row.*two - b \(40 row"):
        read_run_signals(path)
    signals = read_run_signals(path, run_name="two - b")
    assert signals.values["reward/mean"].tolist() == [2 * row["reward"] for row in ROWS]
    assert signals.format == "W&B" and any("__MIN" in note for note in signals.notes)


def test_a_folder_of_mlflow_is_read(tmp_path):
    for run in ("abc", "def"):
        metrics = tmp_path / "mlruns" / "0" / run / "metrics"
        (metrics / "train").mkdir(parents=True)
        (metrics.parent / "params").mkdir()
        written(metrics.parent, "meta.yaml", "run_name: x\n")
        written(metrics.parent / "params", "lr", "0.001")
        for name in ("train/reward", "grad_norm"):
            key = name.rpartition("/")[2]
            written(metrics, name, "".join(f"1700000000{r['step']:03} {r[key]} {r['step']}\n" for r in ROWS))
    for place in (tmp_path, tmp_path / "mlruns", tmp_path / "mlruns" / "0"):
        with pytest.raises(DiagnosticsError, match=r"2 runs\n.*abc \(40 row"):
            read_run_signals(place)
    signals = read_run_signals(tmp_path / "mlruns" / "0" / "abc")
    assert signals.steps.tolist() == [row["step"] for row in ROWS] and signals.settings == {"lr": 0.001}
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


@pytest.mark.parametrize(
    "columns", ["Run ID,metric,step,timestamp,value", "run.hash,metric.name,step,time,value"]
)
def test_a_table_with_a_row_for_each_value_is_read(tmp_path, columns):
    lines = [columns]
    for run in ("a", "b"):
        for name in ("reward", "kl"):
            lines += [f"{run},{name},{row['step']},17000,{row[name]}" for row in ROWS]
    path = written(tmp_path, "export.csv", "\n".join(lines) + "\n")
    with pytest.raises(DiagnosticsError, match=r"a \(40 row"):
        read_run_signals(path)
    signals = read_run_signals(path, run_name="a")
    assert signals.values["kl"].tolist() == [row["kl"] for row in ROWS] and signals.steps.tolist()[-1] == 40


def test_curves_that_tensorboard_exported_are_one_run(tmp_path):
    for name in ("train_reward", "kl"):
        key = name.removeprefix("train_")
        lines = [f"1.7e9,{row['step']},{row[key]}\n" for row in ROWS]
        written(tmp_path, f"run-a-tag-{name}.csv", "Wall time,Step,Value\n" + "".join(lines))
    signals = read_run_signals(tmp_path, mapping={"train_reward": "reward/mean"})
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]
    assert signals.values["kl"].tolist() == [row["kl"] for row in ROWS] and signals.reading == Reading(40)


def test_tables_with_a_comment_or_without_headings_are_read(tmp_path):
    cells = "".join(f"{row['step']},{row['reward']}\n" for row in ROWS)
    commented = written(tmp_path, "monitor.csv", '#{"env_id": "x"}\nstep,reward\n' + cells)
    assert read_run_signals(commented).values["reward/mean"].tolist() == [row["reward"] for row in ROWS]
    bare = read_run_signals(written(tmp_path, "bare.csv", cells))
    assert bare.values["column 2"].tolist() == [row["reward"] for row in ROWS]
    assert "bare.csv has no headings; its columns are counted" in bare.notes
    words = "".join(f"{row['step']},move_right,{row['reward']},nan\n" for row in ROWS)
    texts = read_run_signals(written(tmp_path, "words.csv", words))
    assert texts.values["column 3"].tolist() == [row["reward"] for row in ROWS]
    assert "non-finite" not in {one.name for one in diagnose_run(tmp_path / "words.csv").findings}
    column = "".join(f"{row['reward']}\n" for row in ROWS)
    one = read_run_signals(written(tmp_path, "rewards.csv", column))
    assert one.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]
    lines = "".join(
        json.dumps({"step": row["step"], "reward": row["reward"], "x": [1, 2]}) + "\n" for row in ROWS
    )
    other = read_run_signals(written(tmp_path, "json.csv", lines))
    assert other.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def test_a_folder_is_read_by_its_log_whatever_lies_beside(tmp_path):
    written(tmp_path, "config.json", json.dumps({"lr": 1e-3, "layers": [1, 2, 3]}))
    written(tmp_path, "README.md", "| model | loss |\n|---|---|\n" + "| a | 0.3 |\n" * 9)
    written(tmp_path, "requirements.txt", "torch==2.1\nnumpy==1.26.4\n")
    with pytest.raises(DiagnosticsError, match="nor another log"):
        (tmp_path / "sub").mkdir()
        written(tmp_path / "sub", "config.json", json.dumps({"lr": 1e-3, "layers": [1, 2, 3]}))
        read_run_signals(tmp_path / "sub")
    written(tmp_path, "stderr.txt", "Traceback: 3 things\n")
    written(tmp_path, "stdout.txt", "".join(f"{row}\n" for row in ROWS))
    assert read_run_signals(tmp_path).reading == Reading(40)


def checkpoints(count):
    """What ML-Agents writes into `training_status.json` (mlagents/trainers/training_status.py)."""
    found = [
        {"steps": 499_000 * i, "file_path": f"results/a/Walker/Walker-{i}.onnx", "reward": 7.5 * i,
         "creation_time": 1.7e9 + i, "auxillary_file_paths": [f"results/a/Walker/Walker-{i}.pt"]}
        for i in range(1, count + 1)
    ]  # fmt: skip
    return {
        "Walker": {"checkpoints": found, "final_checkpoint": found[-1], "elo": 1213.5},
        "metadata": {"stats_format_version": "0.3.0", "mlagents_version": "0.30.0"},
    }


@pytest.mark.parametrize(
    "document",
    [checkpoints(5), checkpoints(40), [{"step": i, "path": f"{i}.pt", "loss": 0.5} for i in range(9)]],
)
def test_a_list_of_checkpoints_is_no_log(tmp_path, document):
    for indent in (None, 4):
        path = written(tmp_path, "training_status.json", json.dumps(document, indent=indent))
        with pytest.raises(DiagnosticsError, match=r"lists checkpoints.*no log.*\n.*Name the log itself"):
            read_run_signals(path)
        with pytest.raises(DiagnosticsError, match="nor another log"):
            read_run_signals(tmp_path)
    written(tmp_path, "train.log", "".join(f"{row}\n" for row in ROWS[:3]))
    assert read_run_signals(tmp_path).reading == Reading(3)


def test_a_document_without_steps_is_no_second_run_beside_a_log(tmp_path):
    scores = {"results": [{"task": name, "score": 0.5} for name in "abcde"]}
    written(tmp_path, "scores.json", json.dumps(scores))
    assert read_run_signals(tmp_path).reading == Reading(5)
    written(tmp_path, "train.log", "".join(f"{row}\n" for row in ROWS))
    assert read_run_signals(tmp_path).reading == Reading(40)


DOCUMENTS = {
    "rows": ROWS,
    "history": {"args": {"lr": 1}, "log_history": ROWS},
    "deep": {"run": {"train": {"metrics": ROWS}}},
    "columns": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "pandas": {name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in ROWS[0]},
    "by step": {str(row["step"]): {"reward": row["reward"]} for row in ROWS},
}


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("name", ["log.json", "log.txt", "result.jsonl"])
def test_documents_of_json_are_read_in_any_form(tmp_path, form, name):
    for indent in (None, 2):
        path = written(tmp_path, name, json.dumps(DOCUMENTS[form], indent=indent))
        signals = read_run_signals(path)
        assert signals.steps.tolist() == [row["step"] for row in ROWS]
        assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def test_json_lines_in_a_file_of_another_name_and_of_rllib_are_read(tmp_path):
    rows = [
        {"training_iteration": r["step"], "timesteps_total": 4000 * r["step"], "trial_id": "default",
         "env_runners": {"episode_return_mean": r["reward"]}, "config": {"lr": 1e-3}} for r in ROWS
    ]  # fmt: skip
    for name in ("result.json", "result.txt", "result"):
        signals = read_run_signals(written(tmp_path, name, jsonl(rows)))
        assert signals.steps.tolist() == [row["step"] for row in ROWS]
        assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


def test_json_with_words_for_numbers_that_it_has_none_for_is_read(tmp_path):
    text = '{"step": 1, "reward": nan, "kl": -inf}\n{"step": 2, "reward": NaN, "kl": Infinity}\n'
    signals = read_run_signals(written(tmp_path, "log.jsonl", text))
    assert signals.not_finite("reward/mean").all() and signals.values["kl"].tolist() == [-math.inf, math.inf]


def test_a_table_with_decimal_commas_is_read(tmp_path):
    text = "step;reward\n" + "".join(f"{r['step']};{str(r['reward']).replace('.', ',')}\n" for r in ROWS)
    signals = read_run_signals(written(tmp_path, "log.csv", text))
    assert signals.values["reward/mean"].tolist() == [row["reward"] for row in ROWS]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hello,\nthis is a letter.\n" * 21, r"42 line\(s\) of text.*the first is: Hello,"),
        ("", "empty"),
        (b"\x00\x01\x02\xff" * 50, "no text.*first bytes"),
        ("<html><body>nothing</body></html>", "1 line"),
        ('{"a": "b"}\n', "1 line"),
        ("a,b\nx,y\n", "2 line"),
    ],
)
def test_what_is_no_log_is_refused_with_what_was_found(tmp_path, text, found):
    content = text if isinstance(text, bytes) else text.encode()
    for name in ("log.txt", "log.jsonl", "log.csv", "log.json", "log", "page.html"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DiagnosticsError, match=found):
            read_run_signals(tmp_path / name)
    for name in ("log.jsonl", "log.csv"):
        (tmp_path / name).unlink()
    with pytest.raises(DiagnosticsError, match=r"nor another log.*it has log, log\.json"):
        read_run_signals(tmp_path)


REAL = Path(__file__).parents[3] / "shared/data/real_logs"
needs_real_logs = pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real logs is not there")


@needs_real_logs
@pytest.mark.parametrize("place", sorted(REAL.glob("*/log")), ids=lambda place: place.parent.name)
def test_each_real_log_is_read_as_a_file_and_as_a_folder(place):
    (file,) = place.iterdir()
    whole, alone = read_run_signals(place), read_run_signals(file)
    assert whole.steps.tolist() == alone.steps.tolist() and whole.reading.runs == 1
    assert whole.values


@needs_real_logs
@pytest.mark.parametrize(
    ("number", "reading"),
    [
        ("41", Reading(30)),
        ("43", Reading(179, replaced=29)),
        ("45", Reading(12, set_aside=1)),
        ("47", Reading(800, averaged=800)),
    ],
)
def test_rows_of_real_logs_are_accounted_for(number, reading):
    assert read_run_signals(REAL / number / "log").reading == reading


# What a hostile log may hold: our error or a note, never another exception, never a hang.


def test_long_names_many_names_and_huge_numbers_are_bounded(tmp_path):
    rows = [
        {"step": 1, "x" * 1_000_000: 1.0, "reward": 10**400, "<script>alert(1)</script>": 2, "a\x1b[31m": 3},
        {"step": 2, "reward": -(10**400), **{f"n{i}": i for i in range(5000)}},
    ]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.values["reward/mean"].tolist() == [np.inf, -np.inf]
    assert len(signals.values) <= 4000 and max(map(len, signals.values)) <= 256
    assert any("longer than 256" in note for note in signals.notes)
    assert not any("\x1b" in note for note in signals.notes)


def test_ten_thousand_files_and_links_out_of_the_folder(tmp_path):
    inside, outside = tmp_path / "run", tmp_path / "secret"
    inside.mkdir()
    outside.mkdir()
    written(outside, "metrics.jsonl", jsonl(ROWS))
    (inside / "link").symlink_to(outside)
    (inside / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    with pytest.raises(DiagnosticsError, match="nor another log"):
        read_run_signals(inside)
    for i in range(10_000):
        (inside / f"f{i}.csv").touch()
    with pytest.raises(DiagnosticsError, match="10000 runs") as error:
        read_run_signals(inside)
    assert len(str(error.value)) < 1000


def test_empty_rows_and_rows_without_numbers_give_no_signals(tmp_path):
    rows = [{}, {"a": None, "b": None, "c": "x", "d": None, "step": 1}, {"step": 2}]
    signals = read_run_signals(written(tmp_path, "log.jsonl", jsonl(rows)))
    assert signals.steps.tolist() == [1, 2] and not signals.values


def test_files_that_are_not_what_their_names_say(tmp_path):
    for name in ("a.db", "a.wandb", "a.parquet"):
        with pytest.raises(DiagnosticsError, match="not what its name says"):
            read_run_signals(written(tmp_path, name, "nonsense"))
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("create table t (x)")
    with pytest.raises(DiagnosticsError, match="no table of metrics"):
        read_run_signals(other)
    (tmp_path / "torn.db").write_bytes(other.read_bytes()[:1000])
    with pytest.raises(DiagnosticsError):
        read_run_signals(tmp_path / "torn.db")


NAMES = (
    "m.jsonl",
    "m.csv",
    "m.log",
    "m.json",
    "events.out.tfevents.1",
    "run-a.wandb",
    "m.db",
    "progress.csv",
    "trainer_state.json",
    "m.ipynb",
    "m.html",
    "m",
)


def read_bytes(folder, name, content):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / name).write_bytes(content)
    for path in (folder / name, folder):
        with contextlib.suppress(GreenwardError):
            read_run_signals(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(NAMES),
    content=st.binary(max_size=400),
    lines=st.lists(
        st.dictionaries(
            st.text(max_size=8) | st.just("step"),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
                ),
                max_leaves=4,
            ),
        ),
        max_size=4,
    ),
    as_lines=st.booleans(),
)
def test_any_bytes_give_signals_or_our_error(tmp_path, name, content, lines, as_lines):
    read_bytes(tmp_path / "x", name, jsonl(lines).encode() if as_lines else content)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    form=st.sampled_from(list(FORMS)),
    place=st.floats(0, 1),
    put=st.text(alphabet="|{}[]'\":=,-+/ \t\n\r%<>#0.e\x00\x1b\ud7ff", max_size=6),
    cut=st.booleans(),
    name=st.sampled_from(NAMES),
)
def test_damaged_prints_give_signals_or_our_error(tmp_path, form, place, put, cut, name):
    text, _ = FORMS[form]
    at = int(place * len(text))
    read_bytes(tmp_path / "x", name, (text[:at] + put + ("" if cut else text[at + len(put) :])).encode())


@needs_fixtures
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    form=st.sampled_from(["hf", "tensorboard", "wandb", "trackio", "verl"]),
    place=st.floats(0, 1),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
@example(form="trackio", place=0.36372252324885684, byte=128, cut=False)  # a schema that is not UTF-8
def test_damaged_files_of_every_tracker_give_signals_or_our_error(tmp_path, form, place, byte, cut):
    path, pick = fixture(form, "healthy")
    path = next(path.glob("*")) if path.is_dir() else path
    content = bytearray(path.read_bytes())
    at = int(place * (len(content) - 1))
    damaged = content[:at] if cut else content[:at] + bytes([byte]) + content[at + 1 :]
    copy = tmp_path / path.name
    copy.write_bytes(bytes(damaged))
    with contextlib.suppress(GreenwardError):
        read_run_signals(copy, run_name=pick)


def test_numbered_entries_are_found_among_many_others(tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "_MOST_FILES", 3)
    for name in (*(f"log_{i}.txt" for i in range(50)), "checkpoint-1", "checkpoint-20"):
        (tmp_path / name).touch()
    pattern = re.compile(r"checkpoint-(\d+)")
    assert sorted(number for number, _ in answers.numbered(tmp_path, pattern)) == [1, 20]
    assert answers.numbered(tmp_path / "none", pattern) == []


def test_a_last_line_without_an_end_counts_where_it_is_whole(tmp_path):
    rows = [json.dumps({"step": step, "loss": 1.0 if step < 40 else math.nan}) for step in range(1, 41)]
    for name, text in (("whole", "\n".join(rows)), ("torn", "\n".join(rows)[:-3])):
        (tmp_path / f"{name}.jsonl").write_text(text)
    assert read_run_signals(tmp_path / "whole.jsonl").steps[-1] == 40
    torn = read_run_signals(tmp_path / "torn.jsonl")
    assert torn.steps[-1] == 39 and any("torn" in note for note in torn.notes)


def test_the_byte_order_mark_of_a_table_is_no_part_of_a_name(tmp_path):
    lines = ["step,loss", *(f"{10 * step},1.5" for step in range(1, 5))]
    (tmp_path / "log.csv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert read_run_signals(tmp_path / "log.csv").steps.tolist() == [10, 20, 30, 40]
