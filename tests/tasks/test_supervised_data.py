"""The data of a supervised training, and what is checked before a run directory is made."""

import json
import sys
from types import SimpleNamespace

import pytest

from greenward.common.errors import GreenwardError, ProblemError
from greenward.config.loading import convert, load_recipe, parse_recipe
from greenward.config.sections import SupervisedConfig
from greenward.environments.prompts import answer_form
from greenward.recipes.run import dry_run, train
from greenward.tasks.corpus import read_pairs, supervised_examples


class Words:
    chat_template = "{{ messages }}"

    def encode(self, text):
        return [len(word) for word in text.split()]

    def render_chat(self, messages, *, begun=""):
        return [number for m in messages for number in self.encode(m["content"])]


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_reads_prompts_with_completions_and_conversations(tmp_path):
    path = write(
        tmp_path / "pairs.jsonl",
        {"prompt": "a bb", "completion": "ccc"},
        "",
        {"messages": [{"role": "user", "content": "dddd"}, {"role": "assistant", "content": "e ff"}]},
    )
    assert list(read_pairs(path, Words())) == [((1, 2), (3,)), ((4,), (1, 2))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"line 2.*: not JSON"),
        ("[1]", r"row 2 \(line 2\): expected an object, found a list"),
        ({"prompt": "a"}, r"row 2 \(line 2\): field 'completion' is missing; this row has: prompt"),
        ({"prompt": 3, "completion": "a"}, r"row 2 \(line 2\): field 'prompt' must be text, found a number"),
        ({"messages": [{"role": "user", "content": "a"}]}, r"row 2 .*'messages' must be a list"),
        (
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]},
            r"row 2 .*ends with the assistant",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "pairs.jsonl", {"prompt": "a", "completion": "b"}, line)
    with pytest.raises(ProblemError, match=message):
        list(read_pairs(path, Words()))


def test_a_missing_file_and_a_missing_chat_template_are_named(tmp_path):
    with pytest.raises(ProblemError, match="there is no file"):
        list(read_pairs(tmp_path / "none.jsonl", Words()))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = write(tmp_path / "pairs.jsonl", {"messages": messages})
    tokenizer = Words()
    tokenizer.chat_template = None
    with pytest.raises(ProblemError, match="chat template"):
        list(read_pairs(path, tokenizer))


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("\n\n", "holds no pairs")])
def test_a_file_without_pairs_is_refused(tmp_path, text, message):
    path = write(tmp_path / "pairs.jsonl", text)
    policy = SimpleNamespace(tokenizer=SimpleNamespace(eos_id=0))
    with pytest.raises(ProblemError, match=message):
        supervised_examples(SupervisedConfig(data=str(path)), (), policy, None, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tracking": {"wandb": {}}}, r"pip install 'greenward\[wandb\]'"),
        ({"tracking": {"tensorboard": True}}, r"pip install 'greenward\[tensorboard\]'"),
        ({"model": {"device": "cuda:99"}}, "model.device is 'cuda:99'"),
        (
            {"algorithm": {"name": "sft"}, "warm_start": {}},
            r"warm_start\.data is not set.*\n.*warm_start\.data=pairs\.jsonl",
        ),
        (
            {"algorithm": {"name": "sft"}, "warm_start": {"data": "pairs.jsonl"}},
            "there is no file pairs.jsonl",
        ),
    ],
)
def test_a_missing_tracker_device_or_file_is_found_before_the_run_starts(
    tmp_path, monkeypatch, settings, message
):
    for package in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    recipe = parse_recipe(json.dumps(settings))
    for start in (dry_run, lambda one: train(one, tmp_path / "run", quiet=True)):
        with pytest.raises(GreenwardError, match=message):
            start(recipe)
    assert not (tmp_path / "run").exists()


def test_the_warm_start_of_a_recipe_is_evaluated_in_its_form_of_answers():
    before = convert(load_recipe("grpo_code_repair", []), "sft")
    assert answer_form(before) == "search_replace"
