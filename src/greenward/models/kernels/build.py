"""Compiles the kernels once for each machine, and trusts them after they agreed with torch in a test.

Without a compiler, or where its library fails, the libraries that the wheel brings are tested, that of the
newest processors first. The outcome of the test stands in the user's cache, under a hash of the sources, the
compiler and the processor. `GREENWARD_KERNELS=off` keeps to the operations of torch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.common.processes import python_module
from greenward.models.kernels import compiling
from greenward.models.kernels.compiling import compiler
from greenward.runs.files import sha256_of, write_atomically

if TYPE_CHECKING:
    from greenward.models.kernels.native import Kernels

SWITCH = "GREENWARD_KERNELS"
FASTER_PRODUCTS = "faster products"  # what the self-test says where it found them
_SECONDS = 300


@dataclass(frozen=True)
class Built:
    """The library, or why there is none; whether its products of float32 are faster than torch's."""

    library: Path | None
    reason: str
    products: bool = False


def are_switched_off() -> bool:
    """Whether the user keeps to the operations of torch."""
    return os.environ.get(SWITCH) == "off"


def prebuilt() -> list[Path]:
    """The libraries that the wheel brings, that of the newest processors first."""
    return sorted((Path(__file__).parent / "prebuilt").glob("*.so"), reverse=True)


def build(*, anew: bool = False) -> Built:
    """Compile and test, or say what a build before this one gave."""
    found = compiler()
    if found is None and not prebuilt():
        return Built(None, "no C compiler was found (cc, gcc, clang, or $CC)")
    try:
        library, verdict = _files(found)
    except RuntimeError as error:
        return Built(None, f"there is no place for a cache: {error} Set XDG_CACHE_HOME.")
    try:
        if anew:
            shutil.rmtree(library.parent, ignore_errors=True)
        if _settled(verdict) is None:
            library.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(verdict, json.dumps(_made_and_tested(found, library)).encode())
        said = _settled(verdict) or {"failure": f"{library} changes while it is used"}
    except subprocess.TimeoutExpired as error:  # on a busy machine: another time it may be quicker
        return Built(None, f"{error.cmd[0]} took more than {_SECONDS} s")
    except OSError as error:
        return Built(None, f"{library.parent} cannot be used: {error}")
    if "failure" in said:
        return Built(None, said["failure"])
    products = " with matrix products of float32" if said["products"] else ""
    return Built(Path(said["library"]), f"{said['made']}{products}", said["products"])


@functools.cache
def kernels() -> Kernels | None:
    """The kernels of this machine, compiled if they have not been; None where there are none."""
    if are_switched_off():
        return None
    built = build()
    if built.library is None:
        return None
    from greenward.models.kernels.native import Kernels

    return Kernels(built.library, products=built.products)


def is_to_be_built() -> bool:
    """Whether the next use compiles, which takes some seconds."""
    found = compiler()
    if are_switched_off() or (found is None and not prebuilt()):
        return False
    try:
        return _settled(_files(found)[1]) is None
    except (OSError, RuntimeError):
        return False


def _settled(verdict: Path) -> dict[str, Any] | None:
    """What a build has found; None if there was none, or if its library is not as it was tested."""
    try:
        said: dict[str, Any] = json.loads(verdict.read_text(encoding="utf-8"))
        is_whole = "failure" in said or said["sha256"] == sha256_of([Path(said["library"])])
    except (FileNotFoundError, ValueError):
        return None
    return said if is_whole else None


def _made_and_tested(found: str | None, library: Path) -> dict[str, Any]:
    """The verdict: the `library`, how it was `made`, its digest and whether its `products` are faster than
    torch's; or the `failure` of each way.

    Raises `OSError` and `TimeoutExpired`.
    """
    failures = []
    if found is not None:
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            whole = Path(scratch) / "kernels.so"
            try:
                for command in compiling.commands(found, "native", whole):
                    _run(command, f"{found} failed")
                products = _passes(whole)
                whole.replace(library)
                return _verdict(library, f"compiled by {found}", products)
            except _Failed as failure:
                failures.append(str(failure))
    for one in prebuilt():
        try:
            return _verdict(one, f"prebuilt for {one.stem}", _passes(one))
        except _Failed as failure:
            failures.append(f"prebuilt for {one.stem}: {failure}")
    return {"failure": "; ".join(failures)}


class _Failed(Exception):
    """A command that did not succeed."""


def _passes(library: Path) -> bool:
    """Test the library; whether its products are faster than torch's. Raises `_Failed`."""
    command = python_module("greenward.models.kernels.self_test", str(library))
    return _run(command, "the self-test failed") == FASTER_PRODUCTS


def _run(command: Sequence[str], failed: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise _Failed(f"{failed}: {last}")
    return done.stdout.strip()


def _verdict(library: Path, made: str, products: bool) -> dict[str, Any]:
    return {"library": str(library), "made": made, "sha256": sha256_of([library]), "products": products}


def _files(found: str | None) -> tuple[Path, Path]:
    """The library, and the file with the verdict. Raises `RuntimeError` for a user without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "greenward" / "kernels" / _fingerprint(found)
    return folder / "kernels.so", folder / "verdict.json"


def _fingerprint(found: str | None) -> str:
    texts = [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.[ch]"))]
    if found is not None:
        version = subprocess.run((found, "--version"), capture_output=True, text=True, check=False).stdout
        texts += [found, version]
    told = (*texts, *compiling.FLAGS, *map(str, prebuilt()), _processor())
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
