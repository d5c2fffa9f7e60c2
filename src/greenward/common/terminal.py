"""Writes to the terminal what may hold text of strangers: names, logs, answers, messages."""

from __future__ import annotations

import warnings

import click

from greenward.common.text import visible, visible_json


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Writes a text with its hidden characters replaced (`visible`), to standard error with `err`."""
    click.echo(visible(str(text)), err=err, nl=nl)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Writes a JSON text with its hidden characters escaped: programs read the same values."""
    click.echo(visible_json(text), nl=nl)


_format_warning = warnings.formatwarning


def format_visible_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """As `warnings.formatwarning`, which it replaces in commands."""
    return visible(_format_warning(message, category, filename, lineno, line))
