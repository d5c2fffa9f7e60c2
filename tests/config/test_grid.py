"""The grid of a sweep: which texts are several values, and which runs they add up to."""

from __future__ import annotations

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import grid_runs


def values(override: str) -> list[str]:
    return [run.overrides[0].partition("=")[2] for run in grid_runs([override])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4,3e-4", ["1e-4", "3e-4"]),
        ("0..4", ["0", "1", "2", "3", "4"]),
        ("-1..1,7", ["-1", "0", "1", "7"]),
        ("3..3", ["3"]),
        ("[1],[1,4]", ["[1]", "[1,4]"]),
        ("[1,4]", ["[1,4]"]),
        ("{k: [1,2], a: {b: 3, c: 4}},null", ["{k: [1,2], a: {b: 3, c: 4}}", "null"]),
        ('"a, b",c', ['"a, b"', "c"]),
        ("'it''s, so',[\"]\", 1]", ["'it''s, so'", '["]", 1]']),
        ("don't,do", ["don't", "do"]),
        (" a , b ", ["a", "b"]),
        ("", [""]),
        ("1..", ["1.."]),
        ("a]b", ["a]b"]),
    ],
)
def test_commas_outside_of_brackets_and_quotes_and_ranges_give_values(text, expected):
    assert values(f"key={text}") == expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["a=1,"], "values with commas between"),
        (["a=1,,2"], "values with commas between"),
        (["a=[1,2"], "values with commas between"),
        (["a=4..0"], "ends before it begins"),
        (["a=1,2,1"], "the value 1 is given twice"),
        (["a=0..3,2"], "the value 2 is given twice"),
        (["a=1,2", "b=1", "a=3"], "a is swept and given once more"),
        (["model=a,b", "model.id=c"], "model.id is swept and given once more"),
        (["a=0..999999999999"], "more than 1000 values"),
        (["a=0..99", "b=0..99"], "the grid has 10000 runs"),
    ],
)
def test_a_grid_that_cannot_be_meant_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        grid_runs(overrides)


@pytest.mark.parametrize(
    ("override", "folders"),
    [
        ("algorithm.clip_high=0.2,0.3", ["clip_high=0.2", "clip_high=0.3"]),
        ("model.dtype=float32,bfloat16", ["dtype=float32", "dtype=bfloat16"]),
        ("algorithm=ppo,grpo", ["algorithm=ppo", "algorithm=grpo"]),
        ("algorithm.name=ppo,grpo", ["algorithm=ppo", "algorithm=grpo"]),
        ("model.id=a,b", ["model=a", "model=b"]),
    ],
)
def test_a_folder_is_named_by_the_last_part_of_its_key(override, folders):
    assert [run.folder for run in grid_runs([override])] == folders


def test_the_grid_is_every_combination_in_order_with_the_seeds_side_by_side():
    runs = grid_runs(["seed=0..1", "training.max_steps=5", "training.learning_rate=1e-4,1e-3"])
    assert [run.folder for run in runs] == [
        "learning_rate=1e-4/seed_0",
        "learning_rate=1e-4/seed_1",
        "learning_rate=1e-3/seed_0",
        "learning_rate=1e-3/seed_1",
    ]
    assert runs[1].overrides == ("seed=1", "training.max_steps=5", "training.learning_rate=1e-4")


def test_folders_are_distinct_and_hold_no_special_characters():
    hostile = ["../../etc", "a/b", "a_b", "$(rm)", "a`x`", "x" * 300, "x" * 299 + "y"]
    runs = grid_runs([f"model={','.join(hostile)}", "a.k=[1,2],[1]", "b.k=1,2"])
    folders = [run.folder for run in runs]
    assert len(set(folders)) == len(folders) == 28
    for folder in folders:
        assert folder.startswith("model=") and len(folder) < 130
        assert not set(folder) & set("/$`'\" []{}()\n")
    assert "a.k=1,2,b.k=1" in folders[0]


def test_a_single_run_has_no_folder_of_its_own():
    (run,) = grid_runs(["seed=3", "evaluation={k: [1, 2]}"])
    assert run.folder == "" and run.overrides == ("seed=3", "evaluation={k: [1, 2]}")
