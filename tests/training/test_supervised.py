"""The order in which supervised training takes its examples."""

from __future__ import annotations

from collections import Counter

import pytest
from test_trainer import BigramPolicy

from greenward.config.sections import SupervisedConfig
from greenward.training import sft
from greenward.training.protocols import Example
from greenward.training.sft import SFTTrainer


@pytest.mark.parametrize(("together", "count"), [(1, 12), (2, 12), (3, 12), (2, 1), (12, 12), (40, 12)])
def test_examples_that_belong_together_follow_each_other(
    together: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def update(optimizer: object, batch: list[Example], rate: float) -> sft.SupervisedUpdate:
        taken.extend(example.prompt_ids[0] for example in batch)
        return sft.SupervisedUpdate(0.0, 0.0, 1, True)

    monkeypatch.setattr(sft.SupervisedOptimizer, "update", update)
    config = SupervisedConfig(batch_size=6, max_steps=20, keep_together=together)
    trainer = SFTTrainer(BigramPolicy(), [Example((n,), (1, 0)) for n in range(count)], config, seed=3)
    for step in range(20):
        trainer.train_step(step)
    size = min(together, count)
    units = [tuple(taken[at : at + size]) for at in range(0, len(taken), size)]
    assert set(units) == {tuple(range(at, at + size)) for at in range(0, count, size)}
    assert set(Counter(taken).values()) == {120 // count}  # every epoch takes each example once
    if size < count:
        assert units[: count // size] != units[count // size : 2 * (count // size)]  # in an order of its own
