from __future__ import annotations

import copy
import pickle
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from greenward.common.errors import EngineError, GreenwardError
from greenward.config.sections import ShapeConfig
from greenward.models.policy import Policy
from greenward.models.sampler import StopStrings, _Waiting, choose_tokens, row_keys, uniforms
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import SamplingParams, StopReason

PROMPTS = [[5, 6, 7], [9] * 12, [4, 8, 15, 16, 23, 42], [30, 31]]
SHAPE = ShapeConfig(layers=2, hidden_size=32, heads=4, kv_heads=2, intermediate_size=48, max_positions=64)


@pytest.fixture(scope="module", params=[4, 2], ids=["heads of 8", "heads of 16"])
def shape(request):
    """The compiled kernels take heads of 16 only."""
    return SHAPE.model_copy(update={"heads": request.param})


@pytest.fixture(scope="module")
def policy(tokenizer, shape):
    """A random policy whose completions end early about as often as not."""
    policy = Policy.random(shape, tokenizer, seed=1, device="cpu")
    with torch.no_grad():
        policy.model.embedding.mul_(8)
        policy.model.embedding[tokenizer.eos_id].mul_(4)
    return policy


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.stop_reason == other.stop_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def assert_logprobs_are_those_of(policy, groups, tolerance=1e-4):
    """Returns the policy's own log-probabilities (B, T), which have a gradient."""
    batch = GroupBatch.build(PROMPTS, [[c.token_ids for c in group] for group in groups])
    scores = policy.completion_logprobs(batch).logprobs_BT
    for row, completion in zip(scores.detach(), chain(*groups), strict=True):
        np.testing.assert_allclose(row[: len(completion.token_ids)], completion.logprobs, atol=tolerance)
    return scores


def test_completions_end_at_the_end_token_or_the_limit(policy, tokenizer):
    groups = policy.sample(PROMPTS, 8, SamplingParams(max_tokens=20), seed=0)
    reasons = set()
    for completion in (c for group in groups for c in group):
        reasons.add(completion.stop_reason)
        ends = np.flatnonzero(completion.token_ids == tokenizer.eos_id)
        if completion.stop_reason is StopReason.END:
            assert ends.tolist() == [len(completion.token_ids) - 1]
        else:
            assert not len(ends) and len(completion.token_ids) == 20
    assert reasons == {StopReason.END, StopReason.LENGTH}


def test_equal_answers_are_scored_as_if_apart(policy):
    """Each distinct first token is scored once; answers of one prompt in the batch, and one at a time."""
    answers = [[7], [3], [7], [7, 3], [7, 5, 7], [3]]
    weights = torch.arange(1.0, len(answers) + 1)

    def scored(groups):
        policy.model.zero_grad()
        scores = [
            policy.completion_logprobs(GroupBatch.build([PROMPTS[2]], [group]), entropy=True)
            for group in groups
        ]
        sums = torch.cat([one.logprobs_BT.sum(1) + one.entropy_BT.sum(1) for one in scores])
        (sums * weights).sum().backward()
        return sums.detach(), [parameter.grad.clone() for parameter in policy.parameters()]

    together, gradients = scored([answers])
    apart, expected = scored([[answer] for answer in answers])
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)
    for found, gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-3, rtol=1e-3)


def test_logprobs_after_finished_rows_left_are_those_of_the_policy(policy):
    groups = policy.sample(PROMPTS, 16, SamplingParams(max_tokens=30), seed=3)
    assert len({len(c.token_ids) for group in groups for c in group}) > 5
    assert_logprobs_are_those_of(policy, groups)


def test_a_completion_does_not_depend_on_the_rest_of_the_batch(policy):
    params = SamplingParams(max_tokens=20)
    together = policy.sample(PROMPTS, 6, params, seed=5)
    for prompt, group in zip(PROMPTS, together, strict=True):
        assert_same(policy.sample([prompt], 6, params, seed=5)[0], group)
        assert_same(policy.sample([prompt], 2, params, seed=5)[0], group[:2])
    shorter = policy.sample(PROMPTS, 6, SamplingParams(max_tokens=5), seed=5)
    for short, long in zip(chain(*shorter), chain(*together), strict=True):
        assert short.token_ids.tolist() == long.token_ids[:5].tolist()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_of_a_policy_that_has_sampled_draws_the_same_and_shares_nothing(policy, copied):
    params = SamplingParams(max_tokens=20)
    (expected,) = policy.sample(PROMPTS[:1], 4, params, seed=0)
    twin = copied(policy)
    assert_same(twin.sample(PROMPTS[:1], 4, params, seed=0)[0], expected)
    with torch.no_grad():
        twin.model.embedding.zero_()
    assert_same(policy.sample(PROMPTS[:1], 4, params, seed=0)[0], expected)


def test_what_prompts_begin_with_alike_is_computed_once(policy, monkeypatch):
    """As many tokens as the prompts have different beginnings, and answers as of each prompt alone."""
    generator = np.random.default_rng(0)
    params = SamplingParams(max_tokens=8)
    for _ in range(6):
        prompts = [generator.integers(3, 6, length).tolist() for length in generator.integers(1, 24, 12)]
        prompts += [prompts[0], prompts[1] + [7, 8], prompts[2][: len(prompts[2]) // 2 + 1]]
        computed, forward = [], policy.model.forward

        def counted(token_ids, *arguments, computed=computed, forward=forward):
            computed.append(len(token_ids))
            return forward(token_ids, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(policy.model, "forward", counted)
            together = policy.sample(prompts, 2, params, seed=5)
        beginnings = {tuple(prompt[: end + 1]) for prompt in prompts for end in range(len(prompt))}
        assert computed[0] == len(beginnings) < sum(map(len, prompts))
        for number, (prompt, group) in enumerate(zip(prompts, together, strict=True)):
            if prompts.index(prompt) == number:  # one that comes again gets other answers
                assert_same(policy.sample([prompt], 2, params, seed=5)[0], group)


def test_many_prompts_that_begin_alike_join_in_parts(policy, monkeypatch):
    monkeypatch.setattr("greenward.models.sampler.PREFILL_TOKENS", 16)
    prompts, params = [[5] * 12 + [n % 7 + 3, n + 3] for n in range(30)], SamplingParams(max_tokens=6)
    for prompt, group in zip(prompts, policy.sample(prompts, 2, params, seed=1), strict=True):
        assert_same(policy.sample([prompt], 2, params, seed=1)[0], group)


def test_as_many_prompts_join_as_have_so_many_distinct_beginnings():
    generator, most = np.random.default_rng(0), 40
    lengths = generator.integers(1, 30, 200)
    prompts = [generator.integers(3, 5, length).tolist() for length in lengths] + [[7] * 60]
    sizes = generator.integers(1, 4, len(prompts)).tolist()
    waiting, parts = _Waiting(prompts, sizes, 512, most), []
    while waiting:
        parts.append([n for n, _ in waiting.take(512)])
    assert sorted(chain(*parts)) == list(range(len(prompts)))

    def is_too_much(part):
        beginnings = {tuple(prompts[n][: end + 1]) for n in part for end in range(len(prompts[n]))}
        return len(beginnings) > most or sum(len(prompts[n]) for n in part) > 4 * most

    for part, following in pairwise(parts):
        assert len(part) == 1 or not is_too_much(part)
        assert is_too_much([*part, max(following, key=lambda n: len(prompts[n]))])


def test_seeds_and_repeated_prompts_give_other_completions(policy):
    params = SamplingParams(max_tokens=20)
    twice = policy.sample([PROMPTS[0], PROMPTS[0]], 2, params, seed=0)
    other_seed = policy.sample([PROMPTS[0]], 2, params, seed=1)
    texts = {tuple(c.token_ids) for group in (*twice, *other_seed) for c in group}
    assert len(texts) == 6


def test_draws_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(40000, -1)
    u = torch.from_numpy(uniforms(row_keys([[1]], [40000], [0])[0], 3)[:, 2])
    ids, logprobs = choose_tokens(logits, SamplingParams(temperature=0.5), u)
    expected = torch.softmax(logits[0] / 0.5, -1)
    found = torch.bincount(ids, minlength=4) / 40000
    assert (found - expected).abs().max() < 4 * (0.25 / 40000) ** 0.5
    torch.testing.assert_close(logprobs, expected.log()[ids])


def test_random_numbers_are_uniform_and_uncorrelated():
    u = uniforms(np.concatenate(row_keys([[1], [2]], [2000] * 2, [7] * 2)), 50)
    assert u.min() >= 0 and u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    chi_square = ((counts - 10000) ** 2 / 10000).sum()
    assert chi_square < 43.8  # 99.9 % quantile, 19 degrees of freedom
    for lagged in (u[:, :-1], u[:, 1:]), (u[:-1], u[1:]), (u[:2000], u[2000:]):
        a, b = (x.ravel() - 0.5 for x in lagged)
        assert abs((a * b).mean() * 12) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.6),
        SamplingParams(temperature=2.0, top_k=5, top_p=0.8),
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-6),
    ],
)
def test_filtered_draws_agree_with_the_filters_of_transformers(params):
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(64, 12, generator=torch.Generator().manual_seed(0)) * 2
    expected = logits / params.temperature
    if params.top_k:
        expected = processors.TopKLogitsWarper(params.top_k)(None, expected)
    if params.top_p < 1:
        expected = processors.TopPLogitsWarper(params.top_p)(None, expected)
    expected = torch.log_softmax(expected, -1)
    for u in np.linspace(0, 1 - 2**-23, 50, dtype=np.float32):
        ids, logprobs = choose_tokens(logits, params, torch.full((64,), float(u)))
        torch.testing.assert_close(logprobs, expected.gather(1, ids[:, None]).squeeze(1))
        assert torch.isfinite(logprobs).all()


def test_stop_strings_are_found_across_tokens_and_characters(tokenizer):
    text = "x = 'é∑'\n\ndef next(a):\n"
    for stop in ("\n\ndef", "é", "∑'\n", "next("):
        stops = StopStrings((stop, "never"), 1, tokenizer)
        ids = tokenizer.encode(text)
        completed = [stops.completed(0, token_id) for token_id in ids]
        first = completed.index(True)
        assert stop in tokenizer.decode(ids[: first + 1])
        assert stop not in tokenizer.decode(ids[:first])


def test_sampling_stops_at_a_stop_string_and_keeps_its_tokens(policy, tokenizer):
    plain = policy.sample(PROMPTS, 4, SamplingParams(max_tokens=20), seed=0)
    for n, group in enumerate(plain):
        for g, completion in enumerate(group):
            data = b"".join(tokenizer.token_bytes[i] for i in completion.token_ids)
            stop = next((chr(byte) for byte in data[len(data) // 2 :] if 32 < byte < 127), None)
            if stop is None:
                continue
            params = SamplingParams(max_tokens=20, stop_strings=(stop,))
            stopped = policy.sample(PROMPTS, 4, params, seed=0)[n][g]
            T = len(stopped.token_ids)
            assert stopped.stop_reason is StopReason.STOP_STRING
            assert stopped.token_ids.tolist() == completion.token_ids[:T].tolist()
            assert stop.encode() in tokenizer.token_bytes[stopped.token_ids[-1]]
            return
    pytest.fail("no completion held a printable character")


def test_a_prompt_without_room_is_refused(policy):
    with pytest.raises(GreenwardError, match=r"prompt 1 has 50 tokens; with max_tokens 20 .* 64 positions"):
        policy.sample([[3], [3] * 50], 1, SamplingParams(max_tokens=20), seed=0)
    with pytest.raises(GreenwardError, match="prompt 0"):
        policy.sample([[]], 1, SamplingParams(), seed=0)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=4),
        SamplingParams(max_tokens=4, temperature=0),
        SamplingParams(max_tokens=4, temperature=1e-42),
        SamplingParams(max_tokens=4, temperature=1e-320, top_k=3),
    ],
)
def test_logits_that_are_no_numbers_are_an_error_and_leave_nothing_behind(
    tokenizer, shape, monkeypatch, params, by_kernels
):
    if not by_kernels:
        monkeypatch.setattr("greenward.models.products.kernels", lambda: None)
    policy = Policy.random(shape, tokenizer, seed=1, device="cpu")
    plain = SamplingParams(max_tokens=6)
    expected = policy.sample(PROMPTS, 3, plain, seed=0)
    kept = [parameter.detach().clone() for parameter in policy.parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(float("nan") if params.temperature in (0, 1) else 1)
    with pytest.raises(EngineError, match="expected finite log-probabilities, found nan"):
        policy.sample(PROMPTS, 3, params, seed=0)
    with torch.no_grad():
        for parameter, before in zip(policy.parameters(), kept, strict=True):
            parameter.copy_(before)
    for one, other in zip(policy.sample(PROMPTS, 3, plain, seed=0), expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.1)])
def test_sampling_follows_the_weights_after_an_optimizer_step(tokenizer, shape, dtype, tolerance):
    policy = Policy.random(shape, tokenizer, seed=1, dtype=dtype, device="cpu")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, fused=True)
    params = SamplingParams(max_tokens=10)
    for seed in range(2):
        groups = policy.sample(PROMPTS, 2, params, seed=seed)
        assert_logprobs_are_those_of(policy, groups, tolerance).sum().backward()
        optimizer.step()


def test_tokens_are_handed_over_up_to_the_end_of_their_answer(policy, tokenizer):
    params = SamplingParams(max_tokens=20)
    ends = set()
    for seed in range(12):
        handed: list[list[int]] = []
        ((one,),) = policy.sample(PROMPTS[:1], 1, params, seed=seed, on_ids=handed.append)
        assert handed == [[token] for token in one.token_ids]
        ends.add(len(one.token_ids))
    assert len({end % 8 for end in ends if end < 20}) > 1
    handed = []
    groups = policy.sample(PROMPTS, 5, params, seed=1, on_ids=handed.append)
    tokens = np.concatenate([one.token_ids for group in groups for one in group])
    assert sorted(chain(*handed)) == sorted(tokens)


def test_the_highest_temperatures_draw_every_token_alike(policy, tokenizer):
    high, highest = (
        [one for group in policy.sample(PROMPTS, 3, SamplingParams(12, temperature), seed=0) for one in group]
        for temperature in (1e30, 1e300)
    )
    assert_same(high, highest)
    for one in highest:
        np.testing.assert_allclose(one.logprobs, -np.log(tokenizer.vocab_size), rtol=1e-5)


def test_groups_are_handed_over_as_they_end_and_a_bound_on_rows_changes_none(policy, monkeypatch):
    handed: dict[int, list] = {}
    params = SamplingParams(max_tokens=20)
    expected = policy.sample(PROMPTS, 5, params, seed=2)
    monkeypatch.setattr(policy, "max_rows", 3)
    groups = policy.sample(PROMPTS, 5, params, seed=2, on_group=handed.__setitem__)
    assert sorted(handed) == list(range(len(PROMPTS)))
    for n, group in handed.items():
        assert_same(groups[n], group)
        assert_same(groups[n], expected[n])


def test_group_sizes_and_seeds_may_differ_between_prompts(policy):
    params, sizes, seeds = SamplingParams(max_tokens=12), [70, 1, 2, 30], [5, 6, 5, 8]
    together = policy.sample(PROMPTS, sizes, params, seed=seeds)
    for prompt, size, seed, group in zip(PROMPTS, sizes, seeds, together, strict=True):
        assert len(group) == size
        assert_same(policy.sample([prompt], size, params, seed=seed)[0], group)
    assert_logprobs_are_those_of(policy, together)


def test_answers_are_not_mixed_with_those_of_a_later_call(policy):
    params = SamplingParams(max_tokens=20)
    expected = policy.sample(PROMPTS, 3, params, seed=0)
    iterator = policy.as_they_end(PROMPTS, 3, params, seed=0)
    (n, g), first = next(iterator)
    assert first.token_ids.tolist() == expected[n][g].token_ids.tolist()
    other = policy.sample(PROMPTS[:1], 3, params, seed=1)
    with pytest.raises(EngineError, match="others were begun"):
        list(iterator)
    assert_same(policy.sample(PROMPTS[:1], 3, params, seed=1)[0], other[0])


def test_an_iterator_that_goes_on_too_late_leaves_the_answers_of_the_later_one_alone(policy):
    params = SamplingParams(max_tokens=20)
    expected = policy.sample(PROMPTS, 9, params, seed=1)
    for taken in (1, 6):  # all of them
        earlier = policy.as_they_end(PROMPTS[:2], 3, params, seed=0)
        for _ in range(taken):
            next(earlier)
        later = policy.as_they_end(PROMPTS, 9, params, seed=1)
        found = dict([next(later)])
        if taken == 1:
            with pytest.raises(EngineError, match="others were begun"):
                list(earlier)
        else:
            assert list(earlier) == []
        found |= later
        for n, group in enumerate(expected):
            assert_same([found[n, g] for g in range(9)], group)


def test_nothing_is_sampled_for_no_prompts(policy):
    assert policy.sample([], 1, SamplingParams(), seed=0) == []


def test_small_groups_are_not_padded_to_the_largest():
    batch = GroupBatch.build([[1, 2], *([3, n] for n in range(20))], [[[5, 6]] * 512, *([[7, 8]],) * 20])
    places = sum(bucket.owns.rows for bucket in batch.buckets)
    assert places <= 2 * (512 + 20)


def test_a_policy_takes_over_weights_and_version_by_sync(policy, shape, tokenizer):
    other = Policy.random(shape, tokenizer, seed=9, device="cpu")
    params = SamplingParams(max_tokens=12)
    expected = policy.sample(PROMPTS, 2, params, seed=0)
    other.version = 1
    other.sync(policy)
    assert other.version == policy.version
    for mine, theirs in zip(expected, other.sample(PROMPTS, 2, params, seed=0), strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("failing_call", [1, 4, 8])
def test_sampling_that_runs_out_of_memory_goes_on_with_fewer_rows_and_the_same_answers(
    policy, monkeypatch, failing_call
):
    params = SamplingParams(max_tokens=20)
    expected = policy.sample(PROMPTS, 5, params, seed=2)
    calls = []

    def counted(method):
        def call(*arguments):
            calls.append(method)
            if len(calls) == failing_call:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return method(*arguments)

        return call

    for name in ("add", "draw"):
        monkeypatch.setattr(policy._decoding, name, counted(getattr(policy._decoding, name)))
    monkeypatch.setattr(policy, "max_rows", 6)
    handed = []
    with pytest.warns(UserWarning, match=r"now at most \d answers at once"):
        groups = policy.sample(PROMPTS, 5, params, seed=2, on_group=lambda n, _: handed.append(n))
    assert sorted(handed) == list(range(len(PROMPTS)))
    for ours, theirs in zip(groups, expected, strict=True):
        assert_same(ours, theirs)
