"""Which finding is the cause, and which are its consequences.

A finding can explain those that its row names, if they do not begin before it. A cause is what nothing
explains; where several could explain a finding, it is the consequence of the earliest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from greenward.diagnostics.findings import SEVERITIES
from greenward.reports.document import Finding, Severity

# What happens to a policy that was damaged or taught the wrong thing.
_DAMAGE = (
    "reward-drop quality-drop failing-answers-rise length-growth length-collapse truncated-answers "
    "held-out-regression train-held-out-gap diversity-loss dominant-answer dead-groups group-signal-fades "
    "entropy-collapse entropy-rise kl-runaway constant-reward gradient-vanished poor-calibration "
    "calibration-no-discrimination value-function-useless no-learning throughput-drop sandbox-timeouts "
    "clip-fraction-high large-policy-steps gradient-always-clipped"
)
_UPDATES = (
    "gradient-explosion gradient-spikes large-policy-steps clip-fraction-high sampler-mismatch non-finite"
)
_WORSE = (
    "reward-drop quality-drop held-out-regression dead-groups group-signal-fades no-learning "
    "gradient-vanished"
)
# From cause to effect: an earlier row is never explained by a later one that it explains.
EXPLAINS: Mapping[str, frozenset[str]] = {
    cause: frozenset(effects.split())
    for cause, effects in {
        "learning-rate-jump": f"{_UPDATES} {_DAMAGE}",
        "reward-scale-jump": f"{_UPDATES} {_WORSE} auxiliary-reward-dominates kl-runaway "
        "entropy-collapse entropy-rise",
        "stale-policy": f"{_UPDATES} {_DAMAGE}",
        "sampler-mismatch": f"gradient-explosion gradient-spikes large-policy-steps {_DAMAGE}",
        "constant-reward": f"{_WORSE} reward-term-dead diversity-loss failing-answers-rise "
        "calibration-no-discrimination",
        "non-finite": f"gradient-explosion gradient-spikes {_DAMAGE}",
        "gradient-explosion": f"gradient-spikes non-finite {_DAMAGE}",
        "sandbox-timeouts": f"{_WORSE} failing-answers-rise throughput-drop flaky-grades constant-reward",
        "truncated-answers": f"{_WORSE} failing-answers-rise constant-reward",
        "cheating": f"reward-hacking train-held-out-gap {_WORSE} failing-answers-rise diversity-loss "
        "poor-calibration",
        "reward-hacking": f"{_WORSE} train-held-out-gap length-growth kl-runaway diversity-loss "
        "entropy-collapse length-bias poor-calibration cheating group-signal-fades truncated-answers "
        "calibration-no-discrimination",
        "large-policy-steps": f"{_DAMAGE} gradient-spikes",
        "clip-fraction-high": f"{_WORSE} large-policy-steps kl-runaway",
        "length-growth": "truncated-answers throughput-drop sandbox-timeouts",
        "length-collapse": f"{_WORSE} throughput-drop failing-answers-rise diversity-loss",
        "entropy-collapse": f"{_WORSE} diversity-loss dominant-answer length-collapse poor-calibration",
        "entropy-rise": f"{_WORSE} failing-answers-rise length-growth truncated-answers kl-runaway",
        "kl-runaway": f"{_WORSE} entropy-collapse entropy-rise diversity-loss length-growth",
        "dominant-answer": f"{_WORSE} diversity-loss",
        "diversity-loss": "dead-groups group-signal-fades gradient-vanished dominant-answer",
        "failing-answers-rise": _WORSE,
        "reward-drop": "quality-drop held-out-regression dead-groups group-signal-fades poor-calibration "
        "failing-answers-rise gradient-vanished train-held-out-gap",
        "dead-groups": "gradient-vanished no-learning group-signal-fades reward-term-dead diversity-loss "
        "auxiliary-reward-dominates",
        "group-signal-fades": "gradient-vanished dead-groups",
        "gradient-vanished": "no-learning",
        "held-out-regression": "train-held-out-gap quality-drop",
        "memory-leak": "throughput-drop",
        "gradient-spikes": "reward-drop quality-drop",
        "evaluation-contaminated": "train-held-out-gap",
        "length-bias": "length-growth truncated-answers",
        "auxiliary-reward-dominates": "no-learning quality-drop",
        "gradient-always-clipped": "no-learning gradient-spikes",
        "calibration-no-discrimination": "poor-calibration",
    }.items()
}
_ORDER = {name: place for place, name in enumerate(EXPLAINS)}


@dataclass(frozen=True)
class Cause:
    """A finding that nothing explains, and what followed from it, the earliest first."""

    finding: Finding
    consequences: tuple[Finding, ...] = ()

    @property
    def severity(self) -> Severity:
        """That of the worst of them."""
        found = (self.finding, *self.consequences)
        return max((one.severity for one in found), key=SEVERITIES.index)

    @property
    def headline(self) -> str:
        """The cause with its size and step, and the first things that followed."""
        text = self.finding.brief or self.finding.title
        onset = self.finding.onset
        if onset is not None:
            text += f" from step {onset.step}"
        first_of = {one.name: one for one in reversed(self.consequences) if one.name != self.finding.name}
        later = [one for one in self.consequences if first_of.get(one.name) is one]
        for one in later[:2]:
            brief = one.brief or one.title
            is_word = brief[1:2].islower()  # not an abbreviation such as KL
            text += f"; {brief[:1].lower() if is_word else brief[:1]}{brief[1:]}"
            if onset is not None and one.onset is not None and one.onset.step > onset.step:
                text += f" {_count(one.onset.step - onset.step, 'step')} later"
        return text + (f"; {_count(len(later) - 2, 'more consequence')}" if len(later) > 2 else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def causes_of(findings: Sequence[Finding], steps: int) -> tuple[Cause, ...]:
    """The causes among the findings with their consequences, the most severe first. Remarks stay out.

    A consequence may seem to begin a little earlier than its cause: by 10 steps, or 5 % of the run.
    """
    counted = [one for one in findings if one.severity != "info"]
    slack = max(10.0, 0.05 * steps)

    def in_time(cause: Finding, effect: Finding) -> bool:
        if cause.onset is None or effect.onset is None:
            return True
        # An onset is as sure as its interval is short.
        apart = max(2 * slack, effect.onset.high - effect.onset.low)
        late_enough = effect.onset.step >= cause.onset.step - apart
        return late_enough and effect.onset.high >= cause.onset.low - slack

    def explains(cause: Finding, effect: Finding) -> bool:
        if cause.name == effect.name or effect.name not in EXPLAINS.get(cause.name, ()):
            return False
        mutual = cause.name in EXPLAINS.get(effect.name, ()) and in_time(effect, cause)
        return in_time(cause, effect) and not (mutual and _ORDER[cause.name] > _ORDER[effect.name])

    def begin(one: Finding) -> tuple[float, int]:
        return (one.onset.step if one.onset else -1.0), _ORDER.get(one.name, len(_ORDER))

    # The same finding of several signals is one.
    groups: dict[str, list[Finding]] = {}
    for one in sorted(counted, key=lambda one: (-SEVERITIES.index(one.severity), begin(one))):
        groups.setdefault(one.name, []).append(one)
    heads = [members[0] for members in groups.values()]
    parent: dict[str, Finding] = {}
    for effect in heads:
        able = [cause for cause in heads if explains(cause, effect)]
        if able:
            parent[effect.name] = min(able, key=begin)

    def root(one: Finding) -> Finding:
        seen = {one.name}
        while one.name in parent and parent[one.name].name not in seen:
            one = parent[one.name]
            seen.add(one.name)
        return one

    below: dict[str, list[Finding]] = {}
    for one in heads:
        top = root(one)
        others = groups[one.name] if top is not one else groups[one.name][1:]
        below.setdefault(top.name, []).extend(others)
    found = [Cause(groups[name][0], tuple(sorted(effects, key=begin))) for name, effects in below.items()]

    def rank(one: Cause) -> tuple[int, int, tuple[float, int]]:
        return -SEVERITIES.index(one.severity), -len(one.consequences), begin(one.finding)

    return tuple(sorted(found, key=rank))
