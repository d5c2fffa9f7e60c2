from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import click
import pytest

import greenward
from greenward.cli.main import SETTINGS, cli, main
from greenward.common.errors import RunError
from greenward.common.text import visible
from greenward.config.loading import parse_recipe
from greenward.runs.output import claim_folder


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    code = exit_.value.code
    return 0 if code is None else int(code)


class Recorder:
    """Stands for a recipe function: records its calls, and returns or raises what it is told to."""

    def __init__(self, outcome: Any = True) -> None:
        self.outcome = outcome
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


OWN: dict[str, Any] = {"given": {}, "functions": {}}  # no problems and functions of a Python program


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    recorder.dry_run = Recorder(None)  # type: ignore[attr-defined]
    fake = SimpleNamespace(train=recorder, dry_run=recorder.dry_run)  # type: ignore[attr-defined]
    put_in_place(monkeypatch, "run", fake)
    return recorder


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    put_in_place(monkeypatch, "sweep", SimpleNamespace(demo=recorder))
    return recorder


def put_in_place(monkeypatch: pytest.MonkeyPatch, name: str, fake: object) -> None:
    """Replaces the module `greenward.recipes.NAME`, so that the real one loads no torch here."""
    import greenward.recipes

    monkeypatch.setitem(sys.modules, f"greenward.recipes.{name}", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(greenward.recipes, name, fake, raising=False)


@pytest.fixture
def recipe_file(tmp_path: Path) -> str:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nseed: 4\n")
    return str(file)


class TestTrain:
    def test_passes_the_resolved_recipe_and_options(self, train: Recorder, recipe_file: str) -> None:
        assert run("train", recipe_file, "seed=5", "--output", "there", "--resume", "--quiet") == 0
        expected = parse_recipe("name: mine\nseed: 5")
        assert train.calls == [
            ((expected, Path("there")), {"resume": True, "overwrite": False, "show": 0, "quiet": True, **OWN})
        ]

    def test_run_is_named_after_the_recipe(self, train: Recorder, recipe_file: str) -> None:
        run("train", recipe_file)
        assert train.calls[0][0][1] == Path("runs/mine")

    def test_dry_run_trains_nothing(self, train: Recorder, recipe_file: str) -> None:
        assert run("train", recipe_file, "--dry-run") == 0
        assert train.calls == []
        assert train.dry_run.calls == [((parse_recipe("name: mine\nseed: 4"), {}, {}), {})]  # type: ignore[attr-defined]

    def test_options_of_other_trainers_set_keys_and_an_override_wins(
        self, train: Recorder, recipe_file: str
    ) -> None:
        options = (
            "--model",
            "7b",
            "--dataset",
            "code_bugs",
            "--learning_rate",
            "1e-5",
            "--max_grad_norm",
            "0.5",
        )
        assert run("train", recipe_file, *options, "--seed", "42", "training.max_grad_norm=2") == 0
        (((recipe, _), _),) = train.calls
        assert recipe.model.id == "Qwen/Qwen2.5-Coder-7B-Instruct"
        assert (recipe.problems.train, recipe.problems.held_out) == ("bugs:families", "bugs:families")
        assert (recipe.training.learning_rate, recipe.training.max_grad_norm, recipe.seed) == (1e-5, 2, 42)

    def test_interrupted_run_exits_with_130(
        self, train: Recorder, recipe_file: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train.outcome = False
        assert run("train", recipe_file, "seed=3", "--output", "a folder") == 130
        first, _, said = capsys.readouterr().err.partition("\n")
        resume = f"greenward train {recipe_file} seed=3 --output 'a folder' --resume"
        assert first == f"Reading the recipe {recipe_file}; loading torch."
        assert said == f"Interrupted. Continue with: {resume}\n"

    def test_a_run_that_has_stored_its_recipe_continues_with_that(
        self, train: Recorder, recipe_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train.outcome = False
        stored = tmp_path / "run" / "config.yaml"
        claim_folder(stored.parent, "run")
        stored.write_text("name: mine\nseed: 3\n")
        assert run("train", recipe_file, "seed=3", "--output", str(stored.parent)) == 130
        resume = f"greenward train {stored} --output {stored.parent} --resume"
        assert capsys.readouterr().err.endswith(f".\nInterrupted. Continue with: {resume}\n")

    def test_interrupt_outside_the_loop_exits_with_130(self, train: Recorder, recipe_file: str) -> None:
        train.outcome = KeyboardInterrupt()
        assert run("train", recipe_file) == 130

    def test_error_of_the_users_is_one_message_without_traceback(
        self, train: Recorder, recipe_file: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        train.outcome = RunError("The disk is full.", remedy="Make room.")
        assert run("train", recipe_file) == 2
        captured = capsys.readouterr()
        assert captured.err.partition("\n")[2] == "Error: The disk is full.\n  Make room.\n"
        assert captured.out == ""

    def test_error_of_ours_keeps_its_traceback(self, train: Recorder, recipe_file: str) -> None:
        train.outcome = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            main(("train", recipe_file))

    def test_bad_recipe_stops_before_anything_is_loaded(
        self, train: Recorder, recipe_file: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("train", recipe_file, "training.max_stpes=1") == 2
        assert "Nearest: training.max_steps" in capsys.readouterr().err
        assert train.calls == []


class TestDemo:
    def test_defaults(self, demo: Recorder) -> None:
        assert run("demo") == 0
        ((args, kwargs),) = demo.calls
        assert args == (Path("runs/demo"),)
        how = {"quiet": False, "resume": False, "overwrite": False}
        assert kwargs == {"seeds": (0, 1), "overrides": (), **how}

    def test_quick_overrides_are_good_and_the_users_come_last(self, demo: Recorder) -> None:
        run("demo", "--quick", "--seeds", "3", "training.max_steps=9")
        kwargs = demo.calls[0][1]
        assert kwargs["seeds"] == (3,)
        assert parse_recipe("warm_start: {}", kwargs["overrides"]).training.max_steps == 9

    def test_something_is_said_before_anything_is_loaded(
        self, demo: Recorder, capsys: pytest.CaptureFixture[str]
    ) -> None:
        demo.outcome = KeyboardInterrupt()  # in place of all that a demo says
        run("demo", "--quick", "--output", "there")
        said = capsys.readouterr().err
        assert said.startswith("A trial of a few steps, which learns nothing, into there")
        demo.outcome = True
        run("demo", "--quick", "--output", "there")
        assert capsys.readouterr().out.splitlines()[-1].startswith("These are the figures of a trial")
        for options in (["--quick", "--quiet"], ["--output", "there"]):
            run("demo", *options)
            said = capsys.readouterr()
            assert "trial" not in said.out + said.err

    @pytest.mark.parametrize("seeds", ["", "a", "1,", "1,1", "-1"])
    def test_seeds_that_are_none(self, demo: Recorder, seeds: str) -> None:
        assert run("demo", "--seeds", seeds) == 2
        assert demo.calls == []

    def test_interrupted_demo_exits_with_130(self, demo: Recorder) -> None:
        demo.outcome = False
        assert run("demo") == 130


class TestConfig:
    def test_show_prints_a_recipe_that_loads_again(
        self, recipe_file: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("config", "show", recipe_file, "seed=6") == 0
        assert parse_recipe(capsys.readouterr().out) == parse_recipe("name: mine\nseed: 6")

    def test_check(self, recipe_file: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("config", "check", recipe_file, "problems.families.limit=40") == 0
        assert "good" in capsys.readouterr().out
        assert run("config", "check", recipe_file, "algorithm=sft") == 2
        assert "warm_start" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("train", "held_out", "said"),
        [
            ("good", "others", None),
            ("good", "good", "4 problems are both trained on and held out"),
            ("misspelt", "others", "row 4 (line 4): field 'test_case' is not known."),
            ("cut", "others", "line 4, column 61: not JSON"),
            ("wrong case", "others", "f3(1): expected 9, got 4"),
        ],
    )
    def test_check_reads_the_problems(
        self,
        train: str,
        held_out: str,
        said: str | None,
        recipe_file: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def problem(number: int, **others: Any) -> str:
            name = f"f{number}"
            starter = f'def {name}(a):\n    """Return a plus {number}."""\n'
            row = {
                "task_id": name,
                "function_name": name,
                "docstring": f"Return a plus {number}.",
                "starter_code": starter,
                "reference": f"{starter}    return a + {number}\n",
                "test_cases": [[1, 1 + number], [5, 5 + number]],
            }
            return json.dumps({**row, **others}) + "\n"

        monkeypatch.chdir(tmp_path)
        first = "".join(map(problem, range(3)))
        for name, last in {
            "good": problem(3),
            "misspelt": problem(3).replace("test_cases", "test_case"),
            "cut": problem(3)[:60] + "\n",
            "wrong case": problem(3, test_cases=[[1, 9]]),
        }.items():
            Path(f"{name}.jsonl").write_text(first + last)
        Path("others.jsonl").write_text("".join(map(problem, range(10, 14))))
        sources = (f"problems.train={train}.jsonl", f"problems.held_out={held_out}.jsonl")
        code = run("config", "check", recipe_file, *sources)
        written = capsys.readouterr()
        if said is None:
            assert code == 0 and written.out.endswith("good.\n")
        else:
            assert code == 2 and said in written.err and "good." not in written.out

    def test_check_as_json(self, recipe_file: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("config", "check", recipe_file, "problems.families.limit=40", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["good"] and not found["errors"] and found["read"][0].startswith("train: ")
        too_long = ("problems.families.limit=40", "sampling.max_tokens=9999")
        assert run("config", "check", recipe_file, *too_long, "--json") == 2
        found = json.loads(capsys.readouterr().out)
        assert not found["good"] and "more than the 512 positions" in found["errors"][0]

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            ("rewards.0.name=test", "Did you mean 'tests'?"),
            ("rewards.0.options.bonsu=1", "Did you mean 'bonus'?"),
            ("rewards.0.name=no_such_module:f", "there is no module 'no_such_module'"),
            ("evaluation.suites=[mbppp]", "Did you mean 'mbpp'?"),
            ("evaluation.suites=['mbpp:tests']", "there is no part 'tests'"),
            ("problems.train=bugs:famlies", "Did you mean 'families'?"),
            ("problems.held_out=nowhere.jsonl", "nowhere.jsonl: there is no such file"),
            ("model=runs/mien", "Did you mean 'runs/mine'?"),
            ("model=/nowhere", "no such folder"),
        ],
    )
    def test_what_is_named_must_exist_for_check_and_train(
        self,
        recipe_file: str,
        override: str,
        said: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs" / "mine").mkdir(parents=True)
        (tmp_path / "runs" / "mine" / "config.yaml").write_text("model: {id: null}")
        for command in (("config", "check"), ("train", "--dry-run")):
            assert run(*command, recipe_file, override) == 2
            assert said in capsys.readouterr().err

    def test_schema(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("config", "schema") == 0
        assert '"max_steps"' in capsys.readouterr().out


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("name: mine\nkind: grpo\nseed: 0\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    return tmp_path


class TestReport:
    @pytest.mark.parametrize("view", ["terminal", "markdown", "json"])
    def test_views_are_printed_and_nothing_is_written(
        self, run_folder: Path, view: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = sorted(run_folder.iterdir())
        assert run("report", str(run_folder), "--format", view) == 0
        assert "mine" in capsys.readouterr().out
        assert sorted(run_folder.iterdir()) == before

    def test_html_is_written_and_its_path_printed(
        self, run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(run_folder.parent)
        assert run("report", str(run_folder), "--format", "html") == 0
        page = Path(capsys.readouterr().out.strip())
        assert page.parent == Path("reports") / run_folder.name
        assert page.read_text().startswith("<!doctype html>")

    def test_folder_without_a_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("report", str(tmp_path)) == 2
        assert "neither a run" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"greenward {greenward.__version__}\n"


def test_unknown_command_and_option_exit_with_2() -> None:
    assert run("trian") == 2
    assert run("train", "--fast") == 2
    assert run("diagnose", "runs/one", "--alpha", "nan") == 2


def test_errors_show_control_characters_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", str(tmp_path / "\x1b[31mred")) == 2
    assert "\x1b" not in (error := capsys.readouterr().err) and "[31mred" in error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_an_error_and_no_finding() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "greenward", "config", "show", "quickstart"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "Error: No space left on device\n")


@pytest.mark.parametrize("command", [["config", "show", "quickstart"], ["doctor"]])  # the latter by rich
def test_a_reader_that_has_left_is_no_finding(command: list[str]) -> None:
    heard, written = os.pipe()
    os.close(heard)
    with open(written, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "greenward", *command],
            stdout=pipe, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_a_command_without_standard_output_says_nothing_else() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m greenward --version >&-', sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    assert "_GREENWARD_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "arguments", "model", "no_options"),
    [
        ("slurm render", ["quickstart"], "greenward.hardware.launch:SlurmOptions", set()),
        ("eval", [], "greenward.evaluation.model_session:AnswerOptions", set()),
        ("problems from-source", ["stdlib"], "greenward.tasks.spec.verify:MiningOptions", set()),
        (
            "fix",
            ["a.py", "--tests", "a.py", "--model", "m"],
            "greenward.tasks.repair.fix:FixOptions",
            {"workers", "require"},
        ),
    ],
)
def test_options_are_the_fields_of_a_record_and_have_its_defaults(command, arguments, model, no_options):
    found, made = cli, resolve_name(model)
    for name in command.split():
        found = found.commands[name]
    above = click.Context(cli, **SETTINGS)  # click keeps the help option that it makes here
    given = found.make_context(command, arguments, parent=above).params
    names = {field.name for field in fields(made)} - no_options
    assert names <= given.keys()
    assert made(**{name: given[name] for name in names if given[name] not in (None, ())}) == made()


@pytest.mark.parametrize("raw", [True, False])
def test_sample_streams_the_answer_and_says_the_rest_elsewhere(raw, published, capsys, monkeypatch, tmp_path):
    from greenward.models.policy import Policy
    from greenward.rollouts.protocols import SamplingParams

    folder = shutil.copytree(published("llama"), tmp_path / "model")
    (folder / "chat_template.jinja").write_text("Q: {{ messages[0].content }}\nA:")
    given = ("sample", str(folder), "--max-tokens", "30", "--dtype", "float32", "--device", "cpu")
    assert run(*given, "def add(a, b):", *(["--raw"] if raw else [])) == 0
    shown = capsys.readouterr()
    policy = Policy.from_folder(folder, device="cpu")
    asked = policy.tokenizer.encode("def add(a, b):" if raw else "Q: def add(a, b):\nA:")
    ((one,),) = policy.sample([asked], 1, SamplingParams(30, 0.0), seed=0)
    assert shown.out == visible(policy.tokenizer.decode_answer(one.token_ids)) + "\n"
    assert f"{len(one.token_ids)} tokens, ended by {one.stop_reason.value}" in shown.err
    assert ("as a text" if raw else "in the chat template") in shown.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"def add(a, b):")))
    assert run(*given, "-", *(["--raw"] if raw else [])) == 0
    assert capsys.readouterr().out == shown.out
    drawn = (*given, "x", "--raw", "--temperature", "1", "--seed", "3", "--n", "2")
    groups = policy.sample([policy.tokenizer.encode("x")], 2, SamplingParams(30, 1.0), seed=3)
    assert run(*drawn) == 0
    answers = [policy.tokenizer.decode_answer(one.token_ids) for one in groups[0]]
    assert capsys.readouterr().out == "".join(f"{visible(answer)}\n" for answer in answers)


def test_sample_refuses_the_same_answer_twice_and_prompts_without_room(published, capsys):
    folder = str(published("llama"))
    assert run("sample", folder, "x", "--n", "2") == 2
    assert "draws the same answer 2 times" in capsys.readouterr().err
    assert run("sample", folder, "", "--raw") == 2
    assert "The prompt is empty" in capsys.readouterr().err
    assert run("sample", folder, "x = 1\n" * 200) == 2
    assert "the model 128 positions" in capsys.readouterr().err
    assert run("sample", folder, "x", "--device", "cuda:99") == 2
    assert "--device is 'cuda:99'" in capsys.readouterr().err
