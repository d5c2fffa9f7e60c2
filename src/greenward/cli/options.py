"""Arguments that several commands share."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.completion import complete_override, complete_recipe
from greenward.common import interruption
from greenward.common.terminal import echo, echo_json

if TYPE_CHECKING:
    from greenward.reports.document import Report
    from greenward.runs.output import Kind

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class FloatRange(click.FloatRange):
    """A range of numbers. NaN, which every comparison with a bound lets through, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail("nan is not a number.", param, ctx) if math.isnan(number) else number


EXIT_BROKEN_PIPE = 141  # as a shell reports death by SIGPIPE


class Commands(click.Group):
    """A group whose help lists the commands in the order in which they were added, with whole sentences.

    Click sorts commands by name and cuts what they say at the width of the terminal.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headings: dict[str, str] = {}

    def add_section(self, heading: str, commands: Iterable[click.Command]) -> None:
        """Adds the commands, which the help lists under `heading`."""
        for command in commands:
            self.add_command(command)
            self.headings[str(command.name)] = heading

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as ended:
            # Whoever read the output has left: click and rich would exit with 1, which is a finding.
            if isinstance(ended, BrokenPipeError) or isinstance(ended.__context__, BrokenPipeError):
                raise SystemExit(EXIT_BROKEN_PIPE) from None
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                about = command.get_short_help_str(limit=sys.maxsize)
                heading = self.headings.get(name, "Commands")
                sections.setdefault(heading, []).append((name.ljust(width), about))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
POSITIVE = FloatRange(min=0, min_open=True)
LEVEL = click.Choice(("A", "B", "C", "D"))
"""Of isolation, from the strongest to none."""

flag = partial(click.option, is_flag=True)


recipe_argument: Decorator = click.argument("recipe", metavar="CONFIG", shell_complete=complete_recipe)
overrides_argument: Decorator = click.argument(
    "overrides", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_override
)
json_option = flag("--json", "as_json", help="Print one JSON object.")
quiet_option = flag("--quiet", help="Print nothing but errors.")
run_argument: Decorator = click.argument("run", metavar="RUN", type=PATH)
run_name_option: Decorator = click.option(
    "--run", "run_name", metavar="NAME", help="The run to take, where RUN has several."
)
alpha_option: Decorator = click.option(
    "--alpha",
    type=FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    help="The accepted chance of a false finding in a healthy run.",
)


def with_options(*options: Decorator) -> Decorator:
    """Gives a command these arguments and options, in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def fail_on_option(default: str) -> Decorator:
    """The least weight of a finding that gives the exit code 1."""
    return click.option(
        "--fail-on",
        type=click.Choice(("info", "warning", "critical")),
        default=default,
        help="Exit with 1 for findings of this weight or above.",
    )


def show_report(report: Report, *, as_json: bool, brief: bool = False, whole: bool = False) -> None:
    """Prints a report as JSON or as text (`print_report`)."""
    if as_json:
        from greenward.reports.write import render

        echo_json(render(report, "json"), nl=False)
    else:
        from greenward.reports.render import print_report

        print_report(report, brief=brief, whole=whole)


class Interrupted(KeyboardInterrupt):
    """A command stopped cleanly; `arguments` continue it, where they differ from those that it was given."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments


def comma_separated(
    _context: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...] | None
) -> tuple[str, ...]:
    """The names with commas between in the values of an option, as its callback."""
    values = (value,) if isinstance(value, str) else value or ()
    return tuple(name for text in values for name in map(str.strip, text.split(",")) if name)


def pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The mapping of repeated THEIRS=OURS, as the callback of an option."""
    found = {}
    for value in values:
        theirs, _, ours = value.rpartition("=")
        if not theirs or not ours:
            raise click.BadParameter(f"expected THEIRS=OURS, such as my_score=reward/mean, found {value!r}")
        found[theirs] = ours
    return found


@contextmanager
def resume_command_on_interrupt(
    command: str, *arguments: str, output: Path | None, quiet: bool
) -> Iterator[None]:
    """Say how an interrupted command goes on: by its arguments, or those of `Interrupted`."""
    try:
        yield
    except KeyboardInterrupt as stop:
        arguments = (isinstance(stop, Interrupted) and stop.arguments) or arguments
        options = [*(["--output", str(output)] if output else []), *(["--quiet"] if quiet else [])]
        resume = shlex.join(["greenward", command, *arguments, *options, "--resume"])
        if (count := os.environ.get("WORLD_SIZE", "1")) != "1":
            resume += f" (by the launcher, with {count} processes)"
        if os.environ.get("RANK", "0") == "0":
            echo(f"Interrupted. Continue with: {resume}", err=True)
        raise SystemExit(interruption.EXIT_CODE) from None


class OutputFolder(click.Path):
    """A folder that a command writes: absent, empty or one of greenward's of these kinds (`check_folder`)."""

    def __init__(self, *kinds: Kind) -> None:
        super().__init__(file_okay=False, path_type=Path)
        self.kinds = kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from greenward.runs.output import check_folder

        if not str(value):
            return self.fail("expected the name of a folder.", param, ctx)
        check_folder(Path(value), *self.kinds)
        return Path(value)


class OutputFile(click.Path):
    """A file that a command writes, or `appended` to if its rows have that key (`check_file`)."""

    def __init__(self, *, appended: str | None = None) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.appended = appended

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from greenward.runs.output import check_file

        if not str(value):
            return self.fail("expected the name of a file.", param, ctx)
        check_file(Path(value), appended=self.appended)
        return Path(value)


def folder_option(name: str, help_text: str, *kinds: Kind) -> Decorator:
    """An option that names a folder to write."""
    return click.option(name, type=OutputFolder(*kinds), help=help_text)


overwrite_option = flag("--overwrite", help="Delete what greenward wrote in that folder before.")


base_url_option = click.option(
    "--base-url", metavar="URL", help="Of an OpenAI-compatible server, which serves MODEL."
)
checkpoint_option = click.option(
    "--checkpoint", metavar="last|best|NAME", help="Of a run: best on held-out problems, or step_…"
)


def endpoint_name(base_url: str, model: str | None) -> str:
    """What the Python API calls a model of a server; the only one of the server without `model`."""
    if not base_url.startswith(("http://", "https://")):
        raise click.BadParameter("expected a URL such as http://localhost:8000/v1.", param_hint="--base-url")
    return f"{model}@{base_url}" if model else base_url


dtype_option = partial(
    click.option,
    "--dtype",
    type=click.Choice(("auto", "float32", "bfloat16", "float16", "int8")),
    help="int8: weights of 8 bits, faster for 1 to 4 answers at a time on a CPU.",
)


def _refuse_key(_context: click.Context, _parameter: click.Parameter, key: str | None) -> None:
    if key is not None:
        raise click.UsageError(
            "a key on the command line can be read by all users of the machine and stays in the shell's "
            "history: put it into the environment variable OPENAI_API_KEY, or name one by --api-key-env."
        )


api_key_options = with_options(
    click.option(
        "--api-key-env", metavar="NAME", help="Variable with the server's key.  [default: OPENAI_API_KEY]"
    ),
    click.option("--api-key", hidden=True, expose_value=False, callback=_refuse_key),
)
"""`--api-key-env`, and an `--api-key` that is refused because others can read it."""
