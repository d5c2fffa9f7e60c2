"""Prompts that are found by their places, and texts in prompts, against reading all of the file."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from greenward.common.errors import RunError
from greenward.runs import prompts as module
from greenward.runs.answers import prompt_number, read_answer_columns
from greenward.runs.directory import RunDirectory
from greenward.runs.prompts import Prompts, holding
from greenward.runs.reading import read_prompts

WORDS = ("Größe", "sort", "reverse", "\\u0041", "tree", '"quoted"', "line\nend", "💡")


@pytest.fixture(params=[0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def made(request, tmp_path):
    """(path, rows with their prompts in the order of the columns) of a run with odd lines among its prompts."""
    rng = np.random.default_rng(request.param)
    path = tmp_path / "run"
    every = []
    with RunDirectory.create(path, {"algorithm": {"name": "grpo"}}) as run:
        for step in range(1, 21):
            rows = []
            for index in range(8):
                prompt = " ".join(rng.choice(WORDS, 3)) + f" {rng.integers(40)}"
                row = {
                    "problem": f"t/{index}",
                    "answer": " ".join(rng.choice(WORDS, 2)),
                    "prompt_id": run.prompts.add(step, prompt),
                }
                if rng.random() < 0.1:
                    row, prompt = {**row, "prompt_id": "of another recorder"}, "a TREE of theirs"
                if rng.random() < 0.1:
                    del row["prompt_id"]
                    prompt = ""
                rows.append(row)
                every.append((row, prompt))
            run.write_rollouts(step, rows)
    with (path / "prompts.jsonl").open("ab") as file:
        if request.param % 2:
            file.write(b'[1]\n\n{"prompt_id": 7}\nno JSON\n')
        file.write(b'{"prompt_id": "of another recorder", "prompt": "replaced"}\n')
        file.write(b'{"prompt": "a TREE of theirs", "prompt_id": "of another recorder"}\n{"half')
    return path, every


def every_key(path):
    return np.array(sorted({prompt_number(key) for key in read_prompts(path)}), np.uint64)


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_each_prompt_is_found_at_its_place(made, monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    path, _ = made
    found = Prompts()
    found.update(path, path)
    expected = {prompt_number(key): prompt for key, prompt in read_prompts(path).items()}
    assert dict(found.read(path, every_key(path), path)) == expected and found.share == 1
    assert list(found.read(path, np.array([3], np.uint64), path)) == []


@pytest.mark.parametrize("texts", [("sort",), ("TREE",), ("größe", "reverse"), ('"quoted"',), ("line\nend", "💡"),
                                   ("absent",)])  # fmt: skip
def test_a_text_is_found_in_the_prompt_or_the_row(made, texts):
    path, every = made
    columns = read_answer_columns(path)
    prompts = Prompts()
    prompts.update(path, path)
    expected = [
        place
        for place, (row, prompt) in enumerate(every)
        if all(
            text.casefold() in row["answer"].casefold() or text.casefold() in prompt.casefold()
            for text in texts
        )
    ]
    assert holding(path, columns, np.arange(len(every)), texts, prompts) == expected
    some = np.arange(0, len(every), 3)
    assert holding(path, columns, some, texts, prompts) == [one for one in expected if one % 3 == 0]


def test_a_file_that_grew_is_read_on_and_another_one_anew(made, monkeypatch):
    path, _ = made
    found = Prompts()
    file = path / "prompts.jsonl"
    file.write_bytes(file.read_bytes().rpartition(b"\n")[0] + b"\n")
    found.update(path, path)
    seen = []
    real = module._places
    monkeypatch.setattr(module, "_places", lambda block, at: seen.append(len(block)) or real(block, at))
    line = json.dumps({"step": 30, "prompt_id": f"{7:016x}", "prompt": "new"}).encode() + b"\n"
    with file.open("ab") as opened:
        opened.write(line)
    found.update(path, path)
    assert seen == [len(line)]
    assert list(found.read(path, np.array([7], np.uint64), path)) == [(7, "new")]
    file.write_bytes(line)
    found.update(path, path)
    assert len(found.table[0]) == 1
    file.unlink()
    found.update(path, path)
    assert len(found.table[0]) == 0 and found.share == 1


def test_reading_stops_in_time_and_goes_on(made, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 256)
    path, _ = made
    found = Prompts()
    shares = []
    while not shares or shares[-1] < 1:
        found.update(path, path, until=0)
        shares.append(found.share)
    assert len(shares) > 5 and shares == sorted(shares)
    assert len(dict(found.read(path, every_key(path), path))) == len(every_key(path))


def test_a_link_that_leads_out_is_not_followed(made, tmp_path):
    path, _ = made
    os.replace(path / "prompts.jsonl", tmp_path / "elsewhere")
    (path / "prompts.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"prompts\.jsonl cannot be read"):
        Prompts().update(path, path)
