from __future__ import annotations

import contextlib
import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.common.errors import ConfigError
from greenward.config.loading import (
    all_recipes,
    dump,
    find_recipe,
    load_recipe,
    parse_recipe,
    schema_json,
    shipped_recipes,
)
from greenward.config.recipe import SupervisedRecipe


def message(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text, overrides, name="r.yaml")
    return str(caught.value)


def test_empty_text_is_all_defaults() -> None:
    assert parse_recipe("") == parse_recipe("# nothing\n") == all_recipes()["functions", "grpo"]()


def test_values_are_read() -> None:
    recipe = parse_recipe("seed: 3\ntraining:\n  learning_rate: 1e-4\n  adam_betas: [0.9, 0.95]\n")
    assert recipe.seed == 3
    assert recipe.training.learning_rate == 1e-4
    assert recipe.training.adam_betas == (0.9, 0.95)


class TestUnknownKeys:
    def test_names_place_key_and_nearest(self) -> None:
        said = message("seed: 1\ntraining:\n  max_stpes: 3\n")
        assert said == "r.yaml, line 3: unknown key training.max_stpes. Nearest: training.max_steps."

    def test_nearest_in_another_section(self) -> None:
        said = message("max_steps: 3")
        assert "Nearest: warm_start.max_steps, training.max_steps" in said

    def test_nearest_of_another_kind(self) -> None:
        said = message("", "algorithm.gae_lambda=0.9")
        assert said.endswith(
            "unknown key algorithm.gae_lambda. Nearest: algorithm.critic.gae_lambda (task: functions, algorithm.name: ppo)."
        )

    def test_inside_a_list(self) -> None:
        said = message("rewards:\n  - name: tests\n    wieght: 2\n")
        assert said == "r.yaml, line 3: unknown key rewards.0.wieght. Nearest: rewards.0.weight."

    def test_in_an_override(self) -> None:
        said = message("", "training.max_stpes=3")
        assert said.startswith("Override 'training.max_stpes=3': unknown key training.max_stpes. Nearest")

    def test_mistyped_section_in_an_override(self) -> None:
        said = message("", "trianing.max_steps=3")
        assert said.startswith("Override 'trianing.max_steps=3': unknown key trianing. Nearest: training")

    def test_all_are_told_at_once(self) -> None:
        assert len(message("sede: 1\nnmae: x\n").splitlines()) == 2


class TestWrongValues:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("training: {max_steps: many}", "training.max_steps: expected a whole number, found 'many'"),
            ("training: {max_steps: 2.5}", "training.max_steps: expected a whole number, found 2.5"),
            ("training: {max_steps: true}", "training.max_steps: expected a whole number, found true"),
            ("training: {max_steps: '5'}", "training.max_steps: expected a whole number, found '5'"),
            ("training: {max_steps: 0}", "training.max_steps: expected a number greater than 0, found 0"),
            (
                "sampling: {top_p: 1.5}",
                "sampling.top_p: expected a number less than or equal to 1, found 1.5",
            ),
            ("sandbox: {workers: 0}", "sandbox.workers: expected a number greater than 0"),
            ("seed: -1", "seed: expected a number greater than or equal to 0, found -1"),
            ("evaluation: {seed: 9223372036854775808}", "evaluation.seed: expected a number less than"),
            (
                "{task: self_play, self_play: {games: []}}",
                "self_play.games: expected at least 1 item, found []",
            ),
            ("evaluation: {k: []}", "evaluation.k: expected at least 1 item, found []"),
            ("preset_keys: -1", "preset_keys: expected a list, found -1"),
            ("evaluation: {greedy: 1}", "evaluation.greedy: expected true or false, found 1"),
            ("name: 12", "name: expected text, found 12"),
            ("training: 3", "training: expected a section (keys and values), found 3"),
            ("evaluation: {k: 3}", "evaluation.k: expected a list, found 3"),
            (
                "training: {learning_rate: .nan}",
                "training.learning_rate: expected a finite number, found nan",
            ),
            ("sampling: {temperature: .inf}", "sampling.temperature: expected a finite number, found inf"),
            ("seed:", "seed: expected a whole number, found nothing (null)"),
        ],
    )
    def test_expected_and_found(self, text: str, expected: str) -> None:
        said = message(text)
        assert said.startswith("r.yaml, line 1: ")
        assert expected in said

    def test_choice_names_the_nearest(self) -> None:
        said = message("algorithm: {loss: dpao}")
        assert (
            "expected 'grpo', 'dr_grpo', 'dapo', 'gspo', 'cispo', 'reinforce' or 'ppo', found 'dpao'" in said
        )
        assert said.endswith("Nearest: dapo. Your own: 'module:function'.")

    def test_override_is_blamed_and_not_the_file(self) -> None:
        said = message("training: {max_steps: 5}", "training.max_steps=-1")
        assert said.startswith(
            "Override 'training.max_steps=-1': training.max_steps: expected a number greater"
        )

    def test_missing_key(self) -> None:
        assert message("rewards:\n  - weight: 2\n") == "r.yaml, line 2: the key rewards.0.name is missing."

    def test_impossible_combination_passes_through(self) -> None:
        said = message("algorithm: sft")
        needed = "the section warm_start (its data and settings)"
        assert said == f"r.yaml: task: functions with algorithm.name: sft needs {needed}."

    def test_a_narrowed_distribution_must_be_corrected_for(self) -> None:
        assert "set algorithm.importance" in message("sampling: {top_p: 0.9}")
        assert "set algorithm.importance" in message("sampling: {top_k: 20}")
        corrected = parse_recipe("sampling: {top_p: 0.9}\nalgorithm: {importance: {high: 2.0}}")
        assert corrected.sampling.top_p == 0.9

    def test_impossible_combination_in_a_section_names_its_line(self) -> None:
        said = message("seed: 1\nevaluation:\n  k: [16]\n")
        assert said == (
            "r.yaml, line 3: evaluation: k=16 needs at least as many samples per problem; samples is 8."
        )
        said = message("evaluation: {samples: 8}", "evaluation.k=[99]")
        assert said.startswith("Override 'evaluation.k=[99]': evaluation: k=99 needs")


class TestYaml:
    def test_not_yaml_names_line_and_column(self) -> None:
        assert message("seed: 1\nname: [a\n").startswith("r.yaml, line 3, column 1: not valid YAML: expected")

    def test_duplicate_key_is_refused(self) -> None:
        said = message("training:\n  max_steps: 1\n  max_steps: 2\n")
        assert said.startswith("r.yaml, line 3, column 3: not valid YAML: the key 'max_steps' occurs twice")
        assert "first on line 2" in said

    @pytest.mark.parametrize("text", ["- 1\n", "words", "3"])
    def test_no_keys_and_values(self, text: str) -> None:
        assert "expected keys and values, found" in message(text)

    @pytest.mark.parametrize(
        "text", ["\x00", "? [1, 2]\n: 3", "a: !!python/object:os.system x", "*x", "a\tb: :"]
    )
    def test_odd_text_is_a_clear_error(self, text: str) -> None:
        assert message(text).startswith("r.yaml")

    @given(st.text(max_size=60))
    def test_any_text_gives_a_recipe_or_a_config_error(self, text: str) -> None:
        with contextlib.suppress(ConfigError):
            parse_recipe(text)


class TestOverrides:
    def test_values_are_yaml(self) -> None:
        recipe = parse_recipe(
            "",
            [
                "training.learning_rate=1e-5",
                "evaluation.k=[1,4]",
                "evaluation.greedy=false",
                "model.id=a/b=c",
            ],
        )
        assert recipe.training.learning_rate == 1e-5
        assert recipe.evaluation.k == (1, 4)
        assert recipe.evaluation.greedy is False
        assert recipe.model.id == "a/b=c"

    def test_last_one_wins_over_the_file_and_earlier_ones(self) -> None:
        assert parse_recipe("seed: 1", ["seed=2", "seed=3"]).seed == 3

    def test_list_entries_by_number(self) -> None:
        text = "rewards:\n  - {name: tests}\n  - {name: code_quality, weight: 0.1}\n"
        assert [term.weight for term in parse_recipe(text, ["rewards.1.weight=2"]).rewards] == [1.0, 2.0]

    def test_entry_of_a_default_list(self) -> None:
        (term,) = parse_recipe("", ["rewards.0.weight=2"]).rewards
        assert (term.name, term.weight) == ("tests", 2.0)

    def test_next_entry_is_added(self) -> None:
        recipe = parse_recipe("", ["rewards.1.name=code_quality", "rewards.1.weight=0.1"])
        assert [term.name for term in recipe.rewards] == ["tests", "code_quality"]

    def test_entry_beyond_the_end(self) -> None:
        assert "rewards is a list of 1: expected a number from 0 to 1, found 5" in message(
            "", "rewards.5.weight=2"
        )

    def test_section_that_is_off_is_switched_on(self) -> None:
        recipe = parse_recipe("warm_start: null", ["warm_start.max_steps=5", "tracking.wandb.project=mine"])
        assert recipe.warm_start is not None
        assert recipe.warm_start.max_steps == 5
        assert recipe.tracking.wandb is not None
        assert recipe.tracking.wandb.project == "mine"

    def test_section_is_switched_off(self) -> None:
        assert parse_recipe("warm_start: {max_steps: 5}", ["warm_start=null"]).warm_start is None

    @pytest.mark.parametrize("override", ["training.max_steps", "=3", "training..max_steps=3", "a b"])
    def test_not_key_and_value(self, override: str) -> None:
        said = message("", override)
        assert f"Override {override!r}: expected key=value" in said

    def test_key_below_a_plain_value(self) -> None:
        assert "seed is 1, which has no keys of its own" in message("seed: 1", "seed.x=2")

    def test_value_that_is_not_yaml(self) -> None:
        assert message("", "seed=[1").startswith("Override 'seed=[1', line 1, column")


class TestFiles:
    def test_file_is_read_and_named_in_errors(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("seed: 9\n")
        assert load_recipe(file).seed == 9
        file.write_text("seed: 9\nseeed: 9\n")
        with pytest.raises(ConfigError, match=r"mine\.yaml, line 2: unknown key seeed"):
            load_recipe(file)

    def test_missing_file_names_the_nearest_beside_it(self, tmp_path: Path) -> None:
        (tmp_path / "maths.yaml").touch()
        with pytest.raises(ConfigError) as caught:
            load_recipe(tmp_path / "math.yaml")
        assert str(tmp_path / "maths.yaml") in str(caught.value)

    def test_folder_is_no_recipe(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a folder"):
            load_recipe(tmp_path)

    def test_not_utf8(self, tmp_path: Path) -> None:
        file = tmp_path / "latin.yaml"
        file.write_bytes(b"name: caf\xe9\n")
        with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 9\)"):
            load_recipe(file)

    def test_shipped_recipe_by_name(self) -> None:
        assert find_recipe("quickstart").name == "quickstart.yaml"

    def test_file_of_the_working_directory_comes_before_a_shipped_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "quickstart.yaml").write_text("seed: 77\n")
        monkeypatch.chdir(tmp_path)
        assert load_recipe("quickstart.yaml").seed == 77
        assert load_recipe("quickstart").seed != 77

    @pytest.mark.parametrize("name", sorted(shipped_recipes()))
    def test_shipped_recipes_are_good_and_named_for_their_file(self, name: str) -> None:
        assert load_recipe(name).name == name


class TestPretrained:
    TEXT = """
model: {dtype: float32}
training: {max_steps: 7, learning_rate: 1.0e-3}
warm_start: {max_steps: 5}
pretrained:
  warm_start: null
  training: {learning_rate: 1.0e-6}
"""

    def test_replaces_keys_when_a_model_is_named(self) -> None:
        recipe = parse_recipe(self.TEXT, ["model=some/model"])
        assert recipe.model.id == "some/model"
        assert recipe.warm_start is None
        assert (recipe.training.learning_rate, recipe.training.max_steps) == (1e-6, 7)

    def test_has_no_effect_without_a_model(self) -> None:
        recipe = parse_recipe(self.TEXT, ["model.id=some/model", "model.id=null"])
        assert recipe.warm_start is not None
        assert recipe.training.learning_rate == 1e-3

    def test_can_be_left_out(self) -> None:
        recipe = parse_recipe(self.TEXT, ["model=runs/earlier", "pretrained=null"])
        assert recipe.warm_start is not None

    def test_its_keys_can_be_overridden(self) -> None:
        recipe = parse_recipe(self.TEXT, ["model=a", "pretrained.training.learning_rate=0.25"])
        assert recipe.training.learning_rate == 0.25

    def test_overrides_win(self) -> None:
        recipe = parse_recipe(self.TEXT, ["model=a", "training.learning_rate=0.5"])
        assert recipe.training.learning_rate == 0.5

    def test_model_by_name_keeps_the_other_keys_of_the_section(self) -> None:
        assert parse_recipe("model: {dtype: bfloat16}", ["model=a"]).model.dtype == "bfloat16"

    def test_a_mistake_is_told_although_no_model_is_named(self) -> None:
        with pytest.raises(
            ConfigError, match=r"line 1: unknown key training.max_step\. Nearest: training.max_steps"
        ):
            parse_recipe("pretrained: {training: {max_step: 3}}")

    def test_is_a_section(self) -> None:
        with pytest.raises(ConfigError, match="pretrained: expected a section, found 'x'"):
            parse_recipe("pretrained: x")


class TestTasksAndAlgorithms:
    def test_a_key_of_another_algorithm_is_refused_and_its_algorithms_are_named(self) -> None:
        said = message("algorithm: sft\nwarm_start: {}\ntraining: {max_steps: 5}\n")
        names = " or ".join(f"algorithm.name: {name}" for name in ("grpo", "ppo", "rejection"))
        assert said == (
            f"r.yaml, line 3: training.max_steps needs {names}; "
            "this recipe has task: functions, algorithm.name: sft."
        )

    def test_a_key_of_another_task_is_refused_and_its_tasks_are_named(self) -> None:
        said = message("tools: {max_calls: 3}")
        assert "tools needs task: agent; this recipe has task: functions" in said
        said = message("task: vulnerability\nenvironment: {max_turns: 3}")
        assert "needs task: functions or task: repair or task: spec or task: token_mdp" in said

    def test_an_unknown_algorithm_names_the_nearest(self) -> None:
        said = message("seed: 1\nalgorithm:\n  name: gpro")
        assert said.startswith(
            "r.yaml, line 3: algorithm.name: expected 'grpo', 'ppo', 'rejection' or 'sft' with task: functions"
        )
        assert said.endswith("found 'gpro'. Nearest: grpo.")
        assert message("algorithm: dqn").endswith("found 'dqn'. task: token_mdp has it.")

    @pytest.mark.parametrize("task", ["selfplay", "[1]", "{a: b}", "''", "3"])
    def test_an_unknown_task_names_all(self, task: str) -> None:
        said = message(f"task: {task}")
        assert said.startswith("r.yaml, line 1: task: expected one of functions, repair, spec")

    def test_a_task_of_ones_own_that_cannot_be_imported_says_why(self) -> None:
        assert "No module named 'no_such_module'" in message("task: no_such_module:Task")
        assert "is no subclass of" in message("task: pathlib:Path")

    def test_the_config_of_a_run_imports_no_task(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "config.yaml").write_text("task: this:Task\n")
        with pytest.raises(ConfigError, match="would be imported and run"):
            load_recipe(tmp_path / "config.yaml")

    def test_another_algorithm_on_the_command_line_leaves_out_the_keys_of_that_in_the_file(self) -> None:
        text = "warm_start: {}\nalgorithm: {loss: dapo}\ntraining: {max_steps: 5, threads: 3}"
        recipe = parse_recipe(text, ["algorithm=sft"])
        assert isinstance(recipe, SupervisedRecipe) and recipe.training.threads == 3
        assert "algorithm.loss needs" in message(text, "algorithm=sft", "algorithm.loss=dapo")
        said = message("rewards: [{name: tests}]", "algorithm=sft", "rewards.0.weight=2")
        assert "rewards needs algorithm.name" in said
        assert "unknown key training.max_stpes" in message("training: {max_stpes: 5}", "algorithm=sft")
        own_choice = "algorithm: {advantage: rloo, loss: dapo}"
        algorithm = parse_recipe(own_choice, ["algorithm=ppo"]).algorithm
        assert (algorithm.advantage, algorithm.loss) == ("gae", "dapo")
        assert "found 'rloo'" in message(own_choice, "algorithm=ppo", "algorithm.advantage=rloo")

    def test_another_task_on_the_command_line_leaves_out_the_sections_of_that_in_the_file(self) -> None:
        recipe = parse_recipe("environment: {max_turns: 3}\nseed: 4", ["task=vulnerability"])
        assert recipe.task == "vulnerability" and recipe.seed == 4

    def test_each_recipe_class_has_an_identity_of_its_own(self) -> None:
        for (task, name), made in all_recipes().items():
            recipe = made.model_validate({"warm_start": {}} if name == "sft" else {})
            assert (recipe.task, recipe.algorithm.name) == (task, name)
            assert parse_recipe(dump(recipe)) == recipe


class TestExtends:
    def test_the_keys_of_a_shipped_recipe_hold_where_the_file_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text("extends: quickstart\nname: mine\ntraining: {max_steps: 7}\n")
        mine, base = load_recipe(tmp_path / "mine.yaml"), load_recipe("quickstart")
        assert (mine.name, mine.training.max_steps) == ("mine", 7)
        changed = base.model_copy(update={"name": "mine"}).model_dump()
        changed["training"]["max_steps"] = 7
        assert mine.model_dump() == changed

    def test_files_beside_are_found_and_chains_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("extends: quickstart\nseed: 1\nrewards: [{name: all_tests}]\n")
        (tmp_path / "b.yaml").write_text("extends: a.yaml\nevaluation: {samples: 16}\n")
        recipe = load_recipe(tmp_path / "b.yaml", ["seed=2"])
        assert (recipe.seed, recipe.evaluation.samples) == (2, 16)
        assert [term.name for term in recipe.rewards] == ["all_tests"]  # type: ignore[attr-defined]

    def test_another_algorithm_leaves_out_the_keys_of_that_of_the_base(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").write_text("extends: quickstart\nalgorithm: {name: ppo, loss: ppo}\n")
        algorithm = load_recipe(tmp_path / "mine.yaml").algorithm
        assert (algorithm.name, algorithm.advantage, algorithm.minibatches) == ("ppo", "gae", 2)  # type: ignore[attr-defined]

    def test_mistakes_name_their_own_file(self, tmp_path: Path) -> None:
        (tmp_path / "base.yaml").write_text("training:\n  max_stpes: 3\n")
        (tmp_path / "mine.yaml").write_text("extends: base.yaml\nseed: x\n")
        with pytest.raises(ConfigError) as caught:
            load_recipe(tmp_path / "mine.yaml")
        said = str(caught.value)
        assert (
            "base.yaml, line 2: unknown key training.max_stpes" in said and "mine.yaml, line 2: seed" in said
        )

    def test_circles_and_missing_recipes_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
        (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
        with pytest.raises(ConfigError, match="extends this recipe in turn"):
            load_recipe(tmp_path / "a.yaml")
        (tmp_path / "c.yaml").write_text("extends: quickstrt\n")
        with pytest.raises(ConfigError, match="No recipe at quickstrt"):
            load_recipe(tmp_path / "c.yaml")
        (tmp_path / "d.yaml").write_text("extends: [quickstart]\n")
        with pytest.raises(ConfigError, match="line 1: extends: expected the name or the file"):
            load_recipe(tmp_path / "d.yaml")

    @pytest.mark.parametrize(
        ("base", "keys"), [("grpo_agent_repair", "task: repair"), ("ppo_code_fix", "algorithm: {name: grpo}")]
    )
    def test_keys_of_the_other_task_are_left_out_for_a_pretrained_model_too(
        self, tmp_path: Path, base: str, keys: str
    ) -> None:
        (tmp_path / "mine.yaml").write_text(f"extends: {base}\n{keys}\n")
        found = load_recipe(tmp_path / "mine.yaml")
        assert (found.task, found.algorithm.name) == ("repair", "grpo")
        assert load_recipe(tmp_path / "mine.yaml", ["model=any"]).name == base

    def test_a_long_chain_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "0.yaml").write_text("seed: 1\n")
        for number in range(1, 30):
            (tmp_path / f"{number}.yaml").write_text(f"extends: {number - 1}.yaml\n")
        assert load_recipe(tmp_path / "19.yaml").seed == 1
        with pytest.raises(ConfigError, match="more than 20 recipes extend each other"):
            load_recipe(tmp_path / "29.yaml")

    @pytest.mark.parametrize("mark", ["checkpoints", "provenance.json"])
    def test_no_code_is_imported_for_the_config_of_a_run(
        self, tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
        (tmp_path / "run" / mark).mkdir(parents=True)
        (tmp_path / "run" / "config.yaml").write_text("task: evil:T\n")
        (tmp_path / "mine.yaml").write_text("extends: run/config.yaml\n")
        for file in ("run/config.yaml", "mine.yaml"):
            with pytest.raises(ConfigError, match="the run was trained on the task evil:T"):
                load_recipe(tmp_path / file)

    @pytest.mark.parametrize("name", ["[1]", "{a: 1}"])
    def test_an_algorithm_that_is_no_text_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=r"algorithm\.name: expected 'grpo'"):
            load_recipe("quickstart", [f"algorithm.name={name}"])

    @pytest.mark.parametrize(
        ("recipes", "message"),
        [
            ("3", "no subclass of greenward.tasks.task.Task that has recipes"),
            ("{}", "no subclass of greenward.tasks.task.Task that has recipes"),
            ('{"grpo": int}', "not made for it"),
            ("Functions.recipes", "not made for it"),
        ],
    )
    def test_a_task_of_ones_own_without_recipes_of_its_own_is_refused(
        self, tmp_path: Path, recipes: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        name = "own_" + sha256(recipes.encode()).hexdigest()[:8]
        text = f"from greenward.tasks.functions.task import Functions\nclass T:\n    recipes = {recipes}\n"
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(ConfigError, match=message) as caught:
            load_recipe("quickstart", [f"task={name}:T"])
        assert f"recipes_with('{name}:T')" in str(caught.value.remedy)

    def test_the_config_of_a_run_extends_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "config.yaml").write_text("extends: quickstart\n")
        with pytest.raises(ConfigError, match="unknown key extends"):
            load_recipe(tmp_path / "config.yaml")


def test_the_first_of_many_mistakes_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_recipe("".join(f"wrong_{number}: 1\n" for number in range(3000)))
    assert "wrong_0" in str(caught.value) and str(caught.value).endswith("and 2980 more")


def test_dump_and_load_give_the_same_recipe() -> None:
    recipe = parse_recipe(
        "name: 'yes'\ntraining: {learning_rate: 2.5e-05}\nrewards: [{name: a:b, options: {x: 1e-9, y: [é]}}]"
    )
    text = dump(recipe)
    assert parse_recipe(text) == recipe
    assert "max_grad_norm: 1.0" in text  # defaults are written out


def test_schema_describes_the_keys() -> None:
    schema = json.loads(schema_json())
    for (task, name), recipe in all_recipes().items():
        section = schema["$defs"][recipe.__name__]
        assert section["additionalProperties"] is False
        assert set(section["properties"]) == {*recipe.model_fields, "pretrained", "extends"}
        required = section.get("required", ())  # what may be left out is the usual
        assert ("task" in required) == (task != "functions")
        assert ("algorithm" in required) == (name not in ("grpo", "dqn"))
