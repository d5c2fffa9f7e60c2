"""How many files `greenward fix` mends, per form of answer and model.

    nice -n 10 .venv/bin/python benchmarks/fix.py /tmp/models/qwen --out runs/fix
    nice -n 10 .venv/bin/python benchmarks/fix.py /tmp/models/qwen1.5b --forms function --files roman cache
    nice -n 10 .venv/bin/python benchmarks/fix.py /tmp/models/qwen --forms infill --quixbugs ../QuixBugs

Ten files of `fix_files`, with one to three bugs each (`BUGS`: what is replaced in the right file), and their
tests. Each is checked first: the right file passes, the one with all bugs fails, and so does each bug alone.
Without a model it shows, of each file, how many lines are tried by filling gaps before one that is to change.
The command runs as a user runs it, in a process of its own, so that times include loading the model; beside
the time is that of the processor, which other programs do not lengthen as much. A file counts as mended where
all tests pass with the repair, within `--most-seconds` where that is given. With `--quixbugs` the files are
the programs of QuixBugs (Lin et al. 2017) that have JSON cases, with these as tests; each has one bug.

Results are kept in a folder of `--out`, one file each; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from greenward.grading.judge import Grader
from greenward.problems.catalog import load_quixbugs
from greenward.problems.problem import Assertion, Case
from greenward.problems.python_source import source_lines
from greenward.sandbox.pool import LocalExecutor
from greenward.tasks.repair.fix import repair_problem
from greenward.tasks.repair.infilling import suspicious_lines

FILES = Path(__file__).parent / "fix_files"
FORMS = ("default", "infill", "function", "search_replace", "diff")
BUGS: dict[str, tuple[tuple[str, str], ...]] = {
    "roman": (("while number >= value:", "while number > value:"),),
    "intervals": (
        ("max(merged[-1][1], high)", "high"),
        ("(first[1], second[0])", "(first[0], second[1])"),
    ),
    "stack_machine": (
        ("0) >= PRECEDENCE[token]", "0) > PRECEDENCE[token]"),
        ("second, first = stack.pop()", "first, second = stack.pop()"),
    ),
    "inventory": (
        ("(before + number, price)", "(number, price)"),
        ("if number > before:", "if number >= before:"),
    ),
    "calendar_days": (("(year % 100 != 0 or year % 400 == 0)", "year % 100 != 0"),),
    "word_count": (("(-counted[word], word)", "(counted[word], word)"),),
    "matrix": (
        ("int(row == column)", "1"),
        ("transpose(matrix[::-1])", "transpose(matrix)[::-1]"),
    ),
    "ini_file": (
        ('line.split("=", 1)', 'line.split("=")'),
        ("{name: dict(settings) for name, settings in first.items()}", "dict(first)"),
        ('"\\n\\n".join(parts) + "\\n"', '"\\n".join(parts)'),
    ),
    "cache": (
        ("        self._entries.move_to_end(key)\n        return", "        return"),
        ("popitem(last=False)", "popitem()"),
    ),
    "graph": (
        ("(length + edge, neighbour", "(edge, neighbour"),
        ("                pending.append(neighbour)\n", ""),
        ("in reachable(graph, neighbour) for", "in reachable(graph, node) for"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", help="folders, runs or ids")
    parser.add_argument("--out", type=Path, default=Path("runs/fix"), help="where results are kept")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=("default",))
    parser.add_argument("--files", nargs="+", help="only these")
    parser.add_argument("--quixbugs", type=Path, help="a copy of github.com/jkoppel/QuixBugs")
    parser.add_argument("--n", type=int, default=8, help="answers of a round at most")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, help="a repair that takes longer is not counted")
    options = parser.parse_args()
    known = buggy_files() if options.quixbugs is None else quixbugs_files(options.quixbugs)
    if unknown := {*(options.files or ())} - known.keys():
        raise SystemExit(f"expected files among {', '.join(known)}, found {', '.join(sorted(unknown))}")
    files = {name: known[name] for name in options.files or known}
    if options.quixbugs is None and (wrong := list(mistakes(files))):
        raise SystemExit("\n".join(wrong))
    settings = [f"--n={options.n}", f"--temperature={options.temperature}", f"--seed={options.seed}"]
    if not options.models:
        show_places(files)
    for model, form in product(options.models, options.forms):
        folder = options.out / Path(model).name / form / "_".join(one.lstrip("-") for one in settings)
        records = {
            name: kept(folder / f"{name}.json", name, buggy, model, form, settings)
            for name, buggy in files.items()
        }
        show(f"{model}, {form}", files, records, options.most_seconds)


def with_bugs(name: str, bugs: Sequence[tuple[str, str]]) -> str:
    text = (FILES / f"{name}.py").read_text(encoding="utf-8")
    for right, wrong in bugs:
        if text.count(right) != 1:
            raise SystemExit(f"{name}: {right!r} occurs {text.count(right)} times")
        text = text.replace(right, wrong)
    return text


@dataclass(frozen=True)
class Buggy:
    """The texts of a file with bugs, without them, and of its tests."""

    text: str
    right: str
    tests: str
    bugs: int

    def place(self, folder: str, name: str) -> tuple[Path, Path]:
        """The file and its tests, in a project of their own."""
        file, tests = Path(folder) / f"{name}.py", Path(folder) / f"test_{name}.py"
        file.write_text(self.text, encoding="utf-8")
        tests.write_text(self.tests, encoding="utf-8")
        return file, tests


def buggy_files() -> dict[str, Buggy]:
    def of(name: str, bugs: Sequence[tuple[str, str]]) -> Buggy:
        return Buggy(with_bugs(name, bugs), with_bugs(name, ()), tests_of(name), len(bugs))

    return {name: of(name, bugs) for name, bugs in BUGS.items()}


def tests_of(name: str) -> str:
    return (FILES / f"test_{name}.py").read_text(encoding="utf-8")


def quixbugs_files(folder: Path) -> dict[str, Buggy]:
    found = {}
    for problem in load_quixbugs(folder):
        name, tests = problem.entry_point, [f"from {problem.entry_point} import {problem.entry_point}\n"]
        for number, test in enumerate(problem.tests):
            if isinstance(test, Case):
                check = f"assert {name}(*{test.args!r}) == {test.expected!r}"
            elif isinstance(test, Assertion):
                check = test.source
            else:
                break
            tests.append(f"\n\ndef test_{number}():\n    {check}\n")
        else:
            assert problem.reference is not None
            found[name] = Buggy(problem.buggy_code, problem.reference, "".join(tests), 1)
    return found


def mistakes(files: Mapping[str, Buggy]) -> Iterator[str]:
    """What is wrong with the files themselves."""
    with Grader(packages=("pytest",)) as grader:
        for name, known in files.items():
            bugs = BUGS[name]
            for variant in ((), bugs, *((bug,) for bug in bugs)):
                with tempfile.TemporaryDirectory() as folder:
                    one = replace(known, text=with_bugs(name, variant))
                    problem, _ = repair_problem(*one.place(folder, name))
                (verdict,) = grader.grade([(problem, problem.buggy_code)])
                if verdict.passed is bool(variant):
                    yield f"{name} with {variant}: {verdict.status.value}, {verdict.error_message}"


def show_places(files: Mapping[str, Buggy]) -> None:
    """How many lines are tried before one that is to change, or beside which one is missing."""
    places = []
    with LocalExecutor(packages=("pytest",)) as executor:
        for name, one in files.items():
            with tempfile.TemporaryDirectory() as folder:
                problem, project = repair_problem(*one.place(folder, name))
            suites = dict.fromkeys(test.file for test in project.tests.values())
            order, _ = suspicious_lines(problem, suites, executor)
            old, new = ([line.strip() for line in source_lines(text)] for text in (one.text, one.right))
            to_change: set[int] = set()
            for kind, first, end, start, stop in SequenceMatcher(
                None, old, new, autojunk=False
            ).get_opcodes():
                written = [line for line in (*old[first:end], *new[start:stop]) if line[:1] not in ("", "#")]
                if kind != "equal" and written:
                    to_change |= {first, first + 1} if first == end else set(range(first + 1, end + 1))
            place = next((place for place, number in enumerate(order) if number in to_change), None)
            places.append(place)
            print(f"{name:>26} {len(order):>3} lines, {'none is' if place is None else place}", flush=True)
    known = [place for place in places if place is not None]
    print(f"{len(known)} of {len(places)}: {fmean(known):.1f} lines are tried before, in the mean")


def kept(file: Path, name: str, one: Buggy, model: str, form: str, settings: Sequence[str]) -> dict[str, Any]:
    """The record of `greenward fix --json` on one file: that of an earlier run, or of a new one."""
    if file.exists():
        earlier: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return earlier
    with tempfile.TemporaryDirectory() as folder:
        buggy, tests = one.place(folder, name)
        command = [sys.executable, "-m", "greenward", "fix", str(buggy), "--tests", str(tests)]
        command += ["--model", str(model), "--json", *settings]
        command += [] if form == "default" else ["--form", form]
        before = cpu_seconds()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name}: exit code {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout)
    record["seconds"]["processor"] = cpu_seconds() - before
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def cpu_seconds() -> float:
    """What the processes that have ended took, sandbox included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(
    title: str, files: dict[str, Buggy], records: dict[str, dict[str, Any]], most_seconds: float | None
) -> None:
    heads = ("file", "bugs", "tests", "answers", "mended", "lines", "s", "CPU s", "MiB")
    widths = (26, 5, 13, 8, 7, 6, 7, 7, 7)
    print(f"\n{title}\n{''.join(f'{head:>{width}}' for head, width in zip(heads, widths, strict=True))}")
    mended = 0
    for name, one in records.items():
        seconds = one["seconds"]["total"]
        is_mended = one["passed"] and (most_seconds is None or seconds <= most_seconds)
        mended += is_mended
        tests = f"{one['tests_passed_before']}→{one['tests_passed']} of {one['tests']}"
        lines = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in one["diff"].splitlines())
        cells = (
            name, files[name].bugs, tests, one["answers"], "yes" if is_mended else "no", lines or "",
            round(seconds), round(one["seconds"]["processor"]), round(one["peak_rss_mb"]),
        )  # fmt: skip
        print("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True)
    print(f"{mended} of {len(records)} mended", flush=True)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
