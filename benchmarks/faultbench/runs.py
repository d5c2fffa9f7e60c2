"""Plays a training of a family: its course, which a fault may change, and the signals that are seen of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from benchmarks.faultbench.families import Answers, Episodes, Family, Span

Floats = np.ndarray
SHAPES = ("fast", "slow", "plateau", "weak", "noisy", "short")
_SHORT = (20, 60)


@dataclass
class Course:
    """What happens in a run, a value for each row. Those that are factors begin as 1."""

    family: Family
    rng: np.random.Generator
    rows: int
    batch: tuple[int, int]
    skill: Floats
    entropy: Floats
    factors: dict[str, Floats] = field(default_factory=dict)
    agreement: Floats = field(default_factory=lambda: np.zeros(0))
    truncated: Floats = field(default_factory=lambda: np.zeros(0))
    onset: int = 0

    def factor(self, name: str) -> Floats:
        """Multiplies a signal."""
        return self.factors.setdefault(name, np.ones(self.rows))

    @property
    def noise(self) -> float:
        """The standard error of the mean skill that two fifths of the run differ by; agents play enough."""
        if isinstance(self.family.rates, Episodes):
            return 0.0
        prompts, answers = self.batch
        return float(np.sqrt((0.04 / prompts + 0.2 / (prompts * answers)) * 2 / (self.rows / 5)))

    def ramp(self, share: float) -> Floats:
        """0 before the onset, then up to 1 within this share of the run."""
        return np.clip((np.arange(self.rows) - self.onset) / max(share * self.rows, 1), 0, 1)


def course(family: Family, shape: str, rng: np.random.Generator) -> Course:
    """A healthy run: it learns `fast`, `slow`, to a `plateau`, a `weak` gain, `noisy`, or is `short`."""
    rows = int(rng.integers(*_SHORT)) if shape == "short" else int(rng.choice(family.rows))
    t = np.linspace(0, 1, rows)
    gain = rng.uniform(0.12, 0.2) if shape == "weak" else rng.uniform(0.3, 0.45)
    until = {"fast": 0.25, "plateau": 0.3, "noisy": 0.5}.get(shape, 1.0)
    progress = np.minimum(t / until, 1) if shape in ("slow", "plateau") else 1 - np.exp(-3 * t / until)
    rates = family.rates
    if isinstance(rates, Answers):
        start = rng.uniform(*rates.start)
        batch = rates.noisy_batch if shape == "noisy" else rates.batches[rng.integers(len(rates.batches))]
        entropy = rng.uniform(*rates.entropy) * (1 + rng.uniform(-0.4, 0.12) * progress)
    else:
        start, gain, batch = 0.0, gain / 0.4, (1, 1)
        entropy = rng.uniform(*rates.entropy) * rng.uniform(0.1, 0.8) ** progress
    truncated = rng.choice([0.0, 0.02, 0.1]) * (1 - 0.5 * progress)
    return Course(
        family,
        rng,
        rows,
        batch,
        start + gain * progress,
        entropy,
        {},
        np.zeros(rows),
        truncated * np.ones(rows),
    )


def observe(run: Course) -> dict[str, Floats]:
    """The signals of a run, of which a family logs those that it has a key for."""
    signals = _answers(run, run.family.rates) if isinstance(run.family.rates, Answers) else _episodes(run)
    for name, factor in run.factors.items():
        if name in signals:
            signals[name] = signals[name] * factor
    return {name: values for name, values in signals.items() if name in run.family.names}


def _noise(run: Course, size: float, correlation: float = 0.0) -> Floats:
    """Noise of this standard deviation, correlated between rows."""
    shocks = run.rng.normal(0, size * np.sqrt(1 - correlation**2), run.rows)
    for i in range(1, run.rows):
        shocks[i] += correlation * shocks[i - 1]
    return shocks


def _rare(run: Course, runs: float, size: Span) -> tuple[int, float]:
    """(a row, a factor): in this share of runs, one row is an outlier."""
    factor = np.exp(run.rng.uniform(*np.log(size))) if run.rng.random() < runs else 1.0
    return int(run.rng.integers(run.rows)), float(factor)


def _rate(run: Course) -> Floats:
    """Constant, or with or without a warm-up down to 0."""
    t = np.arange(run.rows) / run.rows
    peak = 10 ** run.rng.uniform(-6, -4)
    if isinstance(run.family.rates, Episodes):
        return np.full(run.rows, 3e-4) * (1 - t if run.rng.random() < 0.3 else 1)
    warm = run.rng.choice([0.0, 0.05, 0.1])
    falls = (1 - t) if run.rng.random() < 0.5 else (1 + np.cos(np.pi * t)) / 2
    return peak * falls * (np.minimum(t / warm, 1) if warm else 1)


def _explained(run: Course, level: float) -> Floats:
    """The explained variance of a value function that is learned soon. One that says nothing has no noise."""
    learned = (1 - 0.5 * np.exp(-np.arange(run.rows) / (0.03 * run.rows))) * run.factor("explains")
    return np.minimum(level * learned + _noise(run, 0.1) * np.abs(learned) + _noise(run, 0.002), 0.99)


def _answers(run: Course, rates: Answers) -> dict[str, Floats]:
    rng, rows, (prompts, answers) = run.rng, run.rows, run.batch
    low, high = rates.rewards[rng.integers(len(rates.rewards))]
    # Prompts differ in difficulty, so that some groups fail or pass as a whole.
    chance = np.clip(run.skill, 1e-9, 1 - 1e-9)[:, None]
    logit = np.log(chance / (1 - chance)) + rng.normal(0, 1.0, (rows, prompts))
    chance = np.where(run.skill[:, None] <= 0, 0.0, 1 / (1 + np.exp(-logit)))[..., None]
    drawn = rng.random((rows, prompts, answers)) < chance
    grades = np.where(rng.random(drawn.shape) < 0.25, 0.5, 1.0) * drawn
    same = rng.random((rows, prompts)) < run.agreement[:, None]
    grades = np.where(same[..., None], grades[..., :1], grades)
    rewards = low + (high - low) * grades
    spread = rewards.std(axis=2, ddof=1) if answers > 1 else np.zeros((rows, prompts))
    centred = rewards - rewards.mean(axis=2, keepdims=True) if answers > 1 else rewards
    advantage = centred / (spread[..., None] + 1e-4) if answers > 1 else centred
    if "value_loss" in run.family.names:  # a critic
        centred = rewards - rewards.mean()
        advantage = (centred - centred.mean()) / (centred.std() + 1e-8)
    teaches = (spread > 0).any(axis=1) if answers > 1 else np.ones(rows, bool)
    row, outlier = _rare(run, 0.4, (10, 57))
    gradient = rng.uniform(*rates.gradient) * np.exp(_noise(run, rng.uniform(*rates.gradient_noise) * 0.7))
    gradient = np.where(teaches, gradient, 0.06 * gradient)
    gradient[row] *= outlier
    kl = rng.uniform(*rates.kl) * (1 - np.exp(-np.arange(rows) / (0.06 * rows)))
    kl = kl * np.exp(_noise(run, 0.3, 0.3))
    kl[row] *= max(outlier / 2, 1)
    cap = int(rng.choice([256, 512]))
    length = np.minimum(rng.uniform(*rates.length), 0.7 * cap) * run.factor("lengths")
    length = (1 - run.truncated) * length + run.truncated * cap
    relative = rng.uniform(*rates.length_noise) * np.where(run.truncated > 0.9, 0.02, 1)
    length = np.minimum(length * np.exp(relative * _noise(run, 1, 0.3)), cap)
    count = prompts * answers
    cut = rng.binomial(count, np.clip(run.truncated, 0, 1), rows) / count
    stall, stalls = _rare(run, 0.2, (9, 100))
    seconds = rng.uniform(*rates.seconds) * np.exp(_noise(run, 0.06, 0.3)) * run.factor("slower")
    seconds[stall] *= stalls
    explained = _explained(run, 0.6)
    loss = 0.04 * kl + _noise(run, 0.01)
    reward = rewards.mean(axis=(1, 2))
    return {
        "reward": reward, "reward_term": reward, "reward_return": reward - 0.02 * kl,
        "reward_kl": reward - 0.02 * kl, "reward_std": spread.mean(axis=1),
        "dead": (spread == 0).mean(axis=1),
        "reward_max": rewards.max(axis=(1, 2)), "reward_min": rewards.min(axis=(1, 2)),
        "advantage": advantage.mean(axis=(1, 2)), "advantage_max": advantage.max(axis=(1, 2)),
        "advantage_min": advantage.min(axis=(1, 2)),
        "advantage_std": np.where(teaches, 0.92 + _noise(run, 0.01), 0.0),
        "loss": loss, "gradient": gradient, "rate": _rate(run), "kl": kl,
        "entropy": np.maximum(run.entropy * np.exp(_noise(run, 0.1, 0.5)), 0), "length": length,
        "length_max": np.minimum(length * 1.3, cap), "total_length": length + 120, "truncated": cut,
        "clip": np.abs(_noise(run, 0.004)), "policy_kl": np.abs(_noise(run, 0.002)), "seconds": seconds,
        "throughput": count * length / seconds, "memory": 32 + _noise(run, 0.5),
        "device_memory": np.full(rows, 67.9), "tokens": np.cumsum(count * length),
        "epoch": np.arange(1, rows + 1) / 1869, "explained": explained,
        "value_loss": 0.2 * np.exp(_noise(run, 0.3)), "values": reward + _noise(run, 0.05),
        "value_gradient": 2 * np.exp(_noise(run, 0.4)),
    }  # fmt: skip


def _episodes(run: Course) -> dict[str, Floats]:
    rates, rng, rows = run.family.rates, run.rng, run.rows
    assert isinstance(rates, Episodes)
    start, gain, fresh = rng.uniform(*rates.start), rng.uniform(*rates.gain), int(rng.choice(rates.fresh))
    # A point is a mean over the last episodes, of which a row adds a few.
    skill = np.repeat(run.skill, fresh)
    played = (
        start
        + gain * skill
        + gain * rng.uniform(*rates.spread) * run.factor("varies").repeat(fresh) * rng.normal(size=len(skill))
    )
    sums = np.concatenate([[0.0], np.cumsum(played)])
    ends = np.arange(fresh, len(played) + 1, fresh)
    begins = np.maximum(ends - max(rates.window, fresh if rates.window > 1 else 1), 0)
    returns = (sums[ends] - sums[begins]) / (ends - begins)
    entropy = run.entropy * np.exp(_noise(run, 0.04, 0.9))
    explained = _explained(run, rng.uniform(*rates.explained))
    value_loss = (gain * rng.uniform(*rates.value_error)) ** 2 * (0.6 + 0.4 * run.skill)
    value_loss = value_loss * np.exp(_noise(run, 0.35))
    per_row = fresh * 60
    speed = rng.uniform(*rates.speed) / run.factor("slower")
    elapsed = np.cumsum(per_row / speed) + (1 + np.minimum(np.arange(rows) / rows, 0.1) * 20)
    timesteps = per_row * np.arange(1, rows + 1)
    lengths = rng.uniform(50, 130) * (1 + 0.6 * run.skill) * np.exp(_noise(run, 0.02, 0.95))
    off_policy = "exploration" in run.family.names
    return {
        "return": returns, "episode_length": lengths, "iterations": np.arange(1, rows + 1),
        "elapsed": elapsed, "timesteps": timesteps, "fps": np.round(timesteps / elapsed), "rate": _rate(run),
        "updates": 10.0 * np.arange(rows),
        "loss": (1 if off_policy else 0.4) * value_loss * np.exp(_noise(run, 0.5)),
        "value_loss": value_loss, "explained": explained, "entropy": entropy, "entropy_loss": -entropy,
        "clip": np.clip(0.1 + _noise(run, 0.04, 0.4), 0, 1), "policy_kl": 0.008 * np.exp(_noise(run, 0.5)),
        "policy_loss": -0.003 + _noise(run, 0.003), "clip_range": np.full(rows, 0.2),
        "exploration": np.maximum(1 - np.arange(rows) / (0.1 * rows), 0.05),
        "noise_std": np.maximum(entropy / 1.4, 1e-3),
        "value": start + gain * run.skill * 0.5 + _noise(run, 1),
    }  # fmt: skip
