"""Recipes on published-style models: the path that real models take, on random checkpoints."""

import json
import math

import pytest

from greenward.config.loading import load_recipe
from greenward.models.policy import Policy
from greenward.recipes.run import train
from greenward.runs.reading import read_metrics

pytestmark = pytest.mark.usefixtures("kept_sandbox")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REWARD = "def vowels(completions, **columns):\n    return [sum(c in 'aeiou' for c in t) / 9 for t in completions]\n"


@pytest.mark.parametrize(
    ("family", "chat"),
    [
        ("qwen2", True),
        pytest.param("qwen3", False, marks=pytest.mark.slow),
        pytest.param("llama", True, marks=pytest.mark.slow),
        ("gpt2", False),
    ],
)
def test_a_published_model_trains_by_its_folder(family, chat, published, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 512} if family == "gpt2" else {"max_position_embeddings": 512}
    folder = published(family, **sizes)
    if chat:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHAT_TEMPLATE}))
    (tmp_path / "model_path_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(
        "grpo_code_execution",
        [
            f"model.id={folder}",
            "model.dtype=bfloat16",
            "warm_start=null",
            "problems.train=classic_training",
            "problems.held_out=classic_evaluation",
            "rewards=[{name: tests}, {name: 'model_path_reward:vowels', weight: 0.5}]",
            "training.max_steps=2",
            "training.prompts_per_step=2",
            "training.num_generations=4",
            "training.micro_batch_sequences=8",
            "training.learning_rate=0.001",
            "sampling.max_tokens=12",
            "evaluation.num_questions=3",
            "evaluation.samples=2",
            "evaluation.k=[1]",
        ],
    )
    assert train(recipe, tmp_path / "run", quiet=True)
    rows = read_metrics(tmp_path / "run/metrics.jsonl").rows
    assert [row["groups/trained"] > 0 and math.isfinite(row["grad_norm"]) for row in rows] == [True, True]
    assert all(row["kl"] >= 0 for row in rows)
    trained = tmp_path / "run/checkpoints/last"
    model = transformers.AutoModelForCausalLM.from_pretrained(trained)
    assert type(model).__name__.lower().startswith(family)
    before = dict(Policy.from_folder(folder).model.named_parameters())
    after = dict(Policy.from_folder(trained).model.named_parameters())
    assert any((before[name] != after[name]).any() for name in before)
