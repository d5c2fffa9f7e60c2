"""Reads the keys of services, hands them to the clients of these services only, and writes them nowhere."""

from __future__ import annotations

import os
import re
from pathlib import Path

from greenward.common.files import read_file

KEYS = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "OPENAI_API_KEY",
)
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_LINE = re.compile(r"""\s*(?:export\s+)?(\w+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s#]*))""")
_IN_URL = re.compile(r"(://[^:@/\s]*:)[^@/\s]+@")
_MOST_BYTES = 1 << 16  # of `.env`, which may be a stranger's


def load_keys(folder: Path = Path()) -> None:
    """Set those of `KEYS` that `.env` in `folder` gives and the environment does not.

    Nothing else in the file has an effect: a folder of somebody else cannot redirect a client.
    """
    try:
        text = read_file(folder / ".env", _MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for match in filter(None, map(_LINE.match, text.splitlines())):
        name, value = match[1], next(filter(None, match.groups()[1:]), "")
        if name in KEYS and value:
            os.environ.setdefault(name, value)


def without_keys(text: str) -> str:
    """The text, with `***` for passwords in URLs and the values of variables that are named like keys."""
    secrets = (value for name, value in os.environ.items() if _SECRET.search(name))
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= 8:
            text = text.replace(value, "***")
    return _IN_URL.sub(r"\1***@", text)
