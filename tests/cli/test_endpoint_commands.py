"""`greenward eval` and `play` with a model behind a server that fails in every way."""

from __future__ import annotations

import _thread
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward import api
from greenward.cli.main import cli, main
from greenward.common.errors import ConfigError
from openai_server import FAULTS, KEY, OpenAIServer

pytestmark = pytest.mark.usefixtures("kept_sandbox")

PROBLEMS, SAMPLES = 16, 2


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """`call(arguments…)` -> (exit code, standard output, standard error), in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    return run


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "adders.json"
    rows = [
        {
            "function_name": f"add_{number}",
            "docstring": f"Add {number} to n.",
            "test_cases": [[1, 1 + number], [5, 5 + number]],
            "starter_code": f'def add_{number}(n):\n    """Add {number} to n."""\n',
        }
        for number in range(1, PROBLEMS + 1)
    ]
    path.write_text(json.dumps(rows))
    return path


def number_of(prompt: str) -> int:
    return int(re.search(r"def add_(\d+)", prompt)[1])


def answer(prompt: str) -> str:
    """Right for even numbers."""
    number = number_of(prompt)
    return f"So:\n```python\ndef add_{number}(n):\n    return n + {number - number % 2}\n```\n"


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def evaluation(server: OpenAIServer, suite: Path, out: Path, *more: object) -> list[object]:
    return ["eval", "--base-url", server.url, "--model", "tiny", "--suite", suite, "--out", out, *more]


FAST = ("--workers", 1, "--require", "D")


@pytest.mark.slow
def test_every_answer_is_accounted_for_whatever_goes_wrong(call, suite, tmp_path) -> None:
    """Each prompt fails in another way at first; two never get an answer."""

    def fault(prompt: str, attempt: int) -> str | None:
        number = number_of(prompt)
        if number in (7, 8):
            return "500"
        return FAULTS[number % len(FAULTS)] if attempt == 1 and number != 1 else None

    out = tmp_path / "out"
    with OpenAIServer(answer, fault) as server:
        options = ["--seed", "5", "--request-timeout", "0.3", "--concurrency", "16", "--eval-results"]
        command = evaluation(server, suite, out, *FAST, "--n", SAMPLES, *options)
        code, said, _ = call(*command)
        assert (code, said.splitlines()[0]) == (
            2,
            "Error: 4 of 32 answers (12.5%) were lost to the infrastructure and count as not passed; at most "
            "2% may be. The same command tries them again.",
        )
        samples, results = rows(out, "samples.jsonl"), rows(out, "results.jsonl")
        keys = {(f"add_{n}", sample) for n in range(1, PROBLEMS + 1) for sample in range(SAMPLES)}
        lost = {key for key in keys if key[0] in ("add_7", "add_8")}
        assert {(row["task_id"], row["sample"]) for row in samples} == keys - lost
        assert len(samples) == len(keys - lost)
        statuses = {(row["task_id"], row["sample"]): row["status"] for row in results}
        assert len(results) == len(keys)
        for task_id, sample in keys:
            right = "passed" if int(task_id[4:]) % 2 == 0 else "failed"
            expected = "infrastructure" if (task_id, sample) in lost else right
            assert statuses[task_id, sample] == expected
        assert set(server.delivered.values()) == {1}  # nothing was asked for twice
        assert len(server.delivered) == len(samples)
        summary = json.loads((out / "summary.json").read_text())
        assert summary["usage"] == {
            "prompt_tokens": sum(row["prompt_tokens"] for row in samples),
            "completion_tokens": sum(row["tokens"] for row in samples),
            "answers_not_counted": 0,
        }
        assert any("the first answer that was lost: http" in note for note in summary["notes"])
        assert summary["rates"]["infrastructure"]["value"] == pytest.approx(0.125)
        assert summary["rates"]["extraction_failure"]["value"] == 0
        assert f"{summary['usage']['prompt_tokens']:,} of prompts" in " ".join(said.split())
        stored = json.loads((out / "eval_results.json").read_text())["eval"]
        assert [one["base_status"] for one in stored["add_7"]] == ["fail"] * SAMPLES
        server.fault = lambda *_: None
        code, _, _ = call(*command)
        assert code == 0
        assert Counter(row["status"] for row in rows(out, "results.jsonl")) == {"passed": 16, "failed": 16}
        assert set(server.delivered.values()) == {1}
        assert len(server.delivered) == len(keys)
    code, said, _ = call("compare", out, out)
    assert (code, "difference  +0.0 points" in said) == (0, True)


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Ctrl-C as in a terminal: the workers of pytest-xdist may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_answers_that_arrived_are_kept_when_the_command_is_interrupted(
    call, suite, tmp_path, keyboard
) -> None:
    interruptions: list[str] = []

    def interrupt_after_ten(prompt: str) -> str:
        if len(server.delivered) >= 10 and not interruptions:
            interruptions.append(prompt)
            _thread.interrupt_main()
        return answer(prompt)

    out = tmp_path / "out"
    with OpenAIServer(interrupt_after_ten, seconds=0.05) as server:
        command = evaluation(server, suite, out, *FAST, "--concurrency", 2)
        code, _, said = call(*command)
        assert code == 130
        assert "the same command goes on" in said
        kept = len(rows(out, "samples.jsonl"))
        assert 10 <= kept < PROBLEMS
        assert kept <= len(server.delivered) <= kept + 2
        server.answer = answer
        assert call(*command)[0] == 0
        assert len(rows(out, "results.jsonl")) == PROBLEMS
        assert sum(server.delivered.values()) <= PROBLEMS + 2  # those that were under way


LOOKS_FOR_THE_KEY = """import os
seen = repr(dict(os.environ))
for name in ("self", os.getpid(), os.getppid(), *range(1, 100)):
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            seen += file.read().decode("latin-1")
    except OSError:
        pass
"""


def test_the_key_reaches_no_file_no_output_and_no_sandbox(call, suite, tmp_path, monkeypatch) -> None:
    def leak(prompt: str) -> str:
        number = number_of(prompt)
        return (
            f"```python\n{LOOKS_FOR_THE_KEY}\ndef add_{number}(n):\n"
            f"    return n + {number} * ('sk-' + 'planted' not in seen)  # {KEY}\n```"
        )

    with OpenAIServer(leak, lambda _, attempt: "500" if attempt == 2 else None, key=KEY) as server:
        command = evaluation(server, suite, tmp_path / "out", *FAST, "--n", 2)
        environment = {**os.environ, "OPENAI_API_KEY": KEY}
        done = subprocess.run(
            [sys.executable, "-m", "greenward", *map(str, command)],
            env=environment, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        server.key = "another"
        code, said, told = call(*command[:-4], "--out", tmp_path / "refused")
    assert (code, "answered 401: Incorrect API key provided: ***." in told) == (2, True)
    for text in (done.stdout, done.stderr, said, told):
        assert KEY not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("# ***" in path.read_text() for path in files)  # the answers held it
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    if summary["isolation"]["level"] in "AB":
        assert summary["metrics"]["pass@1"]["value"] == 1.0
    outside = [sys.executable, "-c", f"{LOOKS_FOR_THE_KEY}\nprint('sk-' + 'planted' in seen)"]
    assert subprocess.run(outside, env=environment, capture_output=True).stdout == b"True\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--base-url", "localhost:8000"], "expected a URL such as http://localhost:8000/v1."),
        (
            ["--base-url", f"http://{KEY}@host/v1"],
            "the URL of a server has no user, no query and no fragment.",
        ),
        (["--base-url", "http://h", "--api-key", KEY], "a key on the command line can be read by all users"),
        (["--base-url", "http://h", "--api-key-env", KEY], "is the name, in capital letters"),
        (["--base-url", "http://h", "--dtype", "float32"], "dtype concerns models that are loaded here"),
        (
            ["--base-url", "http://h", "--checkpoint", "last"],
            "checkpoint concerns models that are loaded here",
        ),
        (["--base-url", "http://h", "--fewshot", "3", "--style", "chat"], "--fewshot: "),
        (["other"], "MODEL is given twice"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(call, suite, arguments, message) -> None:
    code, out, err = call("eval", "--model", "tiny", "--suite", suite, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert KEY not in err and "Traceback" not in err


@pytest.mark.parametrize(
    "options, arguments, message",
    [
        (
            {"key": KEY},
            [],
            "answered 401: Incorrect API key provided: .\n  The key comes from the environment",
        ),
        ({}, ["--model", "other"], "answered 404: The model `other` does not exist.\n  It serves: tiny."),
        ({"fault": lambda *_: "html"}, [], "expected other JSON, found an HTML page (Welcome)"),
        ({"context": 500}, [], "answered 400: This model's maximum context length is 500 tokens."),
        ({"models": ("a", "b")}, ["no model"], "serves 2 models: a, b."),
    ],
)
def test_what_is_wrong_with_a_server_is_one_clear_line(call, suite, tmp_path, options, arguments, message):
    with OpenAIServer(answer, **options) as server:
        command = evaluation(server, suite, tmp_path / "out", *arguments)
        code, _, err = call(
            *(
                one
                for one in command
                if "no model" not in arguments or one not in ("--model", "tiny", "no model")
            )
        )
        assert code == 2
        assert message in err
        if options.get("context"):  # other settings, but nothing was answered yet
            assert call(*command, "--max-tokens", 100, "--limit", 2, *FAST)[0] == 0


def test_a_temperature_that_was_refused_is_not_recorded_as_one(call, suite, tmp_path) -> None:
    refused = {"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model."}}
    out = tmp_path / "out"
    with OpenAIServer(answer, refuses={"temperature": refused}) as server:
        command = evaluation(server, suite, out, *FAST)
        for _ in range(2):  # the second time, all answers are there, and nothing is asked
            assert call(*command)[0] == 0
            summary = json.loads((out / "summary.json").read_text())
            assert summary["settings"]["temperature"] is None
            assert "the server refused these parameters: temperature" in summary["notes"]
            assert any("server's own decoding: temperature 0, which was" in one for one in summary["notes"])
            assert "the server's own" in (out / "report.md").read_text()
        assert len(server.payloads) == PROBLEMS + 1
        assert all(row["refused_parameters"] == ["temperature"] for row in rows(out, "samples.jsonl"))


def test_a_server_that_is_not_there_may_be_there_later(call, suite, tmp_path) -> None:
    code, _, err = call("eval", "--base-url", "http://127.0.0.1:9/v1", "--model", "tiny", "--suite", suite)
    assert (code, "Connection refused" in err) == (2, True)


def test_the_completions_api_continues_the_prompt(call, suite, tmp_path) -> None:
    with OpenAIServer(lambda prompt: f"    return n + {number_of(prompt)}\n\nassert False") as server:
        code, said, _ = call(*evaluation(server, suite, tmp_path / "out", "--style", "base", *FAST))
        assert code == 0
        assert "pass@1 100.0 %" in said
        assert all(one["prompt"].startswith("def add_") and len(one["stop"]) == 4 for one in server.payloads)
        assert {one["temperature"] for one in server.payloads} == {0.0}


def test_in_python_the_name_holds_the_server(suite, tmp_path) -> None:
    with OpenAIServer(answer) as server:
        name = f"tiny@{server.url}"
        shown = api.prompts(name, str(suite))
        assert (shown["style"], len(shown["prompts"])) == ("chat", PROBLEMS)
        result = api.evaluate(name, str(suite), limit=4, output=tmp_path / "out", workers=1, require="D")
        assert result.summary["model"] == {
            "name": "tiny",
            "step": None,
            "weights": None,
            "server": server.url,
        }
        with pytest.raises(ConfigError, match="a suite or a file, which are named"):
            api.evaluate(name, api.load_problems(suite))


def boxed(prompt: str) -> str:
    """The first of the possible moves."""
    move = re.search(r"Your possible moves: ([^,\n]+)", prompt)[1]
    return f"<think>first</think>\\boxed{{{move}}}"


def test_a_served_model_plays_a_match_and_a_person(monkeypatch) -> None:
    with OpenAIServer(boxed) as server:
        name = f"tiny@{server.url}"
        done = CliRunner().invoke(
            cli, ["play", "tictactoe", "--model", name, "--opponent", name, "--games", "4"]
        )
        assert done.exit_code == 0, done.output
        assert re.search(r"won +100\.0%.* 0\.0%", done.output)  # cells in order: the first player wins
        lines = "8\n7\n5\nn\n"
        done = CliRunner().invoke(
            cli, ["play", "tictactoe", "--model", name, "--role", "second"], input=lines
        )
        assert "plays 0." in done.output and "You lose (-1)." in done.output
        server.fault = lambda prompt, _: "500" if "\n0" not in prompt else None
    done = CliRunner().invoke(cli, ["play", "tictactoe", "--model", name])
    assert (done.exit_code, "connection failed" in str(done.exception)) == (1, True)
