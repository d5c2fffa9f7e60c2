"""Print what vLLM needs beside itself, and greenward's own requirements: for `make test-vllm`.

Left out: the libraries of images and sound, and torch, which constraints.txt pins.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires
from pathlib import Path

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
TESTS = ("torch", "pytest", "pytest-xdist", "hypothesis", "hatchling", "editables")


def main(vllm: str) -> None:
    """Print one requirement a line; `vllm` is the installed distribution, with or without a version."""
    pyproject = Path("pyproject.toml").read_text(encoding="utf-8")
    own = re.search(r"^dependencies = \[(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)
    assert own is not None
    needed = [*(requires(vllm.partition("==")[0]) or ()), *re.findall(r'"(.*?)"', own[1]), *TESTS]
    for line in needed:
        name = re.split(r"[^\w-]", line)[0]
        if "extra ==" not in line and (name not in LEFT_OUT or line == "torch"):
            print(line)


if __name__ == "__main__":
    main(sys.argv[1])
