"""Suites by name: where their files are looked for, and what comes from the hub."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from greenward.common.errors import ProblemError
from greenward.problems import catalog
from greenward.problems.catalog import SUITES, PinnedFile, cache_folder, load_file, load_suite

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
