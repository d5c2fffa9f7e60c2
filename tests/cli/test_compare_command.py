"""`greenward compare` as a user sees it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from greenward.cli.evaluate import compare
from greenward.evaluation.samples import EvaluationRow, Sample
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Problem


def row(task_id, status):
    answer = Sample(Problem(task_id, "", "f"), 0, "text", Extracted("code"))
    return json.dumps(EvaluationRow.of(answer, Verdict(status)).to_json()) + "\n"


@pytest.fixture
def folders(tmp_path):
    def write(name, passed, *, prefix="mbpp/", **settings):
        folder = tmp_path / name
        folder.mkdir()
        rows = (row(f"{prefix}{i}", Status.PASSED if one else Status.FAILED) for i, one in enumerate(passed))
        (folder / "results.jsonl").write_text("".join(rows))
        (folder / "settings.json").write_text(json.dumps({"suite": "mbpp", **settings}))
        return str(folder)

    return write


def test_the_claim_the_flips_and_the_smallest_difference_are_printed(folders):
    a, b = folders("a", [1, 0, 1] * 20), folders("b", [1, 1, 0] + [1, 0, 1] * 19)
    done = CliRunner().invoke(compare, [a, b])
    assert done.exit_code == 0
    assert "40/60 → 40/60: p = 1 (exact McNemar); cannot be told from chance" in done.output
    assert "won by B    1  mbpp/1" in done.output
    assert "lost by B   1  mbpp/2" in done.output
    assert "the smallest difference that these 60 problems can show" in done.output


def test_what_makes_the_comparison_unfair_is_said_first(folders):
    a, b = folders("a", [1, 0], temperature=0.2), folders("b", [1, 0, 1], temperature=0.8)
    lines = CliRunner().invoke(compare, [a, b]).output.splitlines()
    assert lines[0] == "! temperature differs: 0.2 in A, 0.8 in B"
    assert lines[1].startswith(
        "! THE PROBLEMS DIFFER: 2 are compared; 0 are only in A and 1 only in B (mbpp/2)"
    )


def test_json_holds_the_whole_comparison(folders):
    done = CliRunner().invoke(compare, [folders("a", [0] * 8), folders("b", [1] * 8), "--json"])
    found = json.loads(done.output)
    assert found["significant"] is True
    assert found["p_value"] == pytest.approx(2 / 2**8)
    assert found["won"] == [f"mbpp/{i}" for i in range(8)]


def test_control_characters_in_ids_do_not_reach_the_terminal(folders):
    a, b = (folders(name, [passed], prefix="x\x1b[2J") for name, passed in (("a", 0), ("b", 1)))
    done = CliRunner().invoke(compare, [a, b])
    assert done.exit_code == 0
    assert "\x1b" not in done.output


@pytest.mark.parametrize(
    ("of_b", "said"),
    [
        (
            {"prompt": "greenward"},
            "The prompts differ: A was asked by the prompt 'evalplus', B by 'greenward'.",
        ),
        ({"style": "completion"}, "The prompts differ: A in style chat, B in completion."),
        ({"prompt_hash": "1"}, "The prompts differ in their chat template, system prompt or wording."),
    ],
)
def test_prompts_that_differ_are_named_in_words(folders, of_b, said):
    of_a = {"prompt": "evalplus", "style": "chat", "prompt_hash": "0"}
    a, b = folders("a", [1, 0], **of_a), folders("b", [1, 1], **{**of_a, "prompt_hash": "2", **of_b})
    lines = CliRunner().invoke(compare, [a, b]).output.splitlines()
    assert lines[0].startswith(f"! {said}")
    assert not any("prompt_hash" in line for line in lines)
    assert json.loads(CliRunner().invoke(compare, [a, b, "--json"]).output)["prompts"].startswith(said)
    assert "prompts differ" not in CliRunner().invoke(compare, [a, a]).output
