"""Which models count as pretrained, and the learning rates that suit them."""

from __future__ import annotations

from pathlib import Path

import yaml

from greenward.user_text import parse_yaml_text

SUPERVISED_LEARNING_RATE = 2e-5
REINFORCEMENT_LEARNING_RATE = 1e-6


def is_from_random_weights(model_id: str) -> bool:
    """Whether `model_id` is a run of greenward, or a folder in one, that began from random weights.

    Such a model continues with the settings that made it. Only the `config.yaml` of runs is read; where
    a run continued another, that one decides.
    """
    seen: set[Path] = set()
    while True:
        folder = Path(model_id).expanduser().resolve()
        run = next((one for one in (folder, *folder.parents) if (one / "checkpoints").is_dir()), None)
        if run is None or run in seen or not (run / "config.yaml").is_file():
            return False
        seen.add(run)
        try:
            config = parse_yaml_text((run / "config.yaml").read_text(encoding="utf-8"))
            earlier = config["model"]["id"]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            return False  # not a run of greenward
        if earlier is None:
            return True
        model_id = str(earlier)
