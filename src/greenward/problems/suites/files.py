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
from greenward.problems.json_rows import Format
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

    def fetch(self, datasets: Any) -> bytes:
        """The rows as JSON lines, read by the library `datasets`."""
        lines = []
        for split in self.splits:
            rows = datasets.load_dataset(self.id, self.config, split=split, revision=self.revision)
            lines += [json.dumps(row, ensure_ascii=False) for row in rows if isinstance(row, Mapping)]
        return ("\n".join(lines) + "\n").encode("utf-8", errors="surrogatepass")


@dataclass(frozen=True)
class PinnedFile:
    """A published file with the hash that it must have."""

    url: str
    sha256: str

    @property
    def cached_name(self) -> str:
        return f"{self.sha256[:12]}-{self.url.rpartition('/')[2]}"

    def fetch(self, datasets: Any) -> bytes:
        return Path(datasets.DownloadManager().download(self.url)).read_bytes()


@dataclass(frozen=True)
class Suite:
    """A public suite: the names of its files, their format (None for a folder), where they come from."""

    files: tuple[str, ...]
    format: Format | None = None
    source: HubDataset | PinnedFile | None = None
    variable: str | None = None


def cache_folder() -> Path:
    """`$GREENWARD_CACHE`, else `greenward` in the user's cache folder. It need not exist."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "greenward"


def find_file(name: str, suite: Suite, *, fetch: bool = True) -> Path:
    """The file (or folder) of the suite with this name.

    Looks in this order: at the path in the suite's environment variable; for one of the suite's file names in
    the folder `$GREENWARD_DATA` or in a folder of that; in the cache; at the source of the suite. Raises
    `ProblemError` that says which file to put where. Without `fetch`, it returns where the file
    would be put in the cache.
    """
    if own := _named_by(suite.variable):
        return own
    if data := _named_by(DATA_VARIABLE):
        for place in (data, *sorted(entry for entry in data.glob("*") if entry.is_dir())):
            for file in suite.files:
                if (place / file).exists():
                    return place / file
    files = " or ".join(suite.files)
    advice = f"put {files} into a folder and set {DATA_VARIABLE} to it, or give the file's path."
    source = suite.source
    if source is None:
        raise ProblemError(f"{name}: its files were not found.", remedy=advice)
    cached = cache_folder() / "suites" / source.cached_name
    if fetch and not cached.exists():
        content = _fetched(name, source, advice)
        with writing(str(cached)):
            cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, content)
    return cached


def _named_by(variable: str | None) -> Path | None:
    path = os.environ.get(variable) if variable else None
    if path and not Path(path).exists():
        raise ProblemError(f"{variable} names {path}, which does not exist.")
    return Path(path) if path else None


def _fetched(name: str, source: HubDataset | PinnedFile, advice: str) -> bytes:
    try:
        import datasets
    except ImportError:
        raise ProblemError(
            f"{name}: its file was not found, and the library that would fetch it is not installed.",
            remedy=f"pip install 'greenward[hub]'. Or, without a network: {advice}",
        ) from None
    try:
        content = source.fetch(datasets)
    except Exception as error:  # what `datasets` raises without a network has no common base class
        reason = str(error).partition("\n")[0][:200]
        raise ProblemError(
            f"{name}: could not be fetched ({type(error).__name__}: {reason}).",
            remedy=f"Without a network: {advice}",
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if isinstance(source, PinnedFile) and found != source.sha256:
        raise ProblemError(
            f"{name}: {source.url} gave a file with SHA-256 {found[:16]}…, expected {source.sha256[:16]}….",
            remedy="The published file has changed. Results with it could not be compared; it was not kept.",
        )
    return content
