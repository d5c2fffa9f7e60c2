"""What `greenward diagnose` says of real logs, beside what a careful reader said of them.

    python benchmarks/real_logs.py FOLDER [--public] [--each] [--rival NAME=COMMAND] [--json FILE]

FOLDER holds a folder for each log: `NN/log/` and `NN/truth.txt`, whose line `kind: F` (a fault), `H`
(healthy) or `N` (no RL) stands before the judgement. `real_logs.yaml` says which findings name which truth.
A fault is named right where the first cause is one of those, and in part where another finding is. On a
healthy log each finding at warning or above is a false alarm; on a faulty one, each that its truth does not
hold is an error. CANNOT TELL, and a log that is refused, count as missed unless the truth accepts "too
little".

With `--public`, FOLDER holds clones of the repositories that `public` in `real_logs.yaml` lists, each as
OWNER+NAME; logs whose repository or path is not there are left out.

A rival is a command, to which the log file is given last (TensorBoard: its folder), and whose output is read
for the words by which it names a fault (`RIVAL_WORDS`).
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from greenward.common.errors import GreenwardError
from greenward.common.statistics import proportion
from greenward.diagnostics.diagnose import diagnose_run

MAPPING = Path(__file__).with_suffix(".yaml")
SECONDS = 120  # for a rival and a log
# Words of a rival's output, in lower case -> the finding that they name.
RIVAL_WORDS = {
    "entropy-collapse": ("entropy collapse", "entropy_collapse", "policy_collapse", "policy collapse"),
    "truncated-answers": ("truncat", "cut off", "clipped ratio", "max length"),
    "no-learning": ("plateau", "no learning", "not learning", "reward_stagnation", "stagnat"),
    "dead-groups": ("zero-variance", "zero variance", "dead group", "no signal", "starved"),
    "constant-reward": ("too hard", "all rewards", "constant reward", "reward is constant"),
    "gradient-vanished": ("vanish", "zero gradient", "gradient is 0", "norms that equal 0", "dead gradient"),
    "gradient-spikes": ("spike",),
    "gradient-explosion": ("gradient explosion", "exploding", "grad_explosion"),
    "reward-drop": ("reward drop", "reward collapse", "reward_collapse", "reward fell", "regress"),
    "kl-runaway": ("kl blow", "kl explosion", "kl_explosion", "kl runaway", "kl diverg"),
    "non-finite": ("nan", "non-finite", "infinite"),
}


@dataclass(frozen=True)
class Truth:
    """What a reader found in a log, in terms of findings."""

    kind: str
    accept: frozenset[str]
    also: frozenset[str]
    untrue: frozenset[str]
    too_little: bool


@dataclass
class Outcome:
    """What was said of a log: findings at warning or above, the first cause first."""

    log: str
    kind: str
    verdict: str
    found: list[str] = field(default_factory=list)
    headline: str = ""
    judged: str = ""
    extra: list[str] = field(default_factory=list)
    untrue: list[str] = field(default_factory=list)
    seconds: float = 0.0


def read_truth(folder: Path, mapping: dict[str, Any]) -> Truth:
    text = (folder / "truth.txt").read_text()
    kind = re.search(r"^kind:\s*(\w)", text, re.MULTILINE)
    if kind is None:
        raise SystemExit(f"{folder / 'truth.txt'} has no line 'kind: F', 'kind: H' or 'kind: N'")
    too_little = "too little' acceptable" in text
    row = mapping["logs"].get(folder.name)
    if row is None:
        said = " ".join(
            part
            for part in re.split(r"[.;,]", text.lower())
            if not re.match(r"\s*(so: )?(not|no other)\b", part)
        )
        accept = {name for one in mapping["phrases"] if re.search(one["has"], said) for name in one["accept"]}
        if "healthy" in said:
            accept.add("healthy")
        return Truth(kind[1], frozenset(accept), frozenset(accept), frozenset(), too_little)
    names = (frozenset(row.get(key, ())) for key in ("accept", "also", "untrue"))
    return Truth(kind[1], *names, row.get("too_little", too_little))


def public_logs(folder: Path, mapping: dict[str, Any]) -> dict[Path, Truth]:
    """The logs below the folder that `public` lists, with their truths."""
    found = {}
    for row in mapping["public"]:
        path = folder / row["repository"].replace("/", "+") / row["path"]
        if path.is_file():
            accept, also = (frozenset(row.get(key, ())) for key in ("accept", "also"))
            found[path] = Truth(row["kind"], accept, also, frozenset(), row.get("too_little", False))
    return found


def diagnosed(log: Path) -> Outcome:
    """What `greenward diagnose` says of a log: a file, or what lies in the folder `log` of a folder."""
    outcome = Outcome(log.name if log.is_dir() else f"{log.parts[-2]}/{log.name}", "", "refused")
    files = [path for path in sorted((log / "log").rglob("*")) if path.is_file()]
    began = time.perf_counter()
    for path in (log / "log", *files[: len(files) == 1]) if log.is_dir() else (log,):
        try:
            found = diagnose_run(path)
        except GreenwardError as error:
            outcome.headline = error.message
            continue
        causes = [one.finding.name for one in found.causes if one.severity != "info"]
        others = [one.name for one in found.findings if one.severity != "info"]
        outcome.verdict, outcome.headline = found.verdict, found.headline
        outcome.found = list(dict.fromkeys([*causes, *others]))
        break
    outcome.seconds = time.perf_counter() - began
    return outcome


def rival_says(command: Sequence[str], folder: Path) -> list[str]:
    """The faults that the output of a rival names."""
    files = [path for path in sorted((folder / "log").rglob("*")) if path.is_file()] or [folder]
    target = files[0].parent if ".tfevents." in files[0].name else files[0]
    try:
        done = subprocess.run(
            [*command, str(target)], capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return []
    said = (done.stdout + done.stderr).lower()
    return [name for name, words in RIVAL_WORDS.items() if any(word in said for word in words)]


def judge(outcome: Outcome, truth: Truth) -> None:
    """Compare what was said with the truth."""
    outcome.kind = truth.kind
    outcome.untrue = [name for name in outcome.found if name in truth.untrue]
    true = truth.accept | truth.also
    outcome.extra = [name for name in outcome.found if name not in true]
    if truth.kind == "F":
        first = "healthy" if outcome.verdict == "healthy" else "".join(outcome.found[:1])
        if first in truth.accept or (truth.too_little and outcome.verdict == "cannot tell"):
            outcome.judged = "right"
        else:
            outcome.judged = "partly" if truth.accept & set(outcome.found) else "missed"
        return
    if truth.too_little:
        outcome.extra = [name for name in outcome.extra if name != "no-learning"]
    if outcome.verdict == "refused":
        outcome.judged = "not read"
    else:
        outcome.judged = "false alarm" if outcome.extra else "right"


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("folder", type=Path, help="a folder of logs with their truths")
    parser.add_argument("--mapping", type=Path, default=MAPPING, help="what truths mean in findings")
    parser.add_argument(
        "--public", action="store_true", help="the folder holds clones of public repositories"
    )
    parser.add_argument("--each", action="store_true", help="a line for each log")
    parser.add_argument("--rival", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mapping = yaml.safe_load(options.mapping.read_text())
    folders = sorted(path.parent for path in options.folder.glob("*/truth.txt"))
    truths = {folder: read_truth(folder, mapping) for folder in folders}
    if options.public:
        truths = public_logs(options.folder, mapping)
    if not truths:
        missing = (
            "no repository that real_logs.yaml lists" if options.public else "no folder with a truth.txt"
        )
        parser.error(f"{options.folder} holds {missing}")
    outcomes = []
    for log, truth in truths.items():
        outcome = diagnosed(log)
        judge(outcome, truth)
        outcomes.append(outcome)
        if options.each:
            wrong = "".join(
                f"; {what}: {', '.join(names)}"
                for what, names in (("not in the truth", outcome.extra), ("untrue", outcome.untrue))
                if names
            )
            said = f"{outcome.verdict}: {outcome.headline[:150]}{wrong}"
            print(f"{outcome.log} {outcome.kind} {outcome.judged:11} {said}")
    faulty = [one for one in outcomes if one.kind == "F"]
    sound = [one for one in outcomes if one.kind != "F"]
    counts = Counter(one.judged for one in faulty)
    alarms = sum(one.judged == "false alarm" for one in sound)
    untrue, extra = sum(bool(one.untrue) for one in outcomes), sum(len(one.extra) for one in faulty)
    print(f"faulty logs named right: {_share(counts['right'], len(faulty))}; in part: {counts['partly']}")
    print(f"other logs with an alarm: {_share(alarms, len(sound))}")
    print(f"refused: {sum(one.verdict == 'refused' for one in outcomes)}; with an untrue statement: {untrue}")
    print(f"findings on faulty logs that no truth holds: {extra}")
    print(f"{sum(one.seconds for one in outcomes):.1f} s")
    missed_more: dict[str, list[str]] = {}
    for rival in options.rival:
        name, _, command = rival.partition("=")
        rows = []
        for outcome, (log, truth) in zip(outcomes, truths.items(), strict=True):
            named = set(rival_says(shlex.split(command), log)) & truth.accept
            if outcome.kind == "F" and named:
                rows.append(outcome.log)
        beyond = [one.log for one in faulty if one.log in rows and one.judged != "right"]
        missed_more[name] = beyond
        print(f"{name} names {len(rows)} faults; of those greenward misses {', '.join(beyond) or 'none'}")
    if options.json:
        record = {"outcomes": [asdict(one) for one in outcomes], "rivals_alone": missed_more}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(one.judged in ("missed", "false alarm") or one.extra or one.untrue for one in outcomes))


def _share(count: int, total: int) -> str:
    if not total:
        return "0 of 0"
    share = proportion(count, total)
    return f"{count} of {total} ({share.value:.0%} [{share.low:.0%}, {share.high:.0%}])"


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
