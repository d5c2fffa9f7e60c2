"""Which files in a folder are logs of trainings: those of any format, and nothing that only has numbers."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable

import pytest

from greenward.diagnostics.readers import recognition
from greenward.diagnostics.readers.recognition import is_training_log

STEPS = range(1, 31)
HASH = random.Random(0)


def _lines(line: Callable[[int], str]) -> str:
    return "".join(f"{line(step)}\n" for step in STEPS)


LOGS = {
    "train.log": _lines(lambda i: f"step {i}: reward={i / 50:.3f} loss={1 / i:.4f}"),
    "stdout": _lines(lambda i: f"{{'loss': {1 / i}, 'grad_norm': 1.5, 'learning_rate': 1e-06, 'epoch': {i / 30}}}"),
    "slurm-118.out": "Loading checkpoint shards: 100%|####| 4/4\n" * 40
    + _lines(lambda i: f"step:{i} - actor/entropy:0.6 - actor/pg_loss:0.01 - critic/score/mean:{i / 50}"),
    "train.log.1": _lines(lambda i: f"Episode {i}\tAverage Score: {i / 3:.2f}"),
    "one_step.txt": "(TaskRunner pid=7) step:1 - actor/entropy:0.6 - actor/pg_loss:0.01 - critic/score/mean:0.4\n",
    "box.txt": "| rollout/           |     |\n|    ep_rew_mean     | 12.5 |\n| train/ |  |\n|    loss     | 0.5 |\n"
    "|    entropy_loss  | -0.6 |\n",
    "history.csv": "step,reward,loss\n" + _lines(lambda i: f"{i},{i / 50},{1 / i}"),
    "without_step.csv": "reward,loss\n" + _lines(lambda i: f"{i / 50},{1 / i}"),
    "metrics.ndjson": _lines(lambda i: json.dumps({"global_step": i, "train/loss": 1 / i})),
    "history.json": json.dumps([{"step": i, "reward": i / 50} for i in STEPS], indent=1),
    "utf16.log": "\ufeff" + _lines(lambda i: f"iteration {i} | mean reward: {i / 50} | kl: 0.01"),
}  # fmt: skip

OTHERS = {
    "README": "# Training\n\nRun `train.py --lr 1e-5`. After 100 steps the reward is 0.4, and the loss 0.1: see below.\n",
    "notes.txt": "Step 4: all answers are cut; KL 3-9 at once, entropy 0.9, reward 0.1, and lr 5e-4 is the cause.\n" * 3,
    "requirements.txt": "torch==2.10.0\ncloudpickle==3.1\nsmallrye-health==1.2\nklepto==0.2\nnumpy==2.3\n",
    "lock.txt": _lines(lambda i: f"package-{i}==1.{i} --hash=sha256:{HASH.randbytes(20).hex()}"),
    "LICENSE": "Apache License\nVersion 2.0, January 2004\n" * 20,
    "Makefile": "STEPS := 100\nLR := 1e-5\n\ntrain:\n\tpython train.py --steps $(STEPS) --lr $(LR)\n",
    "problems.jsonl": _lines(
        lambda i: json.dumps({"task_id": f"t/{i}", "prompt": "def f():\n" * 20, "difficulty": i, "score": 1})
    ),
    "answers.jsonl": _lines(
        lambda i: json.dumps({"step": i, "answer": "return x + 1 " * 20, "reward": 0.5, "loss": 1.0, "kl": 0.1})
    ),
    "leaderboard.csv": "model,accuracy,score\n" + _lines(lambda i: f"model-{i},{i / 40},{i / 50}"),
    "iris.csv": "sepal_length,petal_width,species\n" + _lines(lambda i: f"{i / 7:.2f},{i / 9:.2f},{i % 3}"),
    "package.json": json.dumps({"name": "x", "version": "1.0.0", "scripts": {"build": "y"}, "steps": [1, 2]}, indent=1),
    "results.json": json.dumps({"suite": "x", "after": {"step": 30, "reward": 0.5, "loss": 0.2, "kl": 0.1}}, indent=1),
    "config.json": json.dumps({"learning_rate": 1e-5, "loss": "grpo", "kl_coef": 0.1, "steps": 200, "reward": 1.0}),
    "access.log": _lines(lambda i: f'127.0.0.1 - - [29/Nov/2026:10:00:{i:02}] "GET /step/{i} HTTP/1.1" 200 {37 * i}'),
    "build.log": _lines(lambda i: f"[{i}/30] Building CXX object src/{i}.o, warnings: {i % 3}, time = 0.{i}s"),
    "empty.log": "",
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_logs_of_any_format_are_recognized(tmp_path, name):
    encoding = "utf-16-le" if name == "utf16.log" else "utf-8"
    (tmp_path / name).write_bytes(LOGS[name].encode(encoding))
    assert is_training_log(tmp_path / name, tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_with_numbers_are_not(tmp_path, name):
    (tmp_path / name).write_text(OTHERS[name])
    assert not is_training_log(tmp_path / name, tmp_path)


def test_a_log_is_told_by_its_first_and_its_last_part(tmp_path, monkeypatch):
    taken = []
    real = recognition.open_file

    class Counted:
        def __init__(self, opened):
            self._opened = opened

        def __enter__(self):
            self._opened.__enter__()
            return self

        def __exit__(self, *_):
            self._opened.close()

        def __getattr__(self, name):
            return getattr(self._opened, name)

        def read(self, size):
            found = self._opened.read(size)
            taken.append(len(found))
            return found

    monkeypatch.setattr(recognition, "open_file", lambda *args, **options: Counted(real(*args, **options)))
    chatter = "worker: loading the next shard of the weights\n" * 100_000
    late, never = tmp_path / "late.log", tmp_path / "never.log"
    late.write_text(chatter + LOGS["train.log"])
    never.write_text(chatter)
    assert is_training_log(late, tmp_path) and not is_training_log(never, tmp_path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.write(b"[\n" + b"[" * 1000)
        file.truncate(1 << 40)
    assert not is_training_log(huge, tmp_path)
    assert sum(taken) <= 3 * 2 * recognition.PART_BYTES


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_what_lies_elsewhere_or_is_no_file_is_no_log(tmp_path):
    (tmp_path / "secret.log").write_text(LOGS["train.log"])
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.log").symlink_to(tmp_path / "secret.log")
    (inside / "folder.log").mkdir()
    (inside / "binary.log").write_bytes(bytes(range(256)) * 100)
    for name in ("link.log", "folder.log", "binary.log", "missing.log"):
        assert not is_training_log(inside / name, inside)
