"""The installed original of a module that an answer completes: it can be neither read nor called.

A problem may ask for one function of a module that every answer could import, of the standard library for
example. The problem's own file, which lacks the function, takes the place of the module then.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Collection
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import CodeType, FunctionType
from typing import Any

from greenward.sandbox.workspace import module_name


def replace_originals(path: str, originals: Collection[str]) -> None:
    """Has the file at `path`, in the working folder, take the place of the originals in this process.

    Functions of the originals that are loaded, which other modules may use, call those of this file from here
    on.
    """
    name, is_package = module_name(path)
    names = set(map(os.path.basename, originals))
    loaded = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
    named = {file for file in loaded if os.path.basename(file) in names}
    if files := {file for file in named if os.path.realpath(file) in originals}:
        gc.unfreeze()  # the collector does not know of what is frozen
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename in files:
                one.__code__ = _call(name, one.__qualname__).replace(co_freevars=one.__code__.co_freevars)
        gc.freeze()
    sys.meta_path.insert(0, _Replacement(name, os.path.abspath(path), is_package))


def _call(module: str, name: str) -> CodeType:
    """The code of a function that calls the one of this name in a module; of a local one it does nothing."""
    if not all(map(str.isidentifier, name.split("."))):
        return (lambda *_, **__: None).__code__
    found = f"__import__('importlib').import_module({module!r}).{name}"
    code = compile(f"lambda *args, **kwargs: {found}(*args, **kwargs)", module, "eval", dont_inherit=True)
    return next(one for one in code.co_consts if type(one) is CodeType)


class _Replacement:
    """Finds a module in one file, also if it belongs to an installed package."""

    def __init__(self, name: str, file: str, is_package: bool) -> None:
        self._name, self._file = name, file
        self._folders = [os.path.dirname(file)] if is_package else None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        return spec_from_file_location(name, self._file, submodule_search_locations=self._folders)
