"""Are the promises of the four originals kept? Runs what docs/migration.md names, at small size.

    GREENWARD_DATA=FOLDER GREENWARD_MODELS=FOLDER .venv/bin/python benchmarks/originals.py [--json FILE]

Three parts, a line for each row:

1. Each command in the right columns of docs/migration.md, read from the page itself, runs in the folder;
   `SMALL` says how it is made small, and what it needs that a machine may lack. Where a command names a large
   pretrained model, the smallest one in the folder GREENWARD_MODELS takes its place, else a tiny decoder; and
   `greenward plan` shows that the large one fits.
2. Each option of the originals, typed behind `greenward` and `rldk`, is read, left out with a reason, or
   answered by one line with what replaces it.
3. Figures: memory 2.1×, the explosion from step 301 and calibration 0.65 of one run with the three faults;
   MBPP before, during and after a training; the eight problems of Q-learning; edits applied and judged by
   tests.

Took 50 minutes on a third of one core. Commands that passed are not repeated (`--anew` repeats them); MBPP is
read from GREENWARD_DATA, and skipped without it. Exits with 1 when a row fails or a figure is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.cli.train import aliased
from greenward.common.errors import ConfigError
from greenward.config.importing import import_config, is_original
from greenward.config.loading import load_recipe
from greenward.problems.catalog import DATA_VARIABLE, SUITES, find_file
from greenward.runs.reading import evaluated_suites, read_evaluations

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]
import originals_retyped as retyped  # noqa: E402
import planted_faults  # noqa: E402

PAGE = ROOT / "docs" / "migration.md"
MODELS_VARIABLE = "GREENWARD_MODELS"
KEPT = ("prepare", "command")  # parts that are not repeated once they passed; the others take seconds
MOST_SECONDS = 1200.0  # of one command
PROGRAMS = {
    "greenward": (sys.executable, "-m", "greenward"),
    "rldk": (sys.executable, "-c", "from greenward.cli.rldk import main; main()"),
}
GROUPS: dict[str, click.Group] = {"greenward": cli, "rldk": rldk}
LARGE_MODEL = re.compile(r"Qwen/[\w.-]+|(?<=model=)auto|(?<=--model )7b|microsoft/codebert-base|\bMODEL\b")
# Commands whose exit code 1 is a finding.
NO_PROGRAM = ("no_code", "infrastructure")
FINDING = frozenset(
    [
        "diff",
        "reward-health",
        "evals",
        "monitor",
        "card",
        "kl-drift",
        "length-bias",
        "log-scan",
        "diagnose",
        "diff-ckpt",
        "replay",
    ]
)

STEP = (
    "training.max_steps=1 training.prompts_per_step=2 training.num_generations=2 "
    "training.micro_batch_sequences=2 sampling.max_tokens=16 evaluation.enabled=false"
)
FEW = "problems.families.limit=40"  # of the generated functions
CODE_FIX = (
    "training.prompts_per_step=2 training.num_generations=4 training.threads=1 sandbox.workers=1 "
    "problems.families.limit=1000 "
    "'evaluation={num_questions: 20, samples: 2, k: [1, 2], eval_interval_steps: 250}'"
)
QUICK = f"warm_start.max_steps=5 warm_start.batch_size=8 {STEP}"
LEARNED_EDITS = (
    "warm_start.max_steps=300 problems.families.limit=1000 "
    "training.max_steps=1 training.prompts_per_step=4 training.num_generations=4 "
    "'evaluation={num_questions: 20, samples: 1, k: [1], eval_interval_steps: 10}'"
)
TINY = (
    f"greenward train quickstart {QUICK} {FEW} model.shape.max_positions=4096 --output runs/tiny --overwrite"
)
EIGHT = "problems.train=training_problems.json problems.held_out=eval_problems.json preset=fast"
FEW_EPISODES = (
    "training.num_episodes=20 training.episodes_per_step=10 algorithm.pretraining_updates=10 "
    "problems.generated=100 problems.compositions=10 evaluation.enabled=false evaluation.random_search=false"
)
ROUNDS = (
    f"{FEW} training.max_steps=2 training.prompts_per_step=1 training.num_generations=2 "
    "sampling.max_tokens=32 "
    "evaluation.num_questions=2 evaluation.samples=1 evaluation.k=[1] evaluation.eval_interval_steps=1 "
    "evaluation.suites.0.num_questions=3 evaluation.suites.0.max_tokens=64"
)
LEARNED = (
    f"greenward train ppo_code_fix {CODE_FIX} evaluation.enabled=false training.max_steps=40 "
    "warm_start=null pretrained=null model=run_1/warm_start/checkpoints/last"
)
REPEATED = f"{sys.executable} -m {LEARNED} training.max_steps=3 --output {{out}}/run"


@dataclass(frozen=True)
class Small:
    """How the commands that begin so are made small: what is added, what is replaced.

    `lacks` is a package without which they cannot run, `remedy` what checks them where it is there.
    """

    begins: str
    added: str = ""
    replaced: tuple[tuple[str, str], ...] = ()
    lacks: str = ""
    remedy: str = ""


# The first that a command begins with holds.
SMALL = (
    Small("greenward train ppo_code_fix 'faults", f"{CODE_FIX} --output run_1"),
    Small("greenward train ppo_code_fix --model", f"{STEP} {FEW}"),
    Small("greenward train ppo_code_fix", f"{QUICK} {FEW}"),
    Small("greenward train --config config.yaml", f"{STEP} {FEW} model={{model}}"),
    Small("greenward train quickstart tracking.wandb", QUICK, lacks="wandb", remedy="make test-trackers"),
    Small("greenward train quickstart", f"{QUICK} {FEW}"),
    Small("greenward train grpo_code_execution", f"{ROUNDS} --output runs/mine"),
    Small("greenward train grpo_code_game", f"{STEP} code_game.phases=[1,1] code_game.evaluation_games=2"),
    Small(
        "greenward train spiral_self_play",
        f"{STEP} self_play.games=[tictactoe] self_play.evaluation_games=2",
    ),
    Small("greenward train dqn_code_generation problems", "preset=fast --output runs/dqn_code_generation"),
    Small(
        "greenward train dqn_code_generation training.start_from",
        f"{EIGHT} training.num_episodes=50",
        (("runs/one", "runs/dqn_code_generation"),),
    ),
    Small("greenward train dqn_code_generation --resume", f"{EIGHT} --output runs/dqn_code_generation"),
    Small("greenward train dqn_code_generation", FEW_EPISODES),
    Small("greenward train grpo_code_repair 'rewards", f"{LEARNED_EDITS} --output runs/edits"),
    Small(
        "greenward train grpo_code_repair model=Qwen/Qwen2.5-Coder-7B-Instruct model.lora.r=32 rollouts",
        STEP,
        lacks="vllm",
        remedy="make test-vllm",
    ),
    Small(
        "greenward train grpo_agent_repair model",
        f"{STEP} tools.max_calls=2 --output runs/grpo_agent_repair",
    ),
    Small("greenward train grpo_agent_repair", f"{QUICK} {FEW} tools.max_calls=2"),
    Small("greenward train grpo_code_repair model", f"{STEP} {FEW}"),
    Small("greenward train rejection_sampling", f"{STEP} {FEW}"),
    Small("greenward train sft", "warm_start.max_steps=2 warm_start.batch_size=2 evaluation.enabled=false"),
    Small("greenward train", f"{STEP}"),
    # DeepSpeed is not needed to shard the weights of two processes on CPU cores.
    Small(
        "greenward launch",
        f"{STEP} {FEW}",
        (("--processes 8", "--processes 2"), ("--config zero3", "--config fsdp2")),
    ),
    Small("greenward slurm submit", "", (("slurm submit", "slurm render"),)),
    Small("greenward demo --quick", "--output runs/demo"),
    Small("greenward eval runs/mine", "--limit 2 --max-tokens 32"),
    Small("greenward eval MODEL", "--limit 2 --max-tokens 32"),
    Small("greenward eval runs/grpo_agent_repair", "--limit 1 --max-tokens 16"),
    # The decoder that has learned to write edits takes the place of the model; it reads generated functions.
    Small(
        "greenward eval Qwen/Qwen2.5-Coder-7B-Instruct --suite humanevalpack",
        "--limit 40 --out edits",
        (("Qwen/Qwen2.5-Coder-7B-Instruct", "runs/edits"), ("humanevalpack", "bugs:families")),
    ),
    Small("greenward problems from-source .", "", ((" . ", " project "),)),
    Small("rldk monitor", "--once"),
    Small("rldk check-determinism", "", (("CMD", REPEATED), ("--replicas 5", "--replicas 2"))),
    Small("rldk bisect", "--steps 40"),
    Small("rldk diff-ckpt a b", "", ((" a b", " run_1 run_2"),)),
)  # fmt: skip

# What commands of the page name that none of them makes, by the name: a training.
PREPARED = {
    "run_2": f"{LEARNED} training.max_steps=330 --output run_2",
    "runs/sound": f"{LEARNED} --output runs/sound",
    "runs/broken": f"{LEARNED} sampling.max_tokens=6 --output runs/broken",
}


@dataclass(frozen=True)
class Row:
    """A row of the page: its section, what the original had, and the commands here."""

    section: str
    theirs: str
    commands: tuple[str, ...]


def rows_of(page: str) -> Iterator[Row]:
    """The rows of the tables of a page that have a command beside what the original had."""
    section = ""
    for line in page.splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if line.startswith("| "):
            theirs, *ours = line.strip("|").split(" | ")
            commands = re.findall(r"`((?:greenward|rldk) \S[^`]*)`", " | ".join(ours))
            # `greenward train` alone is the name of a command.
            if whole := tuple(one for one in commands if one not in ("greenward train", "greenward eval")):
                yield Row(section, theirs.strip(), whole)


@dataclass(frozen=True)
class Outcome:
    """What became of one line: ok, failed or skipped; `said` is why, or the last line of a command."""

    part: str
    what: str
    outcome: str
    seconds: float
    said: str = ""


class Check:
    """Runs the lines in a folder, prints each and keeps them, so that what passed is not repeated."""

    model = ""  # which takes the place of large ones

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "outcomes.jsonl"
        lines = self.file.read_text("utf-8").splitlines() if self.file.exists() else []
        kept = [Outcome(**json.loads(line)) for line in lines]
        self.passed = {(one.part, one.what): one for one in kept if one.outcome == "ok" and one.part in KEPT}
        self.outcomes: list[Outcome] = []

    def add(self, part: str, what: str, work: Callable[[], tuple[str, str]]) -> None:
        """Do the work, which gives an outcome and what is to be said of it, unless it has passed before."""
        began = time.perf_counter()
        if (found := self.passed.get((part, what))) is None:
            outcome, said = work()
            found = Outcome(part, what, outcome, round(time.perf_counter() - began, 1), said)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found)) + "\n")
        self.outcomes.append(found)
        said = f"  ({found.said})" if found.said and found.outcome != "ok" else ""
        print(f"{found.outcome:8}{found.seconds:7.1f} s  {part:8} {what[:150]}{said}", flush=True)

    def command(self, command: str) -> None:
        """Run one command of the page, and before it what it needs."""
        small, line = made_small(command, self.model)
        if small.lacks and find_spec(small.lacks) is None:
            self.add("command", command, lambda: ("skipped", f"needs {small.lacks}: {small.remedy}"))
            return
        if lost := data_missing(line):
            self.add("command", command, lambda: ("skipped", f"no {lost} in ${DATA_VARIABLE}"))
            return
        for name, training in PREPARED.items():
            if name in line and not (self.folder / name).exists():
                self.add("prepare", training, lambda training=training: self.run(training))
        self.add("command", command, lambda: self.run(line))

    def fits(self, plan: str) -> tuple[str, str]:
        """Run a plan; ok if it says that the memory of a GPU is enough."""
        outcome, said = self.run(plan)
        printed = max((self.folder / "logs").glob("*.txt")).read_text("utf-8")
        fits = re.search(r"memory of each GPU.*: fits", printed)
        return (outcome, fits[0]) if fits else ("failed", said)

    def run(self, line: str) -> tuple[str, str]:
        """Run a command in the folder: ok, or failed and where its output is."""
        program, *arguments = shlex.split(line)
        log = self.folder / "logs" / f"{len(list((self.folder / 'logs').glob('*.txt'))):04}.txt"
        env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w", encoding="utf-8") as file:
            file.write(f"$ {line}\n")
            file.flush()
            try:
                code = subprocess.run(
                    [*PROGRAMS[program], *arguments], cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
                    stdout=file, stderr=subprocess.STDOUT, timeout=MOST_SECONDS, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return "failed", f"no end after {MOST_SECONDS:.0f} s: {log}"
        if code == 0 or (code == 1 and arguments[0] in FINDING):
            return "ok", f"exit code {code}"
        return "failed", f"exit code {code}: {log}"


def made_small(command: str, model: str) -> tuple[Small, str]:
    """How a command of the page is made small, and the line that runs."""
    small = next((one for one in SMALL if command.startswith(one.begins)), Small(""))
    line = command
    for theirs, ours in small.replaced:
        line = line.replace(theirs, ours)
    line = LARGE_MODEL.sub(lambda _: shlex.quote(model), line)
    if small.added:
        line = f"{line} {small.added}".replace("{model}", shlex.quote(model))
    if re.match(r"greenward (train|launch) ", line):
        if "--output" not in line:
            name = re.sub(r"\W+", "_", command).strip("_")[-60:]
            line += f" --output runs/rows/{name}"
        line += " --quiet" if "--resume" in line else " --quiet --overwrite"
    return small, line


def data_missing(line: str) -> str | None:
    """The public suite that a command asks for and whose file is not here."""
    for name in re.findall(r"--suite ([\w+-]+)", line):
        suite = SUITES.get(name)
        if suite is not None and not find_file(name, suite, fetch=False).exists():
            return name
    return None


def smallest_model() -> str | None:
    """The model folder with the fewest bytes in the folder that GREENWARD_MODELS names."""
    if (named := os.environ.get(MODELS_VARIABLE)) is None:
        return None
    sizes = {file.parent: file.stat().st_size for file in Path(named).glob("*/model.safetensors")}
    return str(min(sizes, key=sizes.__getitem__).resolve()) if sizes else None


def tiny_model(check: Check) -> str:
    """A decoder from random weights in a folder of its own, which recipes take for a pretrained model."""
    folder = check.folder / "tiny"
    if not folder.exists():
        check.add("prepare", TINY, lambda: check.run(TINY))
        shutil.copytree(check.folder / "runs/tiny/checkpoints/last", folder)
    return str(folder)


def write_files(folder: Path) -> None:
    """The files of the originals that the commands name."""

    def put(name: str, text: str) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def put_rows(name: str, rows: list[dict[str, object]]) -> None:
        put(name, "".join(f"{json.dumps(row)}\n" for row in rows))

    (folder / "logs").mkdir(parents=True, exist_ok=True)
    put("config.yaml", retyped.RLDK)
    put("configs/train_config.yaml", retyped.DQN)
    put("configs/grpo_code_execution.yaml", retyped.GRPO_CODE_EXECUTION)
    put("configs/spiral_self_play.yaml", retyped.SPIRAL_SELF_PLAY)
    for name, text in retyped.CODE_REPAIR.items():
        put(f"src/conf/{name}", text)
    put("training_problems.json", json.dumps(retyped.dqn_rows(retyped.DQN_TRAINING)))
    put("eval_problems.json", json.dumps(retyped.dqn_rows(retyped.DQN_EVALUATION)))
    put_rows(
        "run.jsonl",
        [
            {"step": step, "reward_mean": step / 100, "kl_mean": 0.01, "gradient_norm": 1.0, "loss": 1 / step}
            for step in range(1, 81)
        ],
    )
    for name, shift in (("a", 0.0), ("b", 0.5)):
        put_rows(f"{name}.jsonl", [{"prompt": f"p{i}", "score": i % 7 + shift} for i in range(40)])
    for name, cwe in (("train", "CWE-94"), ("valid", "CWE-95")):
        call = f"f_{name}"
        versions = (f"def {call}(x):\n    return eval(x)\n", f"def {call}(x):\n    return int(x)\n")
        put_rows(
            f"primevul_{name}_paired.jsonl",
            [
                {"func": code, "target": target, "cwe": [cwe], "commit_id": name, "idx": target}
                for target, code in zip((1, 0), versions, strict=True)
            ],
        )
    put_rows(
        "pairs.jsonl",
        [{"prompt": "# Add a and b.\ndef add(a, b):\n", "completion": "    return a + b\n"}] * 4,
    )
    for name, text in PROJECT.items():
        put(f"project/{name}.py", text)
    steps = [{"loss": 0.01, "grad_norm": 0.5, "reward": step / 100, "kl": 0.001} for step in range(1, 91)]
    printed = "\n".join(["Job ID: 77", *map(str, steps)]) + "\n"
    put("logs/job_77/training_output.log", printed)
    put("slurm-grpo-77.out", printed)
    for step, phase, passed in ((0, "initial", 2), (20, "interval", 3), (90, "final", 5)):
        summary = {
            "step": step,
            "phase": phase,
            "total_problems": 5,
            "problems_passed": passed,
            "pass_rate": passed / 5,
        }
        put(f"logs/job_77/mbpp_summary_step_{step}_{phase}_20250731_002937.json", json.dumps(summary))


PROJECT = {  # a part of its files is held out
    name: f'''
def {name}(values):
    """{about}

    >>> {name}([3, 1, 2])
    {three}
    >>> {name}([4, 7])
    {two}
    """
    return {body}

'''
    for name, about, body, three, two in (
        ("total", "The sum of the values.", "sum(values)", 6, 11),
        ("spread", "The largest value less the smallest.", "max(values) - min(values)", 2, 3),
        ("largest", "The largest value.", "max(values)", 3, 7),
        ("squares", "The sum of the squares.", "sum(value * value for value in values)", 14, 65),
    )
}


def typed(program: str, line: str) -> tuple[str, str]:
    """What a program does with a command line of an original: parses it, without running it.

    ok: it is read (what is left out is said), or refused by one line that says what replaces it.
    """
    group: click.Command = GROUPS[program]
    arguments = shlex.split(line)
    context = click.Context(group, info_name=program, **group.context_settings)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            while isinstance(group, click.Group):
                name, found, arguments = group.resolve_command(context, arguments)
                assert found is not None
                context = found.make_context(name, arguments, parent=context)
                group = found
            if group.name == "train":
                load(context.params)
    except click.exceptions.Exit as done:
        return ("ok", "read") if done.exit_code == 0 else ("failed", said.getvalue())
    except (click.UsageError, ConfigError) as error:
        message = error.format_message() if isinstance(error, click.UsageError) else str(error)
        replaced = re.search(r"`(greenward|rldk|git) |: name |export the run| here\.", message)
        return ("ok" if replaced and "\n" not in message else "failed"), message
    return "ok", said.getvalue().strip() or "read"


def load(given: dict[str, object]) -> None:
    """Load the recipe of a training as its command does. Raises `ConfigError`."""
    overrides = aliased(given)
    recipe = given["config"] or given["recipe"]
    if is_original(str(recipe)):
        import_config(str(recipe))
    else:
        load_recipe(str(recipe), [*overrides, *given["overrides"]])  # type: ignore[misc]


def all_typed(lines: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Whether all lines are read or answered, or the first that is not."""
    for program, line in lines:
        outcome, said = typed(program, line)
        if outcome != "ok":
            return outcome, f"{program} {line}: {said}"
    return "ok", f"{len(lines)} lines"


def typed_lines() -> Iterator[tuple[str, str]]:
    """(program, line) of everything that the originals' users would type."""
    for command, options in retyped.RLDK_COMMANDS.items():
        for line in (command, *(f"{command} {option}" for option in options)):
            for program in PROGRAMS:
                yield program, line
    for line in retyped.SCRIPTS:
        yield "greenward", line


def planted(folder: Path, fault: str) -> tuple[str, str]:
    """Whether the run with all three faults shows this one, rightly measured and as a cause of its own."""
    if not planted_faults.finished(run := folder / "run_1"):
        return "failed", "run_1 is not there"
    outcomes = planted_faults.judged(planted_faults.Arm(planted_faults.TOGETHER, 0), run)
    one = next(outcome for outcome in outcomes if outcome.fault.endswith(fault))
    weight = "critical" if one.found else "NOT critical"
    strangers = f", without a cause: {', '.join(one.false)}" if one.false else ""
    said = f"planted {one.planted:.4g}, measured {one.measured or math.nan:.4g}, {weight}{strangers}"
    return ("ok" if one.right and not one.false else "failed"), said


def calibration(folder: Path) -> tuple[str, str]:
    """As `planted`; the score is below the threshold, which the report states."""
    outcome, said = planted(folder, "reward_overconfidence")
    file = folder / "code_analysis" / "calibration_report.md"
    stated = file.exists() and "threshold: 0.7" in file.read_text("utf-8")
    return (outcome, f"{said}, threshold 0.7") if stated else ("failed", f"{said}, no threshold is stated")


def mbpp(folder: Path) -> tuple[str, str]:
    """MBPP before the first step of the training of two steps, after the first and after the last."""
    if data_missing("--suite mbpp"):
        return "skipped", f"no mbpp in ${DATA_VARIABLE}"
    run = folder / "runs/mine"
    found = {
        one["step"]: one["metrics"]["pass@1"]
        for suite in evaluated_suites(run)
        if suite.startswith("mbpp")
        for one in read_evaluations(run, suite)
    }
    said = ", ".join(
        f"step {step}: {one['value']:.0%} [{one['low']:.0%}, {one['high']:.0%}]"
        for step, one in found.items()
    )
    return ("ok" if set(found) == {0, 1, 2} else "failed"), said or "no evaluation on mbpp"


def eight_problems(check: Check) -> tuple[str, str]:
    """Each of the eight problems, by its name, gets a program and a rate from the trained network."""
    outcome, said = check.run(
        "greenward eval runs/dqn_code_generation --problems training_problems.json --num_episodes 20 "
        "--out eight --overwrite"
    )
    if outcome != "ok":
        return outcome, said
    solved = Counter(dict.fromkeys(retyped.DQN_TRAINING, 0))
    rows = answers(check.folder / "eight")
    for row in rows:
        solved[row["task_id"].rpartition("/")[2]] += row["success"] is True
    named = {row["task_id"].rpartition("/")[2] for row in rows} == set(retyped.DQN_TRAINING)
    ever = sum(map(bool, solved.values()))
    rates = ", ".join(f"{name} {count}/20" for name, count in solved.items())
    return ("ok" if named and ever else "failed"), f"{ever} of 8 written at least once: {rates}"


def edits(folder: Path) -> tuple[str, str]:
    """Edits of a model that were applied, of which tests let some pass and others not."""
    rows = answers(folder / "edits")
    applied = [
        row for row in rows if row["status"] not in NO_PROGRAM and not row["status"].startswith("edit_")
    ]
    passed = sum(row["success"] is True for row in applied)
    said = f"{len(rows)} answers, {len(applied)} edits applied, {passed} passed all tests"
    return ("ok" if 0 < passed < len(applied) else "failed"), said


def answers(folder: Path) -> list[dict[str, Any]]:
    """The rows of an evaluation; none where it is not there."""
    file = folder / "results.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def plans(commands: Iterable[str]) -> Iterator[str]:
    """The plan of each training with a large model that the page names, on one H100."""
    for command in commands:
        if found := re.match(r"greenward (?:train|slurm submit) (\S+) (.*model=Qwen/\S+.*)", command):
            keys = [part for part in shlex.split(found[2]) if "=" in part and not part.startswith("-")]
            overrides = [key for key in keys if key.startswith("model")]
            yield f"greenward plan {found[1]} --gpu h100 {' '.join(overrides)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/originals"))
    parser.add_argument("--anew", action="store_true", help="repeat what has passed, too")
    parser.add_argument("--json", type=Path, help="keep all rows here")
    options = parser.parse_args()
    folder = options.folder.resolve()
    write_files(folder)
    if options.anew:
        for name in ("runs", "run_1", "run_2", "tiny"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "outcomes.jsonl").unlink(missing_ok=True)
    kept = options.json and options.json.resolve()
    os.chdir(folder)  # where the files lie that the lines name
    check = Check(folder)
    check.model = smallest_model() or tiny_model(check)
    began = time.perf_counter()
    rows = list(rows_of(PAGE.read_text("utf-8")))
    commands = list(dict.fromkeys(command for row in rows for command in row.commands))
    for command in commands:
        check.command(command)
    for plan in dict.fromkeys(plans(commands)):
        check.add("plan", plan, lambda plan=plan: check.fits(plan))
    for verb, lines in groupby(typed_lines(), key=lambda one: " ".join(one[1].split(" -")[0].split()[:2])):
        every = list(lines)
        check.add("typed", verb, lambda every=every: all_typed(every))
    for title, figure in FIGURES.items():
        check.add("figure", title, lambda figure=figure: figure(check))
    print("\n".join(table(check.outcomes)))
    print(f"{len(rows)} rows of the page, {(time.perf_counter() - began) / 60:.0f} minutes")
    if kept:
        kept.write_text(
            json.dumps([asdict(one) for one in check.outcomes], indent=1) + "\n", encoding="utf-8"
        )
    return any(one.outcome == "failed" for one in check.outcomes)


FIGURES: dict[str, Callable[[Check], tuple[str, str]]] = {
    "memory leak of 2.1 times": lambda check: planted(check.folder, "memory_leak"),
    "gradient explosion from step 301": lambda check: planted(check.folder, "gradient_explosion"),
    "calibration 0.65, below 0.7": lambda check: calibration(check.folder),
    "MBPP at the start, in intervals and at the end": lambda check: mbpp(check.folder),
    "the eight problems of Q-learning": eight_problems,
    "edits applied and judged by tests": lambda check: edits(check.folder),
}


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """How many lines of each part were ok, failed or skipped; the figures; what failed or was skipped."""
    yield f"\n{'part':10}{'ok':>6}{'failed':>8}{'skipped':>9}{'seconds':>10}"
    for part in dict.fromkeys(one.part for one in outcomes):
        of_part = [one for one in outcomes if one.part == part]
        counts = Counter(one.outcome for one in of_part)
        seconds = sum(one.seconds for one in of_part)
        yield f"{part:10}{counts['ok']:6}{counts['failed']:8}{counts['skipped']:9}{seconds:10.0f}"
    yield ""
    for one in outcomes:
        if one.part == "figure" or one.outcome != "ok":
            yield f"{one.outcome:8} {one.what}: {one.said}"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
