"""The game of code as an environment: a generator writes a program, a predictor says what it prints.

The predictor wins, +1, if it gives the printed text exactly, one newline at the end aside, or if the program
is not valid; else the generator does. The loser gets -1. A program is valid as `grading.program_judge` says,
if it ended before the limit of tokens, the predictor can be shown it, and the predictor can say what it
prints. A game whose program the sandbox could not run is void.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from greenward.environments.code_game.predictors import SCRIPTED_PREDICTORS
from greenward.environments.code_game.programs import random_first_line
from greenward.environments.dialogue import Request, turn_of
from greenward.environments.episode import POLICY, Collection, Episode, Turn
from greenward.environments.prompts import PromptTokenizer
from greenward.grading.extraction import last_block
from greenward.grading.program_judge import ProgramJudge, ProgramResult
from greenward.policies.engine import RolloutEngine, SamplingParams, StopReason
from greenward.seeding import step_seed

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
        text = self._tokenizer.decode(turn.completion_ids)
        code = ((last_block(text) if self._tokenizer.chat_template else text) or "").strip("\n")
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
        text = self._tokenizer.decode(ids)
        if self._tokenizer.chat_template:
            said = last_block(text, dedent=False)
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
