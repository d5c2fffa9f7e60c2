"""`greenward fix`: the tests decide, the best answer is shown, and nothing is written without consent."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from greenward.cli.main import cli
from greenward.common.errors import ConfigError, EngineError, ProblemError
from greenward.common.http import RetryPolicy
from greenward.grading.execution import Answer
from greenward.grading.judge import Grader
from greenward.grading.verdict import Verdict
from greenward.tasks.repair.fix import FixOptions, find_repair, repair_problem
from openai_server import OpenAIServer

PRICES = "from shop.tax import RATE\n\n\ndef total(prices):\n    return sum(prices) * RATE\n"
TAX = "RATE = 0.2\n"
UNITTEST = """
import unittest
from shop.prices import total

class Prices(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(total([]), 0)

    def test_with_tax(self):
        self.assertAlmostEqual(total([100]), 120)
"""
PYTEST = """
import pytest
from shop.prices import total

@pytest.fixture
def price():
    return 100

def test_empty():
    assert total([]) == 0

@pytest.mark.parametrize("number", [1, 2])
def test_with_tax(price, number):
    assert total([price] * number) == pytest.approx(120 * number)
"""


def block(path: str, search: str, replace: str) -> str:
    return f"{path}\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


RIGHT = block("shop/prices.py", "    return sum(prices) * RATE", "    return sum(prices) * (1 + RATE)")
OTHER_FILE = block("shop/tax.py", "RATE = 0.2", "RATE = 1.2")
WRONG = block("shop/prices.py", "    return sum(prices) * RATE", "    return sum(prices) - RATE")
IN_TESTS = block("tests/test_prices.py", "        self.assertAlmostEqual(total([100]), 120)", "        pass")
MISSING = block("shop/prices.py", "    return max(prices)", "    return 1")


pytestmark = pytest.mark.usefixtures("kept_sandbox")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "shop/__init__.py").write_text("")
    (tmp_path / "shop/prices.py").write_text(PRICES)
    (tmp_path / "shop/tax.py").write_text(TAX)
    (tmp_path / "tests/test_prices.py").write_text(UNITTEST)
    return tmp_path


@pytest.fixture
def fix(shop: Path) -> Iterator[Callable[..., Result]]:
    """`fix(answers, *arguments)`: the command with a server that gives these answers, the first to seed 0."""
    servers = []

    def run(answers: list[str], *arguments: str, text: str | None = None) -> Result:
        def answer(prompt: str) -> str:
            return answers[int(prompt.rpartition("#")[2]) % len(answers)]

        servers.append(OpenAIServer(answer))
        url = servers[-1].__enter__().url
        count = [] if "--n" in arguments else ["--n", str(len(answers))]
        command = ["fix", "shop/prices.py", "--tests", "tests", "--model", "tiny", "--base-url", url]
        return CliRunner().invoke(cli, [*command, *count, *arguments], input=text)

    yield run
    for server in servers:
        server.__exit__(None, None, None)


def test_nothing_of_a_hostile_repository_is_run_or_followed(fix: Callable[..., Result], shop: Path) -> None:
    outside = shop.parent / f"{shop.name}-outside"
    outside.mkdir()
    (outside / "secret.py").write_text("SECRET = 'the key of the user'\n")
    trap = f"__import__('pathlib').Path({str(outside / 'trap')!r}).write_text('')\n"
    for name in ("conftest.py", "sitecustomize.py", "pytest.py", "tests/conftest.py", "shop/yaml.py"):
        (shop / name).write_text(f"try:\n    {trap}except OSError:\n    pass\n")
    (shop / ".git/hooks").mkdir(parents=True)
    run = f"touch {outside / 'trap'}"
    (shop / ".git/config").write_text(
        f'[core]\n\tfsmonitor = {run}\n[filter "x"]\n\tclean = {run}\n[alias]\n\tstatus = !{run}\n'
    )
    (shop / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (shop / ".gitattributes").write_text("* filter=x\n")
    (shop / "shop/linked.py").symlink_to(outside / "secret.py")
    (shop / "shop/more").symlink_to(outside)
    (shop / "tests/test_linked.py").symlink_to(outside / "secret.py")
    (shop / "prices.py").symlink_to(outside / "secret.py")
    os.mkfifo(shop / "shop/pipe.py")
    before = sorted(outside.iterdir())
    done = fix([RIGHT], "--json", "--yes")
    assert json.loads(done.stdout)["applied"] and "1 + RATE" in (shop / "shop/prices.py").read_text()
    assert sorted(outside.iterdir()) == before
    problem, _ = repair_problem(Path("shop/prices.py"), Path("tests"))
    assert "the key of the user" not in str(problem)
    for file, tests in (("prices.py", "tests"), ("shop/prices.py", "tests/test_linked.py")):
        with pytest.raises(ProblemError, match="symbolic link"):
            repair_problem(Path(file), Path(tests))


def test_the_answer_that_passes_is_shown_and_applied_on_yes(fix: Callable[..., Result], shop: Path) -> None:
    shown = fix([WRONG, MISSING, RIGHT, IN_TESTS], "--all")
    assert shown.exit_code == 0, shown.output
    assert "1 of 2 tests pass" in shown.output and "1 of 4 answers pass all tests" in shown.output
    assert "-    return sum(prices) * RATE\n+    return sum(prices) * (1 + RATE)" in shown.output
    assert (shop / "shop/prices.py").read_text() == PRICES and "Nothing was changed" in shown.output
    applied = fix([WRONG, RIGHT], "--yes")
    assert applied.exit_code == 0 and "Applied." in applied.output
    assert (shop / "shop/prices.py").read_text() == PRICES.replace("* RATE", "* (1 + RATE)")
    again = fix([WRONG])
    assert again.exit_code == 0 and "all 2 tests pass" in again.output


def test_a_repair_of_another_file_of_the_project_is_applied_there(
    fix: Callable[..., Result], shop: Path
) -> None:
    found = fix([OTHER_FILE], "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/tax.py").read_text() == "RATE = 1.2\n"
    assert (shop / "shop/prices.py").read_text() == PRICES


def test_tests_cannot_be_changed_and_what_is_no_better_is_not_offered(
    fix: Callable[..., Result], shop: Path
) -> None:
    found = fix([IN_TESTS, WRONG, MISSING, "I do not know"], "--yes")
    assert found.exit_code == 1 and "No answer passes more tests" in found.output
    assert (shop / "shop/prices.py").read_text() == PRICES
    assert (shop / "tests/test_prices.py").read_text() == UNITTEST


def test_new_files_replace_none_and_follow_no_link(fix: Callable[..., Result], shop: Path) -> None:
    outside = shop.with_name("outside")
    outside.mkdir()
    (shop / "shop/link").symlink_to(outside, target_is_directory=True)
    (shop / "shop/data.py").write_bytes(b"\xff")
    there = [RIGHT + f"{path}\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n"
             for path in ("shop/link/new.py", "shop/data.py", "../new.py")]  # fmt: skip
    found = fix(there, "--yes")
    assert found.exit_code == 1 and "0 of 3 answers pass" in found.output, found.output
    assert not list(outside.iterdir()) and (shop / "shop/data.py").read_bytes() == b"\xff"
    using = RIGHT.replace("(1 + RATE)", "(x + RATE)").replace(
        "=======\n", "=======\n    from shop.new import x\n\n"
    )
    new = using + "shop/new.py\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n"
    assert fix([*there, new], "--yes").exit_code == 0
    assert (shop / "shop/new.py").read_text() == "x = 1\n"


def test_an_empty_file_can_be_repaired(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "shop/prices.py").write_text("")
    repaired = PRICES.replace("* RATE", "* (1 + RATE)")
    found = fix([f"shop/prices.py\n<<<<<<< SEARCH\n=======\n{repaired}>>>>>>> REPLACE\n"], "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/prices.py").read_text() == repaired


def test_the_result_is_one_json_object(fix: Callable[..., Result], shop: Path) -> None:
    found = json.loads(fix([WRONG, RIGHT, MISSING], "--json", "--all").stdout)
    verdicts = found.pop("verdicts")
    assert [(one["status"], one["tests_passed"], one["tests"]) for one in verdicts] == [
        ("failed", 0, 2), ("passed", 2, 2), ("edit_not_found", 0, 2),
    ]  # fmt: skip
    assert (
        verdicts[0]["reason"]
        == "test_prices.Prices.test_empty: self.assertEqual(total([]), 0); AssertionError: -0.2 != 0"
    )
    assert verdicts[1]["reason"] == "" and verdicts[0]["edit_error"] is verdicts[1]["edit_error"] is None
    assert "This line is not there: '    return max(prices)'" in verdicts[2]["edit_error"]
    assert found.pop("seconds")["tests"] > 0 and found.pop("tokens") > 0 and found.pop("peak_rss_mb") > 1
    assert found.pop("diff").startswith("--- a/shop/prices.py\n+++ b/shop/prices.py\n")
    assert found == {
        "passed": True, "before": "failed", "tests": 2, "tests_passed_before": 1, "tests_passed": 2,
        "answers": 3, "answers_passed": 1, "applied": False,
        "model": {"name": "tiny", "step": None, "weights": None, "server": found["model"]["server"]},
    }  # fmt: skip


def test_the_type_of_the_arithmetic_is_named_and_not_asked_of_a_server(
    fix: Callable[..., Result], shop: Path, published: Callable[..., Path]
) -> None:
    refused = fix([RIGHT], "--dtype", "int8")
    assert isinstance(refused.exception, ConfigError) and "a server has chosen" in str(refused.exception)
    folder = published("llama", max_position_embeddings=1024)
    command = ["fix", "shop/prices.py", "--tests", "tests", "--model", str(folder), "--n", "2"]
    command += ["--max-tokens", "4", "--dtype"]
    found = json.loads(CliRunner().invoke(cli, [*command, "int8", "--json"]).stdout)["model"]
    assert (found["name"], found["dtype"]) == (str(folder), "int8")
    assert "0 of 2 answers (float32) pass" in CliRunner().invoke(cli, [*command, "float32"]).output


def test_why_no_answer_is_better_is_said_once_for_each_reason(fix: Callable[..., Result]) -> None:
    typo = RIGHT.replace("REPLACE", "REPLACE1")
    broken = block("shop/prices.py", "    return sum(prices) * RATE", "    return sum(prices) *")
    shown = fix([MISSING, WRONG, MISSING, typo, "I do not know.", broken, MISSING]).output.splitlines()
    at = shown.index("No answer passes more tests than the file itself:")
    assert shown[at + 1].startswith(
        "  3 x edit_not_found: Edit 1: the lines to replace are not in shop/prices.py."
    )
    rest = "\n".join(shown[at + 2 :])
    assert len(shown) == at + 6
    assert (
        "1 x failed, 0 of 2 tests pass: test_prices.Prices.test_empty: self.assertEqual(total([]), 0); AssertionError: -0.2 != 0"
        in rest
    )
    assert "1 x edit_malformed: Block 1 is malformed: line 6: '>>>>>>> REPLACE1' is no marker" in rest
    assert "1 x edit_malformed: There is no edit in the answer." in rest
    assert "1 x syntax_error, 0 of 2 tests pass: " in rest and "SyntaxError: invalid syntax" in rest


def test_many_and_hostile_reasons_are_cut(fix: Callable[..., Result]) -> None:
    missing = [block("shop/prices.py", f"    return {at}\x1b[2J\u202e" + "x" * 2000, "") for at in range(14)]
    shown = fix([*missing, missing[0]]).output
    lines = shown.split("No answer passes more tests than the file itself:\n")[1].splitlines()
    assert len(lines) == 11 and lines[0].startswith("  2 x ") and lines[-1] == "  and 4 more"
    assert max(map(len, lines)) < 400 and "\x1b" not in shown and "\u202e" not in shown


def test_tests_of_pytest_are_run_with_fixtures_and_parameters(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "tests/test_prices.py").write_text(PYTEST)
    found = fix([WRONG, RIGHT])
    assert found.exit_code == 0 and "1 of 2 tests pass" in found.output, found.output
    assert "assert total([price] * number) == pytest.approx(120 * number)" in found.output


def test_the_prompt_holds_the_file_and_the_failing_test(shop: Path) -> None:
    with OpenAIServer(lambda prompt: RIGHT) as server:
        find_repair(Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", FixOptions(answers=1))
        (message,) = server.payloads[-1]["messages"]
    assert "shop/prices.py" in message["content"] and PRICES in message["content"]
    assert "A test fails: " in message["content"] and "120" in message["content"]


@pytest.mark.parametrize(
    ("file", "tests", "message"),
    [
        ("shop/none.py", "tests", "there is no such file"),
        ("shop", "tests", "expected a Python file"),
        ("shop/prices.py", "none", "there is no such file"),
        ("shop/prices.py", "shop/tax.py", "no test was found\\."),
        (".hidden/prices.py", "tests", "not among the 4 files that were read"),
        ("shop/prices.py", "latin", r"no test was found \(latin/test_a.py: not UTF-8\)"),
    ],
)
def test_what_cannot_be_repaired_is_refused(file: str, tests: str, message: str, shop: Path) -> None:
    (shop / "latin").mkdir()
    (shop / ".hidden").mkdir()
    (shop / ".hidden/prices.py").write_text(PRICES)
    (shop / "latin/test_a.py").write_bytes(b"# \xff\ndef test_a():\n    pass\n")
    with pytest.raises(ProblemError, match=message):
        repair_problem(Path(file), Path(tests))


def test_a_file_that_has_changed_meanwhile_is_left_alone(shop: Path) -> None:
    with OpenAIServer(lambda prompt: RIGHT) as server:
        repair = find_repair(
            Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", FixOptions(answers=1)
        )
    (shop / "shop/prices.py").write_text("# mine\n")
    with pytest.raises(ConfigError, match="has changed"):
        repair.apply()
    assert (shop / "shop/prices.py").read_text() == "# mine\n"


def test_a_file_that_is_not_python_or_does_not_import_is_repaired_like_any_other(
    fix: Callable[..., Result], shop: Path
) -> None:
    (shop / "shop/prices.py").write_text(PRICES.replace("def total(prices):", "def total(prices)"))
    whole = f"```python\n{PRICES.replace('* RATE', '* (1 + RATE)')}```"
    found = fix([whole], "--form", "function", "--yes")
    assert found.exit_code == 0, found.output
    assert "(1 + RATE)" in (shop / "shop/prices.py").read_text()


def test_the_first_failure_is_told_without_the_runner(shop: Path) -> None:
    broken = PRICES.replace("total(prices):", "total(prices)")
    for text, said in ((PRICES, "test_prices.Prices.test_with_tax: self.assert"), (broken, "SyntaxError")):
        (shop / "shop/prices.py").write_text(text)
        with OpenAIServer(lambda prompt: "?") as server:
            repair = find_repair(
                Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", FixOptions(answers=1)
            )
        assert said in repair.failure and "greenward_tests" not in repair.failure


def test_a_repair_keeps_line_endings_byte_order_mark_and_permissions(
    fix: Callable[..., Result], shop: Path
) -> None:
    file = shop / "shop/prices.py"
    file.write_bytes(b"\xef\xbb\xbf" + PRICES.replace("\n", "\r\n").encode())
    file.chmod(0o755)
    assert fix([RIGHT], "--yes").exit_code == 0
    expected = PRICES.replace("* RATE", "* (1 + RATE)").replace("\n", "\r\n")
    assert file.read_bytes() == b"\xef\xbb\xbf" + expected.encode()
    assert file.stat().st_mode & 0o777 == 0o755


def test_a_repair_keeps_the_line_ends_of_a_file_that_has_both(fix: Callable[..., Result], shop: Path) -> None:
    file, lines = shop / "shop/prices.py", PRICES.splitlines()
    mixed = "".join(f"{line}\r\n" if at % 2 else f"{line}\n" for at, line in enumerate(lines))
    file.write_bytes(mixed.encode())
    assert fix([RIGHT], "--yes").exit_code == 0
    now = file.read_bytes().decode().splitlines(keepends=True)
    changed = [one for one, other in zip(now, mixed.splitlines(keepends=True), strict=True) if one != other]
    assert len(changed) == 1 and "(1 + RATE)" in changed[0]


@pytest.mark.parametrize("end", ["\r", "\r\r\n", "\n"])
def test_a_repair_keeps_line_ends_of_every_kind(end: str, fix: Callable[..., Result], shop: Path) -> None:
    file, search = shop / "shop/prices.py", "    return sum(prices) * RATE"
    old = PRICES.replace("\n", end).replace("def", "# a\r# b\x0c \u2028\r\ndef")
    file.write_bytes(old.encode())
    found = fix([RIGHT], "--yes")
    assert found.exit_code == 0, found.output
    assert file.read_bytes().decode() == old.replace(search, search.replace("RATE", "(1 + RATE)"))


def test_a_diff_has_the_lines_of_the_file(fix: Callable[..., Result], shop: Path) -> None:
    file = shop / "shop/prices.py"
    text = PRICES.replace("def", "\x0c\n# a\x0bb\x1cc\u2028d\x85e\ndef")
    file.write_text(text, newline="\n")
    diff = json.loads(fix([RIGHT], "--json").stdout)["diff"]
    patched = subprocess.run(["patch", "-p1", "--output=-"], input=diff.encode(), capture_output=True)
    assert patched.stdout.decode().endswith(text.replace("* RATE", "* (1 + RATE)")), patched.stderr


def test_no_line_of_an_answer_hides_behind_a_carriage_return(fix: Callable[..., Result], shop: Path) -> None:
    """Python ends a line, and so a comment, at a lone carriage return."""
    hiding = RIGHT.replace("(1 + RATE)", "(1 + RATE)  # of the tax\r    total.hidden = 1")
    found = fix([hiding], "--yes")
    assert "\n+    total.hidden = 1\n" in found.output
    assert b"\r" not in (shop / "shop/prices.py").read_bytes()


def test_a_private_file_is_private_at_any_time(
    fix: Callable[..., Result], shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, modes, replaced = shop / "shop/prices.py", [], os.replace
    file.chmod(0o600)

    def replace(source: Path, target: Path) -> None:
        modes.append(os.stat(source).st_mode & 0o777)
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert fix([RIGHT], "--yes").exit_code == 0
    assert set(modes) == {0o600} and file.stat().st_mode & 0o777 == 0o600


def test_files_that_the_tests_do_not_need_are_neither_made_nor_deleted(
    fix: Callable[..., Result], shop: Path
) -> None:
    (shop / "shop/old.py").write_text("OLD = 1\n")
    (shop / "shop/empty.py").write_text("")
    hunk = "@@ -5 +5 @@\n-    return sum(prices) * RATE\n+    return sum(prices) * (1 + RATE)\n"
    deleted = "--- a/shop/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-OLD = 1\n"
    made = "--- /dev/null\n+++ b/shop/new.py\n@@ -0,0 +1 @@\n+NEW = 1\n"
    diff = f"--- a/shop/prices.py\n+++ b/shop/prices.py\n{hunk}{deleted}{made}"
    found = fix([diff], "--form", "diff", "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/old.py").read_text() == "OLD = 1\n" and not (shop / "shop/new.py").exists()
    assert "(1 + RATE)" in (shop / "shop/prices.py").read_text()


def test_files_that_are_made_stay_where_the_answer_names_them(fix: Callable[..., Result], shop: Path) -> None:
    lazily = "    if prices is None:\n        import shop.new\n    return sum(prices) * (1 + RATE)"
    new = "shop/new.py\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE\n"
    found = fix([block("shop/prices.py", "    return sum(prices) * RATE", lazily) + new], "--yes")
    assert found.exit_code == 0 and "--- /dev/null\n+++ b/shop/new.py\n" in found.output, found.output
    assert (shop / "shop/new.py").read_text() == ""


def test_of_modules_with_one_name_that_of_the_same_folder_is_used(shop: Path) -> None:
    for folder, rate in (("examples", "5"), ("source", "0.2"), ("vendored", "7")):
        (shop / folder).mkdir()
        (shop / folder / "tax.py").write_text(f"RATE = {rate}\n")
    (shop / "source/prices.py").write_text(PRICES.replace("shop.tax", "tax"))
    (shop / "tests/test_prices.py").write_text(UNITTEST.replace("shop.prices", "prices"))
    problem, project = repair_problem(Path("source/prices.py"), Path("tests"))
    assert problem.files is not None and problem.files["tax.py"] == "RATE = 0.2\n"
    assert project.place("tax.py") == Path("source/tax.py")


def test_a_repair_of_a_module_from_another_folder_is_applied_there(shop: Path) -> None:
    (shop / "library").mkdir()
    (shop / "library/rates.py").write_text("RATE = 0.2\n")
    (shop / "shop/prices.py").write_text(PRICES.replace("shop.tax", "rates"))
    with OpenAIServer(lambda prompt: block("rates.py", "RATE = 0.2", "RATE = 1.2")) as server:
        options = FixOptions(answers=1)
        repair = find_repair(Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", options)
    repair.apply()
    assert (shop / "library/rates.py").read_text() == "RATE = 1.2\n" and not (shop / "rates.py").exists()


def test_expressions_of_many_terms_end_no_repair(fix: Callable[..., Result], shop: Path) -> None:
    long = "+".join(["0"] * 1500)
    file = shop / "shop/prices.py"
    file.write_text(f"{PRICES}\n\nLONG = {long}\n")
    found = fix([RIGHT.replace("(1 + RATE)", f"(1 + RATE + {long})"), RIGHT], "--yes", "--all")
    assert found.exit_code == 0, found.output
    assert file.read_text() == f"{PRICES.replace('* RATE', '* (1 + RATE)')}\n\nLONG = {long}\n"


def test_without_standard_input_nothing_is_written(shop: Path) -> None:
    with OpenAIServer(lambda prompt: RIGHT) as server:
        arguments = f"fix shop/prices.py --tests tests --model tiny --base-url {server.url} --n 1"
        shown = subprocess.run(
            ["sh", "-c", f'"$0" -m greenward {arguments} <&-', sys.executable], capture_output=True, text=True
        )
    assert shown.returncode == 0 and "Nothing was changed" in shown.stdout, shown.stderr
    assert (shop / "shop/prices.py").read_text() == PRICES


DOCUMENTED = '''\
"""Prices of the shop."""

from shop.tax import RATE  # of the tax


def total(prices):
    """With tax."""
    # All of them
    return sum(prices) * RATE


def cheapest(prices):
    """Without tax."""
    return min(prices)  # which may fail
'''
BARE = """\
from shop.tax import RATE
def total(prices):
    return sum(prices) * (1 + RATE)
"""


def test_a_whole_program_keeps_what_was_not_to_change(fix: Callable[..., Result], shop: Path) -> None:
    file = shop / "shop/prices.py"
    file.write_bytes(DOCUMENTED.replace("\n", "\r\n").encode())
    found = fix([f"```python\n{BARE}```"], "--form", "function", "--yes")
    assert found.exit_code == 0, found.output
    expected = DOCUMENTED.replace("* RATE", "* (1 + RATE)").replace("\n", "\r\n")
    assert file.read_bytes() == expected.encode()


def test_a_part_of_the_program_takes_its_place_in_the_file(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "shop/prices.py").write_text(DOCUMENTED)
    part = "def total(prices):\n    return sum(prices) * (1 + RATE)\n"
    found = fix([f"```python\n{part}```"], "--form", "function", "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/prices.py").read_text() == DOCUMENTED.replace("* RATE", "* (1 + RATE)")


def test_a_program_in_place_of_edits_is_read_as_one(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "shop/prices.py").write_text(DOCUMENTED)
    part = "def total(prices):\n    return sum(prices) * (1 + RATE)\n"
    found = fix([f"The tax was missing:\n```python\n{part}```\n"], "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/prices.py").read_text() == DOCUMENTED.replace("* RATE", "* (1 + RATE)")


def test_a_docstring_that_the_tests_read_may_change(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "shop/prices.py").write_text(DOCUMENTED)
    (shop / "tests/test_prices.py").write_text(
        "from shop.prices import total\n\ndef test_text():\n    assert total.__doc__ == 'Net.'\n"
    )
    found = fix([block("shop/prices.py", '    """With tax."""', '    """Net."""')], "--yes")
    assert found.exit_code == 0, found.output
    assert (shop / "shop/prices.py").read_text() == DOCUMENTED.replace("With tax.", "Net.")


def test_of_those_that_pass_the_smallest_change_is_the_best(fix: Callable[..., Result]) -> None:
    search, small = "    return sum(prices) * RATE", "    return sum(prices) * (1.000000000000000000 + RATE)"
    large = block("shop/prices.py", search, "    t = 1 + RATE\n    return t*sum(prices)")
    found = json.loads(fix([large, block("shop/prices.py", search, small)], "--json", "--all").stdout)
    assert found["answers_passed"] == 2 and found["diff"].count("\n+") == 2  # with the head
    assert small in found["diff"]


def test_answers_stop_when_one_passes(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a model that is loaded here: the first one that ends passes, and no further tokens are drawn."""
    from greenward.environments.prompts import PromptRenderer
    from greenward.problems.problem import Problem

    texts: list[str] = []

    def extracted(self: PromptRenderer, problem: Problem, text: str) -> object:
        texts.append(text)
        return original(self, problem, RIGHT if len(texts) == 2 else WRONG)

    original = PromptRenderer.extracted
    monkeypatch.setattr(PromptRenderer, "extracted", extracted)
    folder = published("llama", max_position_embeddings=1024)
    tokens = {}
    for chosen, answers in ((FixOptions(answers=6, max_tokens=40, form="search_replace"), 2),
                            (FixOptions(answers=6, max_tokens=40, form="search_replace", all_answers=True), 6)):  # fmt: skip
        texts.clear()
        found = find_repair(Path("shop/prices.py"), Path("tests"), str(folder), chosen)
        assert found.passed and found.selection is not None
        assert len(found.selection.verdicts) == len(texts) == answers
        assert sum(one.passed for one in found.selection.verdicts) == 1
        tokens[answers] = found.tokens
    assert 0 < tokens[2] <= tokens[6] <= 6 * 40


def test_a_model_that_fills_gaps_mends_one_line_after_the_other(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes is replaced: the right lines are among those that are tried in every gap."""
    from greenward.models.tokenizer import Tokenizer

    (shop / "shop/prices.py").write_text(f"# Prices\n{TWO_BUGS}# The end\n")
    (shop / "tests/test_prices.py").write_text(TWO_TESTS)
    lines = itertools.cycle(
        [
            "    return sum(prices) * (1 + RATE)\n",
            "    return max(prices, default=0)",
            "    while True: pass",
        ]
    )
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: next(lines))
    folder = str(published("llama", max_position_embeddings=1024))
    place = (Path("shop/prices.py"), Path("tests"), folder)
    with pytest.raises(ConfigError, match="no tokens that mark a gap"):
        find_repair(*place, FixOptions(form="infill"))
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    monkeypatch.setattr("greenward.tasks.repair.fix.LEAST_SECONDS", 0.5)
    repair = find_repair(*place, FixOptions(answers=3, timeout=1.0))
    assert repair.passed
    repair.apply()
    text = (shop / "shop/prices.py").read_text()
    assert text.startswith("# Prices\n") and text.endswith("# The end\n")
    added = [line for line in text.splitlines() if line not in TWO_BUGS.splitlines()]
    assert added[1:-1] == ["    return sum(prices) * (1 + RATE)", "    return max(prices, default=0)"]


def test_of_lines_that_pass_the_first_written_is_taken(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are judged while the next ones are written; which verdict is there first decides nothing."""
    from greenward.models.tokenizer import Tokenizer

    slow = "    __import__('time').sleep(0.3); return sum(prices) * (1 + RATE)"
    lines = itertools.chain(["    return 1", slow], itertools.repeat("    return sum(prices) * (1 + RATE)"))
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: next(lines))
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    folder = str(published("llama", max_position_embeddings=1024))
    repair = find_repair(Path("shop/prices.py"), Path("tests"), folder, FixOptions(answers=4, form="infill"))
    assert repair.passed and repair.selection is not None
    assert [one.passed for one in repair.selection.verdicts][-1:] == [True]
    repair.apply()
    assert "sleep" in (shop / "shop/prices.py").read_text()


@pytest.mark.parametrize("all_answers", [False, True])
def test_lines_written_before_an_error_of_the_model_count_however_long_their_tests_take(
    all_answers: bool, shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenward.models.tokenizer import Tokenizer

    def written() -> Iterator[str]:
        yield "    __import__('time').sleep(0.3); return sum(prices) * (1 + RATE)"
        raise EngineError("the model broke.")

    lines = written()
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: next(lines))
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    options = FixOptions(answers=4, form="infill", all_answers=all_answers)
    folder = str(published("llama", max_position_embeddings=1024))
    repair = find_repair(Path("shop/prices.py"), Path("tests"), folder, options)
    assert repair.passed and isinstance(repair.stopped, EngineError) is all_answers


def test_a_line_that_was_judged_before_ctrl_c_counts(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenward.models.tokenizer import Tokenizer

    submitted: list[Future[list[Verdict]]] = []
    submit = Grader.submit

    def noted(self: Grader, answers: Sequence[Answer]) -> Future[list[Verdict]]:
        submitted.append(submit(self, answers))
        return submitted[-1]

    def written() -> Iterator[str]:
        yield "    return sum(prices) * (1 + RATE)"
        submitted[-1].result()
        raise KeyboardInterrupt

    lines = written()
    monkeypatch.setattr(Grader, "submit", noted)
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: next(lines))
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    options = FixOptions(answers=4, form="infill")
    folder = str(published("llama", max_position_embeddings=1024))
    repair = find_repair(Path("shop/prices.py"), Path("tests"), folder, options)
    assert repair.passed and isinstance(repair.stopped, KeyboardInterrupt)


@pytest.mark.parametrize("ends_early", ["at import", "at a test"])
def test_the_limits_of_single_lines_hide_no_repair_whose_tests_take_longer(
    ends_early: str, shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file took that ends early says little of its repair: a whole answer has the usual limits."""
    from greenward.environments.prompts import PromptRenderer
    from greenward.models.tokenizer import Tokenizer
    from greenward.problems.problem import Problem

    right, wrong = "    return sum(prices) * (1 + RATE)", "    return sum(prices) * RATE"
    slow = "        end = process_time() + 0.5\n        while process_time() < end:\n            pass\n"
    test = "    def test_with_tax(self):\n        self.assertAlmostEqual(total([100]), 120)\n"
    head = "import unittest\nfrom time import process_time\nfrom shop.prices import total\n\n\n"
    (shop / "tests/test_prices.py").write_text(f"{head}class Prices(unittest.TestCase):\n{test}{slow}")
    if ends_early == "at import":
        (shop / "shop/prices.py").write_text(PRICES.replace(wrong, f"{right}\n\n\nUNIT = missing"))
    edits: list[str] = []

    def extracted(self: PromptRenderer, problem: Problem, text: str) -> object:
        edits.append(text)
        return original(self, problem, RIGHT)

    original = PromptRenderer.extracted
    monkeypatch.setattr(PromptRenderer, "extracted", extracted)
    monkeypatch.setattr("greenward.tasks.repair.fix.LEAST_SECONDS", 0.25)
    monkeypatch.setattr("greenward.tasks.repair.fix.TIMES_BEFORE", 0.0)
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    filling = "UNIT = 1" if ends_early == "at import" else right
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: filling)
    folder = str(published("llama", max_position_embeddings=1024))
    options = FixOptions(answers=1, max_tokens=4)
    repair = find_repair(Path("shop/prices.py"), Path("tests"), folder, options)
    assert repair.passed and bool(edits) is (ends_early == "at a test")
    assert any(one["status"] == "timeout" for one in repair.outcomes()) is bool(edits)


def test_a_model_of_few_positions_fills_the_gaps_of_a_long_file(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenward.models.tokenizer import Tokenizer

    notes = "# Prices of the shop, with the tax of the year.\n" * 100
    (shop / "shop/prices.py").write_text(f"{notes}{PRICES}{notes}")
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    filling = "    return sum(prices) * (1 + RATE)"
    monkeypatch.setattr(Tokenizer, "decode_filling", lambda self, ids: filling)
    command = ["fix", "shop/prices.py", "--tests", "tests", "--model", str(published("llama")), "--n", "1"]
    done = CliRunner().invoke(cli, [*command, "--yes"])
    assert (
        done.exit_code == 0
        and "and the model 128 positions: it is asked for single lines only" in done.stderr
    )
    assert filling in (shop / "shop/prices.py").read_text()


def test_a_file_without_lines_that_failing_tests_run_gets_no_answer(
    shop: Path, published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "shop/prices.py").write_text("# Nothing yet\n")
    monkeypatch.setattr("greenward.models.tokenizer._INFILLING", (("a", "b", "c"),))
    folder = str(published("llama", max_position_embeddings=1024))
    command = ["fix", "shop/prices.py", "--tests", "tests", "--model", folder, "--form", "infill"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 1 and "the tests that fail run no line of shop/prices.py" in done.stderr
    assert "0 of 0 answers (" in done.stdout
    assert done.stdout.endswith("No answer passes more tests than the file itself.\n")


def test_no_server_is_asked_to_fill_gaps(fix: Callable[..., Result]) -> None:
    refused = fix([RIGHT], "--form", "infill")
    assert isinstance(refused.exception, ConfigError)
    assert "models that are loaded here" in str(refused.exception)


def test_answers_of_a_server_stop_when_one_passes(shop: Path) -> None:
    release = threading.Event()

    def answer(prompt: str) -> str:
        if prompt.endswith("#0"):
            return RIGHT
        release.wait(60)
        return WRONG

    with OpenAIServer(answer) as server:
        options = FixOptions(answers=20)
        try:
            found = find_repair(Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", options)
        finally:
            release.set()
    assert found.passed and found.selection is not None and len(found.selection.verdicts) == 1


def test_time_tokens_and_memory_are_told(fix: Callable[..., Result]) -> None:
    shown = fix([RIGHT])
    assert "tokens in" in shown.output and "MiB at the peak." in shown.output
    found = json.loads(fix([RIGHT], "--json").stdout)
    assert set(found["seconds"]) == {"loading", "answers", "tests", "total"} and found["peak_rss_mb"] > 1
    assert found["seconds"]["total"] >= found["seconds"]["tests"] > 0 and found["tokens"] > 0


def test_each_phase_is_shown_from_the_start(fix: Callable[..., Result]) -> None:
    lines = fix([RIGHT]).stderr.splitlines()
    phases = ["starting", "reading the project", "running the tests on the file", "1 of 2 tests pass"]
    assert lines[:4] == phases and lines[4].startswith("sampling")


def test_a_read_only_file_is_refused_before_a_model_is_asked(fix: Callable[..., Result], shop: Path) -> None:
    file = shop / "shop/prices.py"
    file.chmod(0o444)
    refused = fix([RIGHT], "--yes")
    assert isinstance(refused.exception, ConfigError) and "is read-only" in str(refused.exception)
    assert file.read_text() == PRICES and file.stat().st_mode & 0o777 == 0o444
    assert fix([RIGHT]).exit_code == 0  # the repair is shown


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"\xff\xfe\x00", b"PK\x03\x04\x00\x00"])
def test_a_binary_file_is_refused_or_left_alone(
    content: bytes, fix: Callable[..., Result], shop: Path
) -> None:
    file = shop / "shop/prices.py"
    file.write_bytes(content)
    found = fix(["I do not know"], "--yes")
    assert isinstance(found.exception, ProblemError), found.output
    assert file.read_bytes() == content


def test_tests_that_hang_end_at_the_timeout_and_are_said_to(fix: Callable[..., Result], shop: Path) -> None:
    (shop / "shop/prices.py").write_text(
        PRICES.replace("    return sum", "    while True: pass\n    return sum")
    )
    found = fix([WRONG], "--timeout", "0.5", "--yes")
    assert found.exit_code == 1 and "timeout" in found.output.lower(), found.output


TWO_BUGS = """from shop.tax import RATE


def total(prices):
    return sum(prices) * RATE


def dearest(prices):
    return min(prices, default=0)
"""
TWO_TESTS = (
    UNITTEST.replace("import total", "import dearest, total")
    + """
    def test_the_dearest(self):
        self.assertEqual(dearest([3, 5]), 5)
"""
)
DEAREST = block("shop/prices.py", "    return min(prices, default=0)", "    return max(prices, default=0)")
TAXED = block("shop/prices.py", "    return sum(prices) * RATE", "    return sum(prices) * (1 + RATE)")


@pytest.mark.parametrize("of_tax", [TAXED, OTHER_FILE])
@pytest.mark.parametrize("form", ["search-replace", "function"])
def test_a_file_with_two_bugs_is_mended_one_after_the_other(
    of_tax: str, form: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "shop/prices.py").write_text(TWO_BUGS)
    (shop / "tests/test_prices.py").write_text(TWO_TESTS)
    prompts = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        of_dearest = "test_the_dearest: " in prompt
        if form == "function" and of_dearest:  # a part of the file, which the rest is taken from
            return "```python\ndef dearest(prices):\n    return max(prices, default=0)\n```"
        if form == "function":
            return f"```python\n{TWO_BUGS.replace('* RATE', '* (1 + RATE)')}```"
        return DEAREST if of_dearest else of_tax

    with OpenAIServer(answer) as server:
        options = FixOptions(answers=2, form=form.replace("-", "_"))
        repair = find_repair(Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", options)
    assert repair.passed
    repair.apply()
    is_tax = form != "function" and of_tax is OTHER_FILE
    text = TWO_BUGS if is_tax else TWO_BUGS.replace("* RATE", "* (1 + RATE)")
    assert (shop / "shop/prices.py").read_text() == text.replace("min(", "max(")
    assert (shop / "shop/tax.py").read_text() == ("RATE = 1.2\n" if is_tax else TAX)
    # The second round is asked for the file as the first has changed it, and says which test fails now.
    first, *_, last = prompts
    assert "test_with_tax: " in first and "test_the_dearest: " in last
    assert ("RATE = 1.2" if is_tax else "(1 + RATE)") in last and "RATE = 1.2" not in first


def test_what_does_not_improve_the_file_is_not_asked_again(shop: Path) -> None:
    (shop / "shop/prices.py").write_text(TWO_BUGS)
    (shop / "tests/test_prices.py").write_text(TWO_TESTS)
    with OpenAIServer(lambda prompt: DEAREST) as server:
        repair = find_repair(
            Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", FixOptions(answers=3)
        )
        assert len(server.payloads) == 6
    assert not repair.passed and "max(prices" in repair.diff() and "1 + RATE" not in repair.diff()
    assert [one["tests_passed"] for one in repair.outcomes()] == [2, 2, 2, 0, 0, 0]


def test_the_failing_test_is_shown_with_what_it_names(shop: Path) -> None:
    _, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    assert project.test_source("test_prices.Prices.test_empty") == (
        "import unittest\nfrom shop.prices import total\nclass Prices(unittest.TestCase):\n"
        "    def test_empty(self):\n        self.assertEqual(total([]), 0)\n"
    )
    (shop / "tests/test_prices.py").write_text(f"HUNDRED = 100\nUNUSED = 1\n{PYTEST}")
    _, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    assert project.test_source("test_prices.py::test_with_tax") == (
        "import pytest\nfrom shop.prices import total\n@pytest.fixture\ndef price():\n    return 100\n"
        '@pytest.mark.parametrize("number", [1, 2])\ndef test_with_tax(price, number):\n'
        "    assert total([price] * number) == pytest.approx(120 * number)\n"
    )
    (shop / "tests/test_prices.py").write_text(PYTEST + "    assert total([]) == 0\n" * 200)
    _, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    assert project.test_source("test_prices.py::test_with_tax") == ""


@pytest.mark.parametrize("tests", [UNITTEST, UNITTEST.replace("import unittest\n", "")])
def test_an_answer_that_repeats_the_tests_below_its_code_is_judged_without_them(
    tests: str, shop: Path
) -> None:
    function = "def total(prices):\n    return sum(prices) * (1 + RATE)\n"
    program = f"```python\n{function}\n{tests}\nif __name__ == '__main__':\n    unittest.main()\n```"
    with OpenAIServer(lambda prompt: program) as server:
        options = FixOptions(answers=1, form="function")
        repair = find_repair(Path("shop/prices.py"), Path("tests"), f"tiny@{server.url}", options)
    assert repair.passed
    repair.apply()
    assert (shop / "shop/prices.py").read_text() == PRICES.replace("* RATE", "* (1 + RATE)")


CASE = UNITTEST.rpartition("class")[0] + "class Prices(unittest.TestCase):\n"
FUNCTIONS = PYTEST.partition("@pytest.fixture")[0]
METHOD = "    def test_tax(self):\n        assert total([100]) == 120\n"


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        (f"{CASE.replace('class Prices(', 'class Mixin:{0}class Prices(Mixin, ')}", ["Prices.test_tax"]),
        (FUNCTIONS + "class Mixin:{0}class TestPrices(Mixin):\n    pass\n", ["TestPrices::test_tax"]),
        (FUNCTIONS + "class TestBase:{0}class TestPrices(TestBase):\n    pass\n",
         ["TestBase::test_tax", "TestPrices::test_tax"]),
        (FUNCTIONS + "class Prices:{0}def test_tax():\n    Prices().test_tax()\n", ["test_tax"]),
    ],
)  # fmt: skip
def test_tests_that_a_class_derives_are_its_tests(tests: str, names: list[str], shop: Path) -> None:
    text = tests.replace("{0}", "\n" + METHOD) + ("    pass\n" if tests.endswith("TestCase):\n") else "")
    (shop / "tests/test_prices.py").write_text(text)
    _, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    found = [name.removeprefix("test_prices.").removeprefix("py::") for name in project.tests]
    assert found == names
    assert all("def test_tax" in project.test_source(name) for name in project.tests)


BASE = f"import unittest\nfrom shop.prices import total\n\nclass Base(unittest.TestCase):\n{METHOD}"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"base.py": BASE, "test_it.py": "from base import Base\n\nclass It(Base):\n    pass\n"},
         ["Base", "It"]),
        ({"test_base.py": BASE, "test_it.py": "import test_base as b\nclass It(b.Base):\n    x = 1\n"},
         ["Base", "It"]),
        ({"__init__.py": "", "base.py": BASE.replace("Base(unittest.TestCase)", "Mixin"),
          "all.py": "from .base import Mixin as Base\n",
          "test_it.py": "import unittest\nfrom tests.all import Base\n"
                        "class Middle(Base): pass\nclass It(Middle, unittest.TestCase):\n    x = 1\n"}, ["It"]),
        ({"test_mixin.py": BASE.replace("Base(unittest.TestCase)", "Mixin"),
          "test_it.py": "import pytest\nfrom test_mixin import Mixin\nclass TestIt(Mixin):\n    x = 1\n"},
         ["TestIt"]),
        ({"a.py": "from b import Base\n", "b.py": "from a import Base\n", "test_it.py": UNITTEST
          + "\nfrom a import Base\nclass It(Base):\n    x = 1\n"}, ["Prices"]),
    ],
)  # fmt: skip
def test_tests_that_a_class_inherits_from_another_file_are_its_tests(
    files: dict[str, str], names: list[str], shop: Path
) -> None:
    (shop / "tests/test_prices.py").unlink()
    for name, text in files.items():
        (shop / "tests" / name).write_text(text)
    problem, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    tests = {re.split(r"::|\.(?!py)", name)[-2]: name for name in project.tests}
    assert list(tests) == names
    inherited = [name for of, name in tests.items() if of.endswith("It")]
    for name in inherited:
        shown = project.test_source(name)
        assert shown.index("def test_tax") < shown.index("It(")
    with Grader(packages=["pytest"]) as grader:
        for answer, status in ((PRICES, "failed"), (PRICES.replace("* RATE", "* (1 + RATE)"), "passed")):
            (verdict,) = grader.grade([(problem, answer)])
            assert inherited == [] or verdict.status.value == status, verdict


@pytest.mark.parametrize(
    "tests",
    [
        CASE + "    @unittest.skip('later')\n    def test_other(self):\n        assert False\n\n" + METHOD,
        CASE + "    def test_other(self):\n        self.skipTest('later')\n\n" + METHOD,
        FUNCTIONS + "@pytest.mark.skip\ndef test_other():\n    assert False\n\nclass TestOne:\n" + METHOD,
        FUNCTIONS + "@pytest.mark.xfail\ndef test_other():\n    assert False\n\nclass TestOne:\n" + METHOD,
        FUNCTIONS + "class TestOther:\n    __test__ = False\n\n    def test_other(self):\n        assert 0\n\n"
        "class TestOne:\n" + METHOD,
    ],
)  # fmt: skip
def test_tests_that_are_skipped_do_not_count(tests: str, fix: Callable[..., Result], shop: Path) -> None:
    (shop / "tests/test_prices.py").write_text(tests)
    done = fix([RIGHT])
    assert done.exit_code == 0 and "1 tests are skipped and do not count" in done.output, done.output
    assert "Best: passed, 1 of 1 tests pass." in done.output
    (shop / "tests/test_prices.py").write_text(tests.replace("def test_tax", "def tax"))
    refused = fix([RIGHT])
    assert isinstance(refused.exception, ProblemError) and "all 1 tests are skipped" in str(refused.exception)


def test_an_answer_that_skips_a_test_does_not_pass_it(fix: Callable[..., Result], shop: Path) -> None:
    for tests, error in (
        (UNITTEST, "__import__('unittest').SkipTest"),
        (PYTEST, "__import__('pytest').skip"),
    ):
        (shop / "tests/test_prices.py").write_text(tests)
        skips = RIGHT.replace("    return sum(prices) * (1 + RATE)", f"    raise {error}('no')")
        done = fix([skips])
        assert done.exit_code == 1 and "No answer passes more tests" in done.output, done.output
        assert "it was not run" in done.output


HOSTILE = """class Silent(Exception):
    def __str__(self):
        raise ValueError("no")
"""


@pytest.mark.parametrize("is_for_pytest", [False, True])
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise Silent", "Silent: <exception str() failed>"),
        ("raise ValueError('\\ud800')", "ValueError: "),
        ("raise ValueError('x' * 5_000_000)", "ValueError: xxx"),
        ("raise ExceptionGroup('several', [ValueError('v'), TypeError()])", "ExceptionGroup: several"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_whatever_a_test_raises_is_told_and_the_others_are_run(
    statement: str, said: str, is_for_pytest: bool, fix: Callable[..., Result], shop: Path
) -> None:
    if "Group" in statement and sys.version_info < (3, 11):
        pytest.skip("this Python has no groups of exceptions")
    tests = CASE.replace("class Prices", f"{HOSTILE}\n\nclass TestPrices")
    tests += f"    def test_tax(self):\n        if total([100]) != 120:\n            {statement}\n"
    tests += "\n    def test_zero(self):\n        assert total([]) == 0\n"
    (shop / "tests/test_prices.py").write_text(tests + ("import pytest\n" if is_for_pytest else ""))
    done = fix([RIGHT])
    assert done.exit_code == 0 and "1 of 2 tests pass.\n" in done.output, done.output
    assert said in done.output and len(done.output) < 5000


def test_a_file_of_tests_that_cannot_be_imported_is_told_and_the_others_are_run(
    fix: Callable[..., Result], shop: Path
) -> None:
    (shop / "tests/test_first.py").write_text(PYTEST.replace("import total", "import dearest, total"))
    (shop / "tests/test_prices.py").write_text(PYTEST)
    done = fix([RIGHT])
    assert "1 of 4 tests pass." in done.output and "Best: failed, 2 of 4 tests pass." in done.output
    assert "test_first.py::test_empty: " in done.output and "cannot import name 'dearest'" in done.output


@pytest.mark.parametrize("ends", ["server", "Ctrl-C"])
@pytest.mark.parametrize("chosen", [["--json", "--yes"], ["--yes"], []])
def test_what_was_reached_is_shown_when_a_later_round_ends_early(
    chosen: list[str], ends: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "shop/prices.py").write_text(TWO_BUGS)
    (shop / "tests/test_prices.py").write_text(TWO_TESTS)
    read = find_repair.__globals__["_AskedServer"]._extracted

    def extracted(self: object, problem: object, text: str) -> object:
        if text == "interrupted":
            raise KeyboardInterrupt
        return read(self, problem, text)

    monkeypatch.setattr("greenward.tasks.repair.fix._AskedServer._extracted", extracted)
    impatient = functools.partial(RetryPolicy, first_wait=0.01, longest_wait=0.02)
    monkeypatch.setattr("greenward.common.http.RetryPolicy", impatient)

    def answer(prompt: str) -> str:
        return "interrupted" if "test_the_dearest: " in prompt else TAXED

    def fault(prompt: str, attempt: int) -> str | None:
        return "other_json" if ends == "server" and "test_the_dearest: " in prompt else None

    with OpenAIServer(answer, fault) as server:
        command = ["fix", "shop/prices.py", "--tests", "tests", "--model", "tiny", "--n", "1"]
        done = CliRunner().invoke(cli, [*command, "--base-url", server.url, *chosen])
    assert "+    return sum(prices) * (1 + RATE)" in done.stdout.replace("\\n", "\n")
    is_applied = ends == "server" and "--yes" in chosen
    if "--json" in chosen:
        found = json.loads(done.stdout)
        assert found["applied"] is is_applied and found["tests_passed"] == 2 and not found["passed"]
    else:
        assert "Best: failed, 2 of 3 tests pass." in done.output
        assert ("Applied." if is_applied else "Nothing was changed") in done.output
    expected = TWO_BUGS.replace("* RATE", "* (1 + RATE)") if is_applied else TWO_BUGS
    assert (shop / "shop/prices.py").read_text() == expected
    if ends == "server":
        assert isinstance(done.exception, ConfigError) and "no choice" in str(done.exception)
    else:
        assert done.exit_code != 0


@pytest.mark.parametrize(
    ("before", "after", "tests"),
    [
        ("from json import loads\n\ndef read(text):\n    return loads(text)['b']\n",
         "from json import loads\n\ndef read(text):\n    return loads(text)['a']\n",
         "class Cases(unittest.TestCase):\n    def test_read(self):\n"
         "        self.assertEqual(json.read('{\"a\": 1}'), 1)\n"),
        ("def read(text):\n    return None\n",
         "from json import loads\n\ndef read(text):\n    return loads(text)['a']\n",
         "class Cases(unittest.TestCase):\n    def test_read(self):\n"
         "        self.assertEqual(json.read('{\"a\": 1}'), 1)\n"),
        ("x = 1\n", "x = 1\n\n\nclass Stack:\n    top = 1\n",
         "class Stack(unittest.TestCase):\n    def test_top(self):\n"
         "        self.assertEqual(json.Stack.top, 1)\n"),
        ("x = 1\n", "x = 1; from shop.json import x; y = 2\n",
         "class Stack(unittest.TestCase):\n    def test_y(self):\n        self.assertEqual(json.y, 2)\n"),
    ],
)  # fmt: skip
def test_what_has_the_name_of_a_test_or_of_the_module_stays_where_tests_need_it(
    before: str, after: str, tests: str, shop: Path
) -> None:
    (shop / "shop/json.py").write_text(before)
    (shop / "tests/test_prices.py").write_text(f"import unittest\nfrom shop import json\n\n\n{tests}")
    with OpenAIServer(lambda prompt: f"```python\n{after}```") as server:
        options = FixOptions(answers=1, form="function")
        repair = find_repair(Path("shop/json.py"), Path("tests"), f"tiny@{server.url}", options)
    assert repair.passed, repair.outcomes()
    repair.apply()
    assert list(filter(None, (shop / "shop/json.py").read_text().split("\n"))) == list(
        filter(None, after.split("\n"))
    )


def test_a_test_is_shown_with_the_whole_head_of_its_class_in_a_suite_of_many_files(shop: Path) -> None:
    head = "@unittest.skipIf(OLD, 'old')\nclass Prices(\n    unittest.TestCase,\n):\n"
    body = "    def test_tax(self):\n        self.assertIsInstance(self, Prices)\n"
    text = (
        f"import unittest\nOLD = False\nUNUSED = 1\n{head}{body}\n    def test_other(self):\n        pass\n"
    )
    for number in range(20):
        (shop / f"tests/test_{number}.py").write_text(text)
    _, project = repair_problem(Path("shop/prices.py"), Path("tests"))
    assert {project.test_source(f"test_{number}.Prices.test_tax") for number in range(20)} == {
        f"import unittest\nOLD = False\n{head}{body}"
    }


def test_of_a_test_that_is_a_coroutine_its_own_line_is_told(fix: Callable[..., Result], shop: Path) -> None:
    case = CASE.replace("unittest.TestCase", "unittest.IsolatedAsyncioTestCase")
    for tests, said in (
        (case + METHOD.replace("def", "async def"), "test_tax: assert total([100]) == 120; AssertionError"),
        (FUNCTIONS + "async def test_tax():\n    pass\n", "test_tax: Failed: async def functions are not"),
    ):
        (shop / "tests/test_prices.py").write_text(tests)
        (told,) = {line for line in fix([WRONG]).output.splitlines() if line.startswith("  test_prices.")}
        assert said in told and "_callMaybeAsync" not in told
