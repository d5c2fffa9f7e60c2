"""Logs of every tracker give the values that were logged; what is broken in them is left out and said."""

from __future__ import annotations

import contextlib
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
from greenward.diagnostics.readers import formats, read_run_signals
from greenward.diagnostics.readers.formats import read_rollouts

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
    signals = read_run_signals(path, pick=pick)
    assert signals.steps.tolist() == [row["step"] for row in truth]
    assert signals.notes == ()
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
    assert signals.steps[-1] == 40 and signals.notes == ()
    assert [step for step, _ in signals.checkpoints] == [20, 40]
    assert signals.series("evaluation/score")[0].tolist() == [20]
    assert not signals.not_finite("evaluation/score").any()  # steps without one are no NaN


def test_several_runs_give_a_list_to_pick_from(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, "metrics.jsonl", jsonl(ROWS))
    with pytest.raises(DiagnosticsError, match=r"2 runs\n.*one, two"):
        read_run_signals(tmp_path)
    assert len(read_run_signals(tmp_path, pick="two").steps) == 40
    with pytest.raises(DiagnosticsError, match="no run 'three'"):
        read_run_signals(tmp_path, pick="three")


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
        read_run_signals(copy, pick=pick)


def test_numbered_entries_are_found_among_many_others(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_MOST_FILES", 3)
    for name in (*(f"log_{i}.txt" for i in range(50)), "checkpoint-1", "checkpoint-20"):
        (tmp_path / name).touch()
    pattern = re.compile(r"checkpoint-(\d+)")
    assert sorted(number for number, _ in formats.numbered(tmp_path, pattern)) == [1, 20]
    assert formats.numbered(tmp_path / "none", pattern) == []


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
