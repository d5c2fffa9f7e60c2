"""Suites by name: where their files are looked for, what comes from the hub, and how files are told apart."""

from __future__ import annotations

import ast
import gzip
import hashlib
import itertools
import json
import random
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader
from greenward.problems import catalog
from greenward.problems.catalog import SUITES, PinnedFile, cache_folder, formats, load_file, load_suite
from greenward.problems.problem import Assertion, Case, Check, InProcess, StdioCase
from greenward.problems.rows import Row

MBPP = {"text": "Double.", "code": "def f(x):\n  return 2 * x", "test_list": ["assert f(1) == 2"]}
MBPP |= {"test_setup_code": "", "challenge_test_list": []}
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": "def f(x):\n    '''Double.'''\n", "entry_point": "f",
    "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(1) == 2\n",
}  # fmt: skip
EVALPLUS = HUMANEVAL | {"base_input": [[1]], "plus_input": [[2]], "atol": 0}


@pytest.fixture(autouse=True)
def only_this_cache(tmp_path, monkeypatch):
    for variable in ("GREENWARD_DATA", "MBPP_DATASET_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GREENWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the library `datasets`; `requests` are the calls that it got."""

    class Hub(types.ModuleType):
        content = b""

        def __init__(self, name):
            super().__init__(name)
            self.requests = []

        def load_dataset(self, *args, **options):
            self.requests.append((*args, options))
            return [{"task_id": 601 + len(self.requests), **MBPP}]

        def DownloadManager(self):
            return self

        def download(self, url):
            self.requests.append((url,))
            path = cache_folder().parent / "download"
            path.write_bytes(self.content)
            return str(path)

    module = Hub("datasets")
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_path_comes_first(lines):
    path = lines({"task_id": 700, **MBPP})
    problems = load_suite("mbpp", path=path)
    assert (problems.name, problems[0].task_id) == ("mbpp", "Mbpp/700")


def test_own_variable_comes_before_the_data_folder(lines, tmp_path, monkeypatch):
    lines({"task_id": 601, **MBPP}, name="mbpp.jsonl")
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))
    assert load_suite("mbpp")[0].task_id == "Mbpp/601"
    monkeypatch.setenv("MBPP_DATASET_PATH", str(lines({"task_id": 602, **MBPP})))
    assert load_suite("mbpp")[0].task_id == "Mbpp/602"
    monkeypatch.setenv("MBPP_DATASET_PATH", "/nowhere")
    with pytest.raises(ProblemError, match="MBPP_DATASET_PATH names /nowhere, which does not exist"):
        load_suite("mbpp")


def test_data_folder_may_hold_a_folder_for_each_suite(lines, tmp_path, monkeypatch):
    (tmp_path / "humaneval").mkdir()
    lines(HUMANEVAL, name="humaneval/HumanEval.jsonl")
    monkeypatch.setenv("GREENWARD_DATA", str(tmp_path))
    assert load_suite("humaneval")[0].task_id == "HumanEval/0"


def test_parts(lines):
    path = lines({"task_id": 20, **MBPP}, {"task_id": 601, **MBPP})
    problems = load_suite("mbpp:train", path=path)
    assert (problems.name, [p.task_id for p in problems]) == ("mbpp:train", ["Mbpp/601"])
    with pytest.raises(ProblemError, match=r"no part 'trian'.\n.*prompt, test, validation, train"):
        load_suite("mbpp:trian", path=path)
    with pytest.raises(ProblemError, match="no problem lies in this part"):
        load_suite("humaneval:test", path=lines(HUMANEVAL))


def test_hub_is_asked_once_for_a_pinned_revision(hub, monkeypatch):
    problems = load_suite("mbpp")
    assert [request[:2] for request in hub.requests] == [("google-research-datasets/mbpp", "full")] * 4
    assert [request[2]["split"] for request in hub.requests] == ["prompt", "test", "validation", "train"]
    assert {len(request[2]["revision"]) for request in hub.requests} == {40}
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert list(load_suite("mbpp")) == list(problems)  # from the cache, without library or network
    assert len(hub.requests) == 4


def test_downloaded_file_must_have_its_hash(hub, monkeypatch):
    with pytest.raises(
        ProblemError, match=r"humaneval\+: https://\S+/HumanEvalPlus.jsonl.gz gave a file with"
    ):
        load_suite("humaneval+")
    hub.content = gzip.compress(json.dumps(EVALPLUS).encode())
    pinned = PinnedFile("https://example.org/x.jsonl.gz", hashlib.sha256(hub.content).hexdigest())
    suite = replace(SUITES["humaneval+"], source=pinned)
    monkeypatch.setattr(catalog, "SUITES", {"humaneval+": suite})
    for _ in range(2):
        assert load_suite("humaneval+")[0].base_tests == 1
    assert len(hub.requests) == 2  # the file with the wrong hash, and the right one


@pytest.mark.parametrize("name", sorted(SUITES))
def test_without_file_and_library_the_remedy_names_both(name):
    with pytest.raises(ProblemError) as caught:
        load_suite(name)
    assert SUITES[name].files[0] in str(caught.value)
    assert "GREENWARD_DATA" in str(caught.value)
    assert ("greenward[hub]" in str(caught.value)) is (SUITES[name].source is not None)


def test_unreachable_hub_is_one_clear_error(hub):
    hub.load_dataset = lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route\nto host"))
    with pytest.raises(ProblemError, match=r"mbpp: could not be fetched \(ConnectionError: no route\)"):
        load_suite("mbpp")
    assert not (cache_folder() / "suites").exists()


@pytest.mark.parametrize(
    ("row", "task_id"),
    [
        ({"task_id": 601, **MBPP}, "Mbpp/601"),
        (HUMANEVAL, "HumanEval/0"),
        (EVALPLUS, "HumanEval/0"),
        ({"question": "?", "input_output": {"inputs": ["1"], "outputs": ["1"]}}, "Taco/0"),
        ({"function_name": "add", "docstring": "Add.", "test_cases": [[1, 2, 3]]}, "add"),
    ],
)
def test_format_of_a_file_is_told_by_its_fields(lines, row, task_id):
    problems = load_file(lines(row))
    assert [problem.task_id for problem in problems] == [task_id]
    assert load_suite(str(lines(row))).data_hash == problems.data_hash


def test_torn_archive_is_named(tmp_path: Path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(ProblemError, match=r"x\.jsonl\.gz: not a whole gzip file"):
        load_file(path)


SUM = "print(sum(map(int, input().split())))\n"
ADD = "def add(a, b):\n    return a + b\n"
METHOD = "class Solution:\n    def add(self, a, b):\n        return [a, *b]\n"
STDIN = {"input": "1 2\n", "output": "3\n"}
LIVE = {"input": "1\n[2]", "output": "[1, 2]", "testtype": "functional", "metadata": {"func_name": "add"}}
KODCODE = {
    "version": "v1.0", "style": "instruct", "subset": "Own", "question_id": "Own_1_I",
    "question": "Write `add`.", "solution": ADD,
    "test": "from solution import add\nimport pytest\n\nLARGE = 10**20\n\ndef test_one():\n"
    "    assert add(1, 2) == 3\n\ndef test_text():\n    with_text = add('a', 'b')\n"
    "    assert with_text == 'ab' and add(LARGE, 0) == LARGE\n\n"
    "if __name__ == '__main__':\n    pytest.main()\n",
    "test_info": [{"function_name": "add", "function_declaration": "def add(a, b):", "docstring": "Add."}],
    "gpt_difficulty": "easy",
}  # fmt: skip
BIGCODEBENCH = {
    "task_id": "BigCodeBench/9000", "complete_prompt": 'import random\n\ndef task_func(n):\n    """Draw."""\n',
    "instruct_prompt": "Draw.", "canonical_solution": "    return random.randint(0, n)\n",
    "code_prompt": "import random\ndef task_func(n):\n", "entry_point": "task_func", "libs": "['random']",
    "test": "import unittest\nfrom unittest.mock import patch\n\nclass TestCases(unittest.TestCase):\n"
    "    @patch('random.randint', return_value=3)\n    def test_case_1(self, draw):\n"
    "        self.assertEqual(task_func(5), 3)\n    def test_case_2(self):\n"
    "        random.seed(0)\n        self.assertLessEqual(task_func(1), 1)\n",
}  # fmt: skip
ACECODE = {
    "id": "own_0", "source": "own", "question": "Write `add(a, b)`.", "inferences": [], "context_messages": [],
    "test_cases": ["assert add(1, 2) == 3", "assert abs(add(1, 0.5) - 1.5) < 1e-6", "assert len([add(1, 1)]) == 1"],
}  # fmt: skip
CODE_CONTESTS = {
    "name": "9999_A. Sum", "description": "Add.", "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
    "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["2 2\n"], "output": ["4\n"]}, "source": 2, "difficulty": 7,
    "solutions": {"language": [2, 1, 3], "solution": ["int main() {}", "print 3", SUM]},
    "time_limit": {"seconds": 2, "nanos": 500_000_000}, "input_file": "", "output_file": "",
}  # fmt: skip
CODEFORCES = {
    "id": "9999/A", "title": "Sum", "description": "Add.", "input_format": "Two.", "output_format": "One.",
    "interaction_format": None, "note": None, "examples": [STDIN], "official_tests": [STDIN],
    "input_mode": "stdio", "generated_checker": None, "time_limit": 2.0, "tags": ["math"],
}  # fmt: skip
DEEPCODER = {
    "problem": "Add.",
    "tests": json.dumps({"inputs": ["1 2"], "outputs": ["3"]}),
    "solutions": [SUM],
}
OPEN_R1 = {
    "source": "own", "task_type": "verifiable_code", "problem": "Add.", "problem_id": "vfc_1",
    "gold_standard_solution": f"```python\n{SUM}```",
    "verification_info": {
        "language": "python", "test_cases": [{**STDIN, "fn_name": None, "type": "stdin_stdout"}],
    },
}  # fmt: skip
VERL = {
    "data_source": "taco", "ability": "code", "extra_info": {"index": 0, "reference": SUM},
    "prompt": [{"role": "system", "content": "Obey."}, {"role": "user", "content": "Add."}],
    "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})},
}  # fmt: skip
WITH_ADD = VERL | {"extra_info": {"reference": ADD}}
ADD_METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
FUNCTIONAL = (
    "_inputs = [[1, 2], [3, 4]]\n_outputs = [[3], [7]]\nimport math\n\ndef _equal(a, b):\n"
    "    return math.isclose(a, b)\n\nfor i, o in zip(_inputs, _outputs):\n    assert _equal(add(*i), o[0])\n"
)
# One row of each format, by the key of the format.
ROWS = {
    "evalplus": EVALPLUS,
    "humanevalpack": HUMANEVAL | {
        "task_id": "Python/0", "declaration": "def f(x):\n", "buggy_solution": "    return x\n", "bug_type": "",
    },
    "humaneval-x": {name: HUMANEVAL[name] for name in set(HUMANEVAL) - {"entry_point"}} | {
        "task_id": "Python/0", "declaration": "def f(x):\n",
    },
    "multipl-e": {
        "name": "f", "language": "py", "prompt": "def f(x):\n    '''Double.'''\n",
        "tests": "def check(c):\n    assert c(1) == 2\n",
    },
    "humaneval": HUMANEVAL,
    "mbpp": {"task_id": 601, **MBPP},
    "bigcodebench": BIGCODEBENCH,
    "kodcode": KODCODE,
    "acecode": ACECODE,
    "livecodebench": {
        "question_id": "1", "question_content": "Add.", "starter_code": "", "metadata": "{}",
        "public_test_cases": json.dumps([STDIN | {"testtype": "stdin"}]), "private_test_cases": "[]",
    },
    "apps": {"question": "Add.", "input_output": {"inputs": ["1 2"], "outputs": ["3"]}, "solutions": json.dumps([SUM])},
    "code-contests": CODE_CONTESTS,
    "deepcoder": DEEPCODER,
    "open-r1": OPEN_R1,
    "codeforces": CODEFORCES,
    "verl": VERL,
    "swe-bench": dict.fromkeys(
        ("instance_id", "repo", "base_commit", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS"), ""
    ),
    "sven": {"func_src_before": "a", "func_src_after": "b", "vul_type": "cwe-089"},
    "primevul": {"func": "a", "target": 1, "cwe": ["CWE-89"]},
    "pairs": {"vulnerable": "a", "fixed": "b", "cwe": "CWE-89"},
    "json": {"function_name": "add", "docstring": "Add.", "test_cases": [[1, 2, 3]]},
}  # fmt: skip
WITHOUT_PROBLEMS = ("swe-bench", "primevul")  # of a single row: they need a clone, and the other version


def test_no_row_of_a_format_is_taken_for_another():
    assert ROWS.keys() == {one.key for one in formats()}
    for key, values in ROWS.items():
        row = Row(Path("rows.jsonl"), 1, 1, values)
        assert [one.key for one in formats() if one.fits(row)] == [key]


def test_tables_of_several_data_sets_have_null_where_a_row_has_no_value(lines):
    fields = [field for one in formats() for field in one.fields + one.foreign]
    everything = dict.fromkeys(name for field in fields for name in field.split("|"))
    for key in set(ROWS) - set(WITHOUT_PROBLEMS) - {"json"}:  # which has no fields that it does not know
        assert list(load_file(lines(everything | ROWS[key]))) == list(load_file(lines(ROWS[key])))


def test_starters_hold_questions_with_what_ends_a_docstring(lines):
    question = 'Print """ and \\n with \\ at the end"'
    for row in (ACECODE, KODCODE):
        (problem,) = load_file(lines(row | {"question": question}))
        texts = [
            node.value for node in ast.walk(ast.parse(problem.starter_code)) if isinstance(node, ast.Constant)
        ]
        assert any(question in text for text in texts)


def test_a_row_that_fits_two_formats_is_refused_by_their_names_unless_one_is_chosen(lines):
    refused = 0
    for one, other in itertools.permutations(set(ROWS) - set(WITHOUT_PROBLEMS), 2):
        values = ROWS[other] | ROWS[one]
        row = Row(Path("rows.jsonl"), 1, 1, values)
        fitting = [form for form in formats() if form.fits(row)]
        path = lines(values)
        if len(fitting) > 1:
            with pytest.raises(ProblemError) as caught:
                load_file(path)
            for form in fitting:
                assert f"{form.name} ({form.fields_text})" in caught.value.message
                assert f"{form.key}:FILE" in caught.value.remedy
            refused += 1
    assert refused > 200
    both = lines(ROWS["acecode"] | ROWS["livecodebench"])
    assert load_suite(f"livecodebench:{both}")[0].task_id == "LiveCodeBench/1"
    assert load_suite(f"acecode:{both}")[0].task_id == "AceCode/own_0"
    with pytest.raises(ProblemError, match="'input_output' is empty"):
        load_suite(f"apps:{both}")


def test_a_row_of_another_format_than_those_before_is_a_bad_row(lines):
    path = lines(KODCODE, ACECODE)
    with pytest.raises(ProblemError, match=r"row 2 \(line 2\).* is one of AceCode, while .* are of KodCode"):
        load_file(path)
    found = load_file(path, skip_bad_rows=True)
    assert [problem.task_id for problem in found] == ["KodCode/Own_1_I"]
    assert len(found.skipped) == 1


@pytest.mark.parametrize("key", sorted(set(ROWS) - set(WITHOUT_PROBLEMS)))
def test_what_is_missing_of_the_nearest_format_is_named(lines, key):
    (form,) = (one for one in formats() if one.key == key)
    load_file(lines(ROWS[key]))
    for field in form.fields:
        values = {name: value for name, value in ROWS[key].items() if name not in field.split("|")}
        with pytest.raises(ProblemError) as caught:
            load_file(lines(values))
        assert " or ".join(map(repr, field.split("|"))) in caught.value.message
        assert f"This row has: {', '.join(sorted(values))}." in caught.value.message


def test_a_row_with_fields_of_no_format_lists_them(lines):
    with pytest.raises(ProblemError, match=r"it has no field of a supported format; it has a, b\."):
        load_file(lines({"a": 1, "b": 2}))
    with pytest.raises(ProblemError, match="Is 'functoin_name' meant to be 'function_name'") as caught:
        load_file(lines({"functoin_name": "add", "docstring": "Add.", "test_cases": [[1, 2, 3]]}))
    assert "of the simple JSON format it lacks 'function_name'" in caught.value.message


VALUES = (
    None,
    "",
    "x",
    "[",
    "{}",
    "[]",
    "[1]",
    "{'a': 1}",
    0,
    -1,
    True,
    1.5,
    [],
    [1],
    [None],
    [{}],
    {},
    {"a": 1},
)


@pytest.mark.parametrize("seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))])
def test_rows_with_other_fields_and_values_are_problems_or_clear_errors(lines, seed):
    draw = random.Random(seed)
    for key, values in ROWS.items():
        for _ in range(40):
            row = json.loads(json.dumps(values))
            for name in draw.sample(sorted(row), k=draw.randint(1, 2)):
                inner = (
                    row[name] if isinstance(row[name], dict) and row[name] and draw.random() < 0.5 else row
                )
                inner[draw.choice(sorted(inner)) if inner is not row else name] = draw.choice(VALUES)
                if draw.random() < 0.3:
                    row.pop(name)
            for source in (f"{lines(row)}", f"{key}:{lines(row)}"):
                try:
                    assert len(load_suite(source)) > 0
                except ProblemError as error:
                    assert "rows.jsonl" in error.message


@pytest.fixture(scope="module")
def judge():
    with Grader(workers=1) as grader:
        yield lambda problem, *codes: [
            verdict.status.value for verdict in grader.grade([(problem, code) for code in codes])
        ]


CLASS_TEST = "from solution import Pile\n\ndef test_pile():\n    pile = Pile()\n    pile.push(4)\n    assert pile.pop() == 4\n"
PILE = (
    "class Pile:\n    def __init__(self):\n        self.push, self.pop = (values := []).append, values.pop\n"
)
IN_PLACE = (
    "from solution import sort\n\ndef test_sort():\n    xs = [2, 1]\n    sort(xs)\n    assert xs == [1, 2]\n"
)
CALL = [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]
# (row, kind of the tests and their number, time limit of a test, answer that passes, answer that does not)
JUDGED = {
    "KodCode": (KODCODE, Check, 2, 0, ADD, ADD.replace("+", "-")),
    "KodCode, a class": (KODCODE | {"solution": PILE, "test": CLASS_TEST}, InProcess, 1, 0, PILE, "class Pile: pass"),
    "KodCode, in place": (
        KODCODE | {"solution": "def sort(xs):\n    xs.sort()\n", "test": IN_PLACE}, InProcess, 1, 0,
        "def sort(xs):\n    xs.sort()\n", "def sort(xs):\n    return sorted(xs)\n",
    ),
    "AceCode": (ACECODE, Assertion, 3, 0, ADD, ADD.replace("+", "-")),
    "BigCodeBench": (
        BIGCODEBENCH, InProcess, 2, 0, BIGCODEBENCH["complete_prompt"] + BIGCODEBENCH["canonical_solution"],
        "import random\ndef task_func(n):\n    return 0\n",
    ),
    "CodeContests": (CODE_CONTESTS, StdioCase, 2, 2.5, SUM, "print(3)"),
    "CodeContests, lists": (
        CODE_CONTESTS | {"public_tests": [STDIN], "private_tests": [], "generated_tests": None, "solutions": None},
        StdioCase, 1, 2.5, SUM, "print(4)",
    ),
    "Codeforces": (CODEFORCES, StdioCase, 1, 2.0, SUM, "print(4)"),
    "DeepCoder, TACO": (DEEPCODER, StdioCase, 1, 4.0, SUM, "print(4)"),
    "DeepCoder, SYNTHETIC-1": (
        DEEPCODER | {"tests": json.dumps(CALL), "solutions": [f"```python\n{ADD}```"]}, Case, 1, 4.0, ADD, "x = 1",
    ),
    "DeepCoder, LiveCodeBench": (
        DEEPCODER | {"tests": json.dumps([LIVE]), "solutions": [METHOD]}, Case, 1, 6.0, METHOD,
        METHOD.replace("a, *b", "*b, a"),
    ),
    "DeepCoder, Codeforces": (DEEPCODER | {"tests": json.dumps([STDIN])}, StdioCase, 1, 4.0, SUM, "print(4)"),
    "open-r1": (OPEN_R1, StdioCase, 1, 4.0, SUM, "print(4)"),
    "SYNTHETIC-1, as Python writes it": (
        OPEN_R1 | {"problem": None, "prompt": "Add.", "verification_info": str(OPEN_R1["verification_info"])},
        StdioCase, 1, 4.0, SUM, "print(4)",
    ),
    "verl": (VERL, StdioCase, 1, 4.0, SUM, "print(4)"),
    "verl, a function": (
        WITH_ADD | {"reward_model": {"ground_truth": {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}}},
        Case, 1, 4.0, ADD, "x = 1",
    ),
    "verl, assertions": (
        WITH_ADD | {"reward_model": {"ground_truth": json.dumps({"assert_case": ["assert add(1, 2) == 3"]})}},
        Assertion, 1, 4.0, ADD, ADD.replace("+", "-"),
    ),
    "verl, a list of assertions": (
        WITH_ADD | {"reward_model": {"ground_truth": json.dumps(["assert add(1, 2) == 3", "assert add(0, 2) == 2"])}},
        Assertion, 2, 4.0, ADD, ADD.replace("+", "-"),
    ),
    "verl, a program": (
        WITH_ADD | {"reward_model": {"ground_truth": json.dumps({"functional": FUNCTIONAL})}},
        Check, 1, 4.0, ADD, ADD.replace("+", "-"),
    ),
    "verl, a program for a method": (
        VERL | {"extra_info": {"reference": ADD_METHOD}, "reward_model": {"ground_truth": json.dumps({
            "functional": "def check(candidate):\n    assert candidate(a=1, b=2) == 3\n\ncheck(Solution().add)"
        })}},
        Check, 1, 4.0, ADD_METHOD, ADD_METHOD.replace("+", "-"),
    ),
    "AceCode 2": (
        {**{name: value for name, value in ACECODE.items() if name != "test_cases"}, "tests": ACECODE["test_cases"]},
        Assertion, 3, 0, ADD, ADD.replace("+", "-"),
    ),
    "verl, pytest": (
        WITH_ADD | {"prompt": "Add.", "reward_model": {"ground_truth": json.dumps({"pytest": KODCODE["test"]})}},
        Check, 2, 4.0, ADD, ADD.replace("+", "-"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", JUDGED)
def test_rows_of_data_sets_for_training_are_judged_by_all_of_their_tests(lines, judge, what):
    row, kind, count, seconds, right, wrong = JUDGED[what]
    (problem,) = load_file(lines(row))
    assert [type(test) for test in problem.tests] == [kind] * count
    assert problem.test_seconds == seconds
    assert "Add" in problem.prompt + problem.starter_code or what.startswith(
        ("KodCode", "AceCode", "BigCode")
    )
    assert judge(problem, right)[0] == "passed"
    assert judge(problem, wrong)[0] != "passed"
    if problem.reference:
        assert judge(problem, problem.reference) == ["passed"]


def test_pytest_runs_tests_that_use_its_parameters(lines):
    pytest.importorskip("pytest")
    test = (
        "import pytest\nfrom solution import add\n\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), (2, 2, 4)])\n"
        "def test_add(a, b, c):\n    assert add(a, b) == c\n\ndef test_error():\n"
        "    with pytest.raises(TypeError):\n        add(1, '')\n"
    )
    (problem,) = load_file(lines(KODCODE | {"test": test}))
    with Grader(workers=1, packages=("pytest",)) as grader:
        verdicts = grader.grade([(problem, ADD), (problem, ADD.replace("a + b", "3"))])
    assert [verdict.tests_passed for verdict in verdicts] == [(True, True), (False, False)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROWS["apps"] | {"input_output": ""}, "'input_output' is empty: nothing would judge"),
        (ROWS["apps"] | {"input_output": None}, "'input_output' is empty: nothing would judge"),
        (DEEPCODER | {"tests": "[]"}, "'tests' is empty"),
        (DEEPCODER | {"tests": "7"}, "'tests' holds no tests, but 7"),
        (DEEPCODER | {"tests": json.dumps([*CALL, CALL[0] | {"fn_name": "sub"}])}, "several functions: add, sub"),
        (OPEN_R1 | {"verification_info": {"language": "cpp", "test_cases": [STDIN]}}, "asks for 'cpp'; only Python"),
        (OPEN_R1 | {"verification_info": {"language": "python"}}, "'verification_info' must be an object with"),
        (CODEFORCES | {"official_tests": []}, "'official_tests' is empty"),
        (CODEFORCES | {"generated_checker": "import sys"}, "'generated_checker' is a program that judges"),
        (CODEFORCES | {"interaction_format": "Ask."}, "'interaction_format' asks for a program that talks"),
        (CODEFORCES | {"input_mode": "file"}, "'input_mode' is 'file'"),
        (CODEFORCES | {"time_limit": -1}, "'time_limit' must be seconds from 0 to 300, found -1"),
        (CODE_CONTESTS | {"input_file": "in.txt"}, "'input_file' is 'in.txt'"),
        (CODE_CONTESTS | {"public_tests": {"input": ["1"], "output": []}}, "'public_tests' must be a list of"),
        (VERL | {"reward_model": {"ground_truth": "42"}}, "'reward_model' holds no tests, but 42"),
        (VERL | {"prompt": [{"role": "system", "content": "x"}]}, "'prompt' must be text, or messages"),
        (ACECODE | {"test_cases": []}, "'test_cases' is empty"),
        (VERL | {"reward_model": {"ground_truth": {"test_code": "x"}}}, "inputs and outputs, .* found test_code"),
        (
            VERL | {"reward_model": {"ground_truth": {"functional": "def check(candidate):\n    pass\n"}}},
            "must call one function of the answer, found none",
        ),
        (
            VERL | {"reward_model": {"ground_truth": {"functional": "assert add(1) == sub(2)"}}},
            "must call one function of the answer, found add, sub",
        ),
        (ACECODE | {"test_cases": ["x = 1"]}, "something else than an assert statement in test 1"),
        (ACECODE | {"test_cases": ["assert len([]) == 0"]}, "calls no function"),
        (KODCODE | {"test": "from solution import add\n"}, "'test' holds no function that is called test"),
        (BIGCODEBENCH | {"test": "x = 1"}, "'test' holds no unittest.TestCase"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_judged_is_named_with_its_field_or_skipped(lines, row, message):
    with pytest.raises(ProblemError, match=rf"rows\.jsonl, row 1 \(line 1\).*{message}"):
        load_file(lines(row))
    (key,) = (one.key for one in formats() if one.fits(Row(Path("rows.jsonl"), 1, 1, row)))
    found = load_file(lines(row, ROWS[key]), skip_bad_rows=True)
    assert (len(found), len(found.skipped)) == (1, 1)


@pytest.mark.parametrize("key", sorted(set(ROWS) - set(WITHOUT_PROBLEMS)))
def test_a_parquet_file_holds_the_same_problems(lines, tmp_path, key):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = ROWS[key] | ({"test_cases": json.loads("[[1, 2, 3]]")} if key == "json" else {})
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    assert list(load_suite(str(path))) == list(load_suite(str(lines(row))))
    assert list(load_suite(f"{key}:{path}")) == list(load_suite(str(path)))
    bad = tmp_path / "bad.parquet"
    either = next(one for one in formats() if one.key == key).fields[-1].split("|")
    parquet.write_table(pyarrow.Table.from_pylist([{k: v for k, v in row.items() if k not in either}]), bad)
    with pytest.raises(ProblemError, match=rf"bad\.parquet, row 1: .*'{either[0]}'"):
        load_suite(str(bad))


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ProblemError, match=r"is a parquet file, which needs pyarrow\n.*pip install pyarrow"):
        load_file(path)
