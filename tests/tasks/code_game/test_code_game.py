"""The game of code: what a valid program is, who wins, and that no degenerate program ever does."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import process_time
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from degenerate_programs import DEGENERATE
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.rollouts.driver import Request, turn_of
from greenward.rollouts.protocols import (
    POLICY,
    Collection,
    Completion,
    Episode,
    SamplingParams,
    StopReason,
    Turn,
)
from greenward.sandbox.isolation import Level
from greenward.sandbox.protocol import Limits, Outcome, RunResult
from greenward.tasks.code_game import judge as program_judge
from greenward.tasks.code_game.environment import (
    GENERATOR,
    PREDICTOR,
    PRINTS,
    SCRIPTED_PREDICTORS,
    CodeGameEnvironment,
    CodeGamePrompts,
    predict_by_interpreting,
    predict_last_literal,
    random_program,
    trace_by_interpreting,
)
from greenward.tasks.code_game.judge import ProgramJudge, ProgramResult, refusal
from tiny_model import CharacterTokenizer

AUDIT = [program for programs in DEGENERATE.values() for program in programs]
SAMPLING = SamplingParams(max_tokens=200)


@pytest.fixture(scope="module")
def judge():
    limits = Limits(cpu_seconds=0.5, wall_seconds=3.0, memory_bytes=512 << 20)
    with ProgramJudge(limits, require=Level.D) as judge:
        yield judge


@dataclass
class Writer:
    """A rollout engine whose n-th completion is the n-th text, over and over."""

    texts: list[str]
    deterministic: bool = True
    max_positions: int = 10_000
    asked: list[str] = field(default_factory=list)

    def sample(
        self, prompts: Any, group_sizes: Any, params: SamplingParams, *, seed: Any, on_group: Any = None
    ):
        groups, number = [], 0
        for prompt in prompts:
            self.asked.append("".join(map(chr, prompt)))
            groups.append([])
            for _ in range(group_sizes):
                text = self.texts[number % len(self.texts)]
                number += 1
                ids = np.array([*map(ord, text), 0][: params.max_tokens])
                reason = StopReason.END if len(text) < params.max_tokens else StopReason.LENGTH
                groups[-1].append(Completion(ids, np.zeros(len(ids), np.float32), reason, 0))
        return groups

    def sync(self, policy: Any) -> None: ...


class EndTokenizer(CharacterTokenizer):
    """Leaves out the end token, as real ones do."""

    special_ids: Mapping[str, int] = MappingProxyType({"<|end|>": 0})

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        return super().decode(token for token in token_ids if token)


class WholePrograms(CodeGamePrompts):
    """Takes what the generator writes as the whole program, without the first line."""

    def program(self, first_line: str, turn: Turn) -> str:
        return self._tokenizer.decode(turn.completion_ids)


def play(
    judge: ProgramJudge,
    generator: Writer,
    predictor: Writer | str,
    *,
    games: int = 1,
    sampling: SamplingParams = SAMPLING,
    prompts: Callable[..., CodeGamePrompts] = WholePrograms,
    trained: str = GENERATOR,
) -> Collection:
    opponent = predictor if isinstance(predictor, str) else "opponent"
    environment = CodeGameEnvironment(
        prompts(EndTokenizer(), 32),
        judge,
        lambda step: (POLICY, opponent) if trained == GENERATOR else ("opponent", POLICY),
        sampling=sampling,
        games_per_group=games,
        seed=0,
    )
    first, second = (generator, predictor) if trained == GENERATOR else (predictor, generator)
    players: dict[str, Any] = {POLICY: first, "opponent": second}
    return environment.collect(players, range(1), seed=1)


def game(*arguments: Any, **settings: Any) -> Episode:
    (episode,) = play(*arguments, **settings).episodes
    return episode


def test_no_degenerate_program_wins_even_against_a_predictor_that_is_always_wrong(judge) -> None:
    assert len(AUDIT) >= 60
    collection = play(judge, Writer(AUDIT), Writer(["wrong"]), games=len(AUDIT))
    rewarded = {
        e.answer: e.outcome for e in collection.episodes if e.rewards != {GENERATOR: -1.0, PREDICTOR: 1.0}
    }
    assert not rewarded
    assert len(collection.episodes) == len(AUDIT)
    assert all(episode.scored for episode in collection.episodes)


@pytest.mark.parametrize(
    "program",
    [
        "import random\nprint(random.random())",
        "import time\nprint(time.time_ns())",
        "import os\nprint(os.getcwd())",
        "print(hash('a') % 1000)",
        "print(list({'a', 'b', 'c', 'd', 'e'}))",
        "print(str(object())[-10:])",
        "import os\nprint(os.path.exists('../elsewhere'))",
        "print(str(lambda: 0)[-6:-1])",
        "def f():\n    yield\nprint(str(f())[-6:-1])",
    ],
)
def test_runs_find_what_is_not_deterministic_without_reading_the_program(
    judge, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_judge, "refusal", lambda code: None)
    assert judge.judge([program + "\n"]) == [ProgramResult("unstable")]


RECURSION = "d = [0]\ndef f(*_):\n    d[0] += 1\n    return {}\n{}\nprint(d[0]{})"
CATCHES = "try:\n    f()\nexcept RecursionError:\n    pass"
DIFFERENCE = "a, b = [int(str(x).split('0x')[1][:-1], 16) for x in ({})]\nprint(b - a)"


@pytest.mark.parametrize(
    "program",
    [
        RECURSION.format("f()", CATCHES, ""),
        RECURSION.format("max([1], key=f)", CATCHES, ""),
        RECURSION.format("max([1], key=lambda x: f())", CATCHES, ""),
        RECURSION.format("max([1], key=lambda x: f())", CATCHES, " % 2"),
        RECURSION.format("sorted([1], key=f)", CATCHES, " % 2"),
        RECURSION.format("list(map(f, [1]))", "try:\n    f()\nexcept Exception:\n    pass", ""),
        RECURSION.format("f()", "def g():\n    try:\n        f()\n    finally:\n        return 1\ng()", " % 2"),
        RECURSION.format("f()", "def g():\n    try:\n        yield\n    finally:\n        f()\nfor x in g():\n    break", ""),
        "n = 1\ntry:\n    while True:\n        text = 'a' * n\n        n *= 2\nexcept MemoryError:\n    print(n)",
        "import math\nprint(str(math)[-9:])",
        "def f(): pass\ndef g(): pass\n" + DIFFERENCE.format("f, g"),
        "f, g = [lambda: 0 for i in range(2)]\n" + DIFFERENCE.format("f, g"),
        "class A: pass\n" + DIFFERENCE.format("A(), A()"),
        "def f(): pass\nprint(str(f)[-7:-3])",
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_what_a_program_learns_of_its_interpreter_is_never_valid(judge, program: str, times: int) -> None:
    assert refusal(program) is None
    results = judge.judge([f"n = {number}\n{program}" for number in range(times)])
    assert not any(result.valid for result in results)


@pytest.mark.parametrize("bit", [4, *(pytest.param(one, marks=pytest.mark.slow) for one in (6, 9))])
def test_one_bit_of_an_address_is_seldom_valid(judge, bit: int) -> None:
    program = f"def f(): pass\nprint(int(str(f).split('0x')[1][:-1], 16) >> {bit} & 1)"
    results = judge.judge([f"n = {number}\n{program}" for number in range(32)])
    assert sum(result.valid for result in results) < 24  # 8 are to be expected at most


@pytest.mark.parametrize("depth", [100, 400])
def test_recursion_that_ends_is_valid(judge, depth: int) -> None:
    program = f"def f(n):\n    return n and 1 + f(n - 1)\nprint(f({depth}))"
    assert judge.judge([program]) == [ProgramResult("valid", str(depth))]


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("print(3)", "3"),
        ("print('a')\nprint('b')", "a\nb"),
        ("print(' a ', end='')", " a "),
        ("print(1, end='\\n\\n')", "1\n"),
        ("import math\nprint(math.factorial(20))", "2432902008176640000"),
        ("from collections import Counter\nprint(Counter('aba'))", "Counter({'a': 2, 'b': 1})"),
        ("class Pair:\n    left = 1\nprint(Pair().left)", "1"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print(error)", "division by zero"),
        ("print(sum(range(100)))", "4950"),
        ("print('ä' * 16)", "ä" * 16),
    ],
)
def test_deterministic_programs_are_valid_and_their_text_is_kept(judge, program: str, printed: str) -> None:
    assert judge.judge([program]) == [ProgramResult("valid", printed)]


@pytest.mark.parametrize(
    ("said", "wins"),
    [
        (f"{PRINTS}7", True),
        (f"3 + 4{PRINTS}8{PRINTS}7\n", True),
        (f"{PRINTS} 7", False),
        (f"{PRINTS}7\n\n", False),
        (PRINTS, False),
        ("7", False),
        ("", False),
    ],
)
def test_a_prediction_counts_if_it_is_the_printed_text_one_newline_aside(
    judge, said: str, wins: bool
) -> None:
    episode = game(judge, Writer(["print(3 + 4)"]), Writer([said]))
    assert episode.rewards == ({GENERATOR: -1, PREDICTOR: 1} if wins else {GENERATOR: 1, PREDICTOR: -1})
    assert episode.outcome == ("predicted" if wins else "not_predicted")
    assert [turn.player for turn in episode.turns] == [POLICY, "opponent"]
    assert episode.trained_rewards == {GENERATOR: episode.rewards[GENERATOR]}


def test_where_the_predictor_is_trained_all_its_predictions_are_of_one_program(judge) -> None:
    predictor = Writer([PRINTS + text for text in "787"])
    episodes = play(judge, Writer(["print(3 + 4)"]), predictor, games=3, trained=PREDICTOR).episodes
    assert [episode.trained_rewards for episode in episodes] == [{PREDICTOR: one} for one in (1, -1, 1)]
    assert len(predictor.asked) == 1
    invalid = game(judge, Writer(["print(1 / 0)"]), Writer(["x"]), games=3, trained=PREDICTOR)
    assert (invalid.rewards[GENERATOR], invalid.trained_turns) == (-1.0, ())


@pytest.mark.parametrize(
    ("program", "sampling", "positions", "outcome"),
    [
        ("print(3 + 4)", SamplingParams(5), 10_000, "too_long"),
        ("print(3 + 4)", SAMPLING, 215, "too_long"),
        ("print('<|end|>')", SAMPLING, 10_000, "forbidden"),
        ("print('```')", SAMPLING, 10_000, "forbidden"),
        ("print('\ufffd')", SAMPLING, 10_000, "forbidden"),
    ],
)
def test_a_program_that_the_predictor_cannot_be_shown_whole_loses(
    judge, program: str, sampling: SamplingParams, positions: int, outcome: str
) -> None:
    writer = Writer([program], max_positions=positions)
    episode = game(judge, writer, Writer(["wrong"]), sampling=sampling)
    assert (episode.outcome, episode.rewards[GENERATOR]) == (outcome, -1.0)


OUTPUTS = (
    " 5", "5 ", "\t5", "  a\n  b", "a\n\nb", "1\n", "\n1", "a\rb", "\x0b1", "<think>", "</think>5", "```", "a\n```\nb", "~~~\n1",
    "\n# prints\n", "7\n# prints\n8", "# prints\n8", "# trace\n1", "<|end|>", "\x1b[2J", "\ufffd", "\ufeff1", "\u202e1", "\x00", "é中",
    "9" * 60, "None", "```python\nprint(1)\n```", "<answer>1</answer>", "\u2028a", "0x" + "f" * 40,
)  # fmt: skip


@dataclass
class Printing:
    """Judges every program to be valid, and to print the text that it stands for."""

    output: str

    def judge(self, codes: list[str]) -> list[ProgramResult]:
        return [ProgramResult("valid", self.output) for _ in codes]


def play_right_answer(output: str, tokenizer: EndTokenizer, reasoning: str = "") -> Episode:
    """A game in which the predictor says what the program prints."""
    said = "".join(map(chr, CodeGamePrompts(tokenizer, 32).reasoned(reasoning, output)))
    environment = CodeGameEnvironment(
        CodeGamePrompts(tokenizer, 32),
        Printing(output),  # type: ignore[arg-type]
        lambda step: (POLICY, "opponent"),
        sampling=SAMPLING,
        games_per_group=1,
        seed=0,
    )
    written = "```\nprint(a)\n```" if tokenizer.chat_template else "print(a)"
    (episode,) = environment.collect(
        {POLICY: Writer([written]), "opponent": Writer([said])}, range(1), seed=1
    ).episodes
    return episode


@settings(max_examples=300, deadline=None)
@given(
    st.text(min_size=1, max_size=30)
    | st.text(" \n\t\r`~<>/think#prs1", min_size=1, max_size=30)
    | st.sampled_from(OUTPUTS),
    st.booleans(),
    st.sampled_from(["", "3 + 4 = 7", "It prints\n"]),
)
def test_what_a_valid_program_prints_can_be_said(output: str, chat: bool, reasoning: str) -> None:
    episode = play_right_answer(output, EndTokenizer(chat=chat), reasoning)
    assert episode.outcome in ("predicted", "unwritable")
    assert episode.rewards == {GENERATOR: -1.0, PREDICTOR: 1.0}


def test_ordinary_texts_can_be_said_and_those_with_marks_of_answers_make_a_program_invalid() -> None:
    for chat in (False, True):
        cannot = {
            text
            for text in OUTPUTS
            if play_right_answer(text, EndTokenizer(chat=chat)).outcome != "predicted"
        }
        marks = {"a\rb", "<think>", "</think>5", "<|end|>", "```", "a\n```\nb", "```python\nprint(1)\n```"}
        assert cannot == (marks if chat else {"\n# prints\n", "7\n# prints\n8", "# prints\n8"}) | (
            cannot & {"\x00"}
        )


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    "program",
    ["print('', 5)", "print('a', end=' ')", "print('\\n7')", "print('  a\\n  b')", "print(1, end='\\n\\n')"],
)
def test_white_space_that_is_printed_can_be_predicted(judge, program: str, chat: bool) -> None:
    (result,) = judge.judge([program])
    assert result.valid and play_right_answer(result.output, EndTokenizer(chat=chat)).outcome == "predicted"


def test_a_program_whose_output_exceeds_the_limit_of_an_answer_is_not_valid(judge) -> None:
    room = SamplingParams(max_tokens=len(PRINTS) + 7)
    for printed, outcome in ((7, "predicted"), (8, "unwritable")):
        texts = [f"print('{'x' * printed}')"], [f"{PRINTS}{'x' * printed}"]
        environment = CodeGameEnvironment(
            WholePrograms(EndTokenizer(), 32),
            judge,
            lambda step: (POLICY, "opponent"),
            sampling=room,
            games_per_group=1,
            seed=0,
            max_program_tokens=100,
        )
        players = {POLICY: Writer(texts[0]), "opponent": Writer(texts[1])}
        (episode,) = environment.collect(players, range(1), seed=1).episodes
        assert episode.outcome == outcome


def test_numbers_of_any_length_raise_in_no_metric(judge) -> None:
    program = f"a = 0x{'f' * 3600}\nprint(a % 10)"
    collection = play(judge, Writer([program]), Writer([f"{PRINTS}5"]), sampling=SamplingParams(5000))
    assert collection.episodes[0].outcome in ("predicted", "not_predicted")
    assert collection.metrics["code_game/accuracy_of_last_literal"] == [0.0]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("print('{} {:>3}'.format(1, 2))", None),
        ("t = '{}'\nprint(t.format(1))", None),
        ("print('{0.real} {a[b]}'.format(3, a={'b': 1}))", None),
        ("print('{0.gi_frame}'.format(n for n in ()))", "forbidden"),
        ("print('{:{0._x}}'.format(3))", "forbidden"),
        ("t = '{0' + '.gi_frame}'\nprint(t.format(n for n in ()))", "forbidden"),
        ("def f(t):\n    return t.format(1)\nt = '{}'\nprint(f(t))", "forbidden"),
        ("t = '{}'\nt += '{}'\nprint(t.format(1, 2))", "forbidden"),
        ("print(str.format('{}', 1))", "forbidden"),
        ("print('{a.f_back}'.format_map({'a': 1}))", "forbidden"),
    ],
)
def test_formats_read_no_attribute_that_a_program_may_not_name(program: str, status: str | None) -> None:
    assert refusal(program) == status


MATCHED = """
u = "_" * 2
kind = type("M", (type,), {u + "instancecheck" + u: lambda c, o: True})
A = kind("A", (), {u + "match_args" + u: (u + "globals" + u,)})
match lambda: 0:
    case A(g): print(len(g))
"""


@pytest.mark.parametrize(
    "program",
    [
        MATCHED,
        "u = '_' * 2\nmatch '{0.' + u + 'code}':\n    case str(format=g): print(g(print))",
        "from collections import abc\nprint(abc.sys)",
        "import collections\nprint(collections.abc.sys)",
    ],
)
def test_neither_class_patterns_nor_modules_of_modules_are_used(program: str) -> None:
    assert refusal(program) == "forbidden"


def test_a_program_of_a_megabyte_loses_and_stops_nothing(judge) -> None:
    huge = "print(" + "9" * (1 << 20) + ")"
    statuses = [one.status for one in judge.judge([huge, "print(" + "(" * (1 << 20), "print(1)"])]
    assert "valid" not in statuses[:2]
    assert statuses[2] == "valid"


def test_a_game_is_void_when_the_sandbox_fails_and_its_program_is_judged_anew(
    judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = RunResult(Outcome.INFRASTRUCTURE)
    with monkeypatch.context() as patch:
        for executor in judge._executors:
            patch.setattr(executor, "run", lambda jobs: ((index, broken) for index, _ in enumerate(jobs)))
        void = game(judge, Writer(["print(123456)"]), Writer(["wrong"]))
    assert (void.scored, void.outcome, set(void.rewards.values())) == (False, "void", {0.0})
    assert game(judge, Writer(["print(123456)"]), Writer([f"{PRINTS}123456"])).outcome == "predicted"


def test_every_game_is_zero_sum_and_metrics_tell_who_won(judge) -> None:
    rng = random.Random(3)
    programs = [random_program(rng) for _ in range(20)] + AUDIT[:10]
    collection = play(judge, Writer(programs), "interpreter", games=30)
    assert all(sum(episode.rewards.values()) == 0 for episode in collection.episodes)
    means = {name: float(np.mean(values)) for name, values in collection.metrics.items()}
    assert means["code_game/generator_win"] == 0
    assert means["code_game/valid"] == pytest.approx(2 / 3)
    assert means["code_game/accuracy_of_interpreter"] == 1
    assert means["code_game/different_programs"] == len(set(programs)) / 30


def test_generator_continues_its_first_line_and_predictor_sees_the_whole_program(judge) -> None:
    generator, predictor = Writer(["print(a)"]), Writer(["x"])
    episode = game(judge, generator, predictor, prompts=CodeGamePrompts)
    assert episode.answer == generator.asked[0] + "print(a)"
    assert predictor.asked == [f"{episode.answer}\n# trace\n"]


def test_chat_models_answer_in_blocks(judge) -> None:
    prompts = CodeGamePrompts(EndTokenizer(chat=True), 32)
    said = "<think>```python\nprint(0)\n```</think>Here:\n```python\na = 1\nprint(a)\n```\n"

    def turn(text: str) -> Turn:
        completion = Completion(np.array(list(map(ord, text))), np.zeros(0), StopReason.END, 0)
        return turn_of(Request(GENERATOR, (), SAMPLING), completion)

    assert prompts.program("a = 1", turn(said)) == "a = 1\nprint(a)"
    assert prompts.program("b = 2", turn(said)) == "b = 2\na = 1\nprint(a)"
    assert prompts.prediction(turn(said)) == "a = 1\nprint(a)"
    assert prompts.prediction(turn("no block")) is None
    assert prompts.prediction(turn("".join(map(chr, prompts.reasoned("3 + 4", "7"))))) == "7"


def test_interpreter_agrees_with_python_on_random_programs() -> None:
    rng = random.Random(11)
    programs = [random_program(rng) for _ in range(600)]
    source = (
        "import contextlib, io, json, sys\nout = []\nfor p in json.load(sys.stdin):\n    s = io.StringIO()\n"
        + (
            "    with contextlib.redirect_stdout(s):\n        exec(p, {})\n    out.append(s.getvalue()[:-1])\nprint(json.dumps(out))"
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", source], input=json.dumps(programs), capture_output=True, text=True, check=True
    )
    printed = json.loads(done.stdout)
    assert [predict_by_interpreting(program) for program in programs] == printed
    strength = {
        name: np.mean([predict(p) == text for p, text in zip(programs, printed, strict=True)])
        for name, predict in SCRIPTED_PREDICTORS.items()
    }
    assert strength["interpreter"] == 1
    assert max(strength["constant"], strength["last_literal"]) < 0.3
    assert max(map(len, printed)) <= 32


def test_a_trace_tells_the_value_after_each_statement() -> None:
    rng = random.Random(12)
    for program in (random_program(rng, most_changes=6) for _ in range(200)):
        *changes, last = ast.parse(program).body
        lines, names = program.splitlines(), {}
        for statement in changes:
            exec(compile(ast.Module([statement], []), "", "exec"), names)
            lines[statement.end_lineno - 1] += f" # {names['a']}"
        assert trace_by_interpreting(program).splitlines() == lines[: last.lineno - 1]


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("x = 7 // 2 - -3\nprint(x, x % 4, not x)", "6 2 False"),
        ('a = "ab" * 2\nb = [a, "c"]\nprint(b, a == "ab")', "['abab', 'c'] False"),
        ("n = 0\nfor i in range(4):\n    if i % 2:\n        n += i\nprint(n)", "4"),
        ("x = 3\ny = list(range(9))\nprint(x, y[-1], y[1:3])", "3 8 [1, 2]"),
        ('for c in "abc":\n    print(c.upper())', "A\nB\nC"),
        # Beyond the part of Python that is known, or beyond its bounds:
        ("while True:\n    pass", ""),
        ('a = "x" * 10**9\nprint(a)', ""),
        ("a = [1]\na = [a]\nprint(a)", ""),
        ("print(9 ** 9 ** 9)", ""),
        ("a = 9\nfor i in range(200):\n    a = a * a\nprint(a)", ""),
        ("a = []\nfor i in range(10**9):\n    a.append(i)", ""),
        ('print("%999999999d" % 1)', ""),
        ('print("{:>999999999}".format(1))', ""),
        ("print(1 / 0)", ""),
        ("import os\nprint(os.getcwd())", ""),
        ("(" * 500, ""),
        ("print(" + "-" * 5000 + "1)", ""),
        ("a = 'a'\nfor i in range(150):\n    a = a.replace('a', 'aaaaaaaaaa')\nprint(a)", ""),
    ],
)
def test_interpreter_is_bounded_and_never_guesses(program: str, printed: str) -> None:
    assert predict_by_interpreting(program) == printed


@pytest.mark.parametrize(
    "program",
    [
        "for i in range(200):\n for j in range(200):\n  " + ";".join(["print()"] * 150),
        "".join(f"{' ' * n}for i{n} in range(200):\n" for n in range(20)) + " " * 20 + "pass",
        'a = "x" * 200\n' + "print([a] * 200)\n" * 500,
        "a = 1\n" + "a = a + 1\n" * 5000,
        f"print(0x{'f' * 100_000})",
    ],
)
def test_scripted_predictors_are_bounded_in_steps_and_in_what_they_print(program: str) -> None:
    begin = process_time()
    for predict in SCRIPTED_PREDICTORS.values():
        assert len(predict(program)) <= 10_000
    assert process_time() - begin < 3.0  # some hundredths of a second on an idle core


def test_last_literal_is_the_last_in_the_text() -> None:
    assert predict_last_literal('a = 5\nprint(a + 3, "end")') == "end"
    assert predict_last_literal("print((") == predict_last_literal("print(a)") == ""
