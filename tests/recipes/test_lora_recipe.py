"""Recipes that train an adapter: exact resumption, what is saved and kept in memory, what is refused."""

from __future__ import annotations

import json

import pytest

from greenward.common.errors import ConfigError
from greenward.config.loading import load_recipe
from greenward.models import lora as adapter
from greenward.models.policy import Policy
from greenward.recipes.run import check_needs, dry_run, train
from greenward.runs.reading import read_metrics
from greenward.training.loop import load_trainer_state
from nested_states import equal
from tiny_model import BUGS, DATA, ON_THE_STARTER, REINFORCED, TINY_MODEL

pytestmark = pytest.mark.usefixtures("kept_sandbox")

pytest.importorskip("peft")

LORA = "model.lora={r: 2, alpha: 4, dropout: 0.1}"
SHORT = ("evaluation.enabled=false", "training.checkpoint_interval_steps=1", "training.learning_rate=1e-2")
RUNS = {
    "grpo, renewed reference": (
        "quickstart",
        (*REINFORCED, "algorithm.kl.coefficient=0.1", "algorithm.kl.refresh_every=2"),
    ),
    "ppo, separate trunk, average": (
        "ppo_code_fix",
        (
            *REINFORCED,
            *BUGS,
            "reward_model=null",
            "algorithm.critic.trunk=separate",
            "training.weight_average=0.5",
        ),
    ),
    "rejection": ("rejection_sampling", REINFORCED),
}


def metrics(run):
    rows = read_metrics(run / "metrics.jsonl").rows
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        pytest.param(*run, id=kind, marks=[] if kind.startswith("grpo") else [pytest.mark.slow])
        for kind, run in RUNS.items()
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_and_saves_the_adapter(name, overrides, tmp_path):
    def run(folder, steps, **options):
        recipe = load_recipe(name, [*overrides, *SHORT, LORA, f"training.max_steps={steps}"])
        assert train(recipe, tmp_path / folder, quiet=True, **options)
        return tmp_path / folder

    whole, cut = run("whole", 3), run("cut", 1)
    run("cut", 3, resume=True)
    assert metrics(whole) == metrics(cut) and len(metrics(whole)) == 3
    last = whole / "checkpoints" / "last"
    states = [load_trainer_state(one / "checkpoints" / "last") for one in (whole, cut)]
    for state in states:
        for measured in ("training_seconds", "wall_seconds"):
            del state[measured]
        for watching in ("signal", "monitor"):  # hold metrics, some of them times
            state["callbacks"].pop(watching, None)
    assert equal(*states)
    trained = states[0]["weights"]
    assert trained.pop("frozen_checksum") > 0
    assert trained and all(".lora_" in key for key in trained)
    assert any(tensor.any() for key, tensor in trained.items() if "lora_B" in key), "it has learnt"
    critic = [key for key in states[0]["trainer"].get("critic", {}) if key.startswith("trunk")]
    assert all(".lora_" in key for key in critic) and bool(critic) == name.startswith("ppo")
    moments = states[0]["trainer"]["optimizer"]["state"]
    heads = 2 if critic else 0
    assert len(moments) == len(trained) + len(critic) + heads
    config = json.loads((last / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(DATA / "starter") and config["r"] == 2
    before, merged = (
        dict(Policy.from_folder(one).model.named_parameters()) for one in (DATA / "starter", last)
    )
    assert any((before[name] != merged[name]).any() for name in before)


def test_a_warm_start_from_random_weights_trains_all_of_them_and_is_the_base(tmp_path):
    shape = [
        *TINY_MODEL,
        "warm_start.max_steps=2",
        "warm_start.batch_size=4",
        "problems.families.limit=60",
        *ON_THE_STARTER[4:],
    ]
    steps = ["training.max_steps=1", "training.prompts_per_step=2", "training.num_generations=4"]
    sizes = [
        "training.micro_batch_sequences=8",
        "algorithm.entropy_coefficient=0.01",
        "algorithm.minibatches=1",
    ]
    recipe = load_recipe("quickstart", [*shape, *steps, *sizes, *SHORT, LORA])
    assert train(recipe, tmp_path, quiet=True)
    warm = tmp_path / "warm_start" / "checkpoints" / "last"
    assert not (warm / "adapter").exists()
    config = json.loads((tmp_path / "checkpoints" / "last" / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(warm.resolve())
    assert len(load_trainer_state(tmp_path / "checkpoints" / "last")["weights"]) == 14 + 1


@pytest.mark.slow
def test_opponents_of_a_league_are_adapters(tmp_path):
    recipe = load_recipe(
        "kuhn_self_play",
        [
            *TINY_MODEL,
            "warm_start={max_steps: 2, batch_size: 8}",
            "training={max_steps: 3, prompts_per_step: 4, num_generations: 2, micro_batch_sequences: 8, threads: 1}",
            "self_play.opponents={self: 1, league: 1}",
            "self_play.league.snapshot_every=1",
            "evaluation.enabled=false",
            "model.dtype=float32",
            LORA,
        ],
    )
    assert train(recipe, tmp_path, quiet=True)
    league = load_trainer_state(tmp_path / "checkpoints" / "last")["callbacks"]["league"]
    assert len(league["weights"]) >= 3
    keys = {key for weights in league["weights"].values() for key in weights}
    assert all(".lora_" in key for key in keys - {"frozen_checksum"})


def test_a_dry_run_shows_the_memory_of_an_adapter_beside_that_of_all_weights(capsys):
    dry_run(load_recipe("quickstart", [*REINFORCED, "model.lora={r: 2}"]))
    line = next(line for line in capsys.readouterr().out.splitlines() if "frozen parameters" in line)
    policy = Policy.from_folder(DATA / "starter")
    frozen = sum(parameter.numel() for parameter in policy.parameters())
    policy.add_adapter(load_recipe("quickstart", [*REINFORCED, "model.lora={r: 2}"]).model.lora, seed=0)
    trained = sum(parameter.numel() for parameter in policy.parameters()) - frozen
    assert line.startswith(f"# {frozen:,} frozen parameters and {trained:,} of the adapter")


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("quickstart", ["warm_start=null"], "set model.id, or give a warm_start"),
        ("sft", [], "there is none: set model.id"),
        ("quickstart", ["model.lora.r=0"], "model.lora.r"),
        ("quickstart", ["model.lora.rank=4"], "rank"),
        ("quickstart", ["model.lora.target_modules=[]"], "target_modules"),
        ("quickstart", ["model.lora.target_modules=[query]"], "It has q_proj, k_proj, v_proj, o_proj"),
        ("quickstart", ["model.lora.quantize=4bit"], "model.lora.quantize"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused_before_anything_is_loaded(name, overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        check_needs(load_recipe(name, ["model.lora={}", *overrides]))
    assert message in str(error.value)


def test_without_peft_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'greenward\[peft\]'"):
        check_needs(load_recipe("quickstart", ["model.lora={}"]))


@pytest.mark.parametrize(
    ("overrides", "training", "warm_start"),
    [
        (["model=owner/name", "pretrained=null"], 1e-6, 2e-5),
        (["model=owner/name", "pretrained=null", "model.lora={}"], 1e-5, 2e-4),
        (["model.lora={}"], 2.5e-3, 3e-3),
    ],
)
def test_default_learning_rates_of_an_adapter_are_ten_times_larger(overrides, training, warm_start, tmp_path):
    (tmp_path / "recipe.yaml").write_text("warm_start: {}\n")
    recipe = load_recipe(tmp_path / "recipe.yaml", overrides)
    assert recipe.training.learning_rate == pytest.approx(training)
    assert recipe.warm_start.learning_rate == pytest.approx(warm_start)


@pytest.mark.parametrize(("lora", "rate"), [("null", 1e-6), ("{}", 1e-5)])
def test_shipped_recipes_leave_the_rate_to_what_is_trained(lora, rate):
    recipe = load_recipe("quickstart", ["model=owner/name", f"model.lora={lora}"])
    assert recipe.training.learning_rate == pytest.approx(rate)
