"""The reward model on a real tiny decoder, with answers whose worth shows in their tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.config.loading import parse_recipe
from greenward.config.sections import RewardModelConfig, ShapeConfig
from greenward.diagnostics.calibration import measure_calibration
from greenward.grading.verdict import Status
from greenward.models.heads import RewardHead, answer_features
from greenward.models.policy import Policy
from greenward.runs.directory import PredictionsFile
from greenward.runs.reading import read_predictions
from greenward.training.reward_model import OnlineRecalibration, RewardModel, RewardModelCallback
from learning import judged_episode, make_turn

FAST = RewardModelConfig(learning_rate=3e-3, buffer=512, batch_size=64)
GOOD_TOKEN, BAD_TOKEN = 40, 41
STATUS = {True: Status.PASSED, False: Status.FAILED, None: Status.INFRASTRUCTURE}


def advance(model, steps):
    """Predictions and metrics of each step, as the callback would have them."""
    made, metrics = [], []
    for step in steps:
        made.append(model.predict(batch(step)))
        metrics.append(model.learn(step))
    return np.stack(made), metrics


@pytest.fixture(scope="module")
def trunk(tokenizer):
    shape = ShapeConfig(layers=2, hidden_size=32, heads=2, kv_heads=2, intermediate_size=48, max_positions=64)
    return Policy.random(shape, tokenizer, seed=0, device="cpu").frozen_copy()


def episode(rng, *, passed, good, group=0, reward=1.0):
    """`good` decides which token the answer begins with, `passed` how it was graded."""
    completion = rng.integers(50, 90, rng.integers(3, 9))
    completion[:2] = GOOD_TOKEN if good else BAD_TOKEN
    turn = make_turn(range(100 + group, 105 + group), completion)
    made = judged_episode((turn,), {"programmer": reward}, group, STATUS[passed])
    return replace(made, answer="code", reward_terms={"tests": reward})


def batch(seed, *, size=32, truth=lambda good, rng: good):
    rng = np.random.default_rng(seed)
    goods = rng.random(size) < 0.5
    return [
        episode(rng, passed=bool(truth(good, rng)), good=good, group=index // 4)
        for index, good in enumerate(goods)
    ]


def test_features_are_the_mean_and_the_last_of_each_answers_normalised_states():
    generator = torch.Generator().manual_seed(0)
    lengths, width = (3, 1, 4), 6
    states = [torch.randn(length, width, generator=generator) * 5 for length in lengths]
    mask = torch.arange(4)[None, :] < torch.tensor(lengths)[:, None]
    features = answer_features(torch.cat(states), mask)
    for row, own in zip(features, states, strict=True):
        normal = (own - own.mean(1, keepdim=True)) / (own.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(row, torch.cat((normal.mean(0), normal[-1])))


def test_predictions_do_not_depend_on_how_answers_are_batched(trunk):
    episodes = batch(0)
    whole, pieces = (RewardModel(trunk, FAST, seed=0, micro_batch_sequences=size) for size in (64, 3))
    for model in (whole, pieces):
        model.predict(episodes)
        model.learn(0)
    np.testing.assert_allclose(whole.predict(episodes), pieces.predict(episodes), atol=1e-4)


def test_the_head_learns_what_can_be_told_apart(trunk):
    last = []
    for seed in range(3):
        model = RewardModel(trunk, FAST, seed=seed)
        predictions, metrics = advance(model, range(1000 * seed, 1000 * seed + 40))
        assert predictions[0].tolist() == [0.5] * 32  # it knows nothing yet
        assert metrics[0]["reward_model/brier"] == 0.25
        last.append((metrics[-1]["reward_model/accuracy"], metrics[-1]["reward_model/brier"]))
    accuracy, brier = zip(*last, strict=True)
    assert np.median(accuracy) > 0.9 and min(accuracy) > 0.8
    assert np.median(brier) < 0.1 and max(brier) < 0.15


def test_an_outcome_cannot_influence_the_prediction_that_comes_before_it(trunk):
    def predictions(flipped_step):
        model, made = RewardModel(trunk, FAST, seed=0), []
        for step in range(4):
            episodes = batch(step)
            if step == flipped_step:
                episodes = batch(step, truth=lambda good, rng: not good)
            made.append(model.predict(episodes))
            model.learn(step)
        return made

    true, flipped = predictions(None), predictions(2)
    for step in range(3):
        np.testing.assert_array_equal(true[step], flipped[step])
    assert np.abs(true[3] - flipped[3]).max() > 1e-3


@pytest.mark.slow
def test_fresh_predictions_are_calibrated_although_labels_are_noisy_and_drift(trunk):
    scores = []
    for seed in range(3):
        model, predicted, passed = RewardModel(trunk, FAST, seed=seed), [], []
        for step in range(120):
            drift = step / 400
            episodes = batch(
                1000 * seed + step,
                truth=lambda good, rng, d=drift: rng.random() < (0.6 if good else 0.2) + d,
            )
            predicted.append(model.predict(episodes))
            passed.append([one.verdict.passed for one in episodes])
            model.learn(step)
        half = slice(60, None)
        calibration = measure_calibration(np.concatenate(predicted[half]), np.concatenate(passed[half]))
        scores.append(calibration.score)
    assert np.median(scores) >= 0.85 and min(scores) >= 0.8


def test_another_calibration_changes_predictions_and_nothing_that_is_learned(trunk):
    class Tripled(OnlineRecalibration):
        def correct(self, logits):
            return 3.0 * super().correct(logits)

    plain, scaled = RewardModel(trunk, FAST, seed=0), RewardModel(trunk, FAST, seed=0)
    scaled.calibration = Tripled(1024)
    for step in range(6):
        episodes = batch(step)
        before, after = plain.predict(episodes), scaled.predict(episodes)
        odds = (before / (1 - before)) ** 3
        np.testing.assert_allclose(after, odds / (1 + odds), atol=1e-9)
        assert plain.learn(step)["reward_model/loss"] == scaled.learn(step)["reward_model/loss"]


def test_a_resumed_model_goes_on_exactly(trunk, tmp_path):
    expected, _ = advance(RewardModel(trunk, FAST, seed=3), range(20))
    first = RewardModel(trunk, FAST, seed=3)
    advance(first, range(11))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = RewardModel(trunk, FAST, seed=3)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    np.testing.assert_array_equal(advance(second, range(11, 20))[0], expected[11:])


def test_the_buffer_keeps_the_newest_answers_only(trunk):
    model = RewardModel(trunk, FAST.model_copy(update={"buffer": 40}), seed=0)
    advance(model, range(3))
    assert len(model.state_dict()["passed"]) == len(model.state_dict()["features"]) == 40
    newest = [float(one.verdict.passed) for step in (1, 2) for one in batch(step)][-40:]
    assert model.state_dict()["passed"].tolist() == newest


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_weighted_prediction_enters_the_reward_and_the_record(trunk, tmp_path, weight):
    record = PredictionsFile(tmp_path / "predictions.jsonl")
    callback = RewardModelCallback(RewardModel(trunk, FAST, seed=0), record, weight=weight)
    for step in (1, 2):
        annotated = callback.on_episodes(batch(step - 1))
        metrics = {}
        callback.on_step_end(step, annotated, metrics)
    made = read_predictions(tmp_path)
    assert made.steps == (1,) * 32 + (2,) * 32
    assert made.passed == tuple(int(one.verdict.passed) for seed in (0, 1) for one in batch(seed))
    chances = [one.reward_terms["reward_model"] for one in annotated]
    assert list(made.predicted[32:]) == pytest.approx(chances, abs=1e-6)
    assert len(set(chances)) > 10
    assert [one.rewards["programmer"] for one in annotated] == [1.0 + weight * p for p in chances]
    outcomes = np.array(made.passed[32:])
    assert metrics["reward_model/brier"] == pytest.approx(np.mean((np.array(chances) - outcomes) ** 2))
    assert metrics["reward_model/accuracy"] == np.mean((np.array(chances) > 0.5) == outcomes)


def test_infrastructure_failures_are_left_out_of_everything_and_alone_leave_no_trace(trunk, tmp_path):
    rng = np.random.default_rng(0)
    failed = episode(rng, passed=None, good=True, reward=0.0)
    mixed = [*batch(0)[:5], failed, *batch(0)[5:]]
    alone, beside = (RewardModel(trunk, FAST, seed=0) for _ in range(2))
    callback = RewardModelCallback(beside, PredictionsFile(tmp_path / "predictions.jsonl"), weight=1.0)
    annotated = callback.on_episodes(mixed)
    assert annotated[5] is failed
    alone.predict(batch(0))
    metrics = {}
    callback.on_step_end(1, annotated, metrics)
    assert metrics == alone.learn(0)
    assert len(read_predictions(tmp_path).predicted) == 32
    np.testing.assert_array_equal(alone.predict(batch(1)), beside.predict(batch(1)))
    fresh = RewardModelCallback(
        RewardModel(trunk, FAST, seed=0), PredictionsFile(tmp_path / "none.jsonl"), weight=1.0
    )
    for nothing in ([failed], []):
        assert fresh.on_episodes(nothing) == nothing
        fresh.on_step_end(2, nothing, metrics := {})
        assert metrics == {} and not (tmp_path / "none.jsonl").exists()


def test_only_the_policys_turns_are_read_and_only_its_roles_get_the_term(trunk, tmp_path):
    alone = batch(0)
    opponent = replace(make_turn(range(5), [7, 8]), role="tester", player="opponent")
    together = [
        replace(one, turns=(*one.turns, opponent), rewards={**one.rewards, "tester": -1.0}) for one in alone
    ]
    model = RewardModel(trunk, FAST, seed=0)
    callback = RewardModelCallback(model, PredictionsFile(tmp_path / "predictions.jsonl"), weight=0.5)
    annotated = callback.on_episodes(together)
    chances = RewardModel(trunk, FAST, seed=0).predict(alone)
    assert [one.rewards for one in annotated] == [
        {"programmer": 1.0 + 0.5 * chance, "tester": -1.0} for chance in chances
    ]


def test_it_reads_models_of_transformers_as_well(published):
    policy = Policy.from_folder(published("gpt2"), device="cpu").frozen_copy()
    _, metrics = advance(RewardModel(policy, FAST, seed=0), range(25))
    assert metrics[-1]["reward_model/accuracy"] > 0.8


def test_recalibration_forgets_what_leaves_its_window():
    forgetful, fresh = OnlineRecalibration(50), OnlineRecalibration(50)
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(2, 50))
    forgetful.learn(old, (old < 0).astype(float))
    for recalibration in (forgetful, fresh):
        recalibration.learn(new, (new > 0.1).astype(float))
    assert (forgetful.slope, forgetful.intercept) == (fresh.slope, fresh.intercept)


def test_the_head_starts_undecided_and_alike_for_alike_seeds():
    heads = [RewardHead(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    features = torch.randn(5, 6)
    assert all(not head(features).any() for head in heads)
    weights = [head.hidden.weight for head in heads]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_section_is_off_by_default_and_refused_where_nothing_is_graded():
    assert parse_recipe("{}").reward_model is None
    assert parse_recipe("reward_model: {}").reward_model == RewardModelConfig()
    with pytest.raises(ConfigError, match=r"reward_model needs algorithm\.name: grpo or"):
        parse_recipe("{algorithm: sft, warm_start: {}, reward_model: {}}")
