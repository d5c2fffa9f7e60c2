"""Reads the options and verbs that RLDK has: what each becomes here, or which command does its job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import click

from greenward.common.terminal import echo


class Theirs(NamedTuple):
    """What an option of RLDK becomes.

    `ours` is the option here, and "" the argument of the command; None leaves it out, which `why` explains. A
    `suffix` is put behind its value. `refused` says that it asks for something else than the command does.
    """

    ours: str | None = None
    why: str = ""
    takes_value: bool = True
    suffix: str = ""
    refused: bool = False


def _left_out(why: str, *, takes_value: bool = True) -> Theirs:
    return Theirs(why=why, takes_value=takes_value)


_FIELD_MAP = "--field-map"
_READ_NO_NAMES = ("bisect", "check-determinism", "env-audit", "eval", "replay", "reward-drift")  # of a log
_FOUND = _left_out("the format and its names are found; --map names what is not")
_ALWAYS_A_GATE = _left_out(
    "the exit code says it always: 0 nothing, 1 findings, 2 an error", takes_value=False
)
_NO_FILES = _left_out("what is found is printed; reward-health --output-dir writes files")
_NO_THRESHOLD = _left_out("tested against chance, so there is no threshold to set")
_GOLD = _left_out("the run's evaluations are the gold: see `rldk evals`")
_ALL_STEPS = _left_out("all steps are compared")
_IN_THE_COMMAND = _left_out("the command says it")
_READS_A_LOG = {"--preset": _FOUND, "--adapter": _FOUND, "-a": _FOUND}
_COMMITS = Theirs(
    refused=True,
    why="bisect puts settings of a run back one by one; for commits: `git bisect run greenward diagnose LOG`",
)

_EVALUATE = (
    "`greenward eval MODEL --suite SUITE` evaluates a model, `rldk evals --run RUN` what a run recorded"
)
OPTIONS: Mapping[str, Mapping[str, Theirs]] = MappingProxyType(
    {
        "diff": {
            "-a": Theirs("--a"),
            "-b": Theirs("--b"),
            "-o": Theirs("--output-dir"),
            "--preset": _FOUND,
        },
        "reward-health": {
            "-o": Theirs("--output-dir"),
            "--gate": _ALWAYS_A_GATE,
            "--threshold-calibration": Theirs("--calibration-threshold"),
            **{
                f"--threshold-{name}": _NO_THRESHOLD
                for name in ("drift", "saturation", "shortcut", "leakage", "length-bias")
            },
            "--reference": _left_out("`rldk diff --a REFERENCE --b RUN` compares two runs"),
            "--reward-col": Theirs("--map", suffix="=reward/mean"),
            "--length-col": Theirs("--map", suffix="=completion/mean_length"),
            "--step-col": _FOUND,
            "--response-col": _left_out("answers are read from rollouts/ or completions/ of the run"),
            "--enable-length-bias-detection": _left_out("always on", takes_value=False),
            "--disable-length-bias-detection": _left_out("always on", takes_value=False),
            "--gold": _GOLD,
            "--gold-col": _GOLD,
            "--auto-gold": _left_out(_GOLD.why, takes_value=False),
            **{f"--overopt-{name}": _NO_THRESHOLD for name in ("window", "delta-threshold", "min-samples")},
            **_READS_A_LOG,
        },
        "evals": {
            "-o": Theirs("--output-dir"),
            "-s": Theirs("--suite"),
            "--gate": _ALWAYS_A_GATE,
            "--column-mapping": _left_out("--map THEIRS=OURS names a column"),
            "--output-column": _left_out("answers are read from rollouts/ of the run"),
            "--events-column": _FOUND,
            "--min-samples": _NO_THRESHOLD,
            "--timeout": _left_out("reading a run takes seconds"),
            **_READS_A_LOG,
        },
        "check-determinism": {
            "-m": Theirs("--compare"),
            "--runs": Theirs("--replicas"),
            "-s": _ALL_STEPS,
            "--steps": _ALL_STEPS,
            "--stride": _ALL_STEPS,
            "-d": _IN_THE_COMMAND,
            "--device": _IN_THE_COMMAND,
            "-o": _NO_FILES,
            "--output-dir": _NO_FILES,
            "--gate": _ALWAYS_A_GATE,
        },
        "eval": {"--run": Theirs(refused=True, why=_EVALUATE)},
        "bisect": {
            "--bad": Theirs(""),
            **dict.fromkeys(("--cmd", "--metric", "--cmp", "--window", "--shell-predicate"), _COMMITS),
        },
        "replay": {
            "--run": Theirs(""),
            "-o": Theirs("--output"),
            "--output-dir": Theirs("--output"),
            "--max-steps": Theirs("--steps"),
            "--command": _left_out("the run's own config is trained again"),
            "--metrics": _left_out("all signals are compared"),
            "--tolerance": _left_out("the first step and signal that differ are named, however little"),
            "--device": _left_out("that of the run's config"),
            "--no-wandb": _left_out("a replay is not mirrored", takes_value=False),
        },
        "ingest": {
            **_READS_A_LOG,
            "-c": _FOUND,
            "--config-file": _FOUND,
            "--validation-mode": _left_out("rows that cannot be read are counted and said"),
            "--required-fields": _left_out("`rldk validate-format` lists what there is"),
            "--validate": _left_out("`rldk validate-format` lists what there is", takes_value=False),
            "--no-validate": _left_out("`rldk validate-format` lists what there is", takes_value=False),
            "-v": _left_out("notes are always printed", takes_value=False),
            "--verbose": _left_out("notes are always printed", takes_value=False),
        },
        "validate-format": {**_READS_A_LOG, "--verbose": _left_out("always in full", takes_value=False)},
        "monitor": {
            "--stream": Theirs(""),
            "--alerts": Theirs("--alarms"),
            "--alerts-txt": _left_out("alarms are printed; --alarms keeps them as JSON"),
            "--report": _left_out("`rldk diagnose --output-dir` writes the report"),
            "--regex": _FOUND,
            "--reward-health-window": _NO_THRESHOLD,
            "--kill-timeout-sec": _left_out("the process of --pid is asked to stop"),
            "--http-timeout-sec": _left_out("--webhook has a time limit of its own"),
            "--retries": _left_out("--webhook tries again by itself"),
            **dict.fromkeys(
                ("--from-wandb", "--from-mlflow"),
                Theirs(refused=True, why="export the run, and name the file: `rldk diagnose FILE`"),
            ),
            **_READS_A_LOG,
        },
        "card": {"-o": _NO_FILES, "--output-dir": _NO_FILES, **_READS_A_LOG},
        "reward-drift": {
            "--scores-a": Theirs(""),
            "--scores-b": Theirs(""),
            "-p": _left_out("files of prompts with scores are compared: A and B"),
        },
        "length-bias": {
            "--run-path": Theirs(""),
            "--reward-col": Theirs("--map", suffix="=reward/mean"),
            "--length-col": Theirs("--map", suffix="=completion/mean_length"),
            "--response-col": _left_out("answers are read from rollouts/ or completions/ of the run"),
            "--threshold": _NO_THRESHOLD,
            "--sample-size": _left_out("all answers are read"),
            "--output-dir": _NO_FILES,
            "--generate-card": _left_out("printed", takes_value=False),
            "--tokenizer-name": _left_out("lengths are those of the log"),
            "--seed": _left_out("nothing is drawn"),
            **_READS_A_LOG,
        },
        "log-scan": _READS_A_LOG,
        "env-audit": {},
        "kl-drift": {
            **{
                f"--{name}": _NO_THRESHOLD
                for name in ("drift-threshold", "drift-window-size", "reference-period")
            },
            "--kl-col": Theirs("--map", suffix="=kl"),
            "--kl-coef-col": Theirs("--map", suffix="=kl/coefficient"),
            "--step-col": _FOUND,
        },
    }
)  # fmt: skip
"""Options of RLDK, by the command here; those that are spelt alike are not listed."""

ALIASES: Mapping[tuple[str, ...], tuple[str, ...]] = MappingProxyType(
    {
        ("determinism",): ("check-determinism",),
        ("evals", "evaluate"): ("evals", "--run"),
        ("reward", "reward-drift"): ("reward-drift",),
        ("reward", "length-bias"): ("length-bias",),
        ("forensics", "kl-drift"): ("kl-drift",),
        ("forensics", "diff-ckpt"): ("diff-ckpt",),
        ("forensics", "env-audit"): ("env-audit",),
        ("forensics", "log-scan"): ("log-scan",),
    }
)
"""Commands that have another name in RLDK, with the option that their argument has here."""

VERBS: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        ("compare-runs",): "`rldk diff --a RUN --b RUN` compares two runs",
        ("forensics", "compare-runs"): "`rldk diff --a RUN --b RUN` compares two runs",
        ("doctor",): "`greenward doctor` shows the machine, `rldk diagnose RUN` what is wrong with a run",
        ("forensics", "doctor"): "`rldk diagnose RUN` says what is wrong with a run",
        ("forensics",): "`rldk diagnose RUN`; its parts are kl-drift, diff-ckpt, env-audit and log-scan",
        ("reward", "reward-health"): "`rldk reward-health --run RUN`",
        ("reward",): "`rldk reward-health --run RUN`; its parts are reward-drift and length-bias",
        ("evals", "list-suites"): "`rldk evals --run RUN --suite code`, or the name of a suite that RUN has",
        ("evals", "validate-data"): "`rldk validate-format LOG` says what a log is read as",
        ("evals", "validate"): "`rldk validate-format LOG` says what a log is read as",
        ("eval",): _EVALUATE,
        ("format-info",): "`rldk validate-format LOG`; `rldk diagnose --help` lists all formats",
        ("version",): "`rldk --version`",
        ("seed",): "`greenward train CONFIG seed=N`: the recipe's seed holds for everything that is drawn",
        ("track",): "`greenward train` keeps provenance.json in each run; `rldk env-audit RUN` reads it",
        ("emit",): "write JSON lines of {\"step\": …, \"NAME\": …}; `rldk monitor FILE` follows them",
    }
)  # fmt: skip
"""Commands of RLDK that there are not, and the command that does their job. Longer names come first."""


def translated(name: str, arguments: Sequence[str], known: Mapping[str, object]) -> tuple[str, list[str]]:
    """The command and its arguments under the names here; what is left out is said on standard error.

    `known` are the commands that there are. Raises `click.UsageError` for a verb or an option whose job
    another command does.
    """
    words = (name, *arguments[:1])
    for length in range(len(words), 0, -1):
        ours, *first = ALIASES.get(words[:length], ("",))
        answer = VERBS.get(words[:length])
        if ours in known:
            return ours, _options(ours, [*first, *arguments[length - 1 :]])
        if answer is not None and (length == 2 or name not in known):
            raise click.UsageError(f"there is no {' '.join(words[:length])!r}: {answer}.")
    if name in OPTIONS and name not in known:
        raise click.UsageError(f"there is no {name!r} here: `rldk {name}`.")
    return name, _options(name, arguments)


def _options(name: str, arguments: Sequence[str]) -> list[str]:
    table, result, rest = OPTIONS.get(name, {}), list[str](), list(arguments)
    readers = name in OPTIONS and name not in _READ_NO_NAMES
    while rest:
        given = rest.pop(0)
        if given == "--":
            return [*result, given, *rest]
        option, equals, value = given.partition("=")
        if option == _FIELD_MAP and readers:
            result += _field_map(value if equals else _value(option, rest))
            continue
        theirs = table.get(option.replace("_", "-") if option.startswith("--") else option)
        if theirs is None:
            result.append(given)
            continue
        if theirs.refused:
            raise click.UsageError(f"{name} has no {option}: {theirs.why}.")
        if theirs.takes_value and not equals:
            value = _value(option, rest)
        if theirs.ours is None:
            echo(f"{option} is left out: {theirs.why}.", err=True)
        else:
            result += [*filter(None, [theirs.ours]), *([value + theirs.suffix] if theirs.takes_value else [])]
    return result


def _value(option: str, rest: list[str]) -> str:
    if not rest:
        raise click.UsageError(f"Option {option!r} requires an argument.")
    return rest.pop(0)


def _field_map(text: str) -> list[str]:
    """The options --map for RLDK's mapping of names, whichever side has the name that is known."""
    from greenward.diagnostics.readers.names import known_name

    try:
        pairs = json.loads(text)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, dict) or not all(isinstance(one, str) for one in pairs.values()):
        raise click.UsageError(f'{_FIELD_MAP}: expected JSON such as {{"my_reward": "reward_mean"}}.')
    found = []
    for left, right in pairs.items():
        theirs, ours = (left, known_name(right)) if known_name(right) else (right, known_name(left) or left)
        if ours != "step":  # found by itself
            found += ["--map", f"{theirs}={ours}"]
    return found
