"""Estimates of KL(policy || reference) at sampled tokens, and the control of their coefficient.

With l = log p - log p_ref and tokens from the policy, Schulman's estimators
(joschu.net/blog/kl-approx.html) are

    k1 = l                     unbiased value, may be negative
    k2 = l^2 / 2               biased value, low variance
    k3 = exp(-l) - 1 + l       unbiased value, never negative

Differentiating k1 or k3 as they stand gives a wrong gradient, since the expectation also depends
on the policy through the sampling. Weighted by the importance ratio of the token r = p / p_old (whose
value is 1 on policy, but whose gradient is not 0) both get the gradient E[l * grad log p] of the KL of
the next-token distribution, on and off policy (DeepSeek-V3.2, arXiv 2512.02556, §3.1; TRL's
`use_bias_correction_kl`). k2 gets it when r is held constant; k2 and k3 then have the same gradient at
every token. The ratio of a whole sequence does not do: its gradient at one token is 1/T of the ratio's
own, so k1 would lose all but 1/T of its gradient.

The limits of this:

- The gradient is that of the KL at the prefixes in the batch. How an earlier token changes which
  prefixes are reached, and with them the KL of later tokens, has no part in it. A critic with the KL in
  its rewards accounts for that.
- Off policy, r corrects the choice of the token and not the frequency of its prefix, which stays that of
  the old policy.
- p_old is the trainer's. Where the sampler's probabilities differ, the KL term is not corrected for it.
- r is not bounded, so far off policy the variance is large, and k1 and k3 are unbiased only where the
  policy gives every token of the reference's support some probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from greenward.config.algorithm import KLConfig


def k1(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r l: may be negative at single tokens."""
    return importance_BT * log_ratio_BT


def k2(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r l^2 / 2, r held constant: the value is biased, the gradient is not."""
    return importance_BT.detach() * log_ratio_BT.square() / 2


def k3(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r (exp(-l) - 1 + l): never negative."""
    return importance_BT * ((-log_ratio_BT).exp() - 1 + log_ratio_BT)


KL_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3}
)


class KLControl:
    """The coefficient of the KL term or penalty: fixed, or steered to `target` nats per token.

    After a batch of n episodes with measured KL the coefficient is multiplied by
    1 + clip(KL / target - 1, ±0.2) * n / horizon (Ziegler et al. 2019, arXiv 1909.08593, section 2.2;
    there KL is per episode).
    """

    def __init__(self, config: KLConfig) -> None:
        self._config = config
        self.coefficient = config.coefficient

    def update(self, kl: float, *, episodes: int) -> None:
        """Learn the KL of the batch that the present coefficient was used on; NaN teaches nothing."""
        if self._config.target is None or math.isnan(kl):
            return
        error = min(max(kl / self._config.target - 1, -0.2), 0.2)
        self.coefficient *= 1 + error * episodes / self._config.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
