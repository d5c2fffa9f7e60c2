"""The card of a checkpoint says what the run's files say, and only what may be published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from greenward.runs.directory import RunDirectory
from greenward.runs.publish import model_card

HELD_OUT = {"suite": "held_out", "metrics": {"pass@1": {"value": 0.5, "low": 0.25, "high": 0.75}}}
CONFIG = {
    "algorithm": {"name": "grpo"},
    "name": "mine",
    "model": {"id": "Qwen/Qwen2.5-Coder-0.5B-Instruct", "cache_dir": "/home/somebody/cache"},
    "problems": {"train": "bugs:mbpp:train", "held_out": "/home/somebody/problems.json"},
    "evaluation": {"suites": [{"name": "humaneval+"}]},
}


def card_of(tmp_path: Path, config: dict[str, Any] = CONFIG, step: int = 20) -> tuple[dict[str, Any], str]:
    with RunDirectory.create(tmp_path / "run", config, device="A card") as run:
        for at, value in ((0, 0.125), (20, 0.5), (40, 0.875)):
            metric = HELD_OUT["metrics"]["pass@1"] | {"value": value}
            run.write_evaluation(at, HELD_OUT | {"step": at, "metrics": {"pass@1": metric}})
            run.write_evaluation(
                at, {"suite": "humaneval+", "step": at, "metrics": {"pass@1": metric}}, "humaneval_plus"
            )
    card = model_card(tmp_path / "run", step)
    _, head, body = card.split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_card_names_base_data_licences_evaluation_hardware_and_versions(tmp_path: Path) -> None:
    metadata, body = card_of(tmp_path)
    assert metadata["base_model"] == "Qwen/Qwen2.5-Coder-0.5B-Instruct" and "license" not in metadata
    assert metadata["library_name"] == "transformers"
    for suite in ("held_out", "humaneval+"):
        assert f"| {suite} | pass@1 | 0.125 [0.250, 0.750] | 0.500 [0.250, 0.750] | 20 |" in body
    assert "0.875" not in body  # a later evaluation is of another model
    assert "| train | `bugs:mbpp:train` | CC BY 4.0 |" in body
    assert "| evaluation | `humaneval+` | Apache-2.0 (EvalPlus)" in body
    assert "A card" in body and "torch" in body
    assert "state it before you publish" in body  # the licence of the user's own problems


def test_a_card_holds_no_folders_and_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret")
    _, body = card_of(
        tmp_path,
        CONFIG
        | {
            "rewards": [
                {"name": "mine:judge", "options": {"key": "planted-secret", "url": "http://inside:1"}}
            ]
        },
    )
    assert "/home" not in body and "…/problems.json" in body
    assert "planted" not in body and "inside" not in body
    assert "key: ***" in body


def test_the_licence_of_a_local_base_model_is_kept(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    metadata, body = card_of(tmp_path, {"model": {"id": str(base)}})
    assert metadata["license"] == "apache-2.0" and "base_model" not in metadata
    assert "| base model | `…/base` | apache-2.0 |" in body


def test_a_card_of_a_run_that_cannot_be_read_is_still_a_card(tmp_path: Path) -> None:
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    (tmp_path / "run" / "evaluations" / "step_000020.json").write_text("torn")
    (tmp_path / "run" / "config.yaml").write_text("a: [")
    card = model_card(tmp_path / "run", 20)
    assert yaml.safe_load(card.split("---\n", 2)[1])["library_name"] == "transformers"
    assert "This checkpoint was not evaluated." in card
