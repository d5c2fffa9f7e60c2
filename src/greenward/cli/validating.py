"""`greenward validate-model`: whether a model samples, scores and trains as it should."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from greenward.cli.arguments import folder_option, overrides_argument


@click.command()
@click.argument("model")
@overrides_argument
@folder_option("--output", "Keep the run of the three steps there.  [default: removed]", "run")
def validate_model(model: str, overrides: tuple[str, ...], *, output: Path | None) -> None:
    """Check a pretrained model before it is trained.

    MODEL is a Hugging Face id, a model folder, an adapter of PEFT or a run. Its logits, log-probabilities and
    greedy answers are compared with transformers; then it is trained for three steps of GRPO and answers ten
    problems. KEY=VALUE overrides a key of the recipe `quickstart`. The exit code is 1 if a check fails, and 2
    if there is no model to check.

    \b
    greenward validate-model Qwen/Qwen2.5-Coder-0.5B-Instruct
    greenward validate-model runs/quickstart
    greenward validate-model my-model model.lora.r=16 model.dtype=bfloat16
    """
    from greenward.recipes.validate_model import validate_model

    passed = True
    with tempfile.TemporaryDirectory(prefix="greenward-") as folder:
        for good, line in validate_model(model, output or Path(folder) / "run", overrides):
            click.echo(f"{'passed' if good else 'FAILED'}  {line}")
            passed &= good
    click.echo(f"Verdict: greenward {'can' if passed else 'CANNOT'} train {model} as it stands here.")
    if not passed:
        raise SystemExit(1)
