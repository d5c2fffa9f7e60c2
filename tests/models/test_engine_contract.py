"""What every rollout engine owes to the trainer, whoever samples: our decoder or vLLM in one of its forms."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from engines import MAX_POSITIONS, WITHOUT_VLLM, make_policy, running

from greenward.common.errors import GreenwardError
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams, StopReason

PROMPTS = [[5, 6, 7], [9] * 12, [4, 8, 15, 16, 23, 42], [30, 31]]
KINDS = [
    "native",
    "fake server",
    pytest.param("vllm", marks=WITHOUT_VLLM),
    pytest.param("vllm serve", marks=WITHOUT_VLLM),
]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tokenizer, tmp_path_factory):
    """An engine, and the policy whose weights it has."""
    policy = make_policy(tokenizer)
    with running(request.param, policy, tmp_path_factory.mktemp("engine")) as engine:
        yield engine, policy


def largest_difference(policy, groups, temperature: float = 1.0) -> float:
    """Between the reported log-probabilities and the policy's own."""
    batch = GroupBatch.build(PROMPTS, [[c.token_ids for c in group] for group in groups])
    with torch.no_grad():
        rows = policy.completion_logprobs(batch, temperature=temperature).logprobs_BT
    pairs = zip(rows.numpy(), chain(*groups), strict=True)
    return max(float(np.abs(row[: len(c.token_ids)] - c.logprobs).max()) for row, c in pairs)


def ids(groups) -> list[list[int]]:
    return [c.token_ids.tolist() for c in chain(*groups)]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_those_of_the_policy(both, temperature: float) -> None:
    engine, policy = both
    groups = engine.sample(PROMPTS, 6, SamplingParams(max_tokens=20, temperature=temperature), seed=3)
    assert largest_difference(policy, groups, temperature or 1.0) < 1e-3
    if temperature == 0:
        expected = policy.sample(PROMPTS, 1, SamplingParams(max_tokens=20, temperature=0.0), seed=0)
        assert [row[0].token_ids.tolist() for row in groups] == ids(expected)


def test_completions_end_at_the_end_token_or_the_limit(both) -> None:
    engine, policy = both
    reasons = set()
    for c in chain(*engine.sample(PROMPTS, 12, SamplingParams(max_tokens=20), seed=0)):
        reasons.add(c.stop_reason)
        ends = np.flatnonzero(c.token_ids == policy.tokenizer.eos_id)
        if c.stop_reason is StopReason.END:
            assert ends.tolist() == [len(c.token_ids) - 1]
        else:
            assert not len(ends) and len(c.token_ids) == 20
        assert c.policy_version == policy.version and len(c.logprobs) == len(c.token_ids)
    assert reasons == {StopReason.END, StopReason.LENGTH}


def test_the_tokens_that_are_told_while_answers_are_drawn_are_those_of_the_answers(both, monkeypatch) -> None:
    engine, _ = both
    told: list[int] = []
    monkeypatch.setattr(engine, "on_tokens", told.append)
    for temperature, drawn in ((1.0, 6), (0.0, 1)):  # vLLM draws equal answers once
        told.clear()
        groups = engine.sample(PROMPTS, 6, SamplingParams(max_tokens=20, temperature=temperature), seed=3)
        lengths = [[len(c.token_ids) for c in group] for group in groups]
        once = sum(sum(group[:drawn]) for group in lengths)
        assert sum(told) in (once, sum(map(sum, lengths))) and len(told) <= len(PROMPTS)


def test_more_prompt_tokens_than_one_forward_pass_takes_are_answered(both) -> None:
    engine, policy = both
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 60, MAX_POSITIONS - 4).tolist() for _ in range(12)]
    groups = engine.sample(prompts, 2, SamplingParams(max_tokens=3), seed=0)
    assert [len(group) for group in groups] == [2] * len(prompts)
    assert all(c.policy_version == policy.version for c in chain(*groups))


def test_narrowed_draws_carry_the_probability_that_they_were_drawn_with(both) -> None:
    """Of two tokens that are left, the probabilities add up to one."""
    engine, _ = both
    params = SamplingParams(max_tokens=1, temperature=2.0, top_k=2)
    (group,) = engine.sample([PROMPTS[0]], 60, params, seed=0)
    found = {int(c.token_ids[0]): float(np.exp(c.logprobs[0])) for c in group}
    assert len(found) == 2 and sum(found.values()) == pytest.approx(1.0, abs=1e-3)


def test_draws_follow_the_distribution_of_the_policy(both) -> None:
    engine, policy = both
    draws = 600  # in groups, since a server draws at most its max_num_seqs for one prompt
    params = SamplingParams(max_tokens=1, temperature=0.8)
    groups = engine.sample([PROMPTS[2]] * 12, draws // 12, params, seed=list(range(11, 23)))
    counts = np.bincount(
        [int(c.token_ids[0]) for group in groups for c in group], minlength=policy.tokenizer.vocab_size
    )
    batch = GroupBatch.build([PROMPTS[2]], [[np.array([i]) for i in range(len(counts))]])
    with torch.no_grad():
        probs = policy.completion_logprobs(batch, temperature=0.8).logprobs_BT.exp().flatten().numpy()
    expected = probs * draws
    often = expected >= 5
    pooled = [
        *zip(counts[often], expected[often], strict=True),
        (counts[~often].sum(), expected[~often].sum()),
    ]
    chi_square = sum((found - wanted) ** 2 / max(wanted, 1e-9) for found, wanted in pooled if wanted > 1)
    freedom = len(pooled)
    assert chi_square < freedom + 4.5 * (2 * freedom) ** 0.5


def test_group_sizes_seeds_and_repeated_prompts(both) -> None:
    engine, _ = both
    params = SamplingParams(max_tokens=20)
    groups = engine.sample([*PROMPTS, PROMPTS[0]], [3, 1, 2, 2, 3], params, seed=[5, 5, 6, 5, 5])
    assert list(map(len, groups)) == [3, 1, 2, 2, 3]
    other = engine.sample([PROMPTS[0]], 3, params, seed=6)
    assert len({tuple(c.token_ids) for c in (*groups[0], *groups[4], *other[0])}) == 9


def test_equal_seeds_give_equal_completions_where_the_engine_says_so(both) -> None:
    engine, _ = both
    params = SamplingParams(max_tokens=20)
    first, second = (engine.sample(PROMPTS, 4, params, seed=9) for _ in range(2))
    if engine.deterministic:
        assert ids(first) == ids(second)
    assert ids(first)[0][:1] == ids(second)[0][:1]  # rounding needs more tokens than one to matter


def test_an_answer_ends_with_the_tokens_that_complete_a_stop_string(both) -> None:
    engine, policy = both
    table = policy.tokenizer.token_bytes
    found = 0
    groups = engine.sample(PROMPTS, 8, SamplingParams(max_tokens=20, stop_strings=("e", "(")), seed=2)
    for c in chain(*groups):
        before = b"".join(table[i] for i in c.token_ids[:-1])
        stopped = c.stop_reason is StopReason.STOP_STRING
        assert stopped == any(stop in before + table[c.token_ids[-1]] for stop in (b"e", b"("))
        assert b"e" not in before and b"(" not in before and len(c.logprobs) == len(c.token_ids)
        found += stopped
    assert found > 3


def test_groups_are_handed_over_once_each(both) -> None:
    engine, _ = both
    handed: dict[int, list] = {}
    groups = engine.sample(PROMPTS, 3, SamplingParams(max_tokens=8), seed=1, on_group=handed.__setitem__)
    assert sorted(handed) == [0, 1, 2, 3] and all(
        ids([groups[n]]) == ids([group]) for n, group in handed.items()
    )
    assert engine.sample([], 1, SamplingParams(), seed=0) == []


def test_a_prompt_without_room_is_refused(both) -> None:
    engine, _ = both
    assert engine.max_positions == MAX_POSITIONS
    with pytest.raises(GreenwardError, match="prompt 1 has 50 tokens"):
        engine.sample([[3], [3] * 50], 1, SamplingParams(max_tokens=20), seed=0)


def test_samples_follow_new_weights_and_carry_their_version(both) -> None:
    """Two optimizer steps, each followed by a sync: the old weights are far off then. Last in this file."""
    engine, policy = both
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.05)
    for _ in range(2):
        before = engine.sample(PROMPTS, 4, SamplingParams(max_tokens=16, temperature=0.0), seed=4)
        batch = GroupBatch.build(PROMPTS, [[c.token_ids for c in group] for group in before])
        policy.completion_logprobs(batch).logprobs_BT.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert largest_difference(policy, before) > 0.05
        policy.version += 1
        engine.sync(policy)
        after = engine.sample(PROMPTS, 4, SamplingParams(max_tokens=16, temperature=0.0), seed=4)
        assert ids(after) != ids(before)
        assert largest_difference(policy, after) < 1e-3
        assert {c.policy_version for c in chain(*after)} == {policy.version}
