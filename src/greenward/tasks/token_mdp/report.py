"""Reports Q-learning: programs beside random search, replays of episodes (HTML), and findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from greenward.common.errors import RunError
from greenward.common.statistics import proportion
from greenward.diagnostics.finding import Finding, Result, SignalChart, Thresholds, Topic
from greenward.diagnostics.signal_tests import late_mean, late_part
from greenward.diagnostics.signals import GREEDY_PASS_RATE, RunSignals
from greenward.diagnostics.simulation import Array, Kind, World, with_signals
from greenward.reports.document import (
    NOTHING,
    Block,
    Code,
    Link,
    Links,
    Section,
    Table,
    bounded,
    duration,
    percent,
    percent_of,
    section,
)
from greenward.reports.page import render_page
from greenward.reports.runs import Runs
from greenward.runs.files import read_json, write_atomically
from greenward.runs.reading import RecordedRun

RANDOM_SEARCH, REPLAY = "random_search.json", "replay.html"
UNSEEN = "unseen_problems"
"""The name of the evaluation on problems that are not trained on; that on the trained ones has none."""


def program_sections(runs: Runs) -> tuple[Section, ...]:
    """What each run reached, and random search by the same mask and prior."""
    return (section("Beside random search", *(block for run in runs.main.runs for block in _blocks(run))),)


def _blocks(run: RecordedRun) -> Iterator[Block]:
    evaluation = next(reversed(run.evaluations), None)
    greedy = {row["task_id"]: row for row in (evaluation or {}).get("greedy_rows", ())}
    search = None
    with suppress(RunError):
        search = read_json(run.path / RANDOM_SEARCH)
    if not greedy:
        return
    solved = sum(row["status"] == "passed" for row in greedy.values())
    seconds = sum(float(row.get("time/step", 0.0)) for row in run.metrics)
    episodes = max((int(row["episodes"]) for row in run.metrics if "episodes" in row), default=0)
    name = f"Q-learning, greedy, after {episodes:,} episodes in {duration(seconds)}"
    rows = [_row(name, solved, len(greedy))]
    if search:
        for label, key in (("as many episodes", "at_episodes"), ("as much time", "at_seconds")):
            rows.append(_row(f"Random search, {label}", int(search[key]["solved"]), len(greedy)))
    for evaluation in run.suites.get(UNSEEN, ())[-1:]:
        unseen = evaluation["greedy_rows"]
        right = sum(row["status"] == "passed" for row in unseen)
        rows.append(_row("Q-learning, greedy, problems never trained on", right, len(unseen)))
    caption = (
        "The problems are those trained on, judged by tests that training never sees. Wilson's 95 % "
        "intervals over problems."
    )
    if search:
        chance = percent_of(search["pass_rate"])
        caption += (
            f" Random search drew {search['episodes']:,} programs by the same mask and token prior; {chance} "
            "of them passed. It keeps programs that pass, and has no policy: Q-learning must write its one "
            "program at once."
        )
    yield Table(f"{run.path.name}: problems solved", ("", "Solved", "Share"), tuple(rows), caption)
    yield Table(
        f"{run.path.name}: each problem",
        ("Problem", "Greedy program", "Random search found one after"),
        tuple((task, _words(row["status"]), _first(search, task)) for task, row in greedy.items()),
    )
    for task, row in greedy.items():
        title = f"{task}, greedy: {_words(row['status'])}"
        yield Code(bounded(row.get("code", "")), "python", title, folded=True)
    if (run.path / REPLAY).is_file():
        yield Links((Link("Replay of greedy episodes", REPLAY),))


def _row(label: str, solved: int, number: int) -> tuple[str, ...]:
    return label, f"{solved} of {number}", percent(proportion(solved, number))


def _first(search: Mapping[str, Any] | None, task: str) -> str:
    if (found := (search or {}).get("found", {}).get(task)) is None:
        return NOTHING
    return f"{found['episodes']:,} episodes" + ("" if found["hidden"] else ", wrong on hidden tests")


def _words(status: str) -> str:
    return "solved" if status == "passed" else str(status).replace("_", " ")


SECONDS_PER_STEP = 0.9
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
ol { position: relative; height: 15rem; list-style: none; padding: 0; overflow: hidden;
  border: 1px solid #8886; }
li { position: absolute; inset: 0; display: flex; gap: 2rem; padding: 1rem; visibility: hidden;
  animation-timing-function: step-end; animation-iteration-count: infinite; }
pre { flex: 3; margin: 0; overflow: auto; } table { flex: 1; align-self: start; border-collapse: collapse; }
td { padding: 0 .5rem; font-family: monospace; } td + td { text-align: right; }
tr:first-child { font-weight: bold; background: #7c73; }
@media (prefers-reduced-motion: reduce), print {
  ol { height: auto; } li { position: static; visibility: visible; animation: none; } }
"""


def write_replay(path: Path, episodes: Sequence[Mapping[str, Any]]) -> None:
    """Write episodes: each has `task_id`, `prompt` and `steps`.

    A step has the `code` so far and `tokens`, (lexeme, value) with the chosen one first.
    """
    style = _STYLE + "".join(_rules({len(one["steps"]) for one in episodes}))
    write_atomically(path, render_page("replay.html.j2", style, episodes=episodes).encode("utf-8"))


def _rules(lengths: set[int]) -> list[str]:
    """The style rules that show the steps of an episode one after another, for episodes of these lengths."""
    rules = [
        f"li:nth-child({step + 1}) {{ animation-delay: {step * SECONDS_PER_STEP:.1f}s; }}\n"
        for step in range(max(lengths, default=0))
    ]
    for length in sorted(lengths - {0}):
        shown = f"0% {{ visibility: visible; }} {100 / length:.3f}% {{ visibility: hidden; }}"
        seconds = f"{length * SECONDS_PER_STEP:.1f}s"
        rules.append(f"@keyframes n{length} {{ {shown} }}\n")
        rules.append(f".n{length} li {{ animation-name: n{length}; animation-duration: {seconds}; }}\n")
    return rules


def tables(summary: Mapping[str, Any]) -> Iterator[Block]:
    """The result of each problem where the policy was greedy and with epsilon."""
    found = summary["by_problem"]
    rows = tuple(
        (
            str(one["task_id"]),
            {True: "solved", False: "not solved"}.get(one["greedy"], "lost"),
            percent_of(one["epsilon"]),
        )
        for one in found
    )
    if rows:
        columns = ("Problem", "Greedy", f"With ε {summary.get('settings', {}).get('epsilon')}")
        yield Table("", columns, rows, "Wilson's 95 % intervals over episodes.")
        for one in found:
            yield Code(bounded(one["program"] or ""), "python", f"{one['task_id']}, greedy", folded=True)


OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST = "programs/most_common"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


Q_OVERESTIMATION = Finding(
    "q-overestimation",
    "Values promise more than the episodes bring",
    late_mean(above=1.0),
    (OVERESTIMATION,),
    optional=True,
    measured=(
        "In the last quarter of the run the values of the first tokens are {late:.2f} above the returns "
        "that followed, in units of the scaled reward."
    ),
    brief="Values are {late:.2f} above the returns",
    actions=(
        "Switch on algorithm.double; copy the target network less often (algorithm.target_update_interval).",
        "Lower algorithm.learning_rate or algorithm.n_step.",
    ),
    confirm="With double the difference falls below 1.",
    limit=(
        "Q of the first token above the return that followed by more than 1 (scaled reward) in the last "
        "quarter"
    ),
)


STALE_REPLAY = Finding(
    "stale-replay",
    "The memory holds what a much older network did",
    late_mean(above=5000.0),
    (STALENESS,),
    optional=True,
    measured="Transitions of the last quarter were {late:.0f} updates old on average when they were drawn.",
    brief="Replayed transitions are {late:.0f} updates old",
    actions=(
        "Lower algorithm.buffer_capacity or training.updates_per_step.",
        "Use algorithm.prioritized, which draws what is still wrong.",
    ),
    confirm="With a smaller memory the TD error falls.",
    limit="drawn transitions more than 5,000 updates old on average in the last quarter",
    suspects=("rollouts", "algorithm.updates_per_batch"),
)


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, GREEDY_PASS_RATE))
    late, passed = (float(late_part(values).mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


DEAD_EPSILON = Finding(
    "dead-epsilon",
    "Exploration ended before the problems were solved",
    dead_epsilon,
    (EPSILON,),
    needs=(GREEDY_PASS_RATE,),
    optional=True,
    measured="In the last quarter epsilon is {late:.3f}, and {solved:.0%} of the greedy programs pass.",
    brief="epsilon {late:.3f}, {solved:.0%} solved",
    actions=(
        "Raise algorithm.epsilon_end, or algorithm.epsilon_decay towards 1.",
        "Raise exploration.bonus.",
    ),
    confirm="With more exploration further problems are solved.",
    limit="epsilon below 0.02 in the last quarter while less than half of the greedy programs pass",
)


PROGRAM_COLLAPSE = Finding(
    "program-collapse",
    "Episodes end in one and the same program",
    late_mean(above=0.5),
    (COMMONEST,),
    optional=True,
    measured="In the last quarter {late:.0%} of the programs of a round are copies of one.",
    brief="{late:.0%} of the programs are copies of one",
    actions=(
        "Raise algorithm.epsilon_end or exploration.bonus.",
        "Give partial credit (reward.type=code_quality), and see whether a constant passes many tests.",
    ),
    confirm="The newest rollouts hold one program for different problems.",
    limit="over half of the programs of a round are copies of one in the last quarter",
)


Q_LEARNING = Topic(
    "q-learning",
    "Q-learning",
    (Q_OVERESTIMATION, STALE_REPLAY, DEAD_EPSILON, PROGRAM_COLLAPSE),
    (
        SignalChart("Q of the first token less the return", (OVERESTIMATION,)),
        SignalChart("Updates since a drawn transition was made", (STALENESS,)),
        SignalChart("Share of greedy programs that pass", (GREEDY_PASS_RATE,), "share"),
    ),
)


def _run(names: tuple[str, ...] = (), **changed: tuple[float, float]) -> Kind:
    """Rounds whose signals scatter around the means of a healthy run, those in `changed` around others."""
    usual = {
        OVERESTIMATION: (0.2, 0.1),
        STALENESS: (300.0, 20.0),
        EPSILON: (0.1, 0.0),
        COMMONEST: (0.05, 0.02),
    }

    def edit(signals: dict[str, Array], world: World, after: Array) -> None:
        world.config = {"kind": "dqn"}
        signals[GREEDY_PASS_RATE] = signals["pass_rate"]
        for name, (mean, spread) in {**usual, **changed}.items():
            signals[name] = mean + spread * world.rng.standard_normal(world.steps)

    return Kind(names, with_signals(edit), from_start=True)


SIMULATED: Mapping[str, Kind] = {
    "healthy Q-learning": _run(),
    "values above the returns": _run(("q-overestimation",), **{OVERESTIMATION: (1.6, 0.3)}),
    "old transitions": _run(("stale-replay",), **{STALENESS: (9000.0, 100.0)}),
    "no exploration": _run(("dead-epsilon",), **{EPSILON: (0.01, 0.0), GREEDY_PASS_RATE: (0.2, 0.05)}),
    "one program": _run(("program-collapse",), **{COMMONEST: (0.7, 0.05)}),
}
