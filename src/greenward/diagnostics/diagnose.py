"""The diagnosis of a run: all findings are tested, and those that are found are reported with advice."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import expects
from greenward.common.statistics import median
from greenward.common.text import visible
from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.change_points import MIN_POINTS, ChangePoint, Floats, Steps, holm
from greenward.diagnostics.families import setting_in
from greenward.diagnostics.finding import (
    ALPHA,
    Card,
    Diagnosis,
    Finding,
    Result,
    SignalChart,
    Thresholds,
    Topic,
    causes_of,
    gap_of,
    merged,
    not_made,
    selected,
)
from greenward.diagnostics.findings import CAUSES, REWARD_HEALTH, answers_behind, topics_of
from greenward.diagnostics.findings.answers import ANSWERS, answers_around
from greenward.diagnostics.findings.held_out import evaluation_topic, sound_evaluations
from greenward.diagnostics.findings.reward_model import DIAGRAM
from greenward.diagnostics.findings.rewards import learned
from greenward.diagnostics.findings.solved import solved
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import lines_of, median_of_part
from greenward.diagnostics.signals import (
    DURATION,
    GRADIENT,
    GROUPS,
    PASS_RATE,
    REWARD,
    TITLES,
    Reading,
    RunSignals,
    depends_on_recipe,
    short_name,
)
from greenward.reports.document import (
    NOTHING,
    Chart,
    Fact,
    Facts,
    Findings,
    Marker,
    Occurrence,
    Onset,
    Paragraph,
    Report,
    Role,
    Section,
    Series,
    Table,
    charts,
    duration,
    section,
)
from greenward.runs.files import to_json, write_atomically, writing
from greenward.runs.reading import METRICS, evaluated_suites

ROLES: tuple[Role, ...] = ("main", "second", "third", "control")
_TREND = ("before", "after", "effect_sd", "p_value")  # of a change, in JSON


@dataclass(eq=False)
class _Outcome:
    """A finding that was tested on a signal, and what came out."""

    finding: Finding
    signal: str
    result: Result


def examine(topics: Sequence[Topic], run: RunSignals, limits: Thresholds) -> tuple[Card, ...]:
    """Run every test of the topics, and return a card for each, without the findings that chance explains, or
    that follow from solved training problems.

    p-values are adjusted by Holm's method. The critical tests of a run are one family and the others
    another, so that a run has a critical finding by chance in a share `alpha` of all healthy runs at most,
    whatever else is tested.
    """
    cards = [list(_outcomes(topic, run, limits)) for topic in topics]
    for critical in (True, False):
        family = {
            outcome: outcome.result.p_value
            for outcome in itertools.chain(*cards)
            if outcome.finding.critical is critical and outcome.result.p_value is not None
        }
        for outcome, p_value in zip(family, holm(list(family.values())), strict=True):
            found = outcome.result.found and p_value <= limits.alpha
            outcome.result = replace(outcome.result, found=found, p_value=p_value)
    by_success = [one for one in itertools.chain(*cards) if one.result.found and one.finding.by_success]
    if by_success and solved(run) is not None:
        for outcome in by_success:
            outcome.result = replace(outcome.result, found=False)
    return tuple(
        filled_in(_card(topic, run, limits, one), run) for topic, one in zip(topics, cards, strict=True)
    )


def _outcomes(topic: Topic, run: RunSignals, limits: Thresholds) -> Iterator[_Outcome]:
    for finding in topic.findings:
        if not finding.applies(run.algorithm, run.silent):
            continue
        for signal in selected(finding.signals, run):
            short = [
                name
                for name in (*finding.needs, signal)
                if name and len(run.series(name)[1]) < finding.fewest
            ]
            if not short:
                yield _Outcome(finding, signal, finding.test(run, signal, limits))
            elif run.algorithm == "sft" and short[0] not in run.values:
                continue  # supervised training has no answers and no rewards
            elif short[0] == GRADIENT and GRADIENT not in run.values and not run.family.logs_gradient:
                continue  # its trainer never logs one
            elif not depends_on_recipe(short[0]) and not finding.optional:
                yield _Outcome(finding, signal, not_made(gap_of(run, short[0])))


def _card(topic: Topic, run: RunSignals, limits: Thresholds, outcomes: Sequence[_Outcome]) -> Card:
    results = [one.result for one in outcomes]
    made = [one for one in outcomes if one.result.made]
    findings = merged(one.finding.occurrence(one.result, one.signal) for one in made if one.result.found)
    onsets = {one.finding.name: one.result.onset for one in made}
    tested: dict[str, ChangePoint | None] = {}
    for one in made:
        if one.signal:
            tested[one.signal] = one.result.change or tested.get(one.signal)
    changes = [
        {"signal": signal, **{key: getattr(change, key) for key in _TREND}, "onset": asdict(change.onset)}
        for signal, change in tested.items()
        if change is not None
    ]
    data: dict[str, Any] = {"trends": changes} if changes else {}
    for result in results:
        data |= result.data
    return Card(
        topic.name,
        topic.title,
        tuple(one.finding.name.replace("-", " ") + f" ({one.signal})" * bool(one.signal) for one in made),
        findings,
        tuple(dict.fromkeys(gap for result in results for gap in result.gaps)),
        (*(topic.facts(run) if topic.facts else ()), *(fact for result in results for fact in result.facts)),
        (*(table for result in results for table in result.tables), *_signals_table(run, tested, limits)),
        (
            *(chart for result in results for chart in result.charts),
            *(chart for plan in topic.charts if (chart := _chart(plan, run, onsets.get(plan.marks)))),
        ),
        data,
    )


def _chart(plan: SignalChart, run: RunSignals, onset: Onset | None) -> Chart | None:
    signals = selected(plan.signals, run)
    series: list[Series] = []
    for signal, role in zip(signals, ROLES, strict=False):
        steps, values = run.series(signal)
        if plan.log:
            steps, values = steps[values > 0], values[values > 0]
        series += lines_of(short_name(signal) if len(signals) > 1 else "", role, steps, values)
    markers = () if onset is None else (Marker(float(onset.step), f"from {onset.step}"),)
    title = _of_actions(plan.title, run)
    return Chart(title, "step", tuple(series), plan.unit, "", plan.log, markers) if series else None


def _signals_table(
    run: RunSignals, tested: Mapping[str, ChangePoint | None], limits: Thresholds
) -> tuple[Table, ...]:
    """The signals of a card at its beginning and end, and their change where one was tested."""
    rows = []
    for signal, change in tested.items():
        values = run.series(signal)[1]
        first, last = median_of_part(values, 0, 0.1), median_of_part(values, 0.9, 1)
        cells = (f"{number:.4g}" for number in (first, median(values), last, float(values.std())))
        moved = effect = p_value = NOTHING
        if change is not None:
            p_value = f"{change.p_value:.2g}"
            if change.p_value <= limits.alpha and change.is_large:
                moved = f"{change.before:.3g} → {change.after:.3g} from step {change.onset}"
                effect = f"{change.effect_sd:+.1f} sd"
        rows.append((signal, *cells, moved, effect, p_value))
    columns = ("Signal", "First tenth", "Median", "Last tenth", "Sd", "Change", "Effect", "p")
    caption = "First and last tenth: medians. p: of a change, AR(1) bootstrap, of this test alone."
    return (Table("Signals", columns, tuple(rows), caption),) if rows else ()


@expects("the files of a run", DiagnosticsError)
def diagnose_reward_health(
    path: Path,
    *,
    calibration_threshold: float = WARNING_SCORE,
    memory_limit_mb: float | None = None,
    alpha: float = ALPHA,
    mapping: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Diagnose the run or the log at `path`; `mapping` gives greenward's names for names of the log.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    run = read_run_signals(path, mapping=mapping)
    limits = Thresholds(alpha, calibration_threshold, memory_limit_mb)
    cards = examine(REWARD_HEALTH, run, limits)
    causes = causes_of([finding for card in cards for finding in card.findings], len(run.steps), CAUSES)
    return Diagnosis("reward-health", run, cards, alpha, limits.to_json(), unanswered_question(run), causes)


def unanswered_question(run: RunSignals) -> str | None:
    """Why the run may not be called healthy.

    That needs tests of the reward, or of the loss in supervised training, and of the gradient where its
    trainer logs one; and a reward that is shown to rise. What surely rose by what matters had a gradient.
    """
    is_ours = run.algorithm == "sft"
    of_pairs = run.family.kind == "preferences" and REWARD not in run.values and PASS_RATE in run.values
    wanted = "loss" if is_ours else PASS_RATE if of_pairs else REWARD
    if run.family.kind == "supervised" and not is_ours:
        return f"there is no reward in the log ({run.family.name}), so nothing can be said of RL"
    if len(run.steps) < MIN_POINTS:
        return f"the log has {len(run.steps)} row(s), a test needs {MIN_POINTS}"
    # An excerpt that leaves out the learning rate leaves out the norm that stands beside it.
    lacks_gradient = run.family.logs_gradient and (run.is_own or "learning_rate" in run.values)
    lacks_gradient = lacks_gradient and (run.is_own or not learned(run).matters)
    needed = (wanted, GRADIENT) if lacks_gradient or GRADIENT in run.values else (wanted,)
    if wanted not in run.values and not run.is_own:
        return "no name in the log is known as that of a reward"
    if missing := [name for name in needed if run.too_short(name)]:
        return f"{' and '.join(missing)} could not be tested"
    found = learned(run)
    if is_ours or found.is_shown:
        return None
    unseen = f", and a rise of up to {found.high:.3g} cannot be excluded" if found.high > 0 else ""
    return (
        f"learning is not shown: {run.logged_as(found.signal)} moved by {found.rise:+.3g} [{found.low:+.3g}, "
        f"{found.high:+.3g}]{unseen}"
    )


CODE = "code"


@expects("the files of a run", DiagnosticsError)
def diagnose_evals(
    path: Path, suite: str = CODE, *, alpha: float = ALPHA, mapping: Mapping[str, str] | None = None
) -> Diagnosis:
    """Diagnose what the run at `path` learned; `mapping` gives greenward's names for names of its log.

    `code` is everything: held-out problems, the answers in training and every evaluated suite. The name
    of an evaluated suite (humaneval+ or humaneval_plus) is that suite alone.

    Raises:
        DiagnosticsError: there are no metrics, or no such suite.
        RunError: a file that is there and cannot be read.
    """
    from greenward.runs.trackers import tracker_name

    run = read_run_signals(path, mapping=mapping)
    known, wanted = evaluated_suites(path), None if suite == CODE else tracker_name(suite)
    if wanted is not None and wanted not in known:
        near = get_close_matches(suite, [CODE, *known], n=1, cutoff=0.5)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise DiagnosticsError(
            f"there is no suite {suite!r} in {path}", remedy=f"{guess}Known: {', '.join([CODE, *known])}."
        )
    topics = [evaluation_topic(wanted)]
    if wanted is None:
        topics += [ANSWERS, *map(evaluation_topic, known)]
    cards = examine(topics, run, Thresholds(alpha))
    count = len(sound_evaluations(run, wanted))
    what = "held-out problems" if wanted is None else wanted
    unanswered = None
    if count < 2:
        unanswered = f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    elif not cards[0].data["paired_change"]:
        unanswered = f"the evaluations on {what} cannot be paired"
    return Diagnosis(f"evals --suite {suite}", run, cards, alpha, {}, unanswered)


_SETTING = r"\b(?:training|algorithm|sampling|model|sandbox|evaluation|warm_start|problems)(?:\.[a-z_]+)+"
_SIGNAL = (
    r"(?<![\w./])(?:(?:reward|status|time|perf|updates|groups|importance|ratio|rollouts|completion|clip)/[a-z_]+|"
    r"grad_norm|approx_kl|explained_variance|learning_rate|pass_rate)(?![\w/])"
)
_NAMES = re.compile(f"(?P<setting>{_SETTING})|{_SIGNAL}")
_TWO_ARTICLES = re.compile(r"\b(an? (?:\w+er|higher)|more|fewer) the ")  # "a lower the learning rate"
_IN_BRACKETS = re.compile(r" \(([^()]*)\)")
# What an agent in a simulator has not.
_ABOUT_ANSWERS = re.compile(r"\b(answer|group|prompt|problem|token|completion|sampl|held-out|checkpoint-)")
_AGAIN = "Repeated with another seed, the run shows it again."
_GO_ON = re.compile("Go on from the last checkpoint before the onset")
_BEST = re.compile("Use the checkpoint of")


def filled_in(card: Card, run: RunSignals) -> Card:
    """The card with advice for this run."""
    gaps = (replace(gap, enable=_named(gap.enable, run, only_settings=True)) for gap in card.gaps)
    return replace(
        card, findings=tuple(_advised(one, run) for one in card.findings), gaps=tuple(dict.fromkeys(gaps))
    )


def _advised(finding: Occurrence, run: RunSignals) -> Occurrence:
    actions = [
        _named(_back(one, finding, run), run) for one in finding.actions if _applies(one, finding, run)
    ]
    if _high_rate(finding, run) is not None:
        actions.sort(key=lambda one: setting_in(run.family.dialect, "training.learning_rate") not in one)
    if any(map(_GO_ON.match, finding.actions)):
        actions += filter(None, [_checkpoint_command(finding, run)])
    measured, brief = (
        _of_actions(_NAMES.sub(lambda found: run.logged_as(found[0]), text), run)
        for text in (finding.measured, finding.brief)
    )
    return replace(
        finding,
        title=_of_actions(finding.title, run),
        actions=tuple(actions),
        measured=measured + _rate_there(finding, run),
        brief=brief,
        confirm=_AGAIN if _is_unsuitable(finding.confirm, run) else _named(finding.confirm, run),
    )


def _of_actions(text: str, run: RunSignals) -> str:
    """The text; what is a token of a language model is an action of an agent."""
    if run.family.kind != "agent":
        return text
    return text.replace("a token", "an action").replace("tokens", "actions")


def _back(action: str, finding: Occurrence, run: RunSignals) -> str:
    """The action without a checkpoint that cannot be there. Those of another trainer may lie elsewhere."""
    at_once = finding.onset is not None and finding.onset.step <= _beginning(run)
    known = run.is_own or bool(run.checkpoints)
    earlier = any(finding.onset is None or step < finding.onset.low for step, _ in run.checkpoints)
    if at_once or (known and not earlier):
        action = _GO_ON.sub("Train anew", action)
    return _BEST.sub("Train anew up to", action) if run.is_own and not run.checkpoints else action


def _beginning(run: RunSignals) -> int:
    """The first logged step where the log begins with the training, else -1."""
    first, every = int(run.steps[0]), int(run.steps[1] - run.steps[0]) if len(run.steps) > 1 else 1
    return first if first <= every else -1


def _named(text: str, run: RunSignals, *, only_settings: bool = False) -> str:
    """The text with the present value of each setting, and with the names of settings and signals that the
    trainer of the run uses. A signal that was not logged is said to be none, or left out in brackets.
    """
    text = re.sub(r" \(1\.0\)", "", text) if "training.max_grad_norm" in run.settings else text

    def shown(match: re.Match[str]) -> str:
        name = match[0]
        if not match["setting"]:
            return name if only_settings else run.logged_as(name) + " (not logged)" * (name not in run.values)
        value, theirs = run.settings.get(name), setting_in(run.family.dialect, name)
        known = run.family.dialect == "greenward" and isinstance(value, (int, float, str))
        return f"{theirs} (now {visible(str(value), 40)})" if known else theirs

    def bracket(match: re.Match[str]) -> str:
        signals = [one[0] for one in _NAMES.finditer(match[1]) if not one["setting"]]
        if signals and not only_settings and run.values.keys().isdisjoint(signals):
            return ""
        inner = _NAMES.sub(shown, match[1])
        return f" ({inner})" if inner.strip(" ,") else ""

    # Brackets first: what they become holds brackets of its own.
    parts, end = [], 0
    for found in _IN_BRACKETS.finditer(text):
        parts += [_NAMES.sub(shown, text[end : found.start()]), bracket(found)]
        end = found.end()
    place = f" in {run.rollouts[0][1].parent.name}/" if run.rollouts else " (none were kept)"
    filled = ("".join(parts) + _NAMES.sub(shown, text[end:])).replace(" in rollouts/", place)
    return _TWO_ARTICLES.sub(r"\1 ", filled)


def _is_unsuitable(text: str, run: RunSignals) -> bool:
    """Whether a text is about answers, and the run is one of an agent."""
    return run.family.kind == "agent" and bool(_ABOUT_ANSWERS.search(text))


def _applies(action: str, finding: Occurrence, run: RunSignals) -> bool:
    """Whether the run does not already exclude what the action is about."""
    named = (one[0] for one in _NAMES.finditer(_IN_BRACKETS.sub("", action)) if one["setting"])
    if not all(setting_in(run.family.dialect, name) for name in named):
        return False
    if _is_unsuitable(action, run):
        return False
    if "bfloat16" in action and str(run.settings.get("model.dtype", "")) == "float32":
        return False
    if action.startswith("For a KL") and not any("kl" in name for name in finding.signals):
        return False
    if "self-play" in action and not run.is_own:
        return False
    if "diff-ckpt" in action and run.is_own and len(run.checkpoints) < 2:
        return False
    signals = {one[0] for one in _NAMES.finditer(_IN_BRACKETS.sub("", action)) if not one["setting"]}
    if signals and signals.isdisjoint(run.values) and len(finding.actions) > 1:
        return False
    lowered = re.match(rf"Lower ({_SETTING})", action)
    if lowered and run.settings.get(lowered[1]) == 0:
        return False
    changed = _rates_around(finding, run)
    rates = run.series("learning_rate")[1]
    if "learning_rate above 0" in action and len(rates) and rates.max() > 0:
        return False
    return not ("training.schedule" in action and changed is not None and changed[0] == changed[1])


def _rates_around(finding: Occurrence, run: RunSignals) -> tuple[float, float] | None:
    """The learning rate before and from the onset on."""
    steps, rates = run.series("learning_rate")
    if finding.onset is None or not len(rates):
        return None
    before, after = rates[steps < finding.onset.step][-3:], rates[steps >= finding.onset.step][:3]
    return (float(before[0]), float(after[-1])) if len(before) and len(after) else None


def _high_rate(finding: Occurrence, run: RunSignals) -> float | None:
    """The highest learning rate of a pretrained language model, where it may have done the damage."""
    highest = float(run.series("learning_rate")[1].max(initial=0))
    is_pretrained = run.family.kind == "language model" and not run.is_own  # our demos train small ones anew
    return highest if finding.name in _BY_THE_RATE and is_pretrained and highest >= HIGH_RATE else None


def _rate_there(finding: Occurrence, run: RunSignals) -> str:
    if (high := _high_rate(finding, run)) is not None:
        return f" The learning rate goes up to {high:.3g}, which is high: {_USUAL_RATES}."
    around = _rates_around(finding, run)
    if around is None or finding.name not in ("gradient-explosion", "non-finite", "reward-drop"):
        return ""
    before, after = around
    if before > 0 and (after > 1.2 * before or after < before / 1.2):
        return f" The learning rate went from {before:.3g} to {after:.3g} there."
    return f" The learning rate did not change there ({after:.3g})."


def _checkpoint_command(finding: Occurrence, run: RunSignals) -> str:
    """How to go on from the last checkpoint before the onset."""
    if finding.onset is None or not run.checkpoints or finding.onset.step <= _beginning(run):
        return ""
    earlier = [one for one in run.checkpoints if one[0] < finding.onset.low]
    if not earlier:
        oldest = run.checkpoints[0][1].name
        return f"No checkpoint from before step {finding.onset.low} is left: the oldest is {oldest}."
    path = visible(str(earlier[-1][1]), 200)
    if run.format == "greenward":
        rate = run.settings.get("training.learning_rate")
        change = f" training.learning_rate={rate / 3:.3g}" if isinstance(rate, (int, float)) else ""
        command = f"greenward train {run.path}/config.yaml model={path} warm_start=null{change}"
        return f"To paste: {command} --output {run.path}_again"
    if run.family.dialect == "verl":
        return f"To paste: trainer.resume_mode=resume_path trainer.resume_from_path={path}"
    return f'To paste: trainer.train(resume_from_checkpoint="{path}")' if run.family.dialect == "trl" else ""


# What a learning rate that is too high does to a language model.
_BY_THE_RATE = frozenset({
    "entropy-collapse", "kl-runaway", "gradient-explosion", "gradient-spikes", "non-finite", "reward-drop",
})  # fmt: skip
HIGH_RATE = 3e-4
_USUAL_RATES = "1e-6 to 1e-5 is usual for all weights, up to 1e-4 for an adapter"

ANALYSED_METRICS = "training_metrics.jsonl"
_FOOTER = (
    "Written by greenward from the files of the run. Brackets are 95 % intervals; p-values of findings are "
    "adjusted for the number of tests (Holm)."
)


_NEEDED = {TITLES.get(name, name) for name in (REWARD, GRADIENT, "loss")}  # of a verdict
JSON_VERSION = 1  # of a diagnosis; raised where a field changes its meaning or goes (docs/ci.schema.json)


@dataclass(frozen=True)
class Cost:
    """What a run used, and what of it taught nothing; None where the log does not tell.

    `without_signal` is the mean share of groups whose answers all got one reward, `best_step` the last step
    at which the mean reward of neighbouring steps rose to a new best. `price` is that of the GPU-hours.
    """

    max_steps: int | None = None
    hours: float | None = None
    without_signal: float | None = None
    steps_without_signal: int | None = None
    best_step: int | None = None
    steps_since_best: int | None = None
    hours_since_best: float | None = None
    gpu_hours: float | None = None
    gpu_hours_without_signal: float | None = None
    price: float | None = None

    def __str__(self) -> str:
        """What is large enough to matter, in one line; empty where nothing is."""
        parts = []
        if self.gpu_hours is not None and self.gpu_hours >= _FEWEST_GPU_HOURS:
            price = "" if self.price is None else f" (price {self.price:,.2f})"
            lost = self.gpu_hours_without_signal or 0.0
            wasted = f", {lost:,.1f} of them without signal" if lost >= _FEWEST_GPU_HOURS else ""
            parts.append(f"{self.gpu_hours:,.1f} GPU-hours{price}{wasted}")
        if self.without_signal is not None and self.without_signal >= _LEAST_SHARE:
            whole = self.steps_without_signal
            steps = f", all of them at {whole:,} step{'s' if whole != 1 else ''}" if whole else ""
            parts.append(f"{self.without_signal:.0%} of the groups without signal{steps}")
        if self.steps_since_best:
            hours = self.hours_since_best
            time = "" if hours is None else f" ({duration(3600 * hours)})"
            parts.append(f"best reward at step {self.best_step:,}, {self.steps_since_best:,} steps{time} ago")
        return "; ".join(parts)


_LEAST_SHARE, _FEWEST_GPU_HOURS = 0.01, 0.1  # less is not worth a line
_SMOOTHED = 20  # windows in a run, over which rewards are averaged
_CLOCKS = ("time/time_elapsed", "time/training")  # cumulative, in seconds
_PLANNED = re.compile(  # the steps of greenward's warm start are no steps of the run
    r"(?!warm_start\.)(?:.*[./])?(?:max_steps|total_training_steps|total_steps)"
)


def cost_of(run: RunSignals, *, gpus: int | None = None, gpu_hour_cost: float | None = None) -> Cost:
    """What the run used so far, of `gpus` GPUs where their number is given."""
    seconds = _seconds_until(run)
    hours = None if seconds is None else float(seconds[-1]) / 3600
    dead = _share_without_signal(run)
    lost = None if dead is None else float(dead[1].mean())
    best = _last_improvement(run)
    since = hours_since = None
    if best is not None:
        since = int(run.steps[-1]) - best
        if seconds is not None:
            hours_since = (hours or 0.0) - float(seconds[np.searchsorted(run.steps, best)]) / 3600
    used = None if hours is None or gpus is None else hours * gpus
    told = [value for key, value in run.settings.items() if _PLANNED.fullmatch(key)]
    told += [
        values[-1]
        for name in run.values
        if _PLANNED.fullmatch(name) and len(values := run.series(name)[1]) and not np.ptp(values)
        if run.family.kind != "agent"  # rsl_rl: the steps of the simulator so far
    ]
    counts = [int(one) for one in told if isinstance(one, (int, float)) and math.isfinite(one)]
    return Cost(
        next((count for count in counts if count >= int(run.steps[-1]) and count > 0), None),
        hours,
        lost,
        None if dead is None else int((dead[1] >= 1).sum()),
        best,
        since,
        hours_since,
        used,
        None if used is None or lost is None else used * lost,
        None if used is None or gpu_hour_cost is None else used * gpu_hour_cost,
    )


def _seconds_until(run: RunSignals) -> Floats | None:
    """The seconds that training took up to each logged step. Of a duration that was not logged at a step the
    median counts, and for steps between two rows that of the later one.
    """
    for clock in _CLOCKS:
        steps, elapsed = run.series(clock)
        if len(elapsed) > 1 and (np.diff(elapsed) >= 0).all() and elapsed[0] >= 0:
            return np.asarray(np.interp(run.steps, steps, elapsed), float)
    durations = run.series(DURATION)[1]
    if not len(durations) or durations.min() < 0:
        return None
    each = run.values[DURATION]
    each = np.where(np.isfinite(each), each, median(durations))
    before = min(0 if _beginning(run) > 0 else run.steps[0] - 1, run.steps[0] - 1)
    return np.asarray(np.cumsum(each * np.diff(run.steps, prepend=before)), float)


def _share_without_signal(run: RunSignals) -> tuple[Steps, Floats] | None:
    """(steps, share of the groups whose answers all got one reward); None where it was not logged.

    Where no groups were counted, a spread of the rewards of exactly 0 says that no group had any.
    """
    steps, dead = run.series("groups/without_signal")
    if len(dead) and dead.min() >= 0 and dead.max() <= 1:
        return steps, dead
    if "groups/with_signal" in run.values:
        counts = [run.values[name] for name in GROUPS if name in run.values]
        total = np.nansum(counts, axis=0)
        known = (total > 0) & np.isfinite(counts[0])
        return (run.steps[known], 1 - counts[0][known] / total[known]) if known.any() else None
    steps, spread = run.series("reward/std")
    return (steps, (spread == 0).astype(float)) if len(spread) else None


def _last_improvement(run: RunSignals) -> int | None:
    """The last step at which the reward, averaged over a twentieth of the run, rose to a new best."""
    steps, rewards = run.series(REWARD)
    width = max(5, len(rewards) // _SMOOTHED)
    if len(rewards) < MIN_POINTS or not np.isfinite(total := np.cumsum(rewards, dtype=float)).all():
        return None
    means = (total[width:] - total[:-width]) / width
    return int(steps[width + int(means.argmax())]) if np.ptp(rewards) > 0 else None


def _acting_headline(diagnosis: Diagnosis) -> str:
    """The verdict in one sentence: what it is, since which step, how large, and what to do first."""
    if diagnosis.verdict != "findings" or not diagnosis.causes:
        return diagnosis.headline
    cause = diagnosis.causes[0].finding
    text = diagnosis.headline.removesuffix(".")
    evidence = _DATE.sub("", cause.measured.partition(". ")[0].removesuffix("."))
    if not re.search(r"\d", cause.brief) and len(evidence) <= _MAX_EVIDENCE:
        text += f" ({evidence})"
    if not cause.actions:  # none fits what is known of the run
        return f"{text}."
    action = cause.actions[0].partition(". ")[0].removesuffix(".")
    is_word = action[1:2].islower()  # not an abbreviation such as KL
    return f"{text}; first, {action[:1].lower() if is_word else action[:1]}{action[1:]}."


_MAX_EVIDENCE = 100  # characters in the headline
_DATE = re.compile(r",? from step \d+(?: \[\d+, \d+\])?(?: on)?")


def diagnosis_report(
    diagnosis: Diagnosis, *, gpus: int | None = None, gpu_hour_cost: float | None = None
) -> Report:
    """The verdict, the findings with what to do, each card, and what could not be checked."""
    run = diagnosis.run
    cost = cost_of(run, gpus=gpus, gpu_hour_cost=gpu_hour_cost)
    steps = {"count": len(run.steps), "first": int(run.steps[0]), "last": int(run.steps[-1])}
    data = {
        "version": JSON_VERSION,
        "command": diagnosis.command,
        "run": str(run.path),
        "verdict": diagnosis.verdict,
        "steps": steps,
        "findings": [
            {
                **asdict(finding),
                "selection": answers_behind(finding, (run.config or {}).get("task")),
                "docs": finding.docs,
            }
            for finding in diagnosis.findings
        ],
        "causes": [
            {
                "name": one.finding.name,
                "severity": one.severity,
                "headline": one.headline,
                "consequences": [effect.name for effect in one.consequences],
            }
            for one in diagnosis.causes
        ],
        "format": run.format,
        "family": run.family.name,
        "reading": None if run.reading is None else asdict(run.reading),
        "learning": asdict(learned(run)),
        "names": dict(run.theirs),
        "not_checked": [asdict(gap) for gap in diagnosis.gaps],
        "unanswered": diagnosis.unanswered,
        "cost": asdict(cost),
        "alpha": diagnosis.alpha,
        "thresholds": diagnosis.thresholds,
        "cards": {card.name: _card_record(card) for card in diagnosis.cards},
    }
    share = steps["last"] / cost.max_steps if cost.max_steps else 1.0
    done = f", {share:.0%} of {cost.max_steps:,}" if share <= 1 - _LEAST_SHARE else ""
    has_more = run.reading is not None and run.reading != Reading(run.reading.rows)
    facts = (
        Fact("steps", "{count:,} ({first} to {last}{done})".format(**steps, done=done)),
        Fact("checks", f"{diagnosis.checks} of {diagnosis.checks + len(diagnosis.gaps)}"),
        Fact("trainer", run.family.name),
        *((Fact("rows", str(run.reading)),) if has_more else ()),
        *_learning_fact(run),
        *((Fact("cost", str(cost)),) if str(cost) else ()),
    )
    cards = (
        section(
            card.title,
            Paragraph(card.headline),
            Facts(card.facts) if card.facts else None,
            charts(card.charts, in_json=False),
            *card.tables,
            level="appendix",
        )
        for card in diagnosis.cards
    )
    headline = _acting_headline(diagnosis)
    missing: list[Section] = []
    if diagnosis.verdict == "cannot tell":
        needed = (gap for gap in diagnosis.gaps if gap.subject in _NEEDED)
        texts = (f"{gap.subject}: {gap.reason}. {gap.enable}" for gap in needed)
        missing = [section("What is missing", *map(Paragraph, texts))]
    details = [*missing, *cards]
    return _report(diagnosis, headline, f"{diagnosis.command} of", run, facts, details, data, run.notes)


def _learning_fact(run: RunSignals) -> tuple[Fact, ...]:
    found = learned(run)
    if not math.isfinite(found.low):
        return ()
    moved = f"{found.rise:+.3g} [{found.low:+.3g}, {found.high:+.3g}] from {found.start:.3g}"
    return (Fact(f"change of {run.logged_as(found.signal)}", moved),)


def _report(
    found: Diagnosis | Card,
    headline: str,
    subject: str,
    run: RunSignals,
    facts: tuple[Fact, ...],
    details: Iterable[Section],
    data: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Report:
    """The findings, the details, and what could not be checked."""
    gaps = tuple((f"{gap.subject}: {gap.reason}. {gap.enable}",) for gap in found.gaps)
    table = Table("", ("What, why, and what would enable it",), gaps) if gaps else None
    missing = section("What could not be checked", table, level="appendix")
    return Report(
        kind="diagnosis",
        title=f"{subject} {run.path.resolve().name}",
        headline=headline,
        facts=facts,
        notes=notes,
        sections=(*_finding_sections(found, run), *details, missing),
        footer=_FOOTER,
        data=to_json(data),
    )


def _finding_sections(found: Diagnosis | Card, run: RunSignals) -> list[Section]:
    """The findings; where causes are known, the first with its consequences and answers, then the others."""
    if isinstance(found, Card) or not found.causes:
        return [section("Findings", Findings(found.findings) if found.findings else None)]
    titles = itertools.chain(("The cause", "Also found"), itertools.repeat(""))
    first, *others = (
        section(
            title,
            Findings((cause.finding,), in_full=cause is found.causes[0] or cause.severity == "critical"),
            _consequences(cause.consequences),
        )
        for title, cause in zip(titles, found.causes, strict=False)
    )
    onset = found.causes[0].finding.onset
    answers = answers_around(run, onset.step) if onset else None
    remarks = tuple(finding for finding in found.findings if finding.severity == "info")
    return [
        first,
        section("Answers around the onset", answers, level="detail"),
        *others,
        section("Remarks", Findings(remarks) if remarks else None, level="detail"),
    ]


def _consequences(findings: tuple[Occurrence, ...]) -> Table | None:
    rows = tuple(
        (one.name, one.severity, NOTHING if one.onset is None else str(one.onset), one.measured)
        for one in findings
    )
    return Table("What followed", ("Finding", "Weight", "From step", "Measured"), rows) if rows else None


def write_reward_health(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write the page, each card, the reliability diagram if there is one, and the metrics as analysed.

    Raises:
        RunError: the file system refused.
    """
    from greenward.reports.svg import standalone
    from greenward.reports.write import render, write_report

    written = [*write_report(diagnosis_report(diagnosis), folder, "reward_health").values()]
    texts: dict[str, str] = {}
    for card in diagnosis.cards:
        details = section("Details", *card.tables, charts(card.charts, in_json=False))
        report = _report(
            card, card.headline, f"{card.title}:", diagnosis.run, card.facts, [details], _card_record(card)
        )
        texts |= {f"{card.name}.md": render(report, "markdown"), f"{card.name}.json": render(report, "json")}
        texts |= {chart.file: standalone(chart) for chart in card.charts if chart.file}
    with writing(str(folder)):
        (folder / DIAGRAM).unlink(missing_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"), forced=False)
    source = diagnosis.run.path / METRICS
    as_logged = not diagnosis.run.notes and source.is_file()  # nothing was sorted, merged or left out
    analysed = source.read_bytes() if as_logged else metrics_as_rows(diagnosis.run)
    write_atomically(folder / ANALYSED_METRICS, analysed, forced=False)
    return [*written, *(folder / name for name in texts), folder / ANALYSED_METRICS]


def metrics_as_rows(run: RunSignals) -> bytes:
    """JSON lines, one row a step in order, under greenward's names."""
    columns = {
        name: values.tolist() if np.isfinite(values).all() else to_json(values.tolist())
        for name, values in run.values.items()
    }
    rows = (
        {"step": int(step), **{name: columns[name][i] for name in columns if run.recorded[name][i]}}
        for i, step in enumerate(run.steps)
    )
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


def _card_record(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "title": card.title,
        "headline": card.headline,
        "findings": [{**asdict(finding), "docs": finding.docs} for finding in card.findings],
        "checked": list(card.checked),
        "not_checked": [asdict(gap) for gap in card.gaps],
        "data": card.data,
    }


@expects("the files of a run", DiagnosticsError)
def diagnose_run(
    path: Path,
    *,
    alpha: float = ALPHA,
    mapping: Mapping[str, str] | None = None,
    run_name: str | None = None,
    memory_limit_mb: float | None = None,
) -> Diagnosis:
    """Diagnose the run at `path`, a run directory or the log of another trainer (`read_run_signals`).

    Raises:
        DiagnosticsError: there is no log that can be read, or several.
        RunError: a file of a run directory that cannot be read.
    """
    limits = Thresholds(alpha, memory_mb=memory_limit_mb)
    return diagnose_signals(read_run_signals(path, mapping=mapping, run_name=run_name), limits)


def diagnose_signals(run: RunSignals, limits: Thresholds) -> Diagnosis:
    """Diagnose signals that were read before."""
    suites = evaluated_suites(run.path) if run.path.is_dir() else []
    cards = examine(topics_of(suites, (run.config or {}).get("task")), run, limits)
    causes = causes_of([finding for card in cards for finding in card.findings], len(run.steps), CAUSES)
    return Diagnosis("diagnose", run, cards, limits.alpha, limits.to_json(), unanswered_question(run), causes)
