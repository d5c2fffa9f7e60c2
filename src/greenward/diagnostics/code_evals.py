"""How good is what a run learned, over training? All checks of `greenward evals`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from greenward.diagnostics.answers_card import answers_card
from greenward.diagnostics.evaluation_card import evaluation_card, read_evaluated
from greenward.diagnostics.finding import Card, Diagnosis
from greenward.diagnostics.reward_health import ALPHA
from greenward.diagnostics.run_data import RunData, diagnosis_of, read_run
from greenward.errors import DiagnosticsError
from greenward.runs.evaluations import tracker_name
from greenward.runs.reading import evaluated_suites

CODE = "code"


def diagnose_evals(path: Path, suite: str = CODE, *, alpha: float = ALPHA) -> Diagnosis:
    """Diagnose what the run at `path` learned.

    `code` is everything: held-out problems, the answers in training and every evaluated suite. The name
    of an evaluated suite (humaneval+ or humaneval_plus) is that suite alone.

    Raises:
        DiagnosticsError: there are no metrics, or no such suite.
        RunError: a file that is there and cannot be read.
    """
    run = read_run(path, alpha)
    known = evaluated_suites(path)
    if suite != CODE and tracker_name(suite) not in known:
        near = get_close_matches(suite, [CODE, *known], n=1, cutoff=0.5)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise DiagnosticsError(
            f"there is no suite {suite!r} in {path}", remedy=f"{guess}Known: {', '.join([CODE, *known])}."
        )
    cards = _all_cards(run, known) if suite == CODE else (_suite_card(run, tracker_name(suite)),)
    return diagnosis_of(f"evals --suite {suite}", run, cards, {}, _unanswered(run, suite, cards))


def _all_cards(run: RunData, suites: list[str]) -> tuple[Card, ...]:
    held_out = evaluation_card(run, None, "held_out")
    return (held_out, answers_card(run), *(_suite_card(run, suite) for suite in suites))


def _suite_card(run: RunData, suite: str) -> Card:
    return evaluation_card(run, suite, f"suite_{suite}")


def _unanswered(run: RunData, suite: str, cards: tuple[Card, ...]) -> str | None:
    """Why nothing may be called good: it takes two evaluations for that, of whatever was asked for."""
    name = None if suite == CODE else tracker_name(suite)
    count = len(read_evaluated(run, name).records)
    what = "held-out problems" if name is None else suite
    if count < 2:
        return f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    return None if cards[0].data.get("paired_change") else f"the evaluations on {what} cannot be paired"
