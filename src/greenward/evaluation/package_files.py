"""Reads the files of installed packages, to lay them into a workspace, whose commands see none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from greenward.common.errors import ConfigError

FOLDER = ".packages"
# Commands import from the folder, and write nothing beside it. `pytest` is no program there, but a module.
SETUP = (
    f'export PYTHONPATH="$PWD/{FOLDER}" PYTHONDONTWRITEBYTECODE=1; pytest() {{ python3 -m pytest "$@"; }}; '
)
_SECONDS = 120
# Imports all modules of packages, and prints the files of what is loaded then.
_LOADED = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    paths = getattr(importlib.import_module(name), "__path__", ())
    for module in pkgutil.walk_packages(paths, f"{name}.", onerror=lambda name: None):
        try:
            module.name.endswith("__main__") or importlib.import_module(module.name)
        except (Exception, SystemExit):
            pass  # a module for another system, or one that is a program
print("\\n" + json.dumps([getattr(module, "__file__", None) for module in [*sys.modules.values()]]))
"""


def package_files(names: Sequence[str]) -> dict[str, str]:
    """The Python files of packages, and those that they import of others, by their paths in a workspace.

    What is compiled is left out. Raises `ConfigError` for a package that is not installed or cannot be
    imported.
    """
    if not names:
        return {}
    modules: set[str] = set()
    roots: set[Path] = set()
    for name in names:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ConfigError(
                f"the grader needs the package {name}, which is not installed here.",
                remedy=f"Install it (pip install {name}).",
            ) from None
        roots.add(Path(str(package.locate_file(""))).resolve())
        modules |= {
            file.parts[0].removesuffix(".py")
            for file in package.files or ()
            if file.suffix == ".py" and ".." not in file.parts
        }
    command = [sys.executable, "-c", _LOADED, *sorted(modules)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"the packages {', '.join(names)} cannot be imported: {str(error.stderr)[-300:].strip()}",
            remedy="Import them by hand, or leave them out.",
        ) from None
    files = {}
    for loaded in json.loads(done.stdout.splitlines()[-1]):
        path = Path(loaded).resolve() if loaded else Path()
        root = next((one for one in roots if path.is_relative_to(one)), None)
        if root is None or path.suffix != ".py":
            continue
        program = [path.with_name("__main__.py")] if path.name == "__init__.py" else []
        for one in (path, *filter(Path.is_file, program)):
            files[f"{FOLDER}/{one.relative_to(root).as_posix()}"] = one.read_text(encoding="utf-8")
    return files
