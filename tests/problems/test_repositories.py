"""Repositories: what ships is right as it stands and broken by its bug; rows of SWE-bench; planted bugs."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from greenward.cli.main import main
from greenward.common.errors import ProblemError
from greenward.config.recipe import GRPORecipe
from greenward.grading.judge import Grader
from greenward.grading.verification import failing_references, load_verified, reference_answer
from greenward.problems.catalog import load_problems, load_suite
from greenward.problems.repositories import FAILING_TESTS, SWE_BENCH, planted_candidates, shipped_repositories
from greenward.problems.rows import read_problems
from openai_server import OpenAIServer

MODULE = "def total(prices):\n    return sum(prices) * RATE\n\n\nRATE = 2\n"
HELPER = "FEE = 1\n"
TESTS = """\
import unittest

from shop.fees import FEE
from shop.prices import total


class PriceTest(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1, 2]), 6)

    def test_nothing(self):
        self.assertEqual(total([]), 0)
"""
MORE_TESTS = TESTS + "\n    def test_fee(self):\n        self.assertEqual(FEE, 2)\n"
BUGGY = MODULE.replace("* RATE", "+ RATE")


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1) as made:
        yield made


class TestShipped:
    def test_there_are_twenty_or_more_of_three_to_eight_files(self):
        problems = shipped_repositories()
        assert len(problems) >= 20
        assert {one.path.partition("/")[0] for one in problems} >= {"ledger", "stock", "routes", "shop"}
        assert all(3 <= len(one.files) + 1 <= 8 for one in problems)

    def test_references_pass_and_bugs_fail_the_tests_that_they_are_said_to_fail(self, grader):
        problems = shipped_repositories()
        assert failing_references(problems, grader) == []
        verdicts = grader.grade([(one, one.buggy_code) for one in problems])
        for problem, verdict in zip(problems, verdicts, strict=True):
            failing = problem.columns[FAILING_TESTS]
            said = (False,) * failing + (True,) * (len(problem.tests) - failing)
            assert verdict.tests_passed == said, problem.task_id

    def test_no_answer_could_forge_a_result(self, grader):
        grader.tests_by_mode.clear()
        grader.grade([(one, one.reference) for one in shipped_repositories()])
        assert set(grader.tests_by_mode) == {"values"}


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def write(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def clone(tmp_path):
    """A clone with a bug in two files, the patch that mends both, and the patch of its tests."""
    folder = tmp_path / "owner__shop"
    write(
        folder,
        {
            "shop/__init__.py": "",
            "shop/prices.py": BUGGY,
            "shop/fees.py": HELPER,
            "tests/test_shop.py": TESTS,
        },
    )
    git(folder, "init", "-q")
    (folder / "logo.png").write_bytes(b"\x89PNG\xff")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "base")
    write(folder, {"shop/prices.py": MODULE, "shop/fees.py": "FEE = 2\n"})
    patch = git(folder, "diff")
    git(folder, "checkout", "-q", ".")
    write(folder, {"tests/test_shop.py": MORE_TESTS})
    test_patch = git(folder, "diff")
    git(folder, "checkout", "-q", ".")
    return {
        "instance_id": "owner__shop-1",
        "repo": "owner/shop",
        "base_commit": git(folder, "rev-parse", "HEAD").strip(),
        "problem_statement": "Totals are wrong.",
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(
            ["test_sum (tests.test_shop.PriceTest)", "tests/test_shop.py::PriceTest::test_fee"]
        ),
        "PASS_TO_PASS": [],
    }


def rows(tmp_path, *values):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in values))
    return str(path)


class TestRows:
    def test_a_row_becomes_a_problem_that_its_patch_solves_and_nothing_else(self, tmp_path, clone, grader):
        (problem,) = load_suite(rows(tmp_path, clone))
        assert problem.path == "shop/fees.py" and problem.files["tests/test_shop.py"] == TESTS
        assert problem.test_files["tests/test_shop.py"] == MORE_TESTS and "logo.png" not in problem.files
        half = problem.reference
        whole, only_half, nothing = grader.grade(
            [(problem, reference_answer(problem)), (problem, half), (problem, problem.buggy_code)]
        )
        assert whole.passed and not only_half.passed and not nothing.passed
        assert git(tmp_path / "owner__shop", "status", "--porcelain") == ""

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"repo": "owner/none"}, "needs a local clone of owner/none"),
            ({"base_commit": "0" * 40}, "could not be read"),
            ({"base_commit": "--output=/tmp/x"}, "must be a commit"),
            ({"patch": "no patch"}, "changes no Python file"),
            ({"FAIL_TO_PASS": "[]"}, "names no test"),
            ({"PASS_TO_PASS": "not JSON"}, "must be a list"),
        ],
    )
    def test_bad_rows_say_what_was_expected(self, tmp_path, clone, change, said):
        with pytest.raises(ProblemError, match=said):
            load_suite(rows(tmp_path, clone | change))

    def test_long_lines_of_a_patch_take_no_time(self, tmp_path, clone):
        start = time.process_time()
        with pytest.raises(ProblemError, match="could not be read"):
            load_suite(rows(tmp_path, clone | {"patch": f"+++ b/a{' ' * 50_000}x\n", "test_patch": ""}))
        assert time.process_time() - start < 2

    @pytest.mark.parametrize(
        ("names", "said"),
        [
            (["/".join(["folder"] * 30)], "expected a path of"),
            ([f"data/{number}.txt" for number in range(1001)], "at most 1000"),
            (["tests/data"], "a folder that is a file"),
        ],
    )
    def test_repositories_that_the_sandbox_does_not_take_are_bad_rows(self, tmp_path, clone, names, said):
        folder = tmp_path / "owner__shop"
        write(folder, dict.fromkeys(names, ""))
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "more")
        bad = clone | {"instance_id": "bad", "base_commit": git(folder, "rev-parse", "HEAD").strip()}
        if names == ["tests/data"]:
            (folder / "tests/data").unlink()
            write(folder, {"tests/data/one.txt": "1\n"})
            git(folder, "add", ".")
            bad["test_patch"] = git(folder, "diff", "--cached", "--no-renames")
        path = tmp_path / "rows.jsonl"
        path.write_text(f"{json.dumps(bad)}\n{json.dumps(clone)}\n")
        found = read_problems(path, SWE_BENCH, skip_bad_rows=True)
        assert len(found) == 1
        assert "field 'repo' cannot be run" in found.skipped[0] and said in found.skipped[0]

    def test_a_clone_lies_beside_the_file_itself(self, tmp_path, clone):
        (tmp_path / "owner__shop").rename(tmp_path / "elsewhere")
        (tmp_path / "owner__shop").symlink_to("elsewhere")
        (tmp_path / "data").mkdir()
        with pytest.raises(ProblemError, match="is a symbolic link"):
            load_suite(rows(tmp_path, clone))
        for name in ("owner/..", "..", "owner/", "."):
            with pytest.raises(ProblemError, match="must be owner/name"):
                load_suite(rows(tmp_path / "data", clone | {"repo": name}))

    def test_a_repository_whose_tests_do_not_start_is_the_infrastructures(self, tmp_path, clone):
        broken = clone | {"instance_id": "broken-1", "FAIL_TO_PASS": ["tests.no_such_file.Test.test"]}
        with OpenAIServer(lambda prompt: "<submit>") as server, pytest.raises(SystemExit) as ended:
            options = ["--out", str(tmp_path / "out"), "--workers", "1", "--quiet"]
            main(["eval", f"tiny@{server.url}", "--suite", rows(tmp_path, clone, broken), *options])
        assert ended.value.code == 2  # more was lost than may be
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["statuses"] == {"failed": 1, "infrastructure": 1}
        assert "fail their tests as they should be" in " ".join(summary["notes"])


class TestPlanted:
    def test_bugs_are_planted_that_tests_find_and_that_the_original_lacks(self, tmp_path):
        folder = tmp_path / "package"
        write(folder, {"shop/prices.py": MODULE, "shop/fees.py": HELPER, "tests/test_shop.py": TESTS})
        found = load_verified(f"planted:{folder}", GRPORecipe(), part="train")
        assert found and {one.path for one in found} <= {"shop/prices.py", "shop/fees.py"}
        with Grader(workers=1) as grader:
            assert failing_references(found, grader) == []
            assert not any(one.passed for one in grader.grade([(one, one.buggy_code) for one in found]))

    def test_links_of_a_package_are_not_followed(self, tmp_path):
        write(tmp_path, {"secret.py": "SECRET = 1\n"})
        folder = tmp_path / "package"
        write(folder, {"shop/prices.py": MODULE, "shop/fees.py": HELPER, "tests/test_shop.py": TESTS})
        (folder / "shop/linked.py").symlink_to(tmp_path / "secret.py")
        (folder / "more").symlink_to(tmp_path)
        found = planted_candidates(str(folder), per_module=1, seed=0)
        assert {path for one in found for path in (*one.files, one.path)} == {
            "shop/prices.py",
            "shop/fees.py",
            "tests/test_shop.py",
        }

    def test_a_package_that_fails_its_own_tests_is_refused(self, tmp_path):
        write(tmp_path, {"shop/prices.py": BUGGY, "shop/fees.py": HELPER, "tests/test_shop.py": TESTS})
        with pytest.raises(ProblemError, match="fails its own tests"):
            load_verified(f"planted:{tmp_path}", GRPORecipe(), part="train")

    def test_a_folder_without_tests_is_refused(self, tmp_path):
        write(tmp_path, {"shop/prices.py": MODULE})
        with pytest.raises(ProblemError, match="no test"):
            load_problems(f"planted:{tmp_path}", GRPORecipe().problems.families, "train")
