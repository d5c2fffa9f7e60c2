"""The commands that users of RLDK know, as views of the same diagnosis."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from greenward.cli.rldk import rldk

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnostics"))
from synthetic_runs import healthy, with_explosion, write_run


def command(*arguments):
    return CliRunner().invoke(rldk, list(map(str, arguments)))


def test_ingest_writes_rows_under_greenwards_names(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"step": i, "data": {"actor/grad_norm": 1.0, "mine": i}}) + "\n" for i in range(3))
    )
    done = command("ingest", log, "-o", tmp_path / "out.jsonl", "--map", "mine=reward/mean")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[2] == {"step": 2, "grad_norm": 1.0, "reward/mean": 2.0}


def test_validate_format_says_what_is_known(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("global_step,train/kl,foo\n1,0.1,2\n2,0.2,3\n")
    done = command("validate-format", log)
    assert (
        "CSV: 2 steps" in done.output
        and "kl (from train/kl): 2 values" in done.output
        and "foo" in done.output
    )


def test_cards_show_their_part_and_differences(tmp_path):
    sound, broken = (
        write_run(tmp_path / "a", healthy(2)),
        write_run(tmp_path / "b", with_explosion(healthy(2))),
    )
    done = command("card", "drift", broken)
    assert done.exit_code == 1 and "The gradient norm left its scale" in done.output
    assert command("card", "drift", sound).exit_code == 0
    assert command("card", "determinism", sound, sound).exit_code == 0
    assert "DIVERGED" in command("card", "determinism", sound, broken).output
    assert command("card", "determinism", sound).exit_code == 2
    assert command("kl-drift", sound).exit_code == 0
    assert command("length-bias", sound).exit_code == 0


def test_log_scan_lists_alarms(tmp_path):
    done = command("log-scan", write_run(tmp_path / "b", with_explosion(healthy(2), factor=30)))
    assert done.exit_code == 1
    assert json.loads(done.output.splitlines()[0])["name"] == "gradient-explosion"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s, "NO DRIFT"),
        (lambda s: 2 * s + 1, "SAME ORDER, other size: shift"),
        (lambda s: np.random.default_rng(1).permutation(s), "ORDER CHANGED"),
    ],
)
def test_reward_drift_tells_a_scale_from_an_order(tmp_path, change, expected):
    scores = np.random.default_rng(0).standard_normal(50)
    for name, values in (("a", scores), ("b", change(scores))):
        rows = ({"prompt": f"p{i}", "score": float(v)} for i, v in enumerate(values))
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command("reward-drift", tmp_path / "a", tmp_path / "b")
    assert expected in done.output, done.output


def test_the_audit_of_the_environment_names_what_changed(tmp_path):
    run = write_run(tmp_path / "run", healthy(1, 40), seed=1)
    sessions = [{"python": "3.11", "torch": "2.9"}, {"python": "3.11", "torch": "2.10"}]
    (run / "provenance.json").write_text(json.dumps({"sessions": sessions}))
    done = command("env-audit", run)
    assert "session 2: torch 2.9 -> 2.10" in done.output
    assert command("env-audit", tmp_path).exit_code != 0
