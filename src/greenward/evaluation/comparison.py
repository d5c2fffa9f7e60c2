"""Two evaluations side by side, paired by problem: what changed, and whether chance explains it.

Differences are B's rate less A's, as fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from greenward.errors import RunError
from greenward.evaluation.significance import (
    ALPHA,
    detectable_mean_difference,
    detectable_rate_difference,
    mcnemar_exact,
    mcnemar_mid_p,
    sign_flip_p_value,
)
from greenward.evaluation.stored import StoredEvaluation
from greenward.intervals import Estimate, paired_difference, pass_at_k, rate

MCNEMAR, SIGN_FLIP = "exact McNemar", "paired randomisation"
# Settings that do not change the expected score.
_NO_INFLUENCE = frozenset({"model", "weights", "command", "seed", "workers", "out", "output", "device"})


@dataclass(frozen=True)
class PairedComparison:
    """What `compare` found. `a` and `b` are the pass@k on the `problems` that both answered.

    `test` is exact McNemar (`mid_p` beside it) for one answer per problem on both sides, else a paired
    randomisation test; intervals are those of `intervals`. `won` are the problems that only B solved, `lost`
    those that only A solved; a problem is solved if any answer passes. `detectable` is the least true
    difference that these problems show with power 80 % at alpha 5 %, None if there is none or nothing
    to estimate it from. `unpaired_a` and `unpaired_b` were evaluated on one side only; `too_few` have
    fewer than k answers on a side. `infrastructure` answers were lost and count as not passed.
    """

    name_a: str
    name_b: str
    k: int
    problems: int
    a: Estimate
    b: Estimate
    difference: Estimate
    test: str
    p_value: float
    mid_p: float | None
    detectable: float | None
    won: tuple[str, ...]
    lost: tuple[str, ...]
    unpaired_a: tuple[str, ...]
    unpaired_b: tuple[str, ...]
    too_few: tuple[str, ...]
    infrastructure: int
    other_settings: Mapping[str, tuple[Any, Any]]

    @property
    def significant(self) -> bool:
        """Whether p <= 5 %."""
        return self.p_value <= ALPHA

    @property
    def claim(self) -> str:
        """One sentence: both scores, the p-value, and what may be said."""
        if self.test == MCNEMAR:
            solved = (f"{round(side.value * self.problems)}/{self.problems}" for side in (self.a, self.b))
            scores = " → ".join(solved)
        else:
            scores = f"pass@{self.k} {self.a.value:.1%} → {self.b.value:.1%} on {self.problems} problems"
        if not self.significant:
            meaning = "cannot be told from chance"
        else:
            meaning = "B is better" if self.difference.value > 0 else "A is better"
        return f"{scores}: p = {self.p_value:.2g} ({self.test}); {meaning}"

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data, with `significant` and `claim`."""
        return {**asdict(self), "significant": self.significant, "claim": self.claim}


def compare(a: StoredEvaluation, b: StoredEvaluation, *, k: int = 1, seed: int = 0) -> PairedComparison:
    """Compares two evaluations on the problems that both answered.

    Raises `RunError` when they have no problem in common, or none with k answers on both sides.
    """
    common = [task_id for task_id in a.problems if task_id in b.problems]
    if not common:
        first = (f"{next(iter(one.problems))!r} …" if one.problems else "empty" for one in (a, b))
        raise RunError(
            f"{a.name} and {b.name} have no problem in common ({' and '.join(first)}).",
            remedy="Evaluate both on the same suite.",
        )
    answered = [i for i in common if min(a.problems[i].answers, b.problems[i].answers) >= k]
    if not answered:
        most_a, most_b = (max(one.problems[task_id].answers for task_id in common) for one in (a, b))
        raise RunError(
            f"pass@{k} needs {k} answers per problem; {a.name} has at most {most_a}, "
            f"{b.name} at most {most_b}.",
            remedy="Choose a smaller --k, or draw more answers.",
        )
    pairs = [(a.problems[task_id], b.problems[task_id]) for task_id in answered]
    won = tuple(i for i, (x, y) in zip(answered, pairs, strict=True) if y.passed and not x.passed)
    lost = tuple(i for i, (x, y) in zip(answered, pairs, strict=True) if x.passed and not y.passed)
    scores = [[pass_at_k(side.answers, side.passed, k) for side in pair] for pair in pairs]
    a_P, b_P = np.array(scores, dtype=float).T
    told = {"suite": (a.suite, b.suite)}
    told |= {name: (a.settings[name], b.settings[name]) for name in a.settings if name in b.settings}
    size = len(answered)
    mid_p = None
    if all(x.answers == y.answers == 1 for x, y in pairs):
        test, p_value = MCNEMAR, mcnemar_exact(len(won), len(lost))
        mid_p = mcnemar_mid_p(len(won), len(lost))
        detectable = detectable_rate_difference(size, (len(won) + len(lost)) / size)
    else:
        test, p_value = SIGN_FLIP, sign_flip_p_value(b_P - a_P, seed=seed)
        detectable = detectable_mean_difference(b_P - a_P)
    return PairedComparison(
        name_a=a.name,
        name_b=b.name,
        k=k,
        problems=size,
        a=rate(a_P),
        b=rate(b_P),
        difference=paired_difference(b_P - a_P),
        test=test,
        p_value=p_value,
        mid_p=mid_p,
        detectable=detectable,
        won=won,
        lost=lost,
        unpaired_a=tuple(i for i in a.problems if i not in b.problems),
        unpaired_b=tuple(i for i in b.problems if i not in a.problems),
        too_few=tuple(i for i in common if i not in set(answered)),
        infrastructure=sum(side.problems[i].infrastructure for side in (a, b) for i in common),
        other_settings={  # what one side does not tell is no difference
            name: (x, y)
            for name, (x, y) in told.items()
            if x != y and x is not None and y is not None and name not in _NO_INFLUENCE
        },
    )
