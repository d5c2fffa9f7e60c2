"""Defines the commands for single kinds of tasks: `fix`, `problems` and `play`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.options import (
    COUNT,
    LEVEL,
    PATH,
    POSITIVE,
    Commands,
    FloatRange,
    api_key_options,
    base_url_option,
    dtype_option,
    endpoint_name,
    flag,
    folder_option,
    json_option,
    quiet_option,
)
from greenward.common.errors import EngineError
from greenward.common.terminal import echo, echo_json
from greenward.common.text import MAX_MESSAGE_CHARS, visible

if TYPE_CHECKING:
    import random

    from greenward.tasks.self_play.evaluation import Contestant, RoleResult
    from greenward.tasks.self_play.games import Game, ScriptedPlayer


EXIT_NOT_FIXED = 1
MOST_REASONS = 10


@click.command()
@click.argument("file", type=PATH)
@click.option("--tests", required=True, type=PATH, help="A file or folder of unittest or pytest.")
@click.option("--model", required=True, metavar="RUN|ID", help="A run, a model, or what --base-url serves.")
@base_url_option
@api_key_options
@click.option(
    "--n", "answers", type=click.IntRange(1, 1000), default=8, help="Repairs to try at most in each round."
)
@flag("--all", "all_answers", help="Try all of them; without it none after one that passes.")
@click.option("--temperature", type=FloatRange(min=0), default=0.8)
@click.option("--max-tokens", type=COUNT, help="Of an answer.  [default: 1024, or as trained]")
@click.option(
    "--form",
    type=click.Choice(("infill", "function", "search_replace", "diff")),
    help="What the model writes: single lines, the whole program, or edits.  [default: as trained, else "
    "infill (where the model can fill gaps), then function (a short file, a model loaded here) or "
    "search_replace]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--timeout", type=POSITIVE, default=10.0, help="CPU seconds for all tests.")
@click.option(
    "--package", "packages", multiple=True, help="What the code may import besides the standard library."
)
@dtype_option(default="auto")
@click.option("--device", default="auto")
@flag("--yes", help="Apply the repair without asking.")
@json_option
def fix(
    file: Path, *, base_url: str | None, model: str, tests: Path, yes: bool, as_json: bool, **chosen: Any
) -> None:
    """Let a model repair FILE so that its tests pass.

    The tests run in the sandbox. If they fail, the model writes up to N repairs, which the tests judge, until
    one passes. If none does and the best passes more tests than FILE, it writes up to N repairs of that. The
    diff of the best is shown with its verdict, and applied when you confirm. The best is the one that passes
    and changes the fewest lines. Exit code 1: no repair passes all tests.

    \b
    greenward fix shop/prices.py --tests tests --model runs/code_repair
    greenward fix shop/prices.py --tests tests --model Qwen/Qwen2.5-Coder-1.5B-Instruct
    greenward fix prices.py --tests test_prices.py --model Qwen/Qwen2.5-Coder-7B-Instruct \\
        --base-url http://localhost:8000/v1
    """
    from greenward.runs.machine import peak_resident_mb
    from greenward.runs.progress import Progress
    from greenward.runs.reading import stored_as

    name, started = endpoint_name(base_url, model) if base_url else model, time.monotonic()
    with Progress() as progress:
        with progress.during("starting"):
            from greenward.tasks.repair.fix import FixOptions, demand_writable, find_repair

        if yes:
            demand_writable(file)
        repair = find_repair(file, tests, name, FixOptions(**chosen), progress)
    is_cut = isinstance(repair.stopped, KeyboardInterrupt)
    yes = yes and not is_cut
    took = {
        "seconds": {**repair.seconds, "total": time.monotonic() - started},
        "tokens": repair.tokens,
        "peak_rss_mb": peak_resident_mb(),
    }
    best = repair.selection.verdict if repair.selection else None
    verdicts = repair.selection.verdicts if repair.selection else ()
    total, passed_before = len(repair.before.tests_passed), sum(repair.before.tests_passed)
    answers_passed = sum(one.passed for one in verdicts)
    if as_json:
        record = {
            "passed": repair.passed,
            "before": repair.before.status.value,
            "tests": total,
            "tests_passed_before": passed_before,
            "tests_passed": sum(best.tests_passed) if best and repair.changes else passed_before,
            "answers": len(verdicts),
            "answers_passed": answers_passed,
            "model": repair.model,
            "verdicts": repair.outcomes(),
            "diff": repair.diff(),
            "applied": bool(repair.changes) and yes,
            **took,
        }
        if record["applied"]:
            repair.apply()
        echo_json(json.dumps(record))
    elif repair.selection is None:
        echo(f"{file}: all {total} tests pass. There is nothing to repair.")
    else:
        echo(f"{file}: {passed_before} of {total} tests pass.\n  {repair.failure}")
        made = repair.model or {}
        how = ", ".join(filter(None, (stored_as(made), made.get("dtype"))))
        echo(f"{answers_passed} of {len(verdicts)} answers{how and f' ({how})'} pass all tests.")
        echo(_took(took))
        if best is None or not repair.changes:
            echo(f"No answer passes more tests than the file itself{':' if verdicts else '.'}")
            counted = Counter(tuple(one.values()) for one in repair.outcomes()).most_common()
            for (status, reason, passed, _, edit_error), count in counted[:MOST_REASONS]:
                shown = visible(str(reason), MAX_MESSAGE_CHARS).replace("\n", " ")
                ran = "" if edit_error else f", {passed} of {total} tests pass"
                echo(f"  {count} x {status}{ran}: {shown}")
            if left := sum(count for _, count in counted[MOST_REASONS:]):
                echo(f"  and {left} more")
        else:
            echo(f"\n{visible(repair.diff(), 1 << 20)}")
            echo(f"Best: {best.status.value}, {sum(best.tests_passed)} of {total} tests pass.")
            if is_cut:
                echo("Nothing was changed.")
            elif not yes and not _is_typed():
                echo("Nothing was changed (--yes applies the repair).")
            elif yes or click.confirm("Apply it?"):
                repair.apply()
                echo("Applied.")
    if repair.stopped is not None:
        raise repair.stopped
    if not repair.passed:
        raise SystemExit(EXIT_NOT_FIXED)


def _is_typed() -> bool:
    """Whether standard input is a terminal; it may be closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def _took(took: Mapping[str, Any]) -> str:
    """One line for the time, the tokens and the memory of a repair."""
    seconds = took["seconds"]
    drawn = f"{took['tokens']:,} tokens in {seconds['answers']:.0f} s"
    if seconds["answers"] > 0:
        drawn += f" ({took['tokens'] / seconds['answers']:,.0f} per second)"
    loaded = f"loading {seconds['loading']:.0f} s, " if seconds["loading"] else ""
    return (
        f"{seconds['total']:.0f} s: {loaded}{drawn}, tests {seconds['tests']:.0f} s; "
        f"{took['peak_rss_mb']:,.0f} MiB at the peak."
    )


@click.group(cls=Commands)
def problems() -> None:
    """Make problems for training and evaluation."""


@problems.command("from-source")
@click.argument("sources", metavar="PATH...", nargs=-1, required=True)
@folder_option("--out", "Where the problems are written.  [default: mined]", "problems")
@click.option("--limit", type=click.IntRange(min=2), help="Stop at so many problems.")
@click.option("--held-out", type=FloatRange(0, 1, True, True), default=0.2,
              help="Share of the problems that is held out, in files of their own.")  # fmt: skip
@click.option("--no-suites", "suites", flag_value=False, default=True, show_default=False,
              help="Use doctests alone; run no test suite.")  # fmt: skip
@click.option("--context", "context_chars", type=click.IntRange(min=0), default=4000,
              help="Characters of the file that a prompt shows around a function.")  # fmt: skip
@click.option("--package", "packages", multiple=True,
              help="What the source may import; repeatable.  [default: pytest, if there]")  # fmt: skip
@click.option("--workers", type=COUNT, help="Runs at a time.  [default: all processors]")
@click.option("--require", type=LEVEL, default="B",
              help="Least isolation of the sandbox.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0)
@json_option
@quiet_option
def from_source(
    sources: tuple[str, ...], out: Path | None, as_json: bool, quiet: bool, **chosen: Any
) -> None:
    """Mine problems from Python source: a documented function, its body masked, and the tests that judge it.

    PATH is a folder (a package, or a project with its tests), a file, the name of an installed package, or
    stdlib. The functions and methods are those with doctests, or with tests that call them. All of it runs in
    the sandbox. A problem is kept if the original passes three times in a row, and neither an empty body nor
    one that returns a constant passes. DIR gets train.json, held_out.json, manifest.json, and left_out.jsonl
    with a line for each function that was left out and why.

    \b
    greenward problems from-source . --out mined
    greenward problems from-source stdlib --limit 200
    greenward train grpo_spec problems.train=mined/train.json problems.held_out=mined/held_out.json
    """
    from greenward.tasks.spec.verify import MiningOptions, mine_problems

    options = MiningOptions(**chosen | {"packages": chosen["packages"] or None})
    progress = _show_progress if sys.stderr.isatty() and not quiet else lambda *_: None
    result = mine_problems(sources, out or Path("mined"), options, progress)
    if as_json:
        counts = {"train": len(result.train), "held_out": len(result.held_out)}
        found = {"folder": str(result.folder), "problems": counts, "functions": result.functions}
        echo_json(json.dumps({**found, "left_out": dict(result.left_out)}, indent=2))
    elif not quiet:
        kept = len(result.train) + len(result.held_out)
        echo(f"{kept} problems of {result.functions} functions: {len(result.train)} to train on, "
                   f"{len(result.held_out)} held out ({result.folder})")  # fmt: skip
        for reason, count in result.left_out.items():
            echo(f"{count:8} {reason}")
        echo(f"         line by line: {result.folder / 'left_out.jsonl'}")
        sides = [side for side in ("train", "held_out") if getattr(result, side)]
        keys = [f"problems.{side}={result.folder / f'{side}.json'}" for side in sides]
        keys += [f"sandbox.packages=[{','.join(result.packages)}]"] if result.packages else []
        echo(f"Train on them: greenward train grpo_spec {shlex.join(keys)}")


def _show_progress(files: int, of: int, found: int) -> None:
    click.echo(f"\r\033[K{files} of {of} files, {found} problems", err=True, nl=files == of)


HELP, QUIT = "?", "q"
MAX_INPUT, MAX_SHOWN = 1000, 200  # characters of a move, and of what somebody wrote
MOST_LISTED = 12  # actions beside the prompt; help lists all
_COLOURS = {"X": "cyan", "O": "magenta"}


@click.command()
@click.argument("name", metavar="GAME")
@click.option("--model", metavar="RUN", help="A run, model or MODEL@URL.  [default: the expert]")
@click.option("--opponent", metavar="NAME", help="A match of --model against random, expert or a RUN.")
@api_key_options
@click.option("--games", type=COUNT, help="Of a match.  [default: 200]")
@click.option("--role", help="Yours: first or second.  [default: they alternate]")
@click.option("--temperature", type=FloatRange(min=0), help="0 is greedy.  [default: as in training]")
@dtype_option()
@flag("--show-reasoning", help="Show what the model writes before its move.")
@click.option("--seed", type=click.IntRange(min=0), help="Of cards and moves.  [default: a new one]")
def play(
    name: str, *, model: str | None, opponent: str | None, games: int | None, role: str | None,
    temperature: float | None, dtype: str | None, show_reasoning: bool, seed: int | None,
    api_key_env: str | None,
) -> None:  # fmt: skip
    """Play a game against a model, or let the model play a match.

    GAME is tictactoe, kuhn_poker, negotiation, textarena:ID or your module:Class. Without --model you play
    against the game's expert: minimax, an equilibrium, or the best response to a player who accepts what
    is good for it. A RUN is a run (its newest checkpoint), a model, or as MODEL@URL a model behind an
    OpenAI-compatible server.

    \b
    greenward play tictactoe
    greenward play kuhn_poker --model runs/mine --role second
    greenward play tictactoe --model runs/mine --opponent minimax --games 1000
    greenward play tictactoe --model runs/mine --opponent Qwen/Qwen3-4B@http://localhost:8000/v1
    """
    if opponent and (not model or role or show_reasoning):
        raise click.UsageError(
            "a match (--opponent) needs --model, and takes neither --role nor --show-reasoning."
        )
    if games and not opponent:
        raise click.UsageError("--games is the length of a match: name its --opponent.")
    players = " and ".join(filter(None, (model, opponent)))
    echo(f"Loading the game {name}{f' and {players}' if players else ''}.", err=True)

    import random

    from greenward.tasks.self_play.evaluation import play_match
    from greenward.tasks.self_play.games import find_game
    from greenward.tasks.self_play.task import find_contestant, find_opponent

    game = find_game(name)
    if role not in (None, *game.roles):
        raise click.UsageError(f"--role {role}: {game.name} has the roles {' and '.join(game.roles)}.")
    seed = random.SystemRandom().getrandbits(31) if seed is None else seed
    asked: dict[str, Any] = {"temperature": temperature, "key_variable": api_key_env, "dtype": dtype}
    if opponent:
        ours, theirs = find_contestant(game, str(model), **asked), find_opponent(game, opponent, **asked)
        computed = [_computed_in(one) for one in (ours, theirs)]
        _demand_loaded(dtype, *computed)
        results = play_match(game, ours, theirs, games=games or 200, seed=seed)
        first, second = (how and f" ({how})" for how in computed)
        _print_match(f"{game.name}: {model}{first} against {opponent}{second}, seed {seed}", results)
        return
    model = model or game.expert or "random"
    against = find_opponent(game, model, **asked)
    how = _computed_in(against)
    _demand_loaded(dtype, how)
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # whatever is typed is at worst no move
    if how:
        echo(f"{model} is computed in {how}.")
    TerminalGame(game, against, visible(model), show_reasoning, random.Random(seed)).play(role)


def _computed_in(player: Contestant | ScriptedPlayer) -> str:
    """What a model that is loaded here is computed in; empty for other players."""
    return getattr(getattr(player, "engine", None), "computed_in", "")


def _demand_loaded(dtype: str | None, *computed: str) -> None:
    if dtype and not any(computed):
        raise click.UsageError("--dtype concerns models that are loaded here, and there is none.")


@dataclass
class TerminalGame:
    """Games of a person, who writes lines on standard input, against `opponent`, who is called `name`."""

    game: Game
    opponent: Contestant | ScriptedPlayer
    name: str
    show_reasoning: bool
    rng: random.Random
    gains: list[float] = field(default_factory=list)

    def play(self, role: str | None) -> None:
        """Game after game until the person has enough; the roles alternate unless one is given."""
        echo(f"{self.game.name} against {self.name}. {HELP} explains, {QUIT} ends.")
        person = self.game.roles.index(role) if role else 0
        while True:
            try:
                if (gain := self._play_once(person)) is None:
                    return
                self.gains.append(gain)
            except EngineError as error:
                click.secho(f"The game has no result: {visible(str(error))}", fg="yellow")
            won, lost = sum(one > 0 for one in self.gains), sum(one < 0 for one in self.gains)
            drawn = len(self.gains) - won - lost
            echo(f"Score: won {won}, drawn {drawn}, lost {lost}; total {sum(self.gains):+g}.")
            answer = self._read("Another game? [Y/n] ")
            if answer is None or answer[:1].lower() in (QUIT, "n"):
                return
            person = person if role else 1 - person

    def _play_once(self, person: int) -> float | None:
        """What the person gained; None if the person left."""
        from greenward.tasks.self_play.games import checked_returns

        game = self.game
        state = game.start(self.rng)
        seen = ""
        echo(f"\nYou are {game.roles[person]}.")
        while (player := game.player(state)) is not None:
            if player == person:
                shown = view(game, state, person)
                click.echo(shown.removeprefix(seen).lstrip("\n") or shown)  # a history begins as before
                seen = shown
                if (action := self._ask(game.legal_actions(state))) is None:
                    return None
            else:
                if (action := self._answer(state)) is None:
                    return self._ended(game.forfeit)
            state = game.step(state, action)
        click.echo(final_view(game, state, person).removeprefix(seen).lstrip("\n"))
        return self._ended(checked_returns(game, state)[person])

    def _ended(self, gain: float) -> float:
        result, colour = ("You win", "green") if gain > 0 else ("You lose", "red")
        click.secho(f"{result} ({gain:+g})." if gain else "A draw.", fg=colour if gain else None, bold=True)
        return gain

    def _answer(self, state: Any) -> str | None:
        """The opponent's move; None if it is illegal, which ends the game."""
        from greenward.tasks.self_play.evaluation import Contestant
        from greenward.tasks.self_play.task import next_move

        if isinstance(self.opponent, Contestant):
            move = next_move(self.game, self.opponent, state, seed=self.rng.getrandbits(31))
            reasoning = move.text.rpartition("\\boxed{")[0].strip()
            if self.show_reasoning and reasoning:
                click.secho(visible(reasoning), dim=True)
            if move.action is None or move.action not in self.game.legal_actions(state):
                wrote = visible(move.text.strip(), MAX_SHOWN)
                echo(f"{self.name} wrote {wrote!r}, which is no legal move.")
                return None
            action = move.action
        else:
            action = self.opponent.act(self.game, state, self.rng)
        click.echo(f"{visible(self.name)} plays {click.style(visible(action), bold=True)}.")
        return action

    def _ask(self, legal: Sequence[str]) -> str | None:
        """The person's move; None if the person leaves."""
        named = [
            visible(f"{n} {action}" if _numbered(legal) else action) for n, action in enumerate(legal, 1)
        ]
        choices = named if len(named) <= MOST_LISTED else [*named[:4], f"{len(named) - 4} more"]
        while (text := self._read(f"Your move ({', '.join(choices)}): ")) is not None:
            found = meant(text, legal)
            if len(found) == 1:
                return found[0]
            if text == HELP:
                echo(self.game.rules)
                echo("Write a move, its first letters, or its number where it has one.")
                echo(f"Your moves: {', '.join(named)}. {QUIT} ends the game.")
            elif text.lower() == QUIT:
                return None
            elif text in self.game.actions:  # at another time
                click.secho(
                    f"{visible(text, 40)} is not possible now. Possible: {', '.join(choices)}.", fg="yellow"
                )
            else:
                begun = f"; it begins {', '.join(found[:MOST_LISTED])}" if found else ""
                click.secho(
                    f"{visible(text, 40)!r} is no move{visible(begun)}. {HELP} explains.", fg="yellow"
                )
        return None

    def _read(self, prompt: str) -> str | None:
        """A line; None at the end of the input."""
        echo(prompt, nl=False)
        line = sys.stdin.readline() if sys.stdin else ""
        if not (line and _is_typed()):
            echo(visible(line.strip(), MAX_SHOWN))  # as a terminal shows what is typed
        return line.strip() if line else None


def view(game: Game, state: Any, player: int) -> str:
    """What `player` may know of a state."""
    if game.name == "tictactoe":
        cells = [
            click.style(cell, fg=_COLOURS[cell], bold=True)
            if cell in _COLOURS
            else click.style(cell, dim=True)
            for cell in state
        ]
        return "\n---+---+---\n".join(f" {' | '.join(cells[start : start + 3])}" for start in (0, 3, 6))
    if game.name == "kuhn_poker":
        cards, history = state
        pot = 2 + history.count("bet") + history.count("call")
        moves = f" Moves so far: {', '.join(history)}." if history else ""
        return f"Your card: {click.style(cards[player], bold=True, fg='cyan')}   Pot: {pot} chips.{moves}"
    if game.name == "negotiation":
        return _negotiation(game, state, player)
    return visible(game.observation(state, player))


def final_view(game: Game, state: Any, player: int) -> str:
    """A state that is over, with what was hidden."""
    if game.name == "kuhn_poker":
        cards, history = state
        hidden = "" if history[-1] == "fold" else f" Your opponent has the {cards[1 - player]}."
        return f"You have the {cards[player]}.{hidden} Moves: {', '.join(history)}."
    if game.name == "negotiation":
        mine, theirs = state.gain(player), state.gain(1 - player)
        return f"Deals: {state.deals}. Gains: you {mine:+d}, your opponent {theirs:+d}."
    return view(game, state, player)


def _negotiation(game: Game, state: Any, player: int) -> str:
    lines = ["            you have   one is worth"]
    for name, amount, value in zip(
        ("wheat (W)", "sheep (S)"), state.held(player), state.values[player], strict=True
    ):
        lines.append(f"{name:12}{amount:8}{value:15}")
    left = game.max_moves - state.moves
    lines.append(f"Your gain so far: {state.gain(player):+d}. Moves left, of both: {left}.")
    if state.offer:
        offer = f"Your opponent offers {click.style(state.offer, bold=True, fg='cyan')}"
        legal = "accept" in game.legal_actions(state)
        after = f"makes your gain {game.step(state, 'accept').gain(player):+d}" if legal else "is impossible"
        lines.append(f"{offer} (gives>takes): to accept it {after}.")
    return "\n".join(lines)


def meant(text: str, legal: Sequence[str]) -> list[str]:
    """The legal actions that a text may stand for: itself, that of its number, or those that it begins."""
    if not 0 < len(text) <= MAX_INPUT:
        return []
    if text in legal:
        return [text]
    if text.isdecimal() and _numbered(legal):
        return [action for number, action in enumerate(legal, 1) if number == int(text)]
    return [action for action in legal if action.lower().lstrip("[").startswith(text.lower())]


def _numbered(legal: Sequence[str]) -> bool:
    """Whether actions have numbers: not where they contain digits themselves."""
    return not any(character.isdigit() for action in legal for character in action)


def _print_match(title: str, results: Sequence[RoleResult]) -> None:
    """A column for each role, with 95 % intervals."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", box=SIMPLE_HEAD, pad_edge=False)
    for result in results:
        void = f", {result.void} void" if result.void else ""
        table.add_column(Text(f"as {result.role} ({result.games} games{void})"), justify="right")
    for key in ("won", "drawn", "lost", "illegal"):
        label = "  by an illegal move" if key == "illegal" else key
        shares = [result.estimates.get(key) for result in results]
        table.add_row(label, *(f"{x.value:.1%} [{x.low:.1%}, {x.high:.1%}]" if x else "–" for x in shares))
    Console().print(Text(visible(title), style="bold"), table, sep="\n")
