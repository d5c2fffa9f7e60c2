"""A folder for `PYTHONPATH` in whose interpreters packages cannot be imported, as if they were not installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TRAIN = ("torch", "tokenizers", "safetensors", "transformers", "peft", "accelerate")
"""The packages of the extra `train`, and what needs them."""


def without(packages: Iterable[str], folder: Path) -> Path:
    """Write the `sitecustomize` that hides the packages from every interpreter that starts with the folder."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        f"HIDDEN = {sorted(packages)!r}\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in HIDDEN:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return folder
