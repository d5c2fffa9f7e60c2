"""The recorder of other trainers: what it keeps, that it never disturbs a training, and that readers read it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import RunError
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings.answers import answers_around
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.readers.answers import find_rollouts
from greenward.diagnostics.readers.answers import read_rollouts as read_any
from greenward.integrations import OpenRLHFLogger, Recorder, VerlLogger, record, recorder
from greenward.runs.reading import read_metrics, read_rollouts


def answers(rewards, **more):
    return [{"answer": f"answer {i}", "reward": one, **more} for i, one in enumerate(rewards)]


def kept(folder, step):
    return [row for at, row in read_rollouts(folder) if at == step]


@pytest.mark.parametrize("seed", range(3))
def test_the_best_the_worst_and_others_by_chance_are_kept(tmp_path, seed):
    rewards = np.random.default_rng(seed).permutation(64).astype(float)
    chosen, more = [], {"group": 3, "advantage": 0.5, "terms": {"tests": 1.0}, "tokens": 9}
    for name in ("one", "two"):
        with Recorder(tmp_path / name, seed=seed) as made:
            made.log(7, {"loss": 1.0}, answers(rewards, **more))
        rows = kept(tmp_path / name, 7)
        chosen.append({row["rewards"]["policy"] for row in rows})
        assert len(rows) == 8 and {0.0, 1.0, 62.0, 63.0} <= chosen[-1]
        assert all(rewards[int(row["answer"].split()[1])] == row["rewards"]["policy"] for row in rows)
        assert rows[0] | {"answer": "", "rewards": {}} == {"answer": "", "rewards": {}, **more}
    assert chosen[0] == chosen[1]  # by the seed
    with Recorder(tmp_path / "three", seed=seed + 100) as made:
        made.log(7, answers=answers(rewards))
    assert {row["rewards"]["policy"] for row in kept(tmp_path / "three", 7)} != chosen[0]


def test_a_step_that_is_logged_in_parts_is_chosen_from_as_a_whole(tmp_path):
    with Recorder(tmp_path / "run") as made:
        for part in range(4):
            made.log(1, {f"metric_{part}": part}, answers(range(16 * part, 16 * part + 16)))
        made.log(2, answers=answers([None, float("nan"), 1.0]))
    assert {0.0, 1.0, 62.0, 63.0} <= {row["rewards"]["policy"] for row in kept(tmp_path / "run", 1)}
    assert len(kept(tmp_path / "run", 1)) == 8
    assert [row["rewards"] for row in kept(tmp_path / "run", 2)] == [{}, {"policy": "NaN"}, {"policy": 1.0}]
    signals = read_run_signals(tmp_path / "run")
    assert signals.steps.tolist() == [1] and {f"metric_{part}" for part in range(4)} <= signals.values.keys()


def test_diagnose_and_rollouts_show_the_answers_around_the_onset(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "run"
    with Recorder(folder) as made:
        for step in range(1, 201):
            broken = step >= 120
            metrics = {"reward": rng.normal(0.5, 0.05) - 0.4 * broken, "grad_norm": rng.lognormal(0, 0.2)}
            texts = [{"answer": f"{'bad' if broken else 'good'} {i}", "reward": i - 5 * broken, "prompt": "?",
                      "advantage": -i} for i in range(10)]  # fmt: skip
            made.log(np.int64(step), metrics, texts)
            made.flush()
    assert made.dropped == 0
    diagnosis = diagnose_run(folder)
    onset = diagnosis.causes[0].finding.onset
    assert diagnosis.causes[0].finding.name == "reward-drop" and abs(onset.step - 120) <= 5
    around = answers_around(diagnosis.run, 120)
    assert [one.answers[0].code for one in around.tasks] == ["good 9", "good 0", "bad 9", "bad 0"]
    shown = CliRunner().invoke(
        cli, ["rollouts", str(folder), "--around", "120", "--window", "1", "--sort", "reward"]
    )
    assert "answers of step 119 to 120, largest reward first" in " ".join(shown.output.split())
    assert shown.output.index("good 9") < shown.output.index("good 8") < shown.output.index("bad 9")
    ((_, file), *_) = find_rollouts(folder)
    assert {one.reward for one in read_any(file)} == {row["rewards"]["policy"] for row in kept(folder, 1)}


def test_a_folder_that_exists_is_appended_to_only_where_that_is_told(tmp_path):
    folder = tmp_path / "run"
    with Recorder(folder) as made:
        made.log(1, {"loss": 1.0})
        with pytest.raises(RunError, match="already"):
            Recorder(folder)
        with pytest.raises(RunError, match="already open"):
            made.flush()
            Recorder(folder, resume=True)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')  # a kill
    with pytest.raises(RunError, match="resume=True"):
        Recorder(folder)
    with Recorder(folder, resume=True) as made:
        made.log(2, {"loss": 0.5})
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl").rows] == [1, 2]
    stranger = tmp_path / "mine"
    stranger.mkdir()
    (stranger / "thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(RunError, match="thesis"):
            Recorder(stranger, resume=resume)
    assert os.listdir(stranger) == ["thesis.tex"]


def test_only_rank_0_writes(tmp_path, monkeypatch):
    Recorder(tmp_path / "by_argument", rank=1).log(1, {"loss": 1.0})
    monkeypatch.setenv("RANK", "3")
    with Recorder(tmp_path / "by_variable") as made:
        made.log(1, {"loss": 1.0}, answers([1.0]))
        assert made.flush() and not made.writes
    assert not os.listdir(tmp_path)
    with Recorder(tmp_path / "first", rank=0) as made:
        made.log(1, {"loss": 1.0})
    assert read_metrics(tmp_path / "first" / "metrics.jsonl").rows


class Hostile:
    def __str__(self):
        raise RuntimeError("no text")


def test_nothing_raises_into_the_training_and_the_first_failure_is_said_once(tmp_path, capsys):
    with Recorder(tmp_path / "run") as made:
        for wrong in (
            lambda: made.log("twelve", {"loss": 1.0}),
            lambda: made.log(-1, {"loss": 1.0}),
            lambda: made.log(10**15, {"loss": 1.0}),
            lambda: made.log(1, 7),
            lambda: made.log(1, answers=[{"answer": Hostile()}]),
            lambda: made.log(1, answers=7),
            lambda: made.log(1, answers=[{"answer": "x", "group": object()}]),
        ):
            wrong()
        made.log(2, {"loss": 1.0, "text": "x", "step": 9, 3: True, "array": np.ones(3)})
        made.flush()
        (tmp_path / "run" / "rollouts").rmdir()
        made.log(3, answers=answers([1.0]))
    assert capsys.readouterr().err.count("the training goes on") == 1
    assert list(read_metrics(tmp_path / "run" / "metrics.jsonl").rows) == [{"step": 2, "loss": 1.0}]
    made.log(4, {"loss": 1.0})  # closed
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl").rows) == 1


def test_a_disk_that_is_too_slow_drops_entries_and_never_stops_the_training(tmp_path, monkeypatch, capsys):
    made = Recorder(tmp_path / "run")
    write, open_again = made._write, recorder.threading.Event()

    def slow(*entry):
        open_again.wait()
        write(*entry)

    monkeypatch.setattr(made, "_write", slow)
    for step in range(1000):
        made.log(step, {"loss": 1.0})
    assert not made.flush(0.01)
    open_again.set()
    made.close()
    written = read_metrics(tmp_path / "run" / "metrics.jsonl").rows
    assert made.dropped > 700 and len(written) + made.dropped == 1000
    assert f"{made.dropped} entries were dropped" in capsys.readouterr().err


def run_script(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    script = "import os, signal, sys, time\nfrom greenward.integrations import Recorder\n" + textwrap.dedent(
        text
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


LOG = "for step in range(100): made.log(step, {'loss': 1.0}, [{'answer': 'x', 'reward': 1.0}])\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
        ("raise ValueError('the training failed')", 1),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
    ],
)
def test_what_was_logged_is_there_however_the_process_ends(tmp_path, end, code):
    process = run_script(tmp_path, f"made = Recorder('run')\n{LOG}{end}\n")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl").rows) == 100
    assert len(find_rollouts(tmp_path / "run")) == 100


def test_the_handler_of_the_training_still_gets_sigterm_and_forks_are_left_alone(tmp_path):
    text = f"""
        signal.signal(signal.SIGTERM, lambda *_: print("saving", flush=True))
        made = Recorder("run")
        {LOG.strip()}
        os.kill(os.getpid(), signal.SIGTERM)
        made.log(100, {{"loss": 1.0}})  # the training goes on
        child = os.fork()
        if not child:
            made.log(500, {{"loss": 1.0}})
            os.kill(os.getpid(), signal.SIGTERM)
            made.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        made.close()
        os.kill(os.getpid(), signal.SIGTERM)
        print("torch" in sys.modules)
    """
    began = time.monotonic()
    process = run_script(tmp_path, text)
    output, errors = process.communicate(timeout=60)
    assert output.split() == ["saving", "saving", "saving", "False"], errors
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl").rows] == [*range(101)]
    assert time.monotonic() - began < 3 * recorder._SECONDS  # nobody waits for a thread that a fork lacks


class Trainer:
    """Has of a TRL trainer what the recorder uses, and calls reward functions as `GRPOTrainer` does."""

    def __init__(self, reward_funcs, weights, first=True):
        self.reward_funcs, self.reward_weights = reward_funcs, np.array(weights)
        self.reward_func_names = [getattr(one, "__name__", f"model{i}") for i, one in enumerate(reward_funcs)]
        self.num_generations, self.model = 4, SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(num_processes=1)
        self.callbacks, self._logs, self._first = [], {"completion": [], "advantages": []}, first

    def is_world_process_zero(self):
        return self._first

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def generate(self, prompts, completions):
        columns = {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": [[0] * 5 for _ in completions],
            "task_id": [f"t/{i // 4}" for i in range(len(prompts))],
        }
        found = [one(**columns) for one in self.reward_funcs if not hasattr(one, "state_dict")]
        found = [asyncio.run(one) if asyncio.iscoroutine(one) else one for one in found]
        self._logs = {
            "completion": list(completions),
            "advantages": [i / 10 for i in range(len(completions))],
        }
        return found

    def end_step(self, step, logs):
        state = SimpleNamespace(global_step=step)
        for callback in self.callbacks:
            callback.on_step_end(None, state, None)
            callback.on_log(None, state, None, logs=logs)


def test_a_trl_trainer_is_recorded_by_one_line(tmp_path):
    pytest.importorskip("transformers")

    def length(completions, **columns):
        return [float(len(one[0]["content"])) for one in completions]

    async def judged(completions, **columns):
        return [None if i % 2 else 2.0 for i in range(len(completions))]

    class Brevity:
        async def __call__(self, completions, **columns):
            return [-1.0] * len(completions)

    model = SimpleNamespace(state_dict=dict)
    trainer = Trainer([length, judged, Brevity(), model], [1.0, 0.5, 0.25, 1.0])
    made = record(trainer, tmp_path / "run")
    assert trainer.reward_funcs[3] is model and asyncio.iscoroutinefunction(trainer.reward_funcs[1])
    prompts = [[{"role": "system", "content": "be brief"}, {"role": "user", "content": f"q{i // 4}"}]
               for i in range(8)]  # fmt: skip
    completions = [[{"role": "assistant", "content": "x" * i}] for i in range(8)]
    given = trainer.generate(prompts, completions)
    assert given[0] == [float(i) for i in range(8)] and given[1][:2] == [2.0, None]
    trainer.end_step(1, {"loss": 0.5, "reward": 3.0})
    trainer.model.training = False
    trainer.generate(prompts, completions)  # of an evaluation
    trainer.model.training = True
    trainer.end_step(2, {"loss": 0.4})
    trainer.end_step(2, {"train_runtime": 9.0, "loss": 0.1})
    made.close()
    rows = kept(tmp_path / "run", 1)
    assert len(rows) == 8 and not kept(tmp_path / "run", 2)
    assert rows[6] == {
        "problem": "t/1", "prompt": "q1", "group": 1, "answer": "xxxxxx", "tokens": 5, "advantage": 0.6,
        "rewards": {"policy": 6 + 0.5 * 2 - 0.25}, "terms": {"length": 6.0, "judged": 2.0, "model2": -1.0},
    }  # fmt: skip
    assert rows[7]["terms"] == {"length": 7.0, "model2": -1.0}
    steps = [(row["step"], row["loss"]) for row in read_metrics(tmp_path / "run" / "metrics.jsonl").rows]
    assert steps == [(1, 0.5), (2, 0.4)]


def test_a_reward_function_keeps_its_own_errors_and_a_second_rank_its_functions(tmp_path):
    pytest.importorskip("transformers")

    def failing(completions, **columns):
        raise KeyError("mine")

    other = Trainer([failing], [1.0], first=False)
    assert not record(other, tmp_path / "run").writes and other.reward_funcs == [failing]
    trainer = Trainer([failing], [1.0])
    with record(trainer, tmp_path / "run"), pytest.raises(KeyError, match="mine"):
        trainer.generate(["p"], ["c"])


def test_verl_gets_a_tracking_backend(tmp_path):
    class Tracking:
        """The part of verl's class that calls its backends (verl/utils/tracking.py)."""

        def __init__(self, project_name, experiment_name, default_backend="console", config=None):
            self.logger = {}

        def log(self, data, step, backend=None):
            for default_backend, logger_instance in self.logger.items():
                if backend is None or default_backend in backend:
                    logger_instance.log(data=data, step=step)

    made = record(Tracking, tmp_path / "run")
    tracking = Tracking("project", experiment_name="one", default_backend=["console"])
    for step in range(1, 41):
        tracking.log(
            {"actor/grad_norm": np.float32(1), "critic/score/mean": 0.5, "tables": object()}, step=step
        )
    tracking.logger["greenward"].finish()
    assert not made.writes and isinstance(tracking.logger["greenward"], VerlLogger)
    signals = read_run_signals(tmp_path / "run")
    assert {"grad_norm", "reward/mean"} <= signals.values.keys() and len(signals.steps) == 40


def test_openrlhf_gets_a_logger(tmp_path):
    logger = OpenRLHFLogger(tmp_path / "run")
    for step in range(1, 4):
        logger.log_train(step, {"reward": 0.1 * step, "kl": None, "generated_samples": ["text", 0.25]})
    logger.log_train(4, {"reward": 0.4, "generated_samples": None})
    logger.log_eval(3, {"pass1": 0.5})
    logger.close()
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl").rows
    assert rows[0] == {"step": 1, "reward": 0.1} and rows[-1] == {"step": 3, "eval/pass1": 0.5}
    assert [row["rewards"] for row in kept(tmp_path / "run", 2)] == [{"policy": 0.25}]
    assert json.loads((tmp_path / "run" / ".greenward.json").read_text())["kind"] == "run"
