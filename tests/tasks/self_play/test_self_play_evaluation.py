"""Evaluations of self-play: by its own runs, of games and of suites of code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from greenward import api
from greenward.cli.main import main
from greenward.common.errors import ConfigError, RunError
from greenward.config.loading import load_recipe
from greenward.models.catalog import find_model
from greenward.recipes.run import train
from greenward.runs.reading import read_recorded_run, read_summary
from tiny_model import DATA, TINY_MODEL

SUITE = str(DATA / "held_out.json")
SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "model.dtype=float32",
    "self_play.games=[tictactoe, kuhn_poker, negotiation]",
    "self_play.evaluation_games=6",
    "sampling.max_tokens=5",
    "model.shape.max_positions=96",
    "warm_start=null",
    "training.max_steps=2",
    "training.num_generations=4",
    "training.prompts_per_step=3",
    "training.threads=1",
    "sandbox={workers: 1, require: D}",
    f"evaluation.suites=[{{name: {SUITE}, max_tokens: 8}}]",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self_play") / "run"
    assert train(load_recipe("spiral_self_play", SMALL), folder, quiet=True)
    return folder


def test_every_game_and_every_suite_of_code_is_measured_at_the_start_and_at_the_end(run: Path) -> None:
    notes: list[str] = []
    recorded = read_recorded_run(run, notes)
    assert not notes and not recorded.evaluations
    assert recorded.suites.keys() == {"tictactoe", "kuhn_poker", "negotiation", "held_out"}
    for name, evaluations in recorded.suites.items():
        assert [one["step"] for one in evaluations] == [0, 2], name
    figures = {name: set(evaluations[-1]["metrics"]) for name, evaluations in recorded.suites.items()}
    assert "pass@1" in figures["held_out"]
    assert {"lines/first/lost", "random/second/not_lost"} <= figures["tictactoe"]
    assert {"exploitability", "value"} <= figures["kuhn_poker"]
    assert recorded.suites["kuhn_poker"][0]["games"] == 6
    summary = read_summary(run)
    assert summary is not None and summary["suites"].keys() == recorded.suites.keys()


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(exit_.value.code or 0), said.out, said.err


def test_eval_plays_the_games_of_a_run_as_its_own_evaluation_does(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "eval", run, "--out", tmp_path / "all", "--seed", 1234, "--json")
    summary = json.loads(out)
    assert code == 0 and summary["suite"] == "tictactoe, kuhn_poker, negotiation"
    last = read_recorded_run(run, []).suites
    for game in ("tictactoe", "kuhn_poker", "negotiation"):
        expected = {f"{game}/{name}": pytest.approx(m) for name, m in last[game][-1]["metrics"].items()}
        assert {name: m for name, m in summary["metrics"].items() if name.startswith(game)} == expected
    assert (tmp_path / "all" / "report.html").is_file()
    code, out, _ = call(capsys, "report", tmp_path / "all", "--format", "markdown")
    assert code == 0 and "tictactoe: matches" in out and "| random | second |" in out


def test_eval_of_one_game_takes_the_number_of_games_and_keeps_its_folder(run: Path, tmp_path: Path) -> None:
    found = api.evaluate(run, "kuhn_poker", samples=10, output=tmp_path / "kuhn", temperature=0.5)
    assert found.summary["settings"]["games"] == 10 and found.summary["settings"]["temperature"] == 0.5
    assert 0 <= found.metrics["kuhn_poker/exploitability"].value <= 2
    with pytest.raises(RunError, match="other settings"):
        api.evaluate(run, "kuhn_poker", samples=12, output=tmp_path / "kuhn", temperature=0.5)


def test_code_that_a_run_names_is_imported_only_where_the_user_names_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers = tmp_path / "strangers"
    shutil.copytree(run, strangers, symlinks=True)
    config = strangers / "config.yaml"
    config.write_text(config.read_text().replace("tictactoe", "evil_game:Game"))
    (tmp_path / "evil_game.py").write_text("open('imported', 'w')\nclass Game: pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="--suite evil_game:Game"):
        api.evaluate(strangers, output=tmp_path / "out")
    api.evaluate(strangers, "kuhn_poker", samples=2, output=tmp_path / "out")
    assert not (tmp_path / "imported").exists()
    with pytest.raises(ConfigError, match="cannot be played"):
        api.evaluate(strangers, "evil_game:Game", output=tmp_path / "other")
    assert (tmp_path / "imported").exists()


def test_no_server_that_a_run_names_is_asked(run: Path, tmp_path: Path) -> None:
    strangers = tmp_path / "strangers"
    shutil.copytree(run, strangers, symlinks=True)
    config = yaml.safe_load((strangers / "config.yaml").read_text())
    http = {"urls": ["http://127.0.0.1:9"], "token_env": "HOME"}
    config["sandbox"] |= {"backend": "http", "http": http}
    (strangers / "config.yaml").write_text(yaml.safe_dump(config))
    recipe = find_model(str(strangers)).recipe
    assert recipe is not None and recipe.sandbox.backend == "local" and recipe.sandbox.http is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--top-p", "0.9", "--fewshot", "2"), "no fewshot, top_p"),
        (("--k", "1"), "no k"),
        (("--timeout", "3"), "no timeout"),
        (("--show-prompt",), "show_prompt concerns problems of code"),
        (("--fail-under", "0.5", "--suite", "tictactoe"), "fail_under concerns problems of code"),
    ],
)
def test_options_of_problems_are_refused_for_games(
    run: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    code, _, err = call(capsys, "eval", run, *options)
    assert code == 2 and message in " ".join(err.split())


def test_a_run_of_self_play_is_asked_problems_of_code_where_a_suite_names_them(
    run: Path, tmp_path: Path
) -> None:
    found = api.evaluate(run, SUITE, output=tmp_path / "code", max_tokens=8, require="D", workers=1)
    assert found.metrics["pass@1"].value == 0 and found.summary["contamination"] is None
    assert found.summary["settings"]["max_tokens"] == 8
    with pytest.raises(ConfigError, match="has no limit"):
        api.evaluate(run, "tictactoe", limit=3)
