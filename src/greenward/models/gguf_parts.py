"""Finds the parts of a model that is split into several GGUF files.

llama.cpp names them NAME-00001-of-00003.gguf and so on, and opens the first. The metadata of the model is in
that one; every part says which it is, of how many.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from greenward.common.errors import CheckpointError
from greenward.common.text import listed

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?s:(.*))-(\d{5})-of-(\d{5})\.gguf")
_AGAIN = "Fetch all parts again, into one folder, under the names that they were published under."
_SHOWN = 4  # names in an error


def files_of(path: Path) -> dict[int, Path]:
    """By its number, from 1: `path`, and if its name is that of a first part, all parts that lie beside it.

    A whole file is number 1. Where `path` is a link, its own name counts before that of what it leads to.
    """
    for named in (path.absolute(), Path(os.path.realpath(path))):
        if match := _NAME.fullmatch(named.name):
            folder = Path(os.path.realpath(named.parent))
            if int(match[2]) == 1:
                matches = ((_NAME.fullmatch(one.name), one) for one in folder.iterdir())
                return {int(m[2]): one for m, one in matches if m and (m[1], m[3]) == (match[1], match[3])}
            return {int(match[2]): folder / named.name}
    return {1: Path(os.path.realpath(path))}


def without_later_parts(files: Iterable[Path]) -> list[Path]:
    """The files, of which each may be a model: all but the later parts whose first part is there, too."""
    named = {file: _NAME.fullmatch(file.name) for file in files}
    firsts = {(m[1], m[3]) for m in named.values() if m and int(m[2]) == 1}
    return [file for file, m in named.items() if not m or int(m[2]) == 1 or (m[1], m[3]) not in firsts]


def demand_all(path: Path, files: Mapping[int, Path], metadata: Mapping[str, Any]) -> int:
    """The number of parts that the metadata of `path` tells, 1 for a whole file.

    `files` are those of `files_of`. Raises `CheckpointError` for a part that is not the first, for names that
    are not those of its parts, and for parts that are missing or too many.
    """
    count, number = (_number(metadata, key, path, default) for key, default in ((COUNT, 1), (NUMBER, 0)))
    if count < 2:
        return 1
    first = f"-00001-of-{count:05d}.gguf"
    match = _NAME.fullmatch(path.name)
    if number != 0:
        begun = path.with_name(f"{match[1]}{first}").name if match else f"the file that ends in {first}"
        raise CheckpointError(
            f"expected a whole model or its first part in {path}, found part {number + 1} of {count}",
            remedy=f"Name the first part, {begun}, with all others beside it.",
        )
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        raise CheckpointError(
            f"expected a name that ends in {first} for the first of {count} parts, found {path}",
            remedy="Give all parts the names that they were published under; or join them under their own "
            "names: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )
    if missing := [n for n in range(1, count + 1) if n not in files]:
        names = listed([f"{match[1]}-{n:05d}-of-{count:05d}.gguf" for n in missing], _SHOWN)
        raise CheckpointError(f"expected {count} parts beside {path}, found no {names}", remedy=_AGAIN)
    if extra := sorted(set(files) - set(range(1, count + 1))):
        raise CheckpointError(
            f"expected {count} parts beside {path}, found {files[extra[0]].name} as well",
            remedy="Move away what is no part of this model.",
        )
    return count


def demand_part(
    path: Path, number: int, count: int, metadata: Mapping[str, Any], first: Mapping[str, Any]
) -> None:
    """Raises `CheckpointError` if the metadata of `path` is not that of part `number`, from 1, of `count`.

    `first` is the metadata of the first part, which a part may repeat.
    """
    found = [_number(metadata, key, path, 0) for key in (NUMBER, COUNT)]
    if found != [number - 1, count]:
        shown = f"part {found[0] + 1} of {found[1]}" if found[1] else "a file that is no part"
        raise CheckpointError(
            f"expected part {number} of {count} in {path}, found {shown}",
            remedy=f"It was renamed, or is of another model. {_AGAIN}",
        )
    own = (NUMBER, COUNT, TENSORS, "general.alignment")
    other = [key for key, value in metadata.items() if key not in own and first.get(key) != value]
    if metadata.get(TENSORS) != first.get(TENSORS):
        other.append(TENSORS)
    if other:
        raise CheckpointError(
            f"expected part {number} of the same model in {path}, found another {other[0]!r:.80}",
            remedy=_AGAIN,
        )


def demand_tensors(path: Path, found: int, metadata: Mapping[str, Any]) -> None:
    """Raises `CheckpointError` if `found` is not the number of tensors that the first part, `path`, tells."""
    if (told := _number(metadata, TENSORS, path, found)) != found:
        raise CheckpointError(
            f"expected {told:,} tensors in the parts of {path}, found {found:,}", remedy=_AGAIN
        )


def _number(metadata: Mapping[str, Any], key: str, path: Path, default: int) -> int:
    found = metadata.get(key, default)
    if type(found) is not int or found < 0:
        raise CheckpointError(f"expected a whole number ({key}) in {path}, found {str(found)[:40]}")
    return found
