"""FaultBench, part (c): simulated logs of other trainers, with the rates of real ones.

    .venv/bin/python -m benchmarks.faultbench.logs [--seeds 3] [--first-seed 0] [--only WORD]
        [--family WORD] [--json FILE]
    .venv/bin/python -m benchmarks.faultbench.logs write FAMILY KIND SEED FOLDER

Each family of trainers (`families.py`) has healthy runs of six shapes and each fault (`planted.py`) that its
logs can show. A fault is named where a finding at warning or above has one of its names; a diagnosis that
cannot tell misses it. On a healthy run, cannot tell is neither right nor an alarm: its rates are of the
others. Nothing here uses limits of the checks, which are tuned on seeds from 100 on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks.faultbench.families import FAMILIES
from benchmarks.faultbench.forms import write
from benchmarks.faultbench.planted import kinds_of
from benchmarks.faultbench.runs import SHAPES, course, observe

from greenward.common.errors import GreenwardError
from greenward.common.statistics import proportion
from greenward.diagnostics.diagnose import diagnose_run

HEALTHY = "healthy, "
_SHORT = ", short run"


@dataclass(frozen=True)
class Outcome:
    """What was said of one run, `found` at warning or above; the verdict on no readable log is "refused"."""

    family: str
    kind: str
    seed: int
    verdict: str
    found: tuple[str, ...]
    critical: bool
    named: bool

    @property
    def healthy(self) -> bool:
        return self.kind.startswith(HEALTHY)


def make(family: str, kind: str, seed: int, folder: Path) -> None:
    """Write the log of a run."""
    chosen = FAMILIES[family]
    rng = np.random.default_rng((seed, zlib.crc32(f"{family}: {kind}".encode())))
    if kind.startswith(HEALTHY):
        write(chosen, observe(course(chosen, kind.removeprefix(HEALTHY), rng)), folder)
        return
    fault = kinds_of(chosen)[kind]
    shape = "short" if kind.endswith(_SHORT) else fault.shape
    run = course(chosen, shape, rng)
    while not fault.shows(run):
        run = course(chosen, shape, rng)
    run.onset = int(rng.uniform(*fault.begins) * run.rows)
    if fault.course:
        fault.course(run)
    signals = observe(run)
    if fault.mark:
        fault.mark(signals, run)
    write(chosen, signals, folder)


def judge(family: str, kind: str, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        make(family, kind, seed, Path(temporary) / "run")
        try:
            diagnosis = diagnose_run(Path(temporary) / "run")
        except GreenwardError:
            return Outcome(family, kind, seed, "refused", (), False, False)
    found = [one for one in diagnosis.findings if one.severity != "info"]
    names = () if kind.startswith(HEALTHY) else kinds_of(FAMILIES[family])[kind].names
    return Outcome(
        family,
        kind,
        seed,
        diagnosis.verdict,
        tuple(dict.fromkeys(one.name for one in found)),
        any(one.severity == "critical" for one in found),
        any(one.name in names for one in found),
    )


def runs(seeds: range, family: str, only: str) -> Iterator[tuple[str, str, int]]:
    for name, one in FAMILIES.items():
        for kind in (*(HEALTHY + shape for shape in SHAPES), *kinds_of(one)):
            if family in name and only in kind:
                yield from ((name, kind, seed) for seed in seeds)


def _rate(count: int, of: int) -> str:
    """A share with Wilson's interval at 95 %."""
    if of == 0:
        return f"{'–':>22}"
    share = proportion(count, of)
    return f"{f'{count}/{of}':>8}{share.value:6.0%} [{share.low:4.0%},{share.high:4.0%}]"


def _grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    groups = defaultdict(list)
    for one in outcomes:
        groups[key(one)].append(one)
    return groups


def _others(outcomes: Iterable[Outcome]) -> str:
    """What was said instead, the most frequent first."""
    said = Counter(", ".join(one.found) or one.verdict for one in outcomes)
    return "; ".join(f"{text} ({count})" for text, count in said.most_common(3))


def report(outcomes: list[Outcome]) -> Iterator[str]:
    healthy = [one for one in outcomes if one.healthy]
    faulty = [one for one in outcomes if not one.healthy]
    keys = (("family", lambda one: one.family), ("kind", lambda one: one.kind))
    for title, key in keys:
        yield f"{'healthy, by ' + title:36}{'with a warning':>26}{'critical':>26}  cannot tell  said"
        for name, group in _grouped(healthy, key).items():
            told = [one for one in group if one.verdict not in ("cannot tell", "refused")]
            alarms = [one for one in told if one.found]
            rates = _rate(len(alarms), len(told)), _rate(sum(one.critical for one in told), len(told))
            yield f"{name:36}{rates[0]:>26}{rates[1]:>26}{len(group) - len(told):>13}  {_others(alarms)}"
        yield ""
    for title, key in keys:
        yield f"{'faults, by ' + title:36}{'named':>26}  cannot tell  said of those that are missed"
        for name, group in _grouped(faulty, key).items():
            missed = [one for one in group if not one.named]
            unsure = sum(one.verdict == "cannot tell" for one in group)
            yield f"{name:36}{_rate(len(group) - len(missed), len(group)):>26}{unsure:>13}  {_others(missed)}"
        yield ""
    yield "missed, by kind and family"
    for name, group in _grouped(faulty, lambda one: f"{one.kind} | {one.family}").items():
        missed = [one for one in group if not one.named]
        if missed:
            seeds = " ".join(str(one.seed) for one in missed)
            yield f"{name:62}{len(missed)}/{len(group)}  seeds {seeds}: {_others(missed)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("write", nargs="*", metavar="write FAMILY KIND SEED FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--family", default="", help="families whose name holds this")
    parser.add_argument("--only", default="", help="kinds whose name holds this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.write:
        if len(options.write) != 5 or options.write[0] != "write":
            parser.error("expected: write FAMILY KIND SEED FOLDER")
        _, family, kind, seed, folder = options.write
        make(family, kind, int(seed), Path(folder))
        return 0
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    outcomes = []
    for one in runs(seeds, options.family, options.only):
        outcomes.append(judge(*one))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("\n".join(report(outcomes)))
    if options.json:
        record = {"seeds": [*seeds], "runs": [asdict(one) for one in outcomes]}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
