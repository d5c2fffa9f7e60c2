"""Reading the Python source of suites."""

from __future__ import annotations

import ast
import warnings


def parse(source: str) -> ast.Module:
    """The syntax tree of source that others wrote, without warnings about their escape sequences.

    Raises `SyntaxError`, or `ValueError` for null characters.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)
