"""Implements the game of code: a generator writes a program, a predictor says what it prints.

The predictor wins, +1, if it gives the printed text exactly, one newline at the end aside, or if the program
is not valid; else the generator does. The loser gets -1. A program is valid as `tasks.code_game.judge` says,
if it ended before the limit of tokens, the predictor can be shown it, and the predictor can say what it
prints. A game whose program the sandbox could not run is void.
Random programs are examples of the rules and of the format, not of good play: each keeps one value in `a`, a
number or a word, changes it a few times and prints it. The first line of such a program is the generator's
prompt. Scripted predictors, from weak to strong, measure how difficult programs are. None executes a
program: the strongest evaluates the syntax tree of a small part of Python, in bounded steps and values.
"""

from __future__ import annotations

import ast
import operator
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from types import MappingProxyType
from typing import Any

from greenward.common.seeding import step_seed
from greenward.environments.prompts import PromptTokenizer, template_thought
from greenward.grading.answers import last_block
from greenward.problems.python_source import parse, parse_or_none
from greenward.rollouts.driver import Request, turn_of
from greenward.rollouts.protocols import (
    POLICY,
    Collection,
    Episode,
    RolloutEngine,
    SamplingParams,
    StopReason,
    Turn,
)
from greenward.tasks.code_game.judge import ProgramJudge, ProgramResult

MOST_CHANGES = 3
MOST_PREDICTED_CHANGES = 6
"""Of a program that a predictor is taught on: a generator soon writes more than it was shown."""

_LENGTH = "a = len(a)"  # makes a number of a word
# The changes of each kind of value. {n}: a number from 2 to 5, {c} and {d}: two letters.
_CHANGES = MappingProxyType(
    {
        "number": (
            "a += {n}", "a -= {n}", "a = {n} - a", "a = a % {n}", "for i in range({n}):\n    a += i",
            "if a > {n}:\n    a -= 3",
        ),
        "word": (
            'a += "{c}"', "a = a[::-1]", "a = a[1:]", "a = a.upper()", 'a = a.replace("{c}", "{d}")', _LENGTH,
        ),
    }
)  # fmt: skip


def random_program(rng: random.Random, most_changes: int = MOST_CHANGES) -> str:
    """A program of up to `most_changes` changes; it never fails."""
    first, kind = random_first_line(rng)
    lines = [first]
    for _ in range(rng.randint(1, most_changes)):
        change = rng.choice(_CHANGES[kind])
        kind = "number" if change == _LENGTH else kind
        letter, other = rng.sample("ab", 2)
        lines.append(change.format(n=rng.randint(2, 5), c=letter, d=other))
    return "\n".join([*lines, "print(a)"])


def random_first_line(rng: random.Random) -> tuple[str, str]:
    """An assignment to `a`, and of what."""
    if rng.random() < 0.5:
        return f"a = {rng.randint(0, 12)}", "number"
    return f'a = "{"".join(rng.choices("ab", k=3))}"', "word"


MAX_STEPS = 2_000  # statements and expressions
MAX_ITEMS = 200
MAX_PRINTED = 10_000  # characters
MAX_NUMBER = 10**30


def predict_constant(code: str) -> str:
    """0, whatever the program."""
    return "0"


def predict_last_literal(code: str) -> str:
    """The last constant that stands in the program; nothing for a number of more than `MAX_ITEMS` digits."""
    tree = parse_or_none(code)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)] if tree else []
    last = max(nodes, key=lambda node: (node.lineno, node.col_offset), default=None)
    if last is None or (isinstance(last.value, int) and abs(last.value) >= 10**MAX_ITEMS):
        return ""
    return str(last.value)[:MAX_ITEMS]


def predict_by_interpreting(code: str) -> str:
    """What the program prints, if it keeps to the part of Python that `_Interpreter` knows; else nothing."""
    interpreter = _Interpreter()
    try:
        interpreter.run(parse(code).body)
    except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return ""
    return "\n".join(interpreter.printed)


def trace_by_interpreting(code: str) -> str:
    """A random program without its last statement; after each other statement, what `a` is then."""
    interpreter, lines = _Interpreter(), code.splitlines()
    for statement in parse(code).body[:-1]:
        interpreter.run([statement])
        lines[(statement.end_lineno or 0) - 1] += f" # {interpreter.names['a']}"
    return "\n".join(lines[:-1])


SCRIPTED_PREDICTORS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "constant": predict_constant,
        "last_literal": predict_last_literal,
        "interpreter": predict_by_interpreting,
    }
)
"""Each predicts what a program prints from its text."""

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg,
    ast.Not: operator.not_,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "int": int, "len": len, "list": list, "max": max, "min": min, "str": str, "sorted": sorted,
    "sum": sum, "range": lambda *bounds: list(range(*bounds)[: MAX_ITEMS + 1]),
}  # fmt: skip
_METHODS = {"count", "find", "lower", "replace", "upper"}  # of texts


class _Unknown(ValueError):
    """The program leaves the part of Python that is interpreted, or its bounds."""


class _Interpreter:
    """Evaluates assignments, `if`, `for` and `print` on numbers, texts and flat lists, which never change."""

    def __init__(self) -> None:
        self.printed: list[str] = []
        self.names: dict[str, Any] = {}
        self._steps = self._printed_chars = 0

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._count_step()
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self._value(value)
                case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                    self.names[name] = self._value(ast.BinOp(ast.Name(target.id, ast.Load()), op, value))
                case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=arguments, keywords=[])):
                    text = " ".join(str(self._value(argument)) for argument in arguments)
                    self._printed_chars += len(text) + 1
                    if self._printed_chars > MAX_PRINTED:
                        raise _Unknown
                    self.printed.append(text)
                case ast.If(test=test, body=body, orelse=otherwise):
                    self.run(body if self._value(test) else otherwise)
                case ast.For(target=ast.Name(id=name), iter=items, body=body, orelse=[]):
                    for item in self._value(items):
                        self.names[name] = item
                        self.run(body)
                case _:
                    raise _Unknown

    def _value(self, node: ast.expr) -> Any:
        """The value, if it is a number, a text or a flat list, and small."""
        self._count_step()
        value = self._evaluate(node)
        items = value if isinstance(value, list) else [value]
        for item in items:
            if type(item) not in (int, bool, str, type(None)) or (
                len(item) > MAX_ITEMS if isinstance(item, str) else abs(item or 0) > MAX_NUMBER
            ):
                raise _Unknown
        if len(items) > MAX_ITEMS:
            raise _Unknown
        return value

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Unknown

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.List(elts=elements):
                return [self._value(element) for element in elements]
            case ast.UnaryOp(op=op, operand=operand):
                return self._combined(op, self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._combined(op, self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._combined(op, self._value(left), self._value(right))
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                bounds = [None if bound is None else self._value(bound) for bound in (lower, upper, step)]
                return self._value(value)[slice(*bounds)]
            case ast.Subscript(value=value, slice=index):
                return self._value(value)[self._value(index)]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(self._value, arguments))
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments, keywords=[]):
                owner = self._value(value)
                if isinstance(owner, str) and name in _METHODS:
                    return getattr(owner, name)(*map(self._value, arguments))
        raise _Unknown

    def _combined(self, op: ast.AST, *values: Any) -> Any:
        texts = any(isinstance(value, str | list) for value in values)
        long = texts and any(isinstance(value, int) and value > MAX_ITEMS for value in values)
        if type(op) not in _OPERATORS or long or (texts and isinstance(op, ast.Mod)):
            raise _Unknown
        return _OPERATORS[type(op)](*values)


GENERATOR, PREDICTOR = "generator", "predictor"

WRITE = (
    "Write a short Python program that prints something. Another player reads it and predicts what it "
    "prints; you win if the prediction is wrong. The program must be a deterministic computation that ends "
    "soon: it may not use comments, sets, files, time, randomness or imports other than bisect, collections, "
    "heapq, itertools and math. It prints at most {max_output_bytes} bytes and begins with this line:\n\n"
    "```python\n{first_line}\n```\n\nAnswer with the whole program in one ```python code block."
)
PREDICT = (
    "What does this Python program print?\n\n```python\n{code}\n```\n\n"
    "Answer with exactly the printed text in one ``` code block."
)
PRINTS = "\n# prints\n"
"""Stands between the reasoning of a predictor without a chat template and its prediction."""


class CodeGamePrompts:
    """What the players see as tokens, and what their tokens say.

    Without a chat template the generator continues its first line, and the predictor the program with a
    comment after it: what it writes up to `PRINTS` is its reasoning, what follows is its prediction. With
    one, both answer in a code block.
    """

    def __init__(self, tokenizer: PromptTokenizer, max_output_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._max_output_bytes = max_output_bytes
        self._begun = template_thought(tokenizer)

    def to_write(self, first_line: str) -> tuple[int, ...]:
        chat = WRITE.format(first_line=first_line, max_output_bytes=self._max_output_bytes)
        return self._ids(f"{first_line}\n", chat)

    def to_predict(self, code: str) -> tuple[int, ...]:
        return self._ids(f"{code}\n# trace\n", PREDICT.format(code=code))

    def answer(self, text: str) -> list[int]:
        """The tokens with which the generator says a program without its first line."""
        return self._tokenizer.encode(f"```\n{text}\n```" if self._tokenizer.chat_template else text)

    def reasoned(self, reasoning: str, text: str) -> list[int]:
        """The tokens with which the predictor says `text` after `reasoning`."""
        if self._tokenizer.chat_template:
            answer = f"\n\n```\n{text}\n```"
        else:
            answer = f"{PRINTS}{text}\n" if text.endswith("\n") else f"{PRINTS}{text}"
        return self._tokenizer.encode(f"{reasoning}{answer}")

    def program(self, first_line: str, turn: Turn) -> str:
        """The program of an answer, which begins with `first_line`."""
        text = self._tokenizer.decode_answer(turn.completion_ids)
        code = ((last_block(text, self._begun) if self._tokenizer.chat_template else text) or "").strip("\n")
        return code if code.split("\n")[0] == first_line else f"{first_line}\n{code}"

    def prediction(self, turn: Turn) -> str | None:
        """The text that an answer predicts; None without the mark or the block that it has to follow."""
        return self._predicted(turn.completion_ids)

    def can_say(self, text: str, sampling: SamplingParams) -> bool:
        """Whether there is an answer that predicts `text`: that without reasoning is read as it, and neither
        the limit of tokens nor a stop string cuts it.
        """
        ids = self.reasoned("", text)
        is_whole = len(ids) <= sampling.max_tokens and not any(stop in text for stop in sampling.stop_strings)
        return is_whole and self._predicted(ids) == text

    def shows(self, code: str) -> bool:
        """Whether the predictor's prompt holds the program as it is, and nothing in it ends the prompt."""
        return "```" not in code and not any(token in code for token in self._tokenizer.special_ids)

    def _predicted(self, ids: Iterable[int]) -> str | None:
        text = self._tokenizer.decode_answer(ids)
        if self._tokenizer.chat_template:
            said = last_block(text, self._begun, dedent=False)
        else:
            _, mark, behind = text.rpartition(PRINTS)
            said = behind if mark else None
        return None if said is None else said.removesuffix("\n")

    def _ids(self, text: str, chat: str) -> tuple[int, ...]:
        if self._tokenizer.chat_template:
            return tuple(self._tokenizer.render_chat([{"role": "user", "content": chat}]))
        return tuple(self._tokenizer.encode(text, add_special_tokens=True))


@dataclass(frozen=True)
class Program:
    """What a generator wrote, and what the judge says of it once it has been judged."""

    group_id: int
    turn: Turn
    code: str
    result: ProgramResult


@dataclass(frozen=True)
class Prediction:
    """What a predictor said of a valid program; a scripted one has no turn."""

    program: Program
    text: str | None
    turn: Turn | None = None

    @property
    def right(self) -> bool:
        return self.text == self.program.result.output


@dataclass(eq=False)
class CodeGameEnvironment:
    """Plays `games_per_group` games with the same first line in each group.

    `seats` gives the names of the generator and the predictor at a step: players, or for the predictor one
    of `SCRIPTED_PREDICTORS`. A group is the baseline of its games. Where the policy writes, its programs
    begin alike, and each is predicted once; where it only predicts, all its predictions are of one program.
    The first line of group i follows from i and the seed.
    """

    prompts: CodeGamePrompts
    judge: ProgramJudge
    seats: Callable[[int], tuple[str, str]]
    _: KW_ONLY
    sampling: SamplingParams
    games_per_group: int
    seed: int
    max_program_tokens: int | None = None

    def collect(
        self, players: Mapping[str, RolloutEngine], groups: Sequence[int], *, seed: int, step: int = 0
    ) -> Collection:
        generator, predictor = self.seats(step)
        programs_each, predictions_each = (
            (self.games_per_group, 1) if generator == POLICY else (1, self.games_per_group)
        )
        started = time.perf_counter()
        written = self.write(players, generator, groups, programs_each, seed=seed)
        before_judging = time.perf_counter()
        programs = self.judged(written)
        grading = time.perf_counter() - before_judging
        predictions = self.predict(players, predictor, programs, predictions_each, seed=seed)
        sampling = time.perf_counter() - started - grading
        episodes = [_episode(program) for program in programs if not program.result.valid]
        episodes += [_episode(one.program, one) for one in predictions]
        episodes.sort(key=lambda episode: episode.group_id)
        metrics = {
            "code_game/generator_win": [float(one.rewards[GENERATOR] > 0) for one in episodes if one.scored],
            "code_game/valid": [float(one.result.valid) for one in programs],
            "code_game/accuracy": [float(one.right) for one in predictions],
            **{f"code_game/{name}": [share] for name, share in diversity_and_difficulty(programs).items()},
        }
        return Collection(episodes, sampling, grading, metrics)

    def task(self, group: int) -> None:
        """None, of every group: its metrics compare the programs of a batch."""

    def write(
        self,
        players: Mapping[str, RolloutEngine],
        generator: str,
        groups: Sequence[int],
        programs_each: int = 1,
        *,
        seed: int,
    ) -> list[Program]:
        """`programs_each` programs for the first line of each group; some need no judge to be refused."""
        seeds = (step_seed(self.seed, one, "first line") for one in groups)
        lines = [random_first_line(random.Random(one))[0] for one in seeds]
        prompts = list(map(self.prompts.to_write, lines))
        sampling = replace(self.sampling, max_tokens=self.max_program_tokens or self.sampling.max_tokens)
        turns = self._sample(players, generator, GENERATOR, prompts, programs_each, sampling, seed)
        room = players[generator].max_positions - self.sampling.max_tokens
        programs = []
        for number, turn in enumerate(turns):
            place = number // programs_each
            code = self.prompts.program(lines[place], turn)
            status = "not_judged"
            if turn.stop_reason is StopReason.LENGTH or len(self.prompts.to_predict(code)) > room:
                status = "too_long"
            elif not self.prompts.shows(code):
                status = "forbidden"
            programs.append(Program(groups[place], turn, code, ProgramResult(status)))
        return programs

    def judged(self, programs: Sequence[Program]) -> list[Program]:
        """The programs with what the judge says of those that are not refused yet.

        A text that no predictor could say, such as one with the mark of its answer, makes a program invalid.
        """
        pending = [one.code for one in programs if one.result.status == "not_judged"]
        results = iter(
            result
            if not result.valid or self.prompts.can_say(result.output, self.sampling)
            else ProgramResult("unwritable", result.output)
            for result in self.judge.judge(pending)
        )
        return [
            replace(one, result=next(results)) if one.result.status == "not_judged" else one
            for one in programs
        ]

    def predict(
        self,
        players: Mapping[str, RolloutEngine],
        predictor: str,
        programs: Sequence[Program],
        predictions_each: int = 1,
        *,
        seed: int,
    ) -> list[Prediction]:
        valid = [program for program in programs if program.result.valid for _ in range(predictions_each)]
        if predictor in SCRIPTED_PREDICTORS:
            return [Prediction(one, SCRIPTED_PREDICTORS[predictor](one.code)) for one in valid]
        prompts = [self.prompts.to_predict(one.code) for one in valid[::predictions_each]]
        turns = self._sample(players, predictor, PREDICTOR, prompts, predictions_each, self.sampling, seed)
        return [
            Prediction(program, self.prompts.prediction(turn), turn)
            for program, turn in zip(valid, turns, strict=True)
        ]

    def _sample(
        self,
        players: Mapping[str, RolloutEngine],
        player: str,
        role: str,
        prompts: Sequence[tuple[int, ...]],
        each: int,
        sampling: SamplingParams,
        seed: int,
    ) -> list[Turn]:
        found = players[player].sample(prompts, each, sampling, seed=step_seed(seed, 0, role))
        return [
            turn_of(Request(role, prompt_ids, sampling, player), completion)
            for prompt_ids, completions in zip(prompts, found, strict=True)
            for completion in completions
        ]


def diversity_and_difficulty(programs: Sequence[Program]) -> dict[str, float]:
    """Shares of different programs and outputs, and of the valid programs that each script predicts."""
    valid = [program for program in programs if program.result.valid]
    shares = {"different_programs": len({program.code for program in programs}) / len(programs)}
    if valid:
        shares["different_outputs"] = len({program.result.output for program in valid}) / len(valid)
    for name, predict in SCRIPTED_PREDICTORS.items() if valid else ():
        right = sum(predict(program.code) == program.result.output for program in valid)
        shares[f"accuracy_of_{name}"] = right / len(valid)
    return shares


def _episode(program: Program, prediction: Prediction | None = None) -> Episode:
    """One game; without a prediction the program was not valid."""
    result = program.result
    void = result.status == "infrastructure"
    won = prediction is not None and not prediction.right
    turns, transcript = [program.turn], [(GENERATOR, program.code)]
    outcome = "void" if void else result.status
    if prediction is not None:
        turns += [prediction.turn] if prediction.turn else []
        transcript.append((PREDICTOR, prediction.text or ""))
        outcome = "not_predicted" if won else "predicted"
    reward = 0.0 if void else 1.0 if won else -1.0
    opponents = [turn.player for turn in turns if turn.player != POLICY]
    return Episode(
        turns=tuple(turns),
        rewards={GENERATOR: reward, PREDICTOR: -reward},
        group_id=program.group_id,
        task_id="code_game",
        outcome=outcome,
        scored=not void,
        answer=program.code,
        extra={"printed": result.output} | ({"opponent": opponents[0]} if opponents else {}),
        transcript=tuple(transcript),
    )
