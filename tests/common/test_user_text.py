"""Text of users that is valid and hostile to its reader: one clear error each, wherever it is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from greenward.common.errors import CheckpointError, ConfigError, GreenwardError, ProblemError, RunError
from greenward.common.files import lines, open_file, read_file
from greenward.common.parsing import MAX_DIGITS, MAX_NESTING, parse_json_text
from greenward.common.yaml_text import MAX_YAML_CHARS, parse_yaml_text
from greenward.config.loading import load_recipe, parse_recipe
from greenward.evaluation.store import read_samples
from greenward.models.tokenizer import read_json as read_model_json
from greenward.problems.formats import load_json
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.reports.runs import read_runs
from greenward.runs.files import JsonRows, read_json, read_jsonl
from greenward.runs.output import RunLock
from greenward.runs.reading import read_config
from greenward.tasks.corpus import read_pairs

DEEP = {
    "lists": "[" * 5000 + "]" * 5000,
    "objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "unclosed": "[" * 100_000,
    "below the limit of Python's stack": "[" * 600 + "]" * 600,
    "digits": "9" * (MAX_DIGITS + 1),
}
CYCLES = {
    "a list in itself": "a: &a [*a]",
    "a section in itself": "a: &a {b: {c: *a}}",
    "two in each other": "a: &a [&b [*a], *b]",
    "pairs in themselves": "a: &a !!omap [b: *a]",
    "aliases of aliases": "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "brackets": "a: " + "[" * 5000 + "]" * 5000,
    "braces": "a: " + "{b: " * 5000 + "1" + "}" * 5000,
    "indentation": "\n".join(" " * n + "a:" for n in range(500)),
    "below the limit of Python's stack": "a: " + "[" * 120 + "]" * 120,
    "a day that does not exist": "a: 2024-99-99",
    "an integer of words": "a: !!int words",
    "a list as a key": "? [a]\n: b",
}


def in_one_line(error: pytest.ExceptionInfo[GreenwardError]) -> None:
    assert len(error.value.message.splitlines()) == 1
    assert len(error.value.message) < 500


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_json_that_exhausts_its_reader_is_refused_by_every_reader(tmp_path, text):
    path = tmp_path / "file.jsonl"
    problems = ProblemSet((Problem("t/0", "", "f", tests=(Case((1,), 1),)),))
    readers = {
        "samples": (
            '{"task_id": "t/0", "solution": ""}\n%s\n\n',
            lambda: read_samples(path, problems),
            ProblemError,
        ),
        "problems": ('{"x": %s}\n', lambda: load_json(path), ProblemError),
        "pairs": ("%s\n", lambda: list(read_pairs(path, None)), ProblemError),  # type: ignore[arg-type]
        "metrics": ('%s\n{"step": 1}\n', lambda: read_jsonl(path), RunError),
        "records": ("%s", lambda: read_json(path), RunError),
        "model": ("%s", lambda: read_model_json(path), CheckpointError),
    }
    for name, (template, read, error) in readers.items():
        path.write_text(template % text)
        with pytest.raises(error) as raised:
            read()
        in_one_line(raised), name


@pytest.mark.parametrize("text", CYCLES.values(), ids=CYCLES)
def test_yaml_that_exhausts_its_reader_is_refused_by_every_reader(tmp_path, text):
    with pytest.raises(ConfigError, match="recipe") as raised:
        parse_recipe(text)
    in_one_line(raised)
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunError, match=r"config\.yaml") as read:
        read_config(tmp_path)
    in_one_line(read)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert any("config.yaml" in note for note in read_runs(tmp_path).notes)


def test_an_override_that_exhausts_its_reader_is_refused():
    with pytest.raises(ConfigError, match="Override") as raised:
        parse_recipe("task: rl", ["seed=" + "[" * 5000])
    in_one_line(raised)


def test_what_is_not_too_deep_is_read_as_the_parsers_read_it():
    value: object = "x"
    for _ in range(MAX_NESTING):
        value = [value]
    text = json.dumps(value)
    assert parse_json_text(text) == parse_json_text(text.encode()) == parse_yaml_text(text) == value
    with pytest.raises(json.JSONDecodeError, match="levels deep"):
        parse_json_text(f"[{text}]")
    with pytest.raises(yaml.YAMLError, match="levels deep"):
        parse_yaml_text(f"[{text}]")
    shared = parse_yaml_text("a: &a [1, 2]\nb: [*a, *a]")
    assert shared == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    with pytest.raises(json.JSONDecodeError):
        parse_json_text("[1,")
    with pytest.raises(UnicodeDecodeError):
        parse_json_text(b'"\xff"')


@pytest.mark.parametrize("digits", [4301, MAX_DIGITS])
def test_integers_are_read_up_to_the_limit_which_the_error_names(digits):
    text, value = "7" * digits, 7 * (10**digits - 1) // 9
    assert parse_json_text(f"[-{text}]") == [-value]
    assert parse_yaml_text(f"a: {text}") == {"a": value}
    for longer in ("7" * (MAX_DIGITS + 1), "7" * 3_000_000):
        with pytest.raises(json.JSONDecodeError, match=str(MAX_DIGITS)):
            parse_json_text(f'{{"a": {longer}}}')


@pytest.mark.parametrize(("set_before", "after"), [("4300", str(MAX_DIGITS)), ("0", "0"), ("90000", "90000")])
def test_a_higher_limit_of_digits_that_a_user_has_set_stays(set_before, after):
    code = "import greenward.grading.judge, sys; print(sys.get_int_max_str_digits())"
    environment = {**os.environ, "PYTHONINTMAXSTRDIGITS": set_before}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == after, found.stderr


@pytest.mark.parametrize("kind", ["symbolic link", "dangling link", "hard link", "folder", "pipe"])
def test_a_lock_that_is_no_file_of_its_own_is_refused_and_its_target_untouched(tmp_path, kind):
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.write_text("precious")
    lock = run / ".lock"
    {
        "symbolic link": lambda: lock.symlink_to(victim),
        "dangling link": lambda: lock.symlink_to(tmp_path / "made"),
        "hard link": lambda: os.link(victim, lock),
        "folder": lock.mkdir,
        "pipe": lambda: os.mkfifo(lock),
    }[kind]()
    with pytest.raises(RunError, match="a file of its own"):
        RunLock(run)
    assert victim.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "victim"}


def test_a_lock_left_by_a_run_is_taken_again(tmp_path):
    for _ in range(2):
        RunLock(tmp_path).release()
    assert Path(tmp_path, ".lock").read_text() == f"pid {os.getpid()}\n"


MERGES = {
    "merge keys of merge keys": "a0: &a0 {x: 1, y: 2}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
    "aliases as a key": "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    + "? *a29\n: 1",
    "digits": "a: " + "9" * 200_000,
    "a time of many parts": "a: 1" + ":1" * 100_000,
    "a long text": "a: '" + "x" * (MAX_YAML_CHARS + 1) + "'",
}


@pytest.mark.parametrize("text", MERGES.values(), ids=MERGES)
def test_yaml_that_stands_for_more_than_it_says_is_refused_before_it_is_built(tmp_path, text):
    began = time.process_time()
    with pytest.raises(yaml.YAMLError):
        parse_yaml_text(text)
    assert time.process_time() - began < 5
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.yaml") as raised:
        load_recipe(tmp_path / "recipe.yaml")
    in_one_line(raised)


def test_anchors_and_merge_keys_of_recipes_are_read_as_pyyaml_reads_them():
    text = "base: &b {x: 1, y: [1, 2]}\nmore: {<<: *b, x: 3}\nboth: {<<: [*b, {z: 4}], u: *b}"
    assert parse_yaml_text(text) == yaml.safe_load(text)


def test_a_file_of_a_stranger_is_a_regular_file_in_its_folder(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (tmp_path / "mine.json").write_text('{"secret": 1}')
    (folder / "own.json").write_text("{}")
    (folder / "link.json").symlink_to("own.json")
    (folder / "out.json").symlink_to(tmp_path / "mine.json")
    os.mkfifo(folder / "fifo.json")
    assert read_file(folder / "link.json", within=folder) == b"{}"
    assert read_file(folder / "out.json") == b'{"secret": 1}'  # a path that the user gave
    for name, reason in (
        ("out.json", "leads out"),
        ("fifo.json", "no regular file"),
        ("absent.json", "No such"),
    ):
        with pytest.raises(OSError, match=reason):
            read_file(folder / name, within=folder)
    with pytest.raises(OSError, match="no regular file"):
        read_file(Path("/dev/zero"))
    with pytest.raises(OSError, match="at most 1"):
        read_file(folder / "own.json", 1)
    for name in ("out.json", "fifo.json"):
        with pytest.raises(RunError, match=name):
            read_json(folder / name)
        with pytest.raises(RunError, match=name):
            list(JsonRows(folder / name, lenient=True))


def test_a_line_without_an_end_is_cut(tmp_path):
    (tmp_path / "file").write_bytes(b"abcdef\nab\nabc\n\nabcdefgh")
    with open_file(tmp_path / "file", 100) as file:
        assert list(lines(file, 4)) == [b"abcd", b"ab\n", b"abc\n", b"\n", b"abcd"]
