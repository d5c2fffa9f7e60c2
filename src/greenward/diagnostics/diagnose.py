"""The diagnosis of a run: what is examined, advised and reported.

Is the training of a run sound, and its reward? The checks of `greenward reward-health`.

How good is what a run learned, over training? The checks of `greenward evals`.

Evaluations on the held-out problems or on a suite are paired by problem; the answers in training are checked
by their signals.

Advice that reads the run: present values of settings, their names in other trainers, and commands.

A diagnosis as the record that reports render, and as files: the page, each card, the metrics.

`greenward diagnose`: everything that is known of a run as one verdict with one cause.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import expects
from greenward.common.text import visible
from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.change_points import MIN_POINTS, exactly
from greenward.diagnostics.finding import Card, Diagnosis, causes_of
from greenward.diagnostics.findings import held_out, rewards, updates
from greenward.diagnostics.findings.answers import answers_around, dominant_answer, flaky_grades, length_bias
from greenward.diagnostics.findings.reward_model import DIAGRAM, no_discrimination, poor_calibration
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import (
    ALPHA,
    Check,
    Result,
    SignalChart,
    Thresholds,
    Topic,
    beyond,
    examine,
    find_signal_change,
    lasting_change,
    late_mean,
    late_part,
    late_share,
    moves_to,
)
from greenward.diagnostics.signals import (
    GRADIENT,
    GREEDY_PASS_RATE,
    LENGTH,
    PASS_RATE,
    REWARD,
    THROUGHPUT,
    TRUNCATED,
    UNIQUE,
    RunSignals,
)
from greenward.reports.document import (
    NOTHING,
    Fact,
    Facts,
    Finding,
    Findings,
    Paragraph,
    Report,
    Section,
    Table,
    charts,
    section,
)
from greenward.reports.svg import standalone
from greenward.reports.write import render, write_report
from greenward.runs.files import to_json, write_atomically, writing
from greenward.runs.reading import METRICS, evaluated_suites
from greenward.runs.trackers import tracker_name

GRADIENTS = Topic(
    "gradient_drift_card",
    "Gradient drift",
    (
        Check("non-finite", updates.not_finite),
        Check("gradient-explosion", updates.explosion, (GRADIENT,), critical=True),
        Check("gradient-spikes", updates.spikes, (GRADIENT,)),
        Check("gradient-vanished", updates.vanished, (GRADIENT,)),
        Check("gradient-always-clipped", updates.always_clipped, (GRADIENT,)),
    ),
    (
        SignalChart("Gradient norm, logarithmic", (GRADIENT,), log=True, marks="gradient-explosion"),
        SignalChart("Learning rate", ("learning_rate",), marks="gradient-explosion"),
    ),
)
CALIBRATION = Topic(
    "calibration_report",
    "Calibration of the reward model",
    (
        Check("poor-calibration", poor_calibration, critical=True),
        Check("calibration-no-discrimination", no_discrimination, optional=True),
    ),
)
REWARDS = Topic(
    "reward_card",
    "Rewards",
    (
        Check("constant-reward", rewards.constant_reward, (REWARD,), severity="critical"),
        Check("reward-term-dead", rewards.dead_term, rewards.reward_terms, needs=(REWARD,)),
        Check("reward-scale-jump", updates.scale_jumps, ("reward/std",), needs=(REWARD,)),
        Check("no-learning", updates.no_learning, needs=(REWARD,)),
        Check("reward-drop", rewards.reward_drop, rewards.tested_rewards, needs=(REWARD,)),
        Check("auxiliary-reward-dominates", rewards.dominance, needs=(REWARD,)),
        Check("dead-groups", rewards.dead_groups, rewards.group_signals, needs=(REWARD,)),
        Check(
            "group-signal-fades",
            updates.group_signal_fades,
            ("groups/with_signal",),
            needs=(REWARD,),
            optional=True,
        ),
    ),
    (
        SignalChart("Rewards", rewards.tested_rewards),
        SignalChart("Pass rate on training problems", (PASS_RATE,), "share"),
        SignalChart(
            "Groups per step", ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail")
        ),
    ),
)
POLICY = Topic(
    "policy_card",
    "Policy",
    (
        # no absolute limit: small models begin low
        Check("entropy-collapse", moves_to(below=0.1), ("entropy",), severity="critical"),
        Check("entropy-rise", updates.entropy_rises, ("entropy",)),
        Check("kl-runaway", updates.kl_runaway, ("kl",)),
        # Spinning Up's PPO stops at 0.015
        Check("large-policy-steps", beyond(above=0.03), ("approx_kl",)),
        Check("clip-fraction-high", beyond(above=0.3), updates.clip_signals),
        Check("truncated-answers", updates.truncated, (TRUNCATED,)),
        # a constant prediction explains nothing: 0
        Check("value-function-useless", late_share(below=0.01, over=0.75), ("explained_variance",)),
        Check("learning-rate-jump", updates.rate_jumps, ("learning_rate",), optional=True),
        Check("stale-policy", beyond(above=2.0), ("rollouts/staleness",), optional=True),
        Check("sampler-mismatch", beyond(above=0.05), ("importance/difference",), optional=True),
        Check("sampler-mismatch", beyond(above=0.02), ("importance/kl",), optional=True),
        Check(
            "sampler-mismatch", beyond(above=0.15, off=1.0), ("importance/mean", "ratio/mean"), optional=True
        ),
    ),
    (
        SignalChart("Entropy (nats per token)", ("entropy",)),
        SignalChart("KL to the reference", ("kl",)),
        SignalChart("Answers cut off at the limit", (TRUNCATED,), "share"),
        SignalChart("Explained variance of the value function", ("explained_variance",)),
        SignalChart("Sampler against learner: |Δ log p|", ("importance/difference",)),
        SignalChart("Share of clipped tokens", updates.clip_signals, "share"),
    ),
)
COMPUTE = Topic(
    "compute_profile",
    "Compute profile",
    (
        Check("memory-leak", updates.memory_leak, updates.logged_memories, critical=True),
        Check("throughput-drop", updates.throughput_drop, (THROUGHPUT,)),
    ),
    (SignalChart("Tokens per second", (THROUGHPUT,)),),
    updates.step_durations,
)
TOPICS = (GRADIENTS, CALIBRATION, REWARDS, POLICY, COMPUTE)


@expects("the files of a run", DiagnosticsError)
def diagnose_reward_health(
    path: Path,
    *,
    calibration_threshold: float = WARNING_SCORE,
    memory_limit_mb: float | None = None,
    alpha: float = ALPHA,
) -> Diagnosis:
    """Diagnose the run directory at `path`.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    run = read_run_signals(path)
    limits = Thresholds(alpha, calibration_threshold, memory_limit_mb)
    cards = examine(TOPICS, run, limits)
    return Diagnosis("reward-health", run, cards, alpha, limits.to_json(), unanswered_question(run))


def unanswered_question(run: RunSignals) -> str | None:
    """Why the run may not be called healthy.

    That needs tests of the gradient and of the reward, or of the loss in supervised training.
    """
    if len(run.steps) < MIN_POINTS:
        return f"the run has {len(run.steps)} step(s), a test needs {MIN_POINTS}"
    needed = ("loss" if run.kind == "sft" else REWARD, GRADIENT)
    missing = [name for name in needed if run.too_short(name)]
    return f"{' and '.join(missing)} could not be tested" if missing else None


CODE = "code"
QUALITY = (PASS_RATE, "reward/code_score", "reward/correctness", "reward/readability")
CHEATING = "status/cheating"
# Ways to fail, except failing tests: those are what training is for.
TIMEOUTS = "status/timeout"
_USUAL = frozenset({"status/passed", "status/failed", "status/drawn", CHEATING})


def failures(run: RunSignals) -> list[str]:
    """The statuses of answers that fail otherwise than by their tests, the most frequent first.

    A game that one of the roles won, or that is drawn, is no failure.
    """
    names = sorted(
        name
        for name in run.values
        if name.startswith("status/") and name not in _USUAL and not name.endswith("_won")
    )
    means = {name: float(values.mean()) for name in names if len(values := run.series(name)[1])}
    return sorted(names, key=lambda name: -means.get(name, 0.0))


def worse_answers(run: RunSignals) -> list[str]:
    """The shares of answers that should not rise."""
    return [*(failures(run) or ["status"]), TRUNCATED]


def cheating_late(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that try to fool the tests, late in the run, dated by where they became many."""
    found = late_mean(above=0.01)(run, signal, limits)
    if not found.found:
        return found
    change = find_signal_change(run, signal)
    grew = change is not None and change.p_value <= limits.alpha and change.after > change.before
    steps, values = run.series(signal)
    return replace(found, onset=change.onset if change and grew else exactly(steps[values > 0][0]))


ANSWERS = Topic(
    "answers",
    "Answers in training",
    (
        Check("quality-drop", lasting_change(falls=True), QUALITY),
        Check("failing-answers-rise", lasting_change(rise=0.05), worse_answers),
        Check("sandbox-timeouts", lasting_change(rise=0.05), (TIMEOUTS,), optional=True),
        Check(
            "length-collapse",
            lasting_change(below=0.4, if_passing_more="no finding"),
            (LENGTH,),
            optional=True,
        ),
        Check("length-growth", lasting_change(above=1.8, if_passing_more="no finding"), (LENGTH,)),
        # Right answers to an easy problem are alike; copies that fail are what ends learning.
        Check("diversity-loss", lasting_change(below=0.5, if_passing_more="info", ruins=0.3), (UNIQUE,)),
        Check("cheating", cheating_late, (CHEATING,)),
    ),
    (
        SignalChart("Quality of the answers in training", QUALITY, "share"),
        SignalChart("Answer length (tokens)", (LENGTH,)),
        SignalChart("Distinct answers", (UNIQUE,), "share"),
        SignalChart("How answers fail", failures, "share"),
    ),
)


def evaluation_topic(suite: str | None) -> Topic:
    """The evaluations on a suite, or on what the run holds out."""
    regression = Check("held-out-regression", held_out.regression_on(suite))
    if suite is not None:
        return Topic(f"suite_{suite}", f"Suite {suite}", (regression,))
    hacking = Check("reward-hacking", held_out.reward_hacking, severity="critical")
    gap = Check("train-held-out-gap", held_out.train_held_out_gap)
    contamination = Check("evaluation-contaminated", held_out.contaminated)
    return Topic("held_out", "Held-out problems", (hacking, regression, gap, contamination))


@expects("the files of a run", DiagnosticsError)
def diagnose_evals(path: Path, suite: str = CODE, *, alpha: float = ALPHA) -> Diagnosis:
    """Diagnose what the run at `path` learned.

    `code` is everything: held-out problems, the answers in training and every evaluated suite. The name
    of an evaluated suite (humaneval+ or humaneval_plus) is that suite alone.

    Raises:
        DiagnosticsError: there are no metrics, or no such suite.
        RunError: a file that is there and cannot be read.
    """
    run = read_run_signals(path)
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
    count = len(held_out.sound_evaluations(run, wanted))
    what = "held-out problems" if wanted is None else wanted
    unanswered = None
    if count < 2:
        unanswered = f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    elif not cards[0].data["paired_change"]:
        unanswered = f"the evaluations on {what} cannot be paired"
    return Diagnosis(f"evals --suite {suite}", run, cards, alpha, {}, unanswered)


# greenward's setting -> (TRL's, verl's).
_THEIRS: Mapping[str, tuple[str, str]] = {
    "training.learning_rate": ("learning_rate", "actor_rollout_ref.actor.optim.lr"),
    "training.max_grad_norm": ("max_grad_norm", "actor_rollout_ref.actor.grad_clip"),
    "training.num_generations": ("num_generations", "actor_rollout_ref.rollout.n"),
    "training.prompts_per_step": ("per_device_train_batch_size", "data.train_batch_size"),
    "training.schedule": ("lr_scheduler_type", "actor_rollout_ref.actor.optim.lr_scheduler_type"),
    "training.warmup_steps": ("warmup_steps", "actor_rollout_ref.actor.optim.lr_warmup_steps"),
    "training.checkpoint_interval_steps": ("save_steps", "trainer.save_freq"),
    "sampling.temperature": ("temperature", "actor_rollout_ref.rollout.temperature"),
    "sampling.max_tokens": ("max_completion_length", "data.max_response_length"),
    "algorithm.kl.coefficient": ("beta", "actor_rollout_ref.actor.kl_loss_coef"),
    "algorithm.clip_high": ("epsilon_high", "actor_rollout_ref.actor.clip_ratio_high"),
    "algorithm.updates_per_batch": ("num_iterations", "actor_rollout_ref.actor.ppo_epochs"),
    "algorithm.overlong.mask_truncated": (
        "mask_truncated_completions",
        "reward_model.overlong_buffer.enable",
    ),
    "algorithm.dynamic_sampling": ("a filter of groups in the data", "algorithm.filter_groups.enable"),
    "algorithm.loss": ("loss_type", "actor_rollout_ref.actor.loss_agg_mode"),
    "algorithm.entropy_coefficient": ("an entropy term", "actor_rollout_ref.actor.entropy_coeff"),
    "model.dtype": ("bf16", "actor_rollout_ref.model.dtype"),
    "rewards": ("reward_weights", "custom_reward_function"),
}
_SETTING = re.compile(r"\b(?:training|algorithm|sampling|model|sandbox|evaluation|warm_start)(?:\.[a-z_]+)+")
_VERL = re.compile(r"(critic|actor|response_length|rollout_corr)/")
_GO_ON = re.compile(r"^(Go on from|Use) (the|a) (last )?checkpoint")


def filled_in(finding: Finding, run: RunSignals) -> Finding:
    """The finding with advice for this run."""
    actions = [_with_settings(one, run) for one in finding.actions if _applies(one, finding, run)]
    if any(map(_GO_ON.match, finding.actions)):
        actions += filter(None, [_checkpoint_command(finding, run)])
    return replace(finding, actions=tuple(actions), measured=finding.measured + _rate_there(finding, run))


def _with_settings(action: str, run: RunSignals) -> str:
    """The action with the present value of each setting, under the name that the trainer of the run uses."""
    text = re.sub(r" \(1\.0\)", "", action) if "training.max_grad_norm" in run.settings else action

    def shown(match: re.Match[str]) -> str:
        key = match[0]
        value = run.settings.get(key)
        if run.format == "greenward":
            known = isinstance(value, (int, float, str))
            return f"{key} (now {visible(str(value), 40)})" if known else key
        return _THEIRS.get(key, (key, key))[_is_verl(run)]

    return _SETTING.sub(shown, text)


def _is_verl(run: RunSignals) -> bool:
    return any(map(_VERL.match, run.theirs.values()))


def _applies(action: str, finding: Finding, run: RunSignals) -> bool:
    """Whether the run does not already exclude what the action is about."""
    if "bfloat16" in action and str(run.settings.get("model.dtype", "")) == "float32":
        return False
    lowered = re.match(rf"Lower ({_SETTING.pattern})", action)
    if lowered and run.settings.get(lowered[1]) == 0:
        return False
    changed = _rates_around(finding, run)
    return not ("training.schedule" in action and changed is not None and changed[0] == changed[1])


def _rates_around(finding: Finding, run: RunSignals) -> tuple[float, float] | None:
    """The learning rate before and from the onset on."""
    steps, rates = run.series("learning_rate")
    if finding.onset is None or not len(rates):
        return None
    before, after = rates[steps < finding.onset.step][-3:], rates[steps >= finding.onset.step][:3]
    return (float(before[0]), float(after[-1])) if len(before) and len(after) else None


def _rate_there(finding: Finding, run: RunSignals) -> str:
    around = _rates_around(finding, run)
    if around is None or finding.name not in ("gradient-explosion", "non-finite", "reward-drop"):
        return ""
    before, after = around
    if before > 0 and (after > 1.2 * before or after < before / 1.2):
        return f" The learning rate went from {before:.3g} to {after:.3g} there."
    return f" The learning rate did not change there ({after:.3g})."


def _checkpoint_command(finding: Finding, run: RunSignals) -> str:
    """How to go on from the last checkpoint before the onset."""
    if finding.onset is None or not run.checkpoints:
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
    if _is_verl(run):
        return f"To paste: trainer.resume_mode=resume_path trainer.resume_from_path={path}"
    return f'To paste: trainer.train(resume_from_checkpoint="{path}")'


ANALYSED_METRICS = "training_metrics.jsonl"
_FOOTER = (
    "Written by greenward from the files of the run. Brackets are 95 % intervals; p-values of findings are "
    "adjusted for the number of tests (Holm)."
)


def diagnosis_report(diagnosis: Diagnosis) -> Report:
    """The verdict, the findings with what to do, each card, and what could not be checked."""
    run = diagnosis.run
    steps = {"count": len(run.steps), "first": int(run.steps[0]), "last": int(run.steps[-1])}
    data = {
        "command": diagnosis.command,
        "run": str(run.path),
        "verdict": diagnosis.verdict,
        "steps": steps,
        "findings": _finding_records(diagnosis.findings),
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
        "names": dict(run.theirs),
        "not_checked": [asdict(gap) for gap in diagnosis.gaps],
        "unanswered": diagnosis.unanswered,
        "alpha": diagnosis.alpha,
        "thresholds": diagnosis.thresholds,
        "cards": {card.name: _card_record(card) for card in diagnosis.cards},
    }
    facts = (
        Fact("steps", "{count:,} ({first} to {last})".format(**steps)),
        Fact("checks", str(diagnosis.checks)),
        Fact("not checked", str(len(diagnosis.gaps))),
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
    return _report(diagnosis, f"{diagnosis.command} of", run, facts, cards, data, run.notes)


def card_report(card: Card, run: RunSignals) -> Report:
    """One card as a report of its own."""
    details = section("Details", *card.tables, charts(card.charts, in_json=False))
    return _report(card, f"{card.title}:", run, card.facts, [details], _card_record(card))


def _report(
    found: Diagnosis | Card,
    subject: str,
    run: RunSignals,
    facts: tuple[Fact, ...],
    details: Iterable[Section],
    data: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Report:
    """The findings, the details, and what could not be checked."""
    gaps = tuple((f"{gap.subject}: {gap.reason}. {gap.enable}",) for gap in found.gaps)
    missing = Table("", ("What, why, and what would enable it",), gaps) if gaps else None
    return Report(
        kind="diagnosis",
        title=f"{subject} {run.path.resolve().name}",
        headline=found.headline,
        facts=facts,
        notes=notes,
        sections=(*_finding_sections(found, run), *details, section("What could not be checked", missing)),
        footer=_FOOTER,
        data=to_json(data),
    )


def _finding_sections(found: Diagnosis | Card, run: RunSignals) -> list[Section]:
    """The findings; where causes are known, the first with its consequences and answers, then the others."""
    if isinstance(found, Card) or not found.causes:
        return [section("Findings", Findings(found.findings) if found.findings else None)]
    titles = itertools.chain(("The cause", "Also found"), itertools.repeat(""))
    first, *others = (
        section(title, Findings((cause.finding,)), _consequences(cause.consequences))
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


def _consequences(findings: tuple[Finding, ...]) -> Table | None:
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
    written = [*write_report(diagnosis_report(diagnosis), folder, "reward_health").values()]
    texts: dict[str, str] = {}
    for card in diagnosis.cards:
        report = card_report(card, diagnosis.run)
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


def _finding_records(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [{**asdict(finding), "docs": finding.docs} for finding in findings]


def _card_record(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "title": card.title,
        "headline": card.headline,
        "findings": _finding_records(card.findings),
        "checked": list(card.checked),
        "not_checked": [asdict(gap) for gap in card.gaps],
        "data": card.data,
    }


OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST = "programs/most_common"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, GREEDY_PASS_RATE))
    late, passed = (float(late_part(values).mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


Q_LEARNING = Topic(  # runs of `kind: dqn`
    "q-learning",
    "Q-learning",
    (
        Check("q-overestimation", late_mean(above=1.0), (OVERESTIMATION,), optional=True),
        Check("stale-replay", late_mean(above=5000.0), (STALENESS,), optional=True),
        Check("dead-epsilon", dead_epsilon, (EPSILON,), needs=(GREEDY_PASS_RATE,), optional=True),
        Check("program-collapse", late_mean(above=0.5), (COMMONEST,), optional=True),
    ),
    (
        SignalChart("Q of the first token less the return", (OVERESTIMATION,)),
        SignalChart("Updates since a drawn transition was made", (STALENESS,)),
        SignalChart("Share of greedy programs that pass", (GREEDY_PASS_RATE,), "share"),
    ),
)
ROLLOUTS = Topic(
    "rollouts",
    "Kept answers",
    (
        Check("length-bias", length_bias),
        Check("dominant-answer", dominant_answer, severity="critical"),
        Check("flaky-grades", flaky_grades),
    ),
)


def topics_of(suites: Iterable[str]) -> list[Topic]:
    """Everything that is checked of a run which was evaluated on `suites`."""
    return [*TOPICS, evaluation_topic(None), *map(evaluation_topic, suites), ANSWERS, Q_LEARNING, ROLLOUTS]


@expects("the files of a run", DiagnosticsError)
def diagnose_run(
    path: Path,
    *,
    alpha: float = ALPHA,
    mapping: Mapping[str, str] | None = None,
    pick: str | None = None,
    memory_limit_mb: float | None = None,
) -> Diagnosis:
    """Diagnose the run at `path`, a run directory or the log of another trainer (`read_run_signals`).

    Raises:
        DiagnosticsError: there is no log that can be read, or several.
        RunError: a file of a run directory that cannot be read.
    """
    limits = Thresholds(alpha, memory_mb=memory_limit_mb)
    return diagnose_signals(read_run_signals(path, mapping=mapping, pick=pick), limits)


def diagnose_signals(run: RunSignals, limits: Thresholds) -> Diagnosis:
    """Diagnose signals that were read before."""
    suites = evaluated_suites(run.path) if run.path.is_dir() else []
    cards = tuple(
        replace(card, findings=tuple(filled_in(finding, run) for finding in card.findings))
        for card in examine(topics_of(suites), run, limits)
    )
    findings = [finding for card in cards for finding in card.findings]
    causes = causes_of(findings, len(run.steps))
    unanswered = unanswered_question(run)
    return Diagnosis("diagnose", run, cards, limits.alpha, limits.to_json(), unanswered, causes)
