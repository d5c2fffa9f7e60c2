"""How time and memory grow with size: exponents of what reads, grades, reports and trains.

    .venv/bin/python benchmarks/growth.py [--only WORD] [--largest N] [--json FILE] [--svg FILE]

Each point is a process of its own: its CPU seconds and its peak of resident memory, those of its children
included (`os.wait4`), the least of up to three, between which the other sizes have their turns. Data are
made before, by another process.

The cost of n is fitted by a + b·n^c, where a is what every process takes to start: c is the exponent. The
squares of the relative errors are least, a and b are not negative. In brackets are the c that errors of their
size, or of 3 % of the time and 1 % of the memory where that is more, do not exclude at 95 % (by the
likelihood, the best a and b for each c). Of memory, which is a peak, the sizes count that take a tenth more
than the smallest. Where the largest takes less than a fifth more, or fewer than three sizes count, there is
too little growth to fit.

Exit code 1 where an exponent is above 1.1, its interval is above 1, and the subject names no law by which the
work itself grows. Ray is measured where `make .venv-ray/.installed` has installed it; its costs are those of
a cluster of its own, whose start is most of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import compress, product
from pathlib import Path
from shutil import rmtree
from typing import Any

MOST = 1.1
GROWTH = 1.2  # of the largest size's cost over that of the smallest, from which on an exponent is fitted
ABOVE_START = 1.1  # times the memory of the smallest size
REPEATED_BELOW = 8.0  # CPU seconds in all
REPEATS = 3
QUANTILE = 3.841  # of chi square with one degree of freedom, at 95 %
ERRORS = {"seconds": 0.03, "mb": 0.01}
MILLION = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
HUNDRED_THOUSAND = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
PR_SET_CHILD_SUBREAPER = 36  # of Linux: what loses its parent becomes a child of this process
COSTS = "costs:"  # what a process prints of them, where they are not all of its own
RAY_PYTHON = Path(__file__).resolve().parents[1] / ".venv-ray" / "bin" / "python"
TEN_PROBLEMS = [f"add_{number}" for number in range(10)]
FORMATS = {
    "JSON": "problems.json",
    "MBPP": "mbpp.jsonl",
    "HumanEval": "humaneval.jsonl",
    "APPS": "apps.jsonl",
}

Command = Callable[[Path, Path, int], list[str]]


@dataclass(frozen=True)
class Subject:
    """Work on data of a size: `command(folder of the data, new folder for what it writes, size)`.

    `law` says how the work itself grows where the fit cannot show that it grows as the size does, or where it
    grows faster; its exponents are not judged.
    """

    name: str
    command: Command
    law: str = ""


@dataclass(frozen=True)
class Data:
    """Subjects of one kind of size, in `unit`, with what makes data of a size in a folder."""

    unit: str
    sizes: tuple[int, ...]
    make: Callable[[Path, int], None]
    subjects: tuple[Subject, ...]


@dataclass(frozen=True)
class Fit:
    """The exponent of a cost, with its 95 % interval, and what of the cost is fixed; None: no growth."""

    exponent: float | None
    low: float | None
    high: float | None
    fixed: float


def fitted(sizes: Sequence[int], costs: Sequence[float], what: str) -> Fit:
    """The fit of a + b·n^c to the costs, which are `seconds` or `mb`."""
    error, smallest = ERRORS[what], costs[0]
    if what == "mb":  # the peak of the start hides what takes less
        seen = [cost >= ABOVE_START * smallest for cost in costs]
        sizes, costs = list(compress(sizes, seen)), list(compress(costs, seen))
    if len(sizes) < 3 or max(costs) < GROWTH * smallest:
        return Fit(None, None, None, smallest)
    found = {step / 100: _least_squares(sizes, costs, step / 100) for step in range(1, 401)}
    best = min(found, key=lambda exponent: found[exponent][0])
    squares = found[best][0]
    variance = max(squares / max(1, len(sizes) - 3), error**2)
    within = [one for one in found if found[one][0] <= squares + QUANTILE * variance]
    return Fit(best, min(within), max(within), found[best][1])


def _least_squares(sizes: Sequence[int], costs: Sequence[float], exponent: float) -> tuple[float, float]:
    """(the squares of the relative errors, a) of the best a + b·n^c for this c."""
    powers = [(size / sizes[-1]) ** exponent for size in sizes]
    ones = [1 / cost for cost in costs]
    slopes = [power / cost for power, cost in zip(powers, costs, strict=True)]
    aa, ab, bb = (
        sum(x * y for x, y in zip(*pair, strict=True))
        for pair in ((ones, ones), (ones, slopes), (slopes, slopes))
    )
    a_1, b_1 = sum(ones), sum(slopes)
    determinant = aa * bb - ab * ab
    candidates = [(a_1 / aa, 0.0), (0.0, b_1 / bb)]
    if determinant > 0:
        candidates.append(((a_1 * bb - b_1 * ab) / determinant, (aa * b_1 - ab * a_1) / determinant))
    return min(
        (sum((a * one + b * slope - 1) ** 2 for one, slope in zip(ones, slopes, strict=True)), a)
        for a, b in candidates
        if a >= 0 and b >= 0
    )


def greenward(*arguments: str) -> Command:
    """A command; FOLDER and OUT in its arguments stand for the folders of the data and of what it writes."""

    def command(folder: Path, out: Path, size: int) -> list[str]:
        places = {"FOLDER": str(folder), "OUT": str(out)}
        filled = (arguments_with(one, places) for one in arguments)
        return [sys.executable, "-m", "greenward", *filled]

    return command


def arguments_with(text: str, places: dict[str, str]) -> str:
    """The text with the names replaced."""
    for name, place in places.items():
        text = text.replace(name, place)
    return text


def here(work: Callable[..., None], *arguments: str, python: Path | str = sys.executable) -> Command:
    """A function of this module, in a process that runs it alone."""

    def command(folder: Path, out: Path, size: int) -> list[str]:
        return [str(python), __file__, "--run", work.__name__, str(folder), str(size), *arguments]

    return command


def make_run(folder: Path, size: int) -> None:
    """A run with so many kept answers, 500 at a step."""
    import ui

    ui.make_run(folder / "runs" / "whole", size // 500, 0, whole=True)
    ui.make_answers(folder / "runs" / "whole", size)


def make_log(folder: Path, size: int) -> None:
    """A run with so many rows of metrics, twelve signals each."""
    import numpy as np

    from diagnostics_speed import NAMED
    from greenward.diagnostics.change_points import simulate_autoregression

    names = NAMED[:12]
    columns = np.exp(0.1 * simulate_autoregression(np.random.default_rng(0), len(names), size, 0.7))
    run = folder / "runs" / "whole"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"task: functions\nname: made\ntraining: {{max_steps: {size}}}\n")
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for first in range(0, size, 10_000):
            for step, row in enumerate(columns[:, first : first + 10_000].T.tolist(), start=first + 1):
                file.write(json.dumps({"step": step, **dict(zip(names, row, strict=True))}) + "\n")


def make_evaluation(folder: Path, size: int) -> None:
    """A finished evaluation of so many answers, ten to each problem of which every other one passes."""
    write_suite(folder, ["add"])
    write_answers(folder, ["def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a\n"], ["add"])
    arguments = ("grade", "FOLDER/answers.jsonl", "--suite", "FOLDER/suite.json", "--out", "FOLDER/one")
    subprocess.run(greenward(*arguments)(folder, folder, 2), check=True, capture_output=True)
    whole, one = folder / "whole", folder / "one"
    whole.mkdir()
    for name in ("settings.json", "provenance.json", "summary.json"):
        (whole / name).write_bytes((one / name).read_bytes())
    for name in ("samples.jsonl", "results.jsonl"):
        rows = [json.loads(line) for line in (one / name).read_text().splitlines()]
        rows.sort(key=lambda row: row["sample"])
        lines = [json.dumps(row | {"task_id": "TASK", "sample": -1}) + "\n" for row in rows]
        with (whole / name).open("w") as file:
            for number in range(size):
                line = lines[number % 2].replace('"TASK"', f'"task_{number // 10}"')
                file.write(line.replace('"sample": -1', f'"sample": {number % 10}'))
    with (whole / "prompts.jsonl").open("w") as file:
        for number in range(-(-size // 10)):
            file.write(
                json.dumps({"task_id": f"task_{number}", "prompt": "Return the sum of a and b."}) + "\n"
            )


def make_problems(folder: Path, size: int) -> None:
    """Files of so many problems in each of `FORMATS`."""
    numbers = range(size)
    words = [f"Return the sum of a and b, and {number} times {number % 89}." for number in numbers]
    programs = [
        f"def add_{number}(a, b):\n    return a + b + {number} * {number % 89}\n" for number in numbers
    ]
    sums = [3 + number * (number % 89) for number in numbers]
    rows: dict[str, Iterator[dict[str, Any]]] = {
        "MBPP": (
            {
                "task_id": number + 1,
                "text": words[number],
                "code": programs[number],
                "test_list": [f"assert add_{number}(1, 2) == {sums[number]}"] * 3,
                "test_setup_code": "",
            }
            for number in numbers
        ),
        "HumanEval": (
            {
                "task_id": f"Made/{number}",
                "prompt": f'def add_{number}(a, b):\n    """{words[number]}"""\n',
                "canonical_solution": programs[number].partition("\n")[2],
                "entry_point": f"add_{number}",
                "test": f"def check(candidate):\n    assert candidate(1, 2) == {sums[number]}\n",
            }
            for number in numbers
        ),
        "APPS": (
            {
                "problem_id": number,
                "question": words[number],
                "input_output": json.dumps({"inputs": ["1 2\n", "2 2\n"], "outputs": ["3\n", "4\n"]}),
                "solutions": json.dumps(["print(sum(map(int, input().split())))"]),
            }
            for number in numbers
        ),
    }
    for name, every in rows.items():
        with (folder / FORMATS[name]).open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in every)
    write_suite(folder, [f"add_{number}" for number in numbers], FORMATS["JSON"])


def write_suite(folder: Path, names: Sequence[str], file: str = "suite.json") -> None:
    """Problems of addition of these names in the simple JSON format."""
    rows = [
        {
            "function_name": name,
            "docstring": f"Return the sum of a and b ({name}).",
            "starter_code": f'def {name}(a, b):\n    """Return the sum of a and b."""\n',
            "reference": f"def {name}(a, b):\n    return a + b\n",
            "test_cases": [[[1, 2], 3], [[2, 2], 4]],
        }
        for name in names
    ]
    (folder / file).write_text(json.dumps(rows))


def write_answers(folder: Path, programs: Sequence[str], names: Sequence[str]) -> None:
    """A file of answers, in turn to the problems of these names."""
    with (folder / "answers.jsonl").open("w") as file:
        for number, program in enumerate(programs):
            row = {"task_id": names[number % len(names)], "solution": program}
            file.write(json.dumps(row) + "\n")


def make_answers(folder: Path, size: int, *, distinct: int | None = None) -> None:
    """Answers to ten problems, half of them right, of so many `distinct` programs (all)."""
    distinct = distinct or size
    write_suite(folder, TEN_PROBLEMS)
    programs = (
        f"def {TEN_PROBLEMS[number % 10]}(a, b):\n"
        f"    return a + b * {number // 10 % 2}  # {number % distinct}\n"
        for number in range(size)
    )
    write_answers(folder, list(programs), TEN_PROBLEMS)


def make_nothing(folder: Path, size: int) -> None:
    """What is measured makes its own."""


def show_in_ui(folder: Path, size: int) -> None:
    """Index all answers in the server, and ask for the first page of each of five queries."""
    import ui

    with measured_server(folder / "runs") as server:
        answers = "/api/v1/runs/whole/rollouts?count=60&"
        while json.loads(server.get(answers)[1])["share"] < 1:
            pass
        for query in ui.QUERIES:
            server.get(answers + query)


def draw_in_ui(folder: Path, size: int) -> None:
    """Read the whole log in the server, and ask for its curves."""
    from diagnostics_speed import NAMED

    keys = "&".join(f"key={key}" for key in NAMED[:12])
    with measured_server(folder / "runs") as server:
        share = 0.0
        while share < 1:
            body = server.get(f"/api/v1/runs/whole/series?{keys}&px=900")[1]
            share = json.loads(body[4 : 4 + int.from_bytes(body[:4], "little")])["share"]


@contextmanager
def measured_server(runs: Path) -> Iterator[Any]:
    """A server whose own costs are printed at the end, without those of its diagnosis of the run."""
    import ui

    with tempfile.TemporaryDirectory() as cache:
        server = ui.Server(runs, Path(cache))
        try:
            yield server
            print(COSTS, json.dumps({"seconds": server.cpu_seconds(), "mb": server.memory_mb()}))
        finally:
            server.stop()


def load(folder: Path, size: int, name: str) -> None:
    """Load a file of problems as a suite, and hash it as every result does."""
    from greenward.problems.catalog import load_suite

    problems = load_suite(str(folder / FORMATS[name]))
    assert len(problems) == size and problems.data_hash


def compare_with_held_out(folder: Path, size: int) -> None:
    """Look for problems that are trained on, and asked twice, among as many others."""
    from greenward.problems.catalog import load_suite
    from greenward.problems.problem import repeated_problems, shared_problems

    train, others = (load_suite(str(folder / FORMATS[name])) for name in ("MBPP", "HumanEval"))
    shared_problems(train, others)
    assert not repeated_problems(train)


def look_for_contamination(folder: Path, size: int) -> None:
    """Look for problems of a suite of as many in a training set."""
    from greenward.evaluation.contamination import contamination
    from greenward.problems.catalog import load_suite

    train, suite = (load_suite(str(folder / FORMATS[name])) for name in ("MBPP", "HumanEval"))
    assert contamination(train, suite).training_items == size


def read_unknown(folder: Path, size: int) -> None:
    """Read answers to problems that the suite does not have, and leave them out."""
    from greenward.evaluation.store import read_samples
    from greenward.problems.catalog import load_suite

    file = folder / "of_others.jsonl"
    with file.open("w") as opened, (folder / "answers.jsonl").open() as answers:
        for number, line in enumerate(answers):
            opened.write(line.replace('"add_', f'"other_{number}_', 1) if number else line)
    unknown: list[Exception] = []
    read_samples(file, load_suite(str(folder / "suite.json")), unknown.append)
    assert len(unknown) == size - 1


def compare_one_answer_each(folder: Path, size: int) -> None:
    """Compare two evaluations with one answer to each of so many problems."""
    compare_made(size, 1)


def compare_ten_answers_each(folder: Path, size: int) -> None:
    """Compare two evaluations with ten answers to each of so many problems."""
    compare_made(size, 10)


def compare_made(size: int, answers: int) -> None:
    """Compare two evaluations of so many problems, on which each answer passes by chance."""
    import random

    from greenward.evaluation.compare import AnswerCounts, StoredEvaluation, compare

    chance = random.Random(0)
    one, other = (
        StoredEvaluation(
            name,
            "made",
            {
                f"task_{number}": AnswerCounts(answers, sum(chance.random() < 0.5 for _ in range(answers)), 0)
                for number in range(size)
            },
        )
        for name in ("one", "other")
    )
    assert compare(one, other).problems == size


def estimate_pass_at_k(folder: Path, size: int) -> None:
    """All figures of an evaluation of so many answers to ten problems, of pass@1, pass@10 and half of all."""
    from greenward.evaluation.figures import summarise
    from greenward.evaluation.samples import EvaluationRow
    from greenward.grading.verdict import Status

    kinds = ((Status.PASSED, True), (Status.FAILED, False))
    rest = (None, "", "", 2, 2, (), None, 0.01, 0.01, "", "given", False, None, "0" * 64, (), ("namespaces",))
    rows = [
        EvaluationRow(f"task_{number % 10}", number // 10, *kinds[number // 10 % 2], *rest)
        for number in range(size)
    ]
    figures = summarise(rows, (1, 10, size // 20), problems=10)
    assert figures["answers"] == size


def grade_by_workers(folder: Path, size: int) -> None:
    """Grade 2,000 answers in the local pool of so many workers."""
    from greenward.sandbox.pool import LocalExecutor

    with LocalExecutor(size) as executor:
        grade_2000(executor)


def grade_by_ray(folder: Path, size: int) -> None:
    """Grade 2,000 answers on a cluster of Ray that has so many CPUs, all on this machine."""
    import ray

    from greenward.sandbox.ray import RayExecutor

    ray.init(num_cpus=size, include_dashboard=False, log_to_driver=False)
    with RayExecutor(workers_per_node=size) as executor:
        grade_2000(executor)


def grade_2000(executor: Any) -> None:
    """Grade answers that all differ, and tell the memory of all processes at the end."""
    from greenward.sandbox.protocol import Call, Job

    jobs = (
        Job(f"def add(a, b):\n    return a + b  # {number}", "add", (Call((1, 2)),)) for number in range(2000)
    )
    assert sum(1 for _ in executor.run(jobs)) == 2000
    print(COSTS, json.dumps({"mb": sum(map(resident_mb, descendants(os.getpid())))}))


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that they have."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from descendants(child)


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def step_of_grpo(prompts: int, prompt_tokens: int, group: int, answer_tokens: int) -> None:
    """Sample groups of answers, then one pass forward and backward over them, on a small decoder."""
    import random

    import torch

    from greenward.config.sections import ShapeConfig
    from greenward.models.policy import Policy
    from greenward.models.scoring import GroupBatch
    from greenward.models.tokenizer import train_tokenizer
    from greenward.rollouts.protocols import SamplingParams
    from side_by_side import SHAPE, VOCAB_SIZE

    torch.set_num_threads(1)
    chance = random.Random(0)
    tokenizer = train_tokenizer([str(chance.random()) for _ in range(500)], VOCAB_SIZE)
    shape = ShapeConfig(**SHAPE, max_positions=prompt_tokens + answer_tokens)
    policy = Policy.random(shape, tokenizer, seed=0, device="cpu")
    asked = [[chance.randrange(3, 250) for _ in range(prompt_tokens)] for _ in range(prompts)]
    policy.sample(asked, group, SamplingParams(max_tokens=answer_tokens), seed=1)
    answers = [[[5] * answer_tokens] * group] * prompts
    batch = GroupBatch.build(asked, answers)
    policy.completion_logprobs(batch, entropy=True).logprobs_BT.sum().backward()


def train_on_prompts(folder: Path, size: int) -> None:
    """Four prompts of so many tokens, four answers of 32 tokens each."""
    step_of_grpo(4, size, 4, 32)


def train_on_groups(folder: Path, size: int) -> None:
    """Sixteen prompts of 64 tokens, groups of so many answers of 64 tokens."""
    step_of_grpo(16, 64, size, 64)


GRADE = ("grade", "FOLDER/answers.jsonl", "--suite", "FOLDER/suite.json", "--out", "FOLDER/graded", "--quiet")
SUBJECTS = (
    Data(
        "answers of a training",
        MILLION,
        make_run,
        (
            Subject(
                "rollouts, worst first",
                greenward("rollouts", "FOLDER/runs/whole", "--where", "status=failed&sort=reward"),
            ),
            Subject(
                "rollouts with a text",
                greenward("rollouts", "FOLDER/runs/whole", "--where", "text=absent_everywhere"),
            ),
            Subject("report of the run", greenward("report", "FOLDER/runs/whole")),
            Subject("diagnose the run", greenward("diagnose", "FOLDER/runs/whole")),
            Subject("ui, five queries", here(show_in_ui)),
        ),
    ),
    Data(
        "answers of an evaluation",
        MILLION,
        make_evaluation,
        (
            Subject("show one answer", greenward("show", "task_7", "--in", "FOLDER/whole")),
            Subject("report of the evaluation", greenward("report", "FOLDER/whole")),
            Subject("compare both files", greenward("compare", "FOLDER/whole", "FOLDER/whole")),
        ),
    ),
    Data(
        "rows of metrics",
        MILLION,
        make_log,
        (
            Subject(
                "diagnose the log",
                greenward("diagnose", "FOLDER/runs/whole"),
                "n, of memory the larger of two: reading, and the tests, which hide it up to 100,000 rows",
            ),
            Subject("report of the log", greenward("report", "FOLDER/runs/whole")),
            Subject("ui, twelve curves", here(draw_in_ui)),
        ),
    ),
    Data(
        "problems",
        HUNDRED_THOUSAND,
        make_problems,
        (
            *(Subject(f"load {name}", here(load, name)) for name in ("JSON", "MBPP", "APPS")),
            Subject("shared and repeated", here(compare_with_held_out)),
            Subject("contamination", here(look_for_contamination)),
            Subject("compare, one each", here(compare_one_answer_each)),
            Subject("compare, ten each", here(compare_ten_answers_each)),
        ),
    ),
    Data(
        "answers, 100 programs in turn",
        HUNDRED_THOUSAND,
        partial(make_answers, distinct=100),
        (
            Subject("answers to others", here(read_unknown)),
            Subject("grade", greenward(*GRADE, "--overwrite")),
            Subject("grade again", greenward(*GRADE)),
            Subject("pass@k and all figures", here(estimate_pass_at_k)),
        ),
    ),
    Data(
        "answers, all different",
        HUNDRED_THOUSAND[:5],
        make_answers,
        (Subject("grade in the sandbox", greenward(*GRADE, "--overwrite")),),
    ),
    Data(
        "workers of the local pool",
        (1, 2, 3, 4, 6, 8),
        make_nothing,
        (Subject("2,000 answers", here(grade_by_workers)),),
    ),
    *(
        [
            Data(
                "workers of a Ray cluster",
                (1, 2, 3, 4, 6, 8),
                make_nothing,
                (Subject("2,000 answers by Ray", here(grade_by_ray, python=RAY_PYTHON)),),
            )
        ]
        if RAY_PYTHON.exists()
        else []
    ),
    Data(
        "tokens of a prompt",
        (64, 128, 256, 512, 1024, 2048, 4096),
        make_nothing,
        (
            Subject(
                "GRPO step by prompt",
                here(train_on_prompts),
                "n + n²: each token attends to all before it",
            ),
        ),
    ),
    Data(
        "answers of a group",
        (2, 4, 8, 16, 32, 64),
        make_nothing,
        (Subject("GRPO step by group", here(train_on_groups)),),
    ),
)


def measured(command: list[str]) -> tuple[float, float]:
    """(CPU seconds, peak MB) of a command and its children, which may find something or be unable to tell."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        seconds, kib = 0.0, 0
        try:
            while True:  # also for what its processes have left, such as spent workers of the sandbox
                pid, status, usage = os.wait4(-1, 0)
                seconds += usage.ru_utime + usage.ru_stime
                kib = max(kib, usage.ru_maxrss)
                if pid == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            pass
        finally:  # of an interrupted measurement
            if process.returncode is None:
                process.terminate()
                process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    answers = (0, 1, 2) if "CANNOT TELL" in text else (0, 1)
    if process.returncode not in answers or "Traceback" in text:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{text[-3000:]}")
    found = re.search(f"^{COSTS} (.*)$", text, re.MULTILINE)
    costs = {"seconds": seconds, "mb": kib / 1024} | (json.loads(found[1]) if found else {})
    return costs["seconds"], costs["mb"]


def points_of(data: Data, subjects: Sequence[Subject], largest: int) -> Iterator[dict[str, Any]]:
    """The record of each of these subjects of the data. The sizes take turns, since machines slow down."""
    sizes = [size for size in data.sizes if size <= largest]
    costs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="growth_") as temporary:
        folders = {size: Path(temporary, str(size)) for size in sizes}
        for size, folder in folders.items():
            folder.mkdir()
            place = str(SUBJECTS.index(data))
            subprocess.run([sys.executable, __file__, "--make", place, str(folder), str(size)], check=True)
        for _, (size, folder), subject in product(range(REPEATS), folders.items(), subjects):
            known = costs.setdefault((subject.name, size), [])
            if sum(seconds for seconds, _ in known) < REPEATED_BELOW:
                out = Path(tempfile.mkdtemp(dir=folder))
                known.append(measured(subject.command(folder, out, size)))
                rmtree(out)
                said = f"{subject.name:<45} {size:>9,} {known[-1][0]:9.2f} s {known[-1][1]:9.1f} MB"
                print(said, file=sys.stderr, flush=True)
    found = {
        subject.name: [tuple(map(min, zip(*costs[subject.name, size], strict=True))) for size in sizes]
        for subject in subjects
    }
    for subject in subjects:
        costs_of = dict(zip(("seconds", "mb"), zip(*found[subject.name], strict=True), strict=True))
        yield {
            "name": subject.name,
            "unit": data.unit,
            "law": subject.law,
            "sizes": sizes,
            **{
                what: {
                    "measured": [round(cost, 4) for cost in costs],
                    **asdict(fitted(sizes, costs, what)),
                }
                for what, costs in costs_of.items()
            },
        }


def too_fast(record: dict[str, Any]) -> bool:
    """Whether a cost of a subject without a law grows by an exponent above `MOST`, and surely above 1."""
    fits = [record[what] for what in ERRORS if record[what]["exponent"] is not None]
    return not record["law"] and any(one["exponent"] > MOST and one["low"] > 1 for one in fits)


def table(record: dict[str, Any]) -> str:
    """What was measured, as a table of Markdown."""
    lines = [
        "| | sizes | seconds | MB | exponent of time | of memory | law |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in record["subjects"]:
        largest = (one[what]["measured"][-1] for what in ERRORS)
        cells = [
            one["name"],
            f"{one['sizes'][0]:,} to {one['sizes'][-1]:,} {one['unit']}",
            *(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in largest),
            *(_exponent(one[what]) for what in ERRORS),
            one["law"] or "n",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _exponent(fit: dict[str, Any]) -> str:
    if fit["exponent"] is None:
        return "little growth"
    return f"{fit['exponent']:.2f} [{fit['low']:.2f}, {fit['high']:.2f}]"


PANEL, PANEL_HEIGHT, TITLE = 600, 230, 20


def picture(record: dict[str, Any]) -> str:
    """The points on logarithmic scales as an SVG file: a row for each unit, time beside memory."""
    from greenward.reports.document import Chart, Series
    from greenward.reports.svg import draw, style_sheet
    from greenward.reports.training import ROLES

    units = dict.fromkeys(one["unit"] for one in record["subjects"])
    parts = []
    for row, unit in enumerate(units):
        subjects = [one for one in record["subjects"] if one["unit"] == unit]
        for column, (what, said) in enumerate((("seconds", "CPU seconds"), ("mb", "MB at the peak"))):
            series = tuple(
                Series(
                    one["name"] if len(subjects) > 1 else "",
                    ROLES[place % len(ROLES)],
                    tuple(
                        (math.log10(n), cost)
                        for n, cost in zip(one["sizes"], one[what]["measured"], strict=True)
                    ),
                    hints=tuple(
                        f"{n:,} {unit}: {cost:.3g}"
                        for n, cost in zip(one["sizes"], one[what]["measured"], strict=True)
                    ),
                )
                for place, one in enumerate(subjects)
            )
            chart = Chart(f"{said} by {unit}", f"{unit}, log10", series, log=True)
            x, y = column * PANEL, row * (PANEL_HEIGHT + TITLE)
            size = f'x="{x}" y="{y + TITLE}" width="{PANEL - 10}" height="{PANEL_HEIGHT}"'
            parts.append(f'<text class="label" x="{x + 10}" y="{y + 14}">{said} by {unit}</text>')
            parts.append(str(draw(chart, PANEL - 10, PANEL_HEIGHT)).replace("<svg ", f"<svg {size} ", 1))
    box = f'viewBox="0 0 {2 * PANEL} {len(units) * (PANEL_HEIGHT + TITLE)}"'
    paper = '<rect class="paper" width="100%" height="100%"/>'
    start = f'<svg class="chart" {box} role="img" xmlns="http://www.w3.org/2000/svg">'
    return f"{start}<style>{style_sheet()}</style>{paper}{''.join(parts)}</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="subjects whose name or unit holds this")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--json", type=Path, help="keep all numbers here")
    parser.add_argument("--svg", type=Path, help="keep the picture here")
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        place, folder, size = options.make
        SUBJECTS[int(place)].make(Path(folder), int(size))
        return
    if options.run:
        work, folder, size, *arguments = options.run
        globals()[work](Path(folder), int(size), *arguments)
        return
    chosen = [
        (data, subjects)
        for data in SUBJECTS
        if data.sizes[0] <= options.largest
        and (subjects := [one for one in data.subjects if options.only in f"{one.name}, {data.unit}"])
    ]
    if not chosen:
        parser.error(f"no subject has --only {options.only!r} and a size up to --largest {options.largest}")
    for file in filter(None, (options.json, options.svg)):
        if not file.parent.is_dir():
            parser.error(f"{file.parent} is no folder")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    records: list[dict[str, Any]] = []
    for data, subjects in chosen:
        records += points_of(data, subjects, options.largest)
    record = {"cpus": os.cpu_count(), "python": platform.python_version(), "subjects": records}
    print(table(record))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.svg:
        options.svg.write_text(picture(record), encoding="utf-8")
    fast = [one["name"] for one in records if too_fast(one)]
    if fast:
        print(f"above {MOST} without a law: {', '.join(fast)}")
    raise SystemExit(int(bool(fast)))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
