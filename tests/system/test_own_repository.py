"""The four commands of docs/own_repository.md, as typed, on a small package."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from greenward.cli.main import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_repository.md"
SMALL = [
    "model.shape.layers=1", "model.shape.hidden_size=32", "model.shape.heads=2", "model.shape.kv_heads=2",
    "model.shape.intermediate_size=64", "warm_start.max_steps=2", "warm_start.batch_size=4",
    "training.max_steps=1", "training.prompts_per_step=2", "training.num_generations=2",
    "training.micro_batch_sequences=4", "algorithm.minibatches=1", "evaluation.samples=4",
    "evaluation.k=[1]", "evaluation.greedy=false", "sampling.max_tokens=16",
]  # fmt: skip
FILES = {
    "README.md": "A package.\n",
    "tally/__init__.py": "",
    "tally/numbers.py": '''
def mean(xs):
    """The mean, or 0 of nothing."""
    return sum(xs) / len(xs) if xs else 0


def spread(xs):
    """The largest less the smallest."""
    return max(xs) - min(xs)
''',
    "tally/words.py": '''
def initials(words):
    """The first letters, joined.

    >>> initials(["red", "ant"])
    'ra'
    """
    return "".join(word[:1] for word in words)
''',
    "tests/test_numbers.py": """
import unittest
from tally.numbers import mean, spread

class NumbersTest(unittest.TestCase):
    def test_mean(self):
        self.assertEqual([mean([1, 2, 6]), mean([])], [3, 0])
    def test_spread(self):
        self.assertEqual(spread([4, 9, 2]), 7)
""",
}


def test_the_four_commands_of_the_page_work_as_typed(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    commands = [shlex.split(line) for line in block.splitlines()]
    assert [command[1] for command in commands] == ["problems", "train", "eval", "compare"]
    outputs = []
    for _, *arguments in commands:
        more = SMALL if arguments[0] == "train" else []
        done = CliRunner().invoke(cli, [*arguments, *more], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        outputs.append(done.output)
    assert "3 problems of 3 functions" in outputs[0]
    assert "difference" in outputs[3] and "pass@1" in outputs[3]
    assert (tmp_path / "runs/own/report.html").is_file()
    settings = json.loads((tmp_path / "evaluations/own/settings.json").read_text())
    assert settings["max_tokens"] == 16  # asked as in training, not as a published suite is
