"""Configurations of the original systems become recipes that load, and every key is accounted for."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from click.testing import CliRunner

import originals_retyped as originals
from greenward.cli.main import cli
from greenward.common.errors import ConfigError
from greenward.common.parsing import MAX_NESTING
from greenward.config.importing import import_config, is_original
from greenward.config.loading import all_recipes, field_at, key_path, load_recipe
from greenward.config.originals import DATASETS, MODELS, ORIGINALS, counterpart

FILES = {
    "GRPO_CODE_EXECUTION": "grpo_code_execution",
    "GRPO_SHORT": "grpo_code_execution",
    "GRPO_CODE_GAME": "grpo_code_game",
    "SPIRAL_SELF_PLAY": "spiral_self_play",
    "SPIRAL_CODE_GAME": "grpo_code_game",
    "DQN": "dqn_code_generation",
    "RLDK": "ppo_code_fix",
    "MBPP_EVALUATION": "grpo_code_execution",
}


def written(folder, name, text):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def tree(tmp_path):
    """hydra's tree of CodeRepairRL."""
    for name, text in originals.CODE_REPAIR.items():
        written(tmp_path / "conf", name, text)
    return tmp_path / "conf"


def leaf_keys(data, above=""):
    for key, value in data.items():
        if isinstance(value, dict) and value:
            yield from leaf_keys(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def recipe_of(folder, imported):
    return load_recipe(written(folder, "recipe.yaml", imported.text))


@pytest.mark.parametrize("name", FILES)
def test_the_recipe_of_each_file_loads_and_every_key_is_accounted_for(tmp_path, name):
    text = getattr(originals, name)
    file = written(tmp_path, "theirs.yaml", text)
    assert is_original(file)
    imported = import_config(file)
    assert imported.recipe == FILES[name]
    recipe_of(tmp_path, imported)
    keys = set(leaf_keys(yaml.safe_load(text)))
    named = {one.theirs for one in imported.fates}
    assert {key if key in named else f"evaluation.{key}" for key in keys} == named
    for one in imported.fates:
        assert (one.fate == "without counterpart") == bool(one.why) == (not one.ours)
        assert "not a key" not in one.why


def test_the_values_of_a_dqn_are_those_of_the_file_in_our_units(tmp_path):
    recipe = recipe_of(tmp_path, import_config(written(tmp_path, "a.yaml", originals.DQN)))
    theirs = yaml.safe_load(originals.DQN)
    agent, training = theirs["agent"], theirs["training"]
    assert recipe.training.num_episodes == training["num_episodes"] and recipe.seed == theirs["seed"]
    for key in ("learning_rate", "gamma", "epsilon_decay", "buffer_capacity", "batch_size", "hidden_dim"):
        assert getattr(recipe.algorithm, key) == agent[key]
    assert recipe.algorithm.learning_starts == agent["min_buffer_size"]
    # The original updates after each of the 50 tokens of an episode, and its target every 10 episodes.
    assert recipe.algorithm.target_update_interval == 10 * 50
    rounds = recipe.training.episodes_per_step
    assert recipe.evaluation.eval_interval_steps * rounds == training["eval_frequency"]
    assert recipe.training.checkpoint_interval_steps * rounds == training["save_frequency"]
    assert recipe.training.max_seconds is None  # no preset ends it before its episodes
    assert recipe.environment.vocab_size == 5000
    assert (recipe.problems.train, recipe.problems.held_out) == ("classic_training", "classic_evaluation")


def test_the_values_of_grpo_are_those_of_the_file(tmp_path):
    recipe = recipe_of(tmp_path, import_config(written(tmp_path, "a.yaml", originals.GRPO_SHORT)))
    assert recipe.model.id == "Qwen/Qwen2.5-1.5B" and recipe.model.cache_dir == "./model_cache"
    assert recipe.training.learning_rate == 2e-5 and recipe.training.max_steps == 90
    assert recipe.training.num_generations == 2 and recipe.training.prompts_per_step == 8 // 2
    assert recipe.warm_start is None and recipe.sampling.max_tokens == 512  # those of a pretrained model
    suite = recipe.evaluation.suites[0]
    assert (suite.name, suite.num_questions, suite.temperature, suite.timeout_seconds) == (
        "mbpp:test", 5, 0.2, 10,
    )  # fmt: skip
    assert recipe.evaluation.eval_interval_steps == 20 and recipe.evaluation.at_start


def test_batches_count_answers_of_accumulated_steps(tmp_path):
    text = originals.GRPO_CODE_EXECUTION.replace("num_generations: 2", "num_generations: 4")
    recipe = recipe_of(tmp_path, import_config(written(tmp_path, "a.yaml", text)))
    assert recipe.training.prompts_per_step * recipe.training.num_generations == 8 * 2
    assert recipe.training.micro_batch_sequences == 8
    assert recipe.model.lora.r == 16 and recipe.model.lora.alpha == 32
    assert recipe.evaluation.suites[0].name == "mbpp-sanitized:test"


def test_a_7b_model_of_code_fix_is_named_by_its_size(tmp_path):
    recipe = recipe_of(tmp_path, import_config(written(tmp_path, "config.yaml", originals.RLDK)))
    assert recipe.model.id == MODELS["7b"] and recipe.problems.train == DATASETS["code_bugs"]
    assert recipe.training.learning_rate == 1e-5 and recipe.training.max_grad_norm == 1.0
    assert recipe.algorithm.name == "ppo" and recipe.seed == 42


@pytest.mark.parametrize(
    ("file", "recipe", "loss", "calls"),
    [
        (".", "grpo_agent_repair", "gspo", 20),
        ("sft_config.yaml", "sft", None, None),
        ("grpo/multi_turn_gspo.yaml", "grpo_agent_repair", "gspo", None),
    ],
)
def test_a_tree_of_hydra_is_composed(tree, tmp_path, file, recipe, loss, calls):
    imported = import_config(tree / file)
    assert imported.recipe == recipe
    found = recipe_of(tmp_path, imported)
    if loss is not None:
        # Values of multi_turn_gspo over multi_turn over single_turn.
        assert found.algorithm.loss == loss and found.training.num_generations == 8
        assert found.training.prompts_per_step == 4 * 4 // 8 and found.training.max_grad_norm == 0.1
        assert found.algorithm.clip_low == found.algorithm.clip_high == 3e-4
        assert found.algorithm.kl.coefficient == 0.0 and found.algorithm.advantage == "grpo"
    else:
        assert found.warm_start.learning_rate == 2e-5 and found.warm_start.batch_size == 2 * 4
    if file != "grpo/multi_turn_gspo.yaml":
        assert found.model.id == "Qwen/Qwen3-1.7B" and found.model.lora.r == 32
    if calls is not None:
        assert found.tools.max_calls == calls and found.tools.max_tokens == 8192


@pytest.mark.parametrize(
    ("task", "recipe"),
    [
        ("repair", "grpo_code_repair"),
        ("detection", "grpo_vulnerability"),
        ("repo_repair", "grpo_agent_repair"),
    ],
)
def test_the_task_of_a_tree_chooses_the_recipe(tree, task, recipe):
    config = tree / "grpo_config.yaml"
    config.write_text(
        config.read_text()
        .replace("run: repo_repair", f"run: {task}")
        .replace("multi_turn_gspo", "single_turn")
    )
    assert import_config(tree).recipe == recipe


def test_every_key_of_every_table_exists_here():
    """A row that sets a key that no recipe has would be refused only when somebody uses it."""
    for original in ORIGINALS:
        for rows in original.keys.values():
            for row in rows:
                ours = row.ours or "seed"
                known = any(field_at(made, key_path(ours)) is not None for made in all_recipes().values())
                assert known or ours.startswith("rollouts.vllm.options."), ours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "expected keys and values"),
        ("a: 1\n", "not the configuration of a system that is known"),
        ("training_args: {learning_rate: fast}\n", "line 1: training_args.learning_rate: expected a number"),
        ("training_args:\n  max_steps: 2.5\n", "line 2: training_args.max_steps: expected a whole number"),
        ("training_args: {num_generations: -3}\n", "expected a whole number of at least 1, found -3"),
        ("training_args: {per_device_train_batch_size: 8, num_generations: []}\n", "found []"),
        ("agent: {gamma: true}\n", "agent.gamma: expected a number"),
        ("agent: {gamma: .nan}\n", "agent.gamma: expected a number"),
        ("agent: {gamma: {x: 1}}\nagent.gamma: 1\ndata: {problems_file: 7}\n", "expected a text, found 7"),
        ("agent: {gamma: 7}\n", "algorithm.gamma"),
        (f"agent: {{gamma: 0.9, learning_rate: {10**400}}}\n", "agent.learning_rate: expected a number"),
        ("agent: {gamma: 1.0e-400, learning_rate: 1.0e+400}\n", "agent.learning_rate: expected a number"),
        ("agent: {gamma: 2020-01-01}\n", "agent.gamma: expected a number"),
        ("training_args: {max_steps: 5\n", "not valid YAML"),
        ("training_args: &a {learning_rate: 1, more: *a}\n", "not valid YAML"),
        ("training_args: " + "{a: " * (MAX_NESTING + 5) + "1" + "}" * (MAX_NESTING + 5), "levels deep"),
        ("training_args: {learning_rate: 1.0e-5}\n" + "#" * (5 << 20), ""),
    ],
)  # fmt: skip
def test_a_hostile_file_gets_a_clear_error(tmp_path, text, message):
    with pytest.raises(ConfigError, match=None) as error:
        import_config(written(tmp_path, "theirs.yaml", text))
    assert message in str(error.value)


def test_a_key_that_is_not_known_is_listed_and_left_out(tmp_path):
    text = originals.GRPO_SHORT.replace("max_steps: 90", "max_steps: 90, learning_rat: 3, made_up: {x: 1}")
    fates = {one.theirs: one for one in import_config(written(tmp_path, "a.yaml", text)).fates}
    assert "meant: training_args.learning_rate?" in fates["training_args.learning_rat"].why
    assert fates["training_args.made_up.x"].fate == "without counterpart"


@pytest.mark.parametrize(
    "defaults",
    [
        "[grpo_config]",
        "[run: ../../outside]",
        "[run: /etc/passwd]",
        "[run: [repair]]",
        "{run: repair}",
        "[7]",
    ],
)
def test_files_of_a_tree_lie_below_it_and_end(tree, defaults):
    (tree / "grpo_config.yaml").write_text(f"defaults: {defaults}\ngrpo: {{learning_rate: 1}}\n")
    (tree.parent / "outside.yaml").write_text("task_type: repair\n")
    with pytest.raises(ConfigError):
        import_config(tree)


def test_a_tree_that_fans_out_ends(tree):
    for level in range(20):  # 2 to the power of 20 files to read, if each were read as often as it is named
        (tree / f"level{level}.yaml").write_text(f"defaults: [level{level + 1}, level{level + 1}]\n")
    (tree / "level20.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match="more than 50 files"):
        import_config(tree / "level0.yaml")


def test_values_of_any_type_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = originals.GRPO_SHORT + "made_up: {day: 2020-01-01, set: !!set {a}, data: !!binary aGk=}\n"
    for options in ([], ["--json", "--output", "b.yaml"]):
        done = CliRunner().invoke(cli, ["import", str(written(tmp_path, "theirs.yaml", text)), *options])
        assert done.exit_code == 0, done.output
        assert "made_up.day" in done.output and "2020-01-01" in done.output


def test_a_recipe_of_our_own_is_none_of_theirs(tmp_path):
    assert not is_original("quickstart") and not is_original(tmp_path / "absent.yaml")
    assert not is_original(written(tmp_path, "a.yaml", "task: functions\nmodel: {id: x}\n"))
    assert not is_original(written(tmp_path, "b.yaml", "extends: quickstart\nseed: 3\n"))


def test_import_writes_a_recipe_and_prints_what_became_of_the_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = originals.DQN.replace("vocab_size: 5000", "vocab_size: 64")
    theirs = written(tmp_path, "train_config.yaml", text)
    done = CliRunner().invoke(cli, ["import", str(theirs)])
    assert done.exit_code == 0, done.output
    assert "token-by-token DQN: becomes the recipe dqn_code_generation" in done.output
    lines = [line.split(None, 2) for line in done.output.splitlines()]
    assert ["agent.min_buffer_size", "1000", "algorithm.learning_starts=1000"] in lines
    assert ["environment.max_steps", "50", "the same"] in lines
    assert any(line[0] == "agent.state_dim" and "follows from" in line[2] for line in lines if len(line) == 3)
    again = CliRunner().invoke(cli, ["import", str(theirs)])
    assert again.exit_code != 0 and "exists already" in str(again.exception)
    load_recipe("dqn_code_generation_imported.yaml")


@pytest.mark.slow
def test_a_recipe_that_import_writes_passes_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = originals.DQN.replace("vocab_size: 5000", "vocab_size: 64")
    CliRunner().invoke(cli, ["import", str(written(tmp_path, "train_config.yaml", text))])
    check = ["config", "check", "dqn_code_generation_imported.yaml", "problems.compositions=20"]
    checked = CliRunner().invoke(cli, check)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("given", [["--config", "FILE"], ["FILE"]])
@pytest.mark.parametrize(
    ("text", "options", "section", "key", "value"),
    [
        (originals.DQN, ["--num_episodes", "50"], "training", "num_episodes", 50),
        (originals.DQN, ["--num-episodes", "50"], "training", "num_episodes", 50),
        (originals.GRPO_SHORT, ["--learning_rate", "1e-3"], "training", "learning_rate", 1e-3),
        (originals.GRPO_SHORT, ["training.max_steps=7"], "training", "max_steps", 7),
    ],
)
def test_train_takes_a_file_of_theirs_and_options_by_their_names(
    tmp_path, monkeypatch, given, text, options, section, key, value
):
    asked = []

    def train(recipe, overrides, **how):
        asked.append(load_recipe(recipe, overrides))
        return dataclasses.make_dataclass("Result", ["finished"])(True)

    monkeypatch.setattr("greenward.api.train", train)
    file = str(written(tmp_path, "theirs.yaml", text))
    done = CliRunner().invoke(cli, ["train", *(file if one == "FILE" else one for one in given), *options])
    assert done.exit_code == 0, done.output
    assert getattr(getattr(asked[0], section), key) == value
    assert "renamed" in done.output and "without counterpart" in done.output


def test_train_without_a_recipe_says_what_is_missing():
    done = CliRunner().invoke(cli, ["train"])
    assert done.exit_code == 2 and "name a recipe: CONFIG, or --config FILE" in done.output


@pytest.mark.parametrize("option", ["--learning_rate", "--learning-rate"])
def test_launch_takes_both_spellings(monkeypatch, option):
    asked = []
    monkeypatch.setattr("greenward.hardware.launch.launch", asked.append)
    monkeypatch.setattr("greenward.recipes.run.check_needs", asked.append)
    arguments = ["launch", "quickstart", "--processes", "2", option, "3e-4"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert asked[0].training.learning_rate == 3e-4


def test_links_in_a_circle_and_names_of_no_file_are_refused(tmp_path):
    (tmp_path / "circle.yaml").symlink_to("circle.yaml")
    (tmp_path / "leads.yaml").write_text("defaults: [circle]\n")
    (tmp_path / "nul.yaml").write_text('defaults: ["a\\0b"]\n')
    (tmp_path / "group.yaml").write_text('defaults: [{model: "a\\0b"}]\n')
    for name in ("circle", "leads", "nul", "group"):
        with pytest.raises(ConfigError, match=r"symbolic links|names of files"):
            import_config(tmp_path / f"{name}.yaml")


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        (
            "grpo_code_execution",
            "training_args.max_steps=90",
            "training_args.max_steps is training.max_steps here.",
        ),
        ("grpo_code_execution", "evaluation.timeout_seconds=10", "evaluation.suites.0.timeout_seconds here."),
        ("dqn_code_generation", "agent.gamma=0.9", "agent.gamma is algorithm.gamma here."),
        ("dqn_code_generation", "data.problems_file=a.json", "data.problems_file is problems.train here."),
        (
            "spiral_self_play",
            "training.rae_alpha=0.9",
            "training.rae_alpha is algorithm.baseline_decay here.",
        ),
        ("grpo_code_repair", "grpo.optim=adamw_8bit", "grpo.optim has no counterpart here: AdamW"),
        ("grpo_code_repair", "run=repair", "`greenward import` the folder."),
    ],
)
def test_a_key_of_another_system_as_an_override_is_answered_by_what_it_is_here(recipe, override, said):
    with pytest.raises(ConfigError, match="unknown key") as error:
        load_recipe(recipe, [override])
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_mistyped_key_of_ours_is_no_key_of_another_system():
    assert counterpart("training.max_stpes") == "" and counterpart("trianing") == ""
