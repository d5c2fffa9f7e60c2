"""docs/ci.md: its script run by a shell, its exit codes, and its schema held against what the commands print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.grading.verdict import Status, Verdict
from greenward.rollouts.protocols import Episode
from greenward.training.protocols import rollout_row

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ci.md").read_text("utf-8")
SCHEMA = json.loads((ROOT / "docs/ci.schema.json").read_text("utf-8"))
PROBLEMS = [
    {"function_name": "add", "docstring": "Return the sum.", "test_cases": [[2, 3, 5], [0, 1, 1]]},
    {"function_name": "double", "docstring": "Return twice x.", "test_cases": [[4, 8], [3, 6]]},
]
ADD = "def add(a, b):\n    return a + b\n"
DOUBLE, SQUARE = "def double(x):\n    return 2 * x\n", "def double(x):\n    return x * x\n"
REWARDS = """
def unit_tests(answers):
    return [float(one.verdict.passed) for one in answers]


def keyword(completions):  # no columns: the audit need not find out whether it reads verdicts among them
    return [float("return" in text) for text in completions]
"""
TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def mistakes(value, schema, place="$"):
    """What of a value is not as the schema has it. Raises for a keyword that this function does not know."""
    known = {"$ref", "description", "type", "enum", "minimum", "maximum", "required", "properties", "items",
             "additionalProperties"}  # fmt: skip
    assert not schema.keys() - known, schema.keys() - known
    if "$ref" in schema:
        yield from mistakes(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], place)
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r} is none of {schema['enum']}"
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    fits = [
        isinstance(value, TYPES[one]) and (one == "boolean" or not isinstance(value, bool)) for one in types
    ]
    if types and not any(fits):
        yield f"{place}: {value!r:.80} is no {types}"
        return
    if isinstance(value, (int, float)) and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        yield f"{place}: {value} is out of range"
    if isinstance(value, dict):
        yield from (f"{place}.{key} is missing" for key in schema.get("required", ()) if key not in value)
        for key, inner in value.items():
            of = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            yield from mistakes(inner, of, f"{place}.{key}")
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from mistakes(inner, schema.get("items", {}), f"{place}[{number}]")


def refused(name, value):
    return list(mistakes(value, SCHEMA["$defs"][name]))


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A folder with what the page calls yours, a `greenward` on the path, and the script."""
    (tmp_path / "problems.json").write_text(json.dumps(PROBLEMS))
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    write_samples(tmp_path, ADD, DOUBLE)
    write_log(tmp_path, explodes=False)
    command = tmp_path / "bin/greenward"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m greenward "$@"\n')
    command.chmod(0o755)
    (script,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "check.sh").write_text(script)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_samples(folder, *programs):
    names = ("add", "double")
    rows = [{"task_id": name, "solution": one} for name, one in zip(names, programs, strict=True)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_log(folder, *, explodes):
    (folder / "outputs").mkdir(exist_ok=True)
    rows = []
    for step in range(1, 401):
        wave = ((step * 7919) % 101) / 101
        norm = (20.0 if explodes and step > 250 else 0.5) * (1 + 0.2 * wave)
        reward = 0.2 + 0.0015 * step + 0.05 * wave
        rows.append({"step": step, "reward/mean": reward, "grad_norm": norm, "entropy": 0.5 - 0.0005 * step})
    (folder / "outputs/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_script(job):
    done = subprocess.run(["sh", "check.sh"], cwd=job, capture_output=True, text=True, timeout=300)
    return done.returncode, dict(re.findall(r"^(\w+): exit code (\d+)$", done.stdout, re.MULTILINE))


def test_of_a_job_in_which_all_is_well_the_objects_are_those_of_the_schema(job):
    assert run_script(job) == (0, {"grade": "0", "audit": "0", "diagnose": "0"})
    for name, definition in (("grade", "evaluation"), ("audit", "audit"), ("diagnose", "diagnosis")):
        assert refused(definition, json.loads((job / f"ci/{name}.json").read_text())) == [], name
    assert refused("evaluation", json.loads((job / "ci/graded/summary.json").read_text())) == []
    for file, definition in (("samples", "sample"), ("results", "result")):
        rows = [json.loads(line) for line in (job / f"ci/graded/{file}.jsonl").read_text().splitlines()]
        assert len(rows) == 2 and all(refused(definition, row) == [] for row in rows)
        assert all(row.keys() <= SCHEMA["$defs"][definition]["properties"].keys() for row in rows)
    reader = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    shown = subprocess.run(
        [sys.executable, "-c", reader], cwd=job, capture_output=True, text=True, check=True
    )
    assert "{'passed': 2}" in shown.stdout


@pytest.mark.slow
def test_of_a_job_with_findings_the_objects_are_those_of_the_schema(job):
    assert run_script(job)[0] == 0
    write_samples(job, ADD, SQUARE)
    write_log(job, explodes=True)
    script = (
        (job / "check.sh").read_text().replace("ci/graded", "ci/worse").replace(":unit_tests", ":keyword")
    )
    (job / "check.sh").write_text(script)
    assert run_script(job) == (1, {"grade": "1", "audit": "1", "diagnose": "1"})
    found = {
        name: json.loads((job / f"ci/{name}.json").read_text()) for name in ("grade", "audit", "diagnose")
    }
    assert refused("evaluation", found["grade"]) == refused("audit", found["audit"]) == []
    assert refused("diagnosis", found["diagnose"]) == []
    assert found["grade"]["metrics"]["pass@1"]["value"] == 0.5
    assert found["diagnose"]["verdict"] == "findings" and not found["audit"]["sound"]
    result = CliRunner().invoke(cli, ["compare", "ci/graded", "ci/worse", "--json"])
    assert refused("comparison", json.loads(result.stdout)) == [] and json.loads(result.stdout)["lost"] == [
        "double"
    ]


def test_a_job_that_finds_no_files_ends_with_the_worst_code(job):
    script = (job / "check.sh").read_text().replace("samples.jsonl", "absent.jsonl")
    (job / "check.sh").write_text(script.replace("outputs/", "absent/").replace(":unit_tests", ":absent"))
    assert run_script(job) == (2, {"grade": "2", "audit": "2", "diagnose": "2"})


def test_the_list_of_runs_is_that_of_the_schema(job):
    (job / "outputs/config.yaml").write_text("name: x\n")
    result = CliRunner().invoke(cli, ["runs", ".", "--json"])
    record = json.loads(result.stdout)
    assert [one["steps"] for one in record["runs"]] == [400] and refused("runs", record) == []


def test_rows_of_a_training_are_those_of_the_schema():
    """Of four episodes: one that passed, failed, was cut off and left the loss, or was not judged."""
    verdicts = (
        Verdict(Status.PASSED, (True, True), stdout="x"),
        Verdict(Status.ERROR, (True, False), "KeyError", "'a'", "line 2 in f", "f(1)"),
        Verdict(Status.FAILED, (False,)),
        None,
    )
    for number, verdict in enumerate(verdicts):
        episode = Episode(
            turns=(), rewards={"policy": 0.5}, group_id=number, task_id="p", outcome="passed", verdict=verdict,
            answer="x", reward_terms={"tests": 1.0}, extra={"k": 1.0}, transcript=(("policy", "x"),),
            advantage=0.5, masked="length" if number == 2 else "",
        )  # fmt: skip
        row = rollout_row(episode, "a1")
        assert refused("rollout", json.loads(json.dumps(row))) == []
        assert row.keys() <= SCHEMA["$defs"]["rollout"]["properties"].keys()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rate", {"value": 2, "low": 0, "high": 1}, "out of range"),
        ("rate", {"value": 0.5, "low": "0", "high": 1}, "is no"),
        ("rate", {"value": 0.5, "low": 0}, "high is missing"),
        ("counts", {"passed": True}, "is no"),
        ("diagnosis", {"version": 2}, "none of [1]"),
    ],
)
def test_the_check_of_the_schema_refuses_what_differs(name, value, said):
    assert any(said in one for one in refused(name, value))


def test_the_workflow_runs_the_script_and_keeps_its_folder():
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    assert [step["run"] for step in steps if "run" in step][-1] == "sh check.sh"
    assert steps[-1]["with"]["path"] == "ci" and steps[-1]["if"] == "always()"


def test_the_page_is_linked_from_the_readme():
    assert "(docs/ci.md)" in (ROOT / "README.md").read_text("utf-8")
