"""Planted overlaps between a training set and an evaluation set are found, and nothing else."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from greenward.evaluation.contamination import N, contamination
from greenward.problems.catalog import load_file
from greenward.problems.problem import Problem, ProblemSet

REFERENCE = '''
def running_total(numbers, start=0):
    """Sums so far."""
    totals = []
    for number in numbers:
        start += number
        totals.append(start)
    return totals
'''
RENAMED = """
import math  # unused

def accumulate(xs: list[int], t=0) -> list[int]:
    # the same in other words
    out = []
    for x in xs:
        t += x
        out.append(t)
    return out
"""
WORDS = [f"word{i}" for i in range(1000)]


def words(seed, count=30):
    return " ".join(random.Random(seed).sample(WORDS, count))


def problem(task_id, prompt, reference="", **fields):
    return Problem(task_id, prompt, "f", reference=reference, **fields)


def one(train, evaluated):
    """The only overlap found; None if there is none."""
    found = contamination(train, ProblemSet([evaluated, problem("clean", words(99))])).overlaps
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("kind", ["problem", "text"])
def test_the_same_specification_is_found_whatever_its_spacing_and_case(kind):
    prompt = words(1)
    copy = "  ".join(prompt.upper().split())
    overlap = one([problem("t/3", copy) if kind == "problem" else copy], problem("e/1", prompt))
    assert overlap.exact == ("t/3" if kind == "problem" else "text 1")
    assert overlap.text_share == 1.0


def test_a_renamed_program_is_found_by_its_tree_only():
    overlap = one([problem("t/1", words(1), RENAMED)], problem("e/1", words(2), REFERENCE))
    assert (overlap.same_program, overlap.exact, overlap.text_share) == ("t/1", None, 0.0)


def test_a_program_is_found_inside_a_longer_text():
    text = f"import os\n\ndef other():\n    return os.sep\n\n{RENAMED}"
    assert one(["prose", text], problem("e/1", words(2), REFERENCE)).same_program == "text 2"


@pytest.mark.parametrize(
    ("old", "new"),
    [("start += number", "start -= number"), ("totals.append", "totals.extend"), ("start=0", "start=1")],
)
def test_a_program_that_does_something_else_is_not_the_same(old, new):
    overlap = one([problem("t/1", "", REFERENCE.replace(old, new))], problem("e/1", words(2), REFERENCE))
    assert overlap.same_program is None  # though they share 13-grams


def test_swapped_names_make_another_program():
    ours = "def f(a, b):\n    c = a - b\n    return (a, b, c, a * a, b + 1)\n"
    swapped = "def f(a, b):\n    c = b - a\n    return (a, b, c, a * a, b + 1)\n"
    overlap = one([problem("t/1", "", swapped)], problem("e/1", words(2), ours))
    assert overlap is None or overlap.same_program is None


def test_tiny_programs_are_alike_by_chance_and_not_reported():
    train = problem("t/1", words(1), "def add(a, b):\n    return a + b\n")
    assert one([train], problem("e/1", words(2), "def plus(x, y):\n    return x + y\n")) is None


def test_the_share_of_13_grams_is_exact():
    evaluated = words(1, count=40)  # 28 grams
    overlap = one([f"intro {' '.join(evaluated.split()[5:25])} end"], problem("e/1", evaluated))
    assert overlap.text_share == pytest.approx((20 - N + 1) / (40 - N + 1))
    assert (overlap.exact, overlap.nearest, overlap.code_share) == (None, "text 1", None)


def test_twelve_words_in_common_are_no_overlap():
    evaluated = words(1)
    assert one([" ".join(evaluated.split()[:12])], problem("e/1", evaluated)) is None
    assert one([" ".join(evaluated.split()[:13])], problem("e/1", evaluated)) is not None


def test_shares_and_counts_agree_with_brute_force():
    rng = random.Random(4)
    vocabulary = ["a", "b"]  # so few that 13-grams meet by chance
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(5, 60))) for _ in range(60)]
    train, evaluated = texts[:30], texts[30:]

    def grams(text):
        tokens = text.split()
        return [" ".join(tokens[i : i + N]) for i in range(len(tokens) - N + 1)]

    shown = {gram for text in train for gram in grams(text)}
    expected = {
        f"e/{i}": sum(gram in shown for gram in grams(text)) / len(grams(text))
        for i, text in enumerate(evaluated)
        if grams(text)
    }
    problems = ProblemSet(problem(f"e/{i}", text) for i, text in enumerate(evaluated))
    found = contamination(train, problems)
    shares = {overlap.task_id: overlap.text_share for overlap in found.overlaps}
    assert shares == {task_id: share for task_id, share in expected.items() if share > 0}
    assert found.counts["most_13grams"] == sum(share >= 0.8 for share in expected.values())


def test_the_report_is_plain_data_with_counts_and_rates():
    problems = ProblemSet([problem("e/1", words(1)), problem("e/2", words(2))], name="suite")
    found = contamination([words(1), words(3)], problems)
    assert json.loads(json.dumps(found.to_json()))["rates"]["exact"] == 0.5
    assert found.summary == (
        "contamination: of 2 problems, 2 training items hold 1 exactly, 0 by an equal program, "
        "1 by most of their 13-grams, 1 by any 13-gram"
    )


def test_the_worst_overlap_comes_first():
    problems = ProblemSet([problem("part", words(1)), problem("whole", words(2))])
    found = contamination([" ".join(words(1).split()[:20]), words(2)], problems)
    assert [overlap.task_id for overlap in found.overlaps] == ["whole", "part"]


def test_texts_that_are_no_program_or_nested_deeply_do_no_harm():
    deep = "x = " + "+".join(["1"] * 3000)
    assert one([deep, "(" * 5000, "\x00", "x = 0x" + "f" * 9000, ""], problem("e/1", words(1), deep))


HELPER = """
def normalised(words, lowest=2):
    \"\"\"Words that count.\"\"\"
    kept = [word.strip().lower() for word in words]
    return sorted(word for word in kept if len(word) >= lowest)
"""
HEAD = "class Index:\n    def __init__(self, words):\n        self.words = words\n"
METHOD = """
    def {name}(self):
        \"\"\"{said}\"\"\"
        {counts} = {{}}
        for one in normalised(self.words):
            {counts}[one] = {counts}.get(one, 0) + {step}
        return {counts}
"""


def method(name, said, step, counts="counts"):
    return METHOD.format(name=name, said=said, step=step, counts=counts)


def in_file(task_id, asked, *others, entry_point):
    """A problem that asks for one method of a file; the helper and the other methods are given."""
    code = "".join((HELPER, HEAD, asked, *others))
    start = asked.index('"""\n') + 4
    files = {"index.py": code.replace(asked, f"{asked[:start]}        raise NotImplementedError\n")}
    prompt = asked.split('"""')[1]
    fields = {"path": "index.py", "files": files, "reference": code}
    return Problem(task_id, prompt, f"Index.{entry_point}", **fields)


ASKED = in_file("e/1", method("counted", words(1), step=1), entry_point="counted")


def test_what_a_file_gives_beside_the_function_asked_for_is_no_overlap():
    train = in_file("t/1", method("tallied", words(2), step=2), entry_point="tallied")
    overlap = one([train, HELPER], ASKED)  # the helper and the head of the class are the same
    assert (overlap.exact, overlap.same_program, overlap.text_share) == (None, None, 0.0)
    assert overlap.code_share < 1  # the 13-grams around the number differ


@pytest.mark.parametrize("place", ["asked for", "given", "in a text"])
def test_a_method_is_found_wherever_training_shows_it(place):
    copy = method("tallied", words(2), step=1, counts="found")
    other = method("weighed", words(3), step=5)
    train = {
        "asked for": in_file("t/1", copy, other, entry_point="tallied"),
        "given": in_file("t/1", other, copy, entry_point="weighed"),
        "in a text": f"import os\n{HEAD}{copy}",
    }[place]
    overlap = one([train], ASKED)
    name = "text 1" if place == "in a text" else "t/1"
    assert (overlap.exact, overlap.same_program) == (None, name)


def test_the_same_function_in_another_file_is_exact():
    asked = method("counted", words(1), step=1)
    train = in_file("t/1", asked, method("weighed", words(3), step=5), entry_point="counted")
    train = replace(train, prompt=words(4))
    assert one([train], ASKED).exact == "t/1"


def test_the_copies_within_mbpp_are_those_that_its_own_rows_show():
    path = Path(__file__).parents[3] / "shared" / "data" / "mbpp" / "mbpp.jsonl"
    if not path.exists():
        pytest.skip("MBPP is not on this machine")
    flat = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        flat[row["task_id"]] = {" ".join(row[name].lower().split()) for name in ("text", "code")}
    train, test = range(601, 975), range(11, 511)
    copies = {f"Mbpp/{i}" for i in test if any(flat[i] & flat[j] for j in train)}

    mbpp = load_file(path)
    training = [mbpp.by_id(f"Mbpp/{i}") for i in train]
    found = contamination(training, mbpp.filter(lambda one: int(one.task_id.split("/")[1]) in test))
    assert {overlap.task_id for overlap in found.overlaps if overlap.exact} == copies != set()
