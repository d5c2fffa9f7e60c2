"""`greenward eval --suite repositories`: a scripted model behind a local endpoint, as an external one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from greenward.cli.main import main
from greenward.grading.edits import written_edits
from greenward.problems.repositories import shipped_repositories
from openai_server import OpenAIServer

REPOSITORIES = shipped_repositories()
IDS = "ledger/one-decimal,shop/kilograms,routes/way-back"


def knows_the_patches(prompt: str) -> str:
    if "<output>" in prompt:
        return "<submit>"
    problem = next(one for one in REPOSITORIES if one.prompt in prompt)
    return f"I know it.\n<apply_patch>\n{written_edits(problem, problem.reference, 'search_replace')}</apply_patch>"


def evaluate(url, out, capsys, ids=IDS, model="tiny"):
    command = ["eval", f"{model}@{url}", "--suite", "repositories", "--ids", ids, "--out", str(out), "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--workers", "1"])
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


def test_an_external_model_is_evaluated_with_its_transcripts_and_predictions(tmp_path, capsys):
    with OpenAIServer(knows_the_patches) as server:
        summary = evaluate(server.url, tmp_path / "out", capsys)
        assert summary["metrics"]["pass@1"]["value"] == 1.0
        asked = len(server.payloads)
        assert evaluate(server.url, tmp_path / "out", capsys)["metrics"] == summary["metrics"]
        assert len(server.payloads) == asked  # nothing is asked again
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert all("[2. tool]\nChanged: " in one["completion"] for one in samples)
    predictions = [
        json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    ]
    assert {one["instance_id"] for one in predictions} == set(IDS.split(","))
    assert all(one["model_patch"].startswith("--- a/") for one in predictions)
    assert {one["model_name_or_path"] for one in predictions} == {"tiny"}


def test_the_tutorial_of_the_documentation(tmp_path, capsys):
    script = (Path(__file__).resolve().parents[2] / "examples" / "scripted_agent.py").read_text()
    made: dict[str, Any] = {}
    exec(
        script.replace("8123), Model).serve_forever()", "0), Model)").replace(
            "HTTPServer((", "server = HTTPServer(("
        ),
        made,
    )
    server = made["server"]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    made["Model"].log_message = lambda *_: None
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        summary = evaluate(url, tmp_path / "out", capsys, "shop/free-shipping,shop/kilograms", "scripted")
    finally:
        server.shutdown()
    assert summary["statuses"] == {"passed": 1, "failed": 1}
    assert summary["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "answers_not_counted": 2}
    report = (tmp_path / "out" / "report.md").read_text()
    assert "0 of prompts, 0 of answers, 2 answers not counted" in report


def test_a_model_that_does_nothing_solves_nothing(tmp_path, capsys):
    with OpenAIServer(lambda prompt: "It is all right as it is.") as server:
        summary = evaluate(server.url, tmp_path / "out", capsys)
    assert summary["metrics"]["pass@1"]["value"] == 0.0
    assert summary["statuses"] == {"failed": 3}
    assert "[1. programmer]" in (tmp_path / "out" / "report.md").read_text()


def test_what_an_agent_leaves_is_kept_though_another_goes_on(tmp_path, capsys):
    """The server refuses the key once an agent is through; the same command asks for what is missing only."""
    samples = tmp_path / "out" / "samples.jsonl"
    (slow,) = (one for one in REPOSITORIES if one.task_id == "routes/way-back")

    def answer(prompt: str) -> str:
        if slow.prompt in prompt or ("<output>" in prompt and "Changed: " not in prompt):
            server.key = "another" if samples.is_file() and samples.read_text() else None
            return "<shell>sleep 0.05</shell>"
        return knows_the_patches(prompt)

    def kept() -> list[str]:
        return samples.read_text().splitlines()

    with OpenAIServer(answer) as server:
        command = ["eval", f"tiny@{server.url}", "--suite", "repositories", "--ids", IDS, "--quiet"]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--out", str(tmp_path / "out"), "--workers", "1"])
        assert ended.value.code == 2
        before = kept()
        assert 1 <= len(before) < len(IDS.split(",")) and not any(slow.task_id in line for line in before)
        server.answer, server.key, asked = knows_the_patches, None, len(server.payloads)
        assert evaluate(server.url, tmp_path / "out", capsys)["metrics"]["pass@1"]["value"] == 1.0
        assert kept()[: len(before)] == before and len(kept()) == len(IDS.split(","))
        assert len(server.payloads) - asked == 2 * (len(kept()) - len(before))  # a patch and its end each
