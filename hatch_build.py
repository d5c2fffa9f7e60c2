"""Adds the compiled kernels to a wheel that is built on Linux with a C compiler; without them it is pure."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "greenward/models/kernels"


class CompiledKernels(BuildHookInterface[Any]):
    """One library for each level of this architecture; `models/kernels/build.py` takes the best."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location(
            "compiling", Path(self.root, "src", KERNELS, "compiling.py")
        )
        assert spec is not None and spec.loader is not None
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        found, machine = compiling.compiler(), platform.machine()
        libc, libc_version = platform.libc_ver()
        levels = compiling.LEVELS.get(machine, ())
        if version == "editable" or found is None or libc != "glibc" or not levels:
            return
        self._folder = tempfile.TemporaryDirectory()
        for level in levels:
            library = Path(self._folder.name, f"{level}.so")
            try:
                for command in compiling.commands(found, level, library):
                    subprocess.run(command, check=True)
            except subprocess.CalledProcessError as error:  # an older compiler may not know the level
                self.app.display_warning(f"The wheel brings no kernels for {level}: {error}")
                continue
            build_data["force_include"][str(library)] = f"{KERNELS}/prebuilt/{library.name}"
            # The libraries need no newer C library than that of this machine.
            build_data["tag"] = f"py3-none-manylinux_{libc_version.replace('.', '_')}_{machine}"
            build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "_folder", None):
            folder.cleanup()
