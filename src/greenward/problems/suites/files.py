"""Finds the file of a suite: by an environment variable, in a folder of data, in the cache, on the hub.

What was downloaded stays in the cache under its revision and is read from there, also without a network.
Nothing here asks the user.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.runs.files import write_atomically, writing

DATA_VARIABLE = "GREENWARD_DATA"
CACHE_VARIABLE = "GREENWARD_CACHE"


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub, at one revision."""

    id: str
    config: str
    splits: tuple[str, ...]
    revision: str

    @property
    def cached_name(self) -> str:
        return f"{self.id.replace('/', '--')}-{self.config}-{self.revision[:12]}.jsonl"


@dataclass(frozen=True)
class PinnedFile:
    """A published file with the hash that it must have."""

    url: str
    sha256: str

    @property
    def cached_name(self) -> str:
        return f"{self.sha256[:12]}-{self.url.rpartition('/')[2]}"


def cache_folder() -> Path:
    """`$GREENWARD_CACHE`, else `greenward` in the user's cache folder. It need not exist."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "greenward"


def find_file(
    suite: str, names: tuple[str, ...], source: HubDataset | PinnedFile | None, variable: str | None
) -> Path:
    """The file (or folder) of a suite whose public file names are `names`.

    Looks in this order: at the path in the environment variable `variable`; for one of `names` in the folder
    `$GREENWARD_DATA` or in a folder of that; in the cache; at `source`, by the library `datasets`.
    Raises `ProblemError` that says which file to put where.
    """
    if variable and (own := os.environ.get(variable)):
        return _existing(Path(own), variable)
    if data := os.environ.get(DATA_VARIABLE):
        folder = _existing(Path(data), DATA_VARIABLE)
        for place in (folder, *sorted(entry for entry in folder.glob("*") if entry.is_dir())):
            for name in names:
                if (place / name).exists():
                    return place / name
    if source is None:
        raise ProblemError(f"{suite}: its files were not found.", remedy=_placing(names))
    cached = cache_folder() / "suites" / source.cached_name
    if not cached.exists():
        content = _fetch(suite, names, source)
        with writing(str(cached)):
            cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, content)
    return cached


def _fetch(suite: str, names: tuple[str, ...], source: HubDataset | PinnedFile) -> bytes:
    try:
        import datasets
    except ImportError:
        raise ProblemError(
            f"{suite}: its file was not found, and the library that would fetch it is not installed.",
            remedy=f"pip install 'greenward[hub]'. Or, without a network: {_placing(names)}",
        ) from None
    try:
        if isinstance(source, HubDataset):
            return _rows_as_lines(datasets, source)
        content = Path(datasets.DownloadManager().download(source.url)).read_bytes()
    except (
        Exception
    ) as error:  # the libraries that `datasets` uses have no common base class for network errors
        reason = str(error).partition("\n")[0][:200]
        raise ProblemError(
            f"{suite}: could not be fetched ({type(error).__name__}: {reason}).",
            remedy=f"Without a network: {_placing(names)}",
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise ProblemError(
            f"{suite}: {source.url} gave a file with SHA-256 {found[:16]}…, expected {source.sha256[:16]}….",
            remedy="The published file has changed. Results with it could not be compared; it was not kept.",
        )
    return content


def _rows_as_lines(datasets: Any, source: HubDataset) -> bytes:
    lines = []
    for split in source.splits:
        rows = datasets.load_dataset(source.id, source.config, split=split, revision=source.revision)
        lines += [json.dumps(row, ensure_ascii=False) for row in rows if isinstance(row, Mapping)]
    return ("\n".join(lines) + "\n").encode("utf-8", errors="surrogatepass")


def _existing(path: Path, variable: str) -> Path:
    if not path.exists():
        raise ProblemError(f"{variable} names {path}, which does not exist.")
    return path


def _placing(names: tuple[str, ...]) -> str:
    return f"put {' or '.join(names)} into a folder and set {DATA_VARIABLE} to it, or give the file's path."
