"""`greenward eval`, `grade` and `show` as a user types them, on a tiny model and a file of problems."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import get_args

import pytest

from greenward.api import evaluate
from greenward.cli.evaluate import eval_
from greenward.cli.main import main
from greenward.common.errors import SandboxError
from greenward.problems.catalog import load_suite
from greenward.problems.problem import PromptName

pytestmark = pytest.mark.usefixtures("kept_sandbox")

RIGHT, WRONG, HOSTILE = "return n + {}", "return n", "return '\\x1b[31m\\u202e'"


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """`call(arguments…)` -> (exit code, standard output, standard error), in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)  # nothing may ask

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def suite(tmp_path) -> Path:
    path = tmp_path / "adders.json"
    rows = [
        {
            "function_name": f"add_{number}",
            "docstring": f"Add {number} to n.",
            "test_cases": [[1, 1 + number], [5, 5 + number]],
            "starter_code": f'def add_{number}(n):\n    """Add {number} to n."""\n',
            "reference": f"def add_{number}(n):\n    return n + {number}\n",
        }
        for number in range(1, 5)
    ]
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def samples(tmp_path):
    """`samples((number, body)…)`: a file of completions of `add_<number>`."""

    def write(*answers: tuple[int, str]) -> Path:
        path = tmp_path / "samples.jsonl"
        rows = (
            {"task_id": f"add_{number}", "completion": "    " + body.format(number) + "\n"}
            for number, body in answers
        )
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="session")
def model(tmp_path_factory, tokenizer) -> Path:
    from greenward.config.sections import ShapeConfig
    from greenward.models.policy import Policy

    shape = ShapeConfig(layers=1, hidden_size=16, heads=2, kv_heads=2, intermediate_size=16, max_positions=96)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    Policy.random(shape, tokenizer, seed=0, device="cpu").save(folder)
    return folder


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_model_is_evaluated_into_files_that_anyone_can_read(call, model, suite):
    arguments = ("eval", model, "--suite", suite, "--n", 3, "--max-tokens", 8, "--out", "out")
    code, said, told = call(*arguments, "--json")
    assert code == 0, told
    summary = json.loads(said)
    assert summary == json.loads(Path("out/summary.json").read_text())
    assert (summary["problems"], summary["answers"]) == (4, 12)
    assert set(summary["metrics"]) == {"pass@1", "pass@3"}
    assert summary["settings"]["temperature"] == 0.8
    samples = rows(Path("out/samples.jsonl"))
    assert sorted((row["task_id"], row["sample"]) for row in samples) == [
        (f"add_{number}", sample) for number in range(1, 5) for sample in range(3)
    ]
    assert {row["task_id"] for row in rows(Path("out/prompts.jsonl"))} == {f"add_{n}" for n in range(1, 5)}
    before = Path("out/results.jsonl").read_bytes()
    assert call(*arguments, "--quiet")[0] == 0
    assert Path("out/results.jsonl").read_bytes() == before
    assert len(json.loads(Path("out/summary.json").read_text())["sessions"]) == 2


def test_weights_of_8_bits_are_named_in_the_results_and_not_mixed_with_others(call, model, suite, published):
    arguments = ("eval", model, "--suite", suite, "--max-tokens", 8, "--out", "out", "--quiet")
    assert call(*arguments, "--dtype", "int8")[0] == 0
    assert json.loads(Path("out/summary.json").read_text())["settings"]["dtype"] == "int8"
    assert re.search(r"computed in</[^>]*>\s*<[^>]*>int8", Path("out/report.html").read_text())
    code, _, told = call(*arguments)
    assert code == 2 and "dtype" in told
    code, _, told = call("eval", published("gpt2"), "--suite", suite, "--dtype", "int8", "--out", "other")
    assert code == 2 and "Llama, Qwen2 and Qwen3 on a CPU, found another architecture" in told
    assert not Path("other").exists()


def test_answers_in_memory_are_those_of_the_command_and_so_is_the_summary(call, model, suite):
    from greenward.models.policy import Policy

    problems = list(load_suite(str(suite)))
    drawn = {"samples": 3, "temperature": 0.9, "seed": 7, "max_tokens": 8, "prompt": "greenward"}
    code, _, told = call(
        *("eval", model, "--suite", suite, "--n", 3, "--temperature", 0.9, "--seed", 7, "--max-tokens", 8),
        *("--prompt", "greenward", "--out", "out", "--quiet"),
    )
    assert code == 0, told
    written = {
        row["task_id"] + str(row["sample"]): row["solution"] for row in rows(Path("out/samples.jsonl"))
    }
    summary = json.loads(Path("out/summary.json").read_text())
    by_name = evaluate(str(model), problems, **drawn).summary
    loaded = evaluate(Policy.for_inference(model, device="cpu"), problems, **drawn).summary
    for found in (by_name, loaded):
        assert {row["task_id"] + str(row["sample"]): row["code"] or None for row in found["rows"]} == written
        assert found["metrics"] == summary["metrics"] and found["rates"].keys() == summary["rates"].keys()
        assert summary.keys() - {"sessions"} <= found.keys() | {"memory"}
    assert len(set(written.values())) > 3  # sampled, not greedy


def test_evaluations_in_memory_name_the_type_of_the_arithmetic(model, suite):
    from greenward.models.policy import Policy

    problems = list(load_suite(str(suite)))
    by_name = evaluate(str(model), problems, max_tokens=8, dtype="int8").summary
    assert (by_name["settings"]["dtype"], by_name["model"]["name"]) == ("int8", str(model))
    loaded = evaluate(Policy.for_inference(model, device="cpu"), problems, max_tokens=8).summary
    assert loaded["settings"]["dtype"] == "float32" and loaded["model"]["weights"] is None


def test_a_person_sees_each_phase_the_first_answers_and_the_memory(call, model, suite, tmp_path):
    shutil.copytree(model, tmp_path / "mine")
    (tmp_path / "mine" / "README.md").write_text(
        "---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: mit\n"
    )
    arguments = ("eval", tmp_path / "mine", "--suite", suite, "--max-tokens", 8, "--out", "out", "--show", 2)
    code, _, told = call(*arguments)
    assert code == 0, told
    in_turn = (
        f"Evaluating the model {tmp_path / 'mine'} on {suite}; loading torch.\n",
        f"\nreading {suite} for {tmp_path / 'mine'}", "model: ", "hashing the weights", "memory: estimated ",
        "\nloading ", "sampling: 4 answers", "judging  answer 4/4", "SHA-256 ", "memory: ",
    )  # fmt: skip
    places = [told.index(part) for part in in_turn[:-1]]
    assert places == sorted(places) and "memory: " in told[places[-1] :]
    assert "M parameters" in told and "in float32, licence apache-2.0; computed in float32" in told
    assert told.count("\n--- add_") == 2
    summary = json.loads(Path("out/summary.json").read_text())
    assert 50 < summary["memory"]["estimated_mb"] < 1.5 * summary["memory"]["peak_mb"]
    assert summary["model"]["licence"] == "apache-2.0" and summary["model"]["weights"] in told
    again = call(*arguments)[2]
    assert "4 of 4 answers are there, 4 of them judged" in again and "\nloading" not in again
    assert call(*arguments, "--quiet")[2] == ""


def test_answers_are_shown_without_what_a_terminal_would_obey(call, suite, samples):
    told = call("grade", samples((1, RIGHT), (3, HOSTILE), (2, WRONG)), "--suite", suite, "--show", 3)[2]
    assert "--- add_1, answer 0: passed\n    return n + 1\n" in told
    assert "--- add_2, answer 0: failed\n    return n\n" in told
    assert told.count("\n---") == 6 and "\x1b" not in told and "\u202e" not in told
    file = samples((4, "pass #" + "x" * 100_000))
    assert len(call("grade", file, "--suite", suite, "--show", 1, "--out", "long")[2]) < 5000
    assert "---" not in call("grade", file, "--suite", suite, "--out", "long")[2]


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: \x1b[31mred\n---\n", "\ufffd[31mred"),
        ("license: mit\n" + "x: y\n" * 200_000, None),
        ("---\nlicense:\n- mit\n---\n", None),
        ("no front matter\n---\nlicense: mit\n", None),
        ("---\nlicense: " + "m" * 10_000 + "\n---\n", "m" * 79 + "…"),
    ],
)
def test_a_licence_is_a_short_word_of_the_cards_head(model, tmp_path, card, licence):
    from greenward.models.catalog import find_model

    shutil.copytree(model, tmp_path / "mine")
    (tmp_path / "mine" / "README.md").write_text(card)
    found = find_model(str(tmp_path / "mine"))
    assert found.licence == licence and (licence or "not stated") in found.description()


@pytest.mark.parametrize("quantised", ["gptq", {"quant_method": ["x"]}, {"quant_method": "gptq"}, {}])
def test_a_config_of_any_form_is_described(model, tmp_path, quantised):
    from greenward.models.catalog import find_model

    shutil.copytree(model, tmp_path / "mine")
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    other = {"quantization_config": quantised, "license": ["mit"], "dtype": 5, "torch_dtype": None}
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config | other))
    assert ("quantised" in find_model(str(tmp_path / "mine")).description()) is bool(quantised)


def test_another_setting_is_refused_by_name(call, model, suite):
    arguments = ("eval", model, "--suite", suite, "--max-tokens", 8, "--out", "out", "--quiet")
    assert call(*arguments)[0] == 0
    before = Path("out/results.jsonl").read_bytes()
    code, _, told = call(*arguments, "--seed", 1, "--timeout", 3)
    assert code == 2
    assert "seed: 0 -> 1" in told
    assert "timeout_seconds: null -> 3.0" in told
    assert Path("out/results.jsonl").read_bytes() == before


def test_the_first_prompt_is_shown_and_nothing_is_written(call, model, suite):
    code, said, _ = call("eval", model, "--suite", suite, "--ids", "add_3", "--show-prompt")
    assert (code, said) == (0, 'def add_3(n):\n    """Add 3 to n."""\n\n')
    assert not Path("runs").exists()


def test_references_are_checked_with_or_without_a_model(call, suite):
    assert call("eval", "--suite", suite, "--check-references")[:2] == (0, "adders: 4/4 references pass\n")
    suite.write_text(suite.read_text().replace("return n + 2", "return n + 3"))
    code, said, told = call("eval", "--suite", suite, "--check-references")
    assert (code, said) == (1, "adders: 3/4 references pass\n")
    assert "add_2: failed" in told


def test_answers_from_elsewhere_are_graded_and_partial_files_said_to_be(call, suite, samples):
    file = samples((1, RIGHT), (1, WRONG), (3, HOSTILE))
    code, said, _ = call("grade", file, "--suite", suite, "--out", "out", "--recheck", 2, "--eval-results")
    assert code == 0
    assert "scored 2 of 4 problems" in " ".join(said.split())
    assert "\x1b[31m" not in said
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["metrics"]["pass@1"]["value"] == pytest.approx(0.25)
    assert summary["recheck"] == {"repeats": 2, "flaky": []}
    record = json.loads(Path("out/eval_results.json").read_text())
    assert [answer["base_status"] for answer in record["eval"]["add_1"]] == ["pass", "fail"]
    with file.open("a") as lines:
        lines.write(json.dumps({"task_id": "add_4", "solution": "def add_4(n): return n + 4"}) + "\n")
    kept = Path("out/results.jsonl").read_text()
    code, _, told = call("grade", file, "--suite", suite, "--out", "out")
    assert code == 0
    assert "3 of 4 answers are there, 3 of them judged" in told
    assert Path("out/results.jsonl").read_text().startswith(kept)


def test_a_task_is_shown_without_what_a_terminal_would_obey(call, suite, samples):
    call("grade", samples((2, WRONG), (3, HOSTILE)), "--suite", suite, "--out", "out", "--quiet")
    code, said, _ = call("show", "add_2", "--in", "out")
    assert code == 0
    assert "Add 2 to n." in said
    assert "expected 3, got 1" in said
    said = call("show", "add_3", "--in", "out")[1]
    assert "\x1b" not in said
    assert "\u202e" not in said
    code, _, told = call("show", "add_22", "--in", "out")
    assert code == 2
    assert "Nearest: add_2" in told


def test_a_result_below_the_limit_exits_with_1(call, suite, samples):
    file = samples((1, RIGHT), (2, WRONG))
    assert call("grade", file, "--suite", suite, "--quiet", "--fail-under", 0.5)[0] == 0
    code, _, told = call("grade", file, "--suite", suite, "--quiet", "--fail-under", 0.6)
    assert code == 1
    assert "below 0.6" in told


def test_a_module_that_the_sandbox_does_not_have_is_noted(call, suite, samples):
    file = samples((1, RIGHT), (2, "import pytest; return n + {}"))
    assert call("grade", file, "--suite", suite, "--out", "graded")[0] == 0
    notes = json.loads(Path("graded", "summary.json").read_text())["notes"]
    assert any(note.startswith("1 answers found no module") and "--package" in note for note in notes)


def test_report_shows_an_evaluation_as_it_shows_a_run(call, suite, samples):
    call("grade", samples((1, RIGHT), (2, WRONG)), "--suite", suite, "--out", "out", "--quiet")
    assert "pass@1 50.0 %" in call("report", "out", "--format", "markdown")[1]
    assert json.loads(call("report", "out", "--format", "json")[1])["headline"].startswith("pass@1 50.0 %")
    assert "pass@1 50.0 %" in " ".join(call("report", "out")[1].split())
    assert call("report", "out", "--format", "html")[1].strip() == str(Path("reports/out/report.html"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{model}", "--suite", "humanevla+"), "Did you mean 'humaneval+'?"),
        (("{model}", "--suite", "nowhere.json"), "there is no such file"),
        (("{model}",), "name a --suite"),
        (("--suite", "{suite}"), "name a MODEL"),
        (("{model}", "--suite", "{suite}", "--ids", "add_1,add_9"), "no problem has the id 'add_9'"),
        (("{model}", "--suite", "{suite}", "--ids", "add_1,add_1"), "names 'add_1' twice"),
        (("{model}", "--suite", "{suite}", "--n", "2", "--k", "5", "--max-tokens", "4"), "pass@5 needs"),
        (
            ("{model}", "--suite", "{suite}", "--n", "2", "--temperature", "0"),
            "draws the same answer 2 times",
        ),
        (("{model}", "--suite", "{suite}", "--fewshot", "3"), "has no examples"),
        (("{model}", "--suite", "{suite}", "--style", "chat"), "no chat template"),
        (("{model}", "--suite", "{suite}", "--max-tokens", "500"), "96 positions"),
        (("{model}", "--suite", "{suite}", "--k", "1,x"), "positive whole numbers"),
        (("nobody", "--suite", "{suite}"), "no such folder"),
        (("{empty}", "--suite", "{suite}"), "no config.json"),
        (("{no_tokenizer}", "--suite", "{suite}"), "expected a tokenizer"),
        (("{run}", "--suite", "{suite}"), "without a checkpoint"),
        (("{study}", "--suite", "{suite}"), "holds several runs"),
    ],
)
def test_what_cannot_be_is_told_in_a_few_words_with_exit_code_2(
    call, model, suite, tmp_path, arguments, message
):
    (tmp_path / "empty").mkdir()
    shutil.copytree(model, tmp_path / "no_tokenizer", ignore=shutil.ignore_patterns("tokenizer*"))
    for run in ("run", "study/seed_0", "study/seed_1"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.yaml").write_text("name: x\n")
    places = {name: tmp_path / name for name in ("empty", "no_tokenizer", "run", "study")}
    filled = (argument.format(model=model, suite=suite, **places) for argument in arguments)
    before = sorted(os.listdir(tmp_path))
    code, said, told = call("eval", *filled)
    assert code == 2
    assert message in told
    assert not said
    assert "Traceback" not in told
    assert sorted(os.listdir(tmp_path)) == before


def test_an_unreachable_hub_is_one_clear_line(call, suite, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("offline\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    code, _, told = call("eval", "nobody/nothing", "--suite", suite)
    assert code == 2
    assert "'nobody/nothing' could not be fetched and is not in the cache: offline\n" in told
    assert "long story" not in told


def test_the_other_commands_name_their_bad_input_too(call, suite, samples, tmp_path):
    for arguments, message in (
        (("grade", "nowhere.jsonl", "--suite", suite), "no such file"),
        (("grade", samples((9, RIGHT)), "--suite", suite), "line 1"),
        (("show", "add_1", "--in", tmp_path), "holds no evaluation"),
    ):
        code, _, told = call(*arguments)
        assert code == 2
        assert message in told


def test_an_evaluation_of_which_nothing_could_be_judged_is_an_error(call, suite, samples, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise SandboxError("no worker can start")

    monkeypatch.setattr("greenward.sandbox.pool.LocalExecutor", refuse)
    code, _, told = call("grade", samples((1, RIGHT)), "--suite", suite, "--out", "out")
    assert code == 2
    assert "no worker can start" in told
    assert not Path("out").exists()


def test_a_k_above_the_number_of_answers_leads_and_exits_with_2_but_all_is_graded(call, suite, samples):
    file = samples((1, RIGHT), (2, RIGHT), (2, WRONG), (3, WRONG))
    arguments = ("grade", file, "--suite", suite, "--out", "out", "--k", "1,5")
    code, said, told = call(*arguments)
    assert code == 2
    begun, *told_lines = told.splitlines()
    assert begun == f"Judging the answers of {file}."
    for line in (told_lines[0], said.splitlines()[0]):
        assert "pass@5 needs 5 answers" in line and "no problem has more than 2" in line
    assert len(rows(Path("out/results.jsonl"))) == 4
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["metrics"]["pass@1"]["value"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert "pass@5" not in summary["metrics"]
    assert "pass@5 needs 5 answers" in Path("out/report.md").read_text()
    code, said, told = call(*arguments, "--json")
    assert code == 2
    assert json.loads(said)["failures"]
    assert call(*arguments[:-1], "1,2")[0] == 0


@pytest.mark.parametrize(("lost", "code"), [(1, 0), (3, 2)])
def test_answers_that_stay_lost_count_as_not_passed_and_above_2_percent_the_command_fails(
    call, suite, samples, monkeypatch, lost, code
):
    from greenward.grading.judge import Grader
    from greenward.grading.verdict import Status, Verdict

    judged = Grader.grade_stream

    def judge_and_lose(self, answers):
        for index, verdict in judged(self, answers):
            yield index, Verdict(Status.INFRASTRUCTURE) if index < lost else verdict

    # A hundred different programs, all right.
    file = samples(*((1 + n % 4, f"return n + {{}}  # {n}") for n in range(100)))
    with monkeypatch.context() as patched:
        patched.setattr(Grader, "grade_stream", judge_and_lose)
        found, said, told = call("grade", file, "--suite", suite, "--out", "out", "--k", "1")
    assert found == code, told
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["metrics"]["pass@1"]["value"] == pytest.approx(1 - lost / 100)
    assert summary["rates"]["infrastructure"]["value"] == pytest.approx(lost / 100)
    for text in (said, Path("out/report.md").read_text()):
        assert f"({lost / 100:.1%}) were lost to the infrastructure" in " ".join(text.split())
    assert (f"{lost} of 100 answers" in said.splitlines()[0]) is (code == 2)
    assert call("grade", file, "--suite", suite, "--out", "out", "--quiet")[0] == 0  # tried again
    assert json.loads(Path("out/summary.json").read_text())["metrics"]["pass@1"]["value"] == 1.0


FENCED = "Sure, here it is:\n```python\ndef add_{0}(n):\n    return n + {0}\n```\nHope this helps."


def graded(call, suite, *answers, options=()):
    """(code, everything said, pass@1, statuses) of answers given as {"task_id", "completion" or "solution"}."""
    Path("given.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    out = f"out-{len(list(Path().glob('out-*')))}"
    code, said, told = call("grade", "given.jsonl", "--suite", suite, "--out", out, *options)
    summary = json.loads(Path(out, "summary.json").read_text())
    assert (Path(out) / "report.html").is_file()
    return code, " ".join((said + told).split()), summary["metrics"]["pass@1"]["value"], summary["statuses"]


@pytest.mark.parametrize("field", ["completion", "solution"])
def test_programs_are_taken_out_of_answers_that_are_no_python(call, suite, field):
    plain = {"task_id": "add_4", "solution": "K = 4\n\ndef add_4(n):\n    return n + K\n"}
    answers = [{"task_id": f"add_{n}", field: FENCED.format(n)} for n in (1, 2, 3)] + [plain]
    code, told, rate, _ = graded(call, suite, *answers)
    assert (code, rate) == (0, 1.0)
    assert told.count("3 of 4 answers are no Python as they stand: the programs in them are judged") == 2
    assert "--extract never" in told
    _, told, rate, statuses = graded(call, suite, *answers, options=("--extract", "never"))
    assert (rate, statuses) == (0.25, {"syntax_error": 3, "passed": 1})
    assert "no Python" not in told


def test_each_answer_is_read_by_itself_however_few_are_no_python(call, suite):
    texts = (
        "    return n + 1\n",
        "    return n + 2\n\nassert add_2(1",
        "To add, write:\n\ndef add_3(n):\n    return n + 3\n\nThis adds 3.",
        FENCED.format(4) + "<|im_end|>",
    )
    answers = [{"task_id": f"add_{n}", "completion": text} for n, text in enumerate(texts, 1)]
    _, told, rate, _ = graded(call, suite, *answers)
    assert rate == 1.0
    assert "3 of 4 answers are no Python as they stand" in told
    tried = {"task_id": "add_1", "solution": "def add_1(n):\n    return n + 1\n\nassert add_1(1) == 3\n"}
    assert graded(call, suite, tried)[2] == 0.0
    assert graded(call, suite, tried, options=("--extract", "always"))[2] == 1.0
    unread = {"task_id": "add_1", "solution": "```text\nI cannot.\n```"}
    assert graded(call, suite, unread)[3] == {"syntax_error": 1}
    assert graded(call, suite, unread, options=("--extract", "always"))[3] == {"no_code": 1}


def test_a_program_with_a_fence_in_its_docstring_is_no_fenced_answer(call, suite):
    program = (
        'def add_1(n):\n    """Adds.\n\n    ```python\n    add_1(1)\n    ```\n    """\n    return n + 1\n'
    )
    _, told, rate, _ = graded(call, suite, {"task_id": "add_1", "solution": program})
    assert rate == 1.0
    assert "fences" not in told


def test_thoughts_and_blocks_that_were_never_closed_are_read_as_in_eval(call, suite):
    thought = "<think>```python\nraise SystemExit\n```</think>\n" + FENCED.format(1)
    cut = "```python\ndef add_2(n):\n    return n + 2\n"
    answers = [{"task_id": "add_1", "completion": thought}, {"task_id": "add_2", "completion": cut}]
    assert graded(call, suite, *answers)[2] == 1.0


def test_a_missing_file_of_answers_is_named_and_not_the_suite(call, suite):
    for name in (suite, "no-such-suite", "mbpp"):
        code, _, told = call("grade", "nowhere.jsonl", "--suite", name)
        assert code == 2
        assert "nowhere.jsonl: there is no such file" in told
        assert "suite" not in told


def test_answers_to_other_problems_are_left_out_and_counted_where_that_is_asked(call, suite, samples):
    file = samples((1, RIGHT), (9, RIGHT))
    code, _, told = call("grade", file, "--suite", suite)
    assert code == 2 and "names no problem" in told and "--skip-bad-rows" in told
    code, _, told = call("grade", file, "--suite", suite, "--skip-bad-rows")
    assert code == 0 and "answers to no problem of the suite, skipped: 1. " in told


def test_a_bad_row_of_the_suite_is_named_with_the_option_that_skips_it(call, suite, samples, model):
    table = json.loads(suite.read_text())
    table.insert(1, {"function_name": "broken", "docstring": 3, "test_cases": []})
    suite.write_text(json.dumps(table, indent=1))
    file = samples((1, RIGHT), (4, WRONG))
    commands = (
        ("grade", file, "--suite", suite, "--out", "graded"),
        ("eval", model, "--suite", suite, "--max-tokens", 8, "--out", "evaluated"),
        ("eval", "--suite", suite, "--check-references"),
    )
    for command in commands:
        code, _, told = call(*command)
        assert code == 2
        assert f"{suite}, row 2 (line " in told
        assert "'docstring' must be text" in told
        assert "--skip-bad-rows" in told
        code, said, told = call(*command, "--skip-bad-rows")
        assert code == 0, told
        assert re.search(r"skipped rows of the (suite's )?file: 1", " ".join(said.split()))
    for out in ("graded", "evaluated"):
        summary = json.loads(Path(out, "summary.json").read_text())
        assert summary["problems"] == 4
        (skipped,) = summary["skipped_rows"]
        assert f"{suite}, row 2 (line " in skipped
        assert "row 2 (line" in Path(out, "report.md").read_text()


def test_answers_to_skipped_rows_are_left_out_and_told(call, suite, samples):
    table = json.loads(suite.read_text())
    broken = {"function_name": "broken", "docstring": "", "test_cases": [[1, 2]]}
    table += [
        broken | {"function_name": "unread", "docstring": 3},
        broken | {"tests": ["assert broken(1) == 2"]},  # two kinds of tests: nothing says which decides
        broken | {"function_name": "set_up", "setup_code": "def (("},
    ]
    suite.write_text(json.dumps(table))
    file = samples((1, RIGHT))
    with Path(file).open("a") as lines:
        for name in ("unread", "broken", "set_up"):
            lines.write(json.dumps({"task_id": name, "solution": "def broken(n): return 2"}) + "\n")
    code, _, told = call("grade", file, "--suite", suite, "--out", "graded")
    assert code == 2
    assert "'docstring' must be text" in told
    code, _, told = call("grade", file, "--suite", suite, "--skip-bad-rows", "--out", "graded")
    assert code == 0, told
    summary = json.loads(Path("graded", "summary.json").read_text())
    assert (summary["problems"], summary["answers"]) == (len(table) - 3, 1)
    assert len(summary["skipped_rows"]) == 3
    assert any("'unread'" in note and "skipped: 3" in note for note in summary["notes"])


def test_numbers_of_samples_with_gaps_ask_for_no_k_that_is_undefined(call, suite):
    answer = {"task_id": "add_1", "completion": "    return n + 1\n", "sample": 9}
    code, told, _, _ = graded(call, suite, answer)
    assert code == 0
    assert "pass@5" not in told


def test_all_prompts_can_be_chosen():
    (option,) = (one for one in eval_.params if one.name == "prompt")
    assert tuple(option.type.choices) == get_args(PromptName)


def test_the_time_of_an_evaluation_is_not_that_of_the_last_look_at_it(call, suite, samples, tmp_path) -> None:
    command = ("grade", samples((1, RIGHT), (2, WRONG)), "--suite", suite, "--require", "D", "--out", "out")
    summary = tmp_path / "out" / "summary.json"
    assert call(*command)[0] == 0
    first = json.loads(summary.read_text())
    first["seconds"] |= {"grading": 100.0, "wall": 120.0}  # as if it had taken so long
    summary.write_text(json.dumps(first))
    assert call(*command)[0] == 0  # every answer has its verdict
    again = json.loads(summary.read_text())["seconds"]
    assert again["wall"] > 120 and again["grading"] >= 100
    summary.write_text('{"torn')
    assert call(*command)[0] == 0
    assert json.loads(summary.read_text())["seconds"]["wall"] < 120


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return n +", "SyntaxError"),
        ("return n + {} + missing", "NameError"),
        ("raise KeyError('gone')", "KeyError"),
        ("import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_the_page_says_which_exception_ended_an_answer(call, suite, samples, tmp_path, body, named) -> None:
    assert call("grade", samples((1, body)), "--suite", suite, "--require", "D", "--out", "out")[0] == 0
    for view in ("report.html", "report.md"):
        text = (tmp_path / "out" / view).read_text()
        assert named in text
        assert "not reached or not finished" not in text


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")
def test_answers_and_verdicts_reach_the_disk_before_the_summary(call, suite, samples, monkeypatch):
    forced, fsync = [], os.fsync

    def recorded(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        forced.append("the summary" if name.startswith(".summary.json") else name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    assert call("grade", samples((1, RIGHT)), "--suite", suite, "--out", "out")[0] == 0
    assert {"samples.jsonl", "results.jsonl"} <= set(forced[: forced.index("the summary")])
