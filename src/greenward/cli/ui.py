"""The command that serves the pages of runs to a browser on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from greenward.cli.options import PATH, flag, json_option
from greenward.common.errors import GreenwardError
from greenward.common.terminal import echo, echo_json


@click.command("ui")
@click.argument("folders", metavar="[FOLDER|LOG]...", nargs=-1, type=PATH)
@click.option("--port", type=click.IntRange(1, 65535), default=7117, help="The next free one from here on.")
@click.option(
    "--host", default="127.0.0.1", help="Another address than this machine's needs a token, which is printed."
)
@flag("--no-open", help="Open no browser.")
@flag("--no-cache", help="Keep no index in the cache folder.")
@click.option("--frame", metavar="ORIGIN", help="Let pages of a notebook show these: http://localhost:8888.")
@click.option("--bundle", type=PATH, metavar="OUT", help="Write the pages into a new folder, for any host.")
@json_option
def ui(
    folders: tuple[Path, ...],
    *,
    port: int,
    host: str,
    no_open: bool,
    no_cache: bool,
    frame: str | None,
    bundle: Path | None,
    as_json: bool,
) -> None:
    """Show the runs below each FOLDER in the browser: curves, answers and diagnoses, also while they train.

    A LOG of another trainer, whatever `greenward diagnose` reads, is shown as a run, and so are those that
    are found in folders. Without a FOLDER those below runs/. Nothing is written there: indexes lie in
    ~/.cache/greenward/ui. Ctrl-C ends it.

    \b
    greenward ui
    greenward ui runs/mine other/runs --port 7200
    greenward ui runs/mine --bundle site
    """
    try:
        from greenward.ui.cache import cache_folder
        from greenward.ui.server import serve, write_pages
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise GreenwardError(
            f"the pages need {error.name}, which is not installed", remedy="pip install 'greenward[ui]'"
        ) from None
    shown = folders or (Path("runs"),)
    for folder in shown:
        if not folder.is_dir() and not folder.is_file():
            raise click.UsageError(
                f"{folder} is no folder and no file. Give a folder with runs in it, or a log."
            )

    if bundle is not None and frame is not None:
        raise click.UsageError(
            "--frame is for the server. Who may frame a bundle is for its host to say, by the header "
            "Content-Security-Policy: frame-ancestors ORIGIN."
        )

    cache = None if no_cache else cache_folder()
    if bundle is not None:
        count = write_pages(shown, bundle, cache=cache)
        said = json.dumps({"bundle": str(bundle), "files": count})
        echo(said if as_json else f"{bundle}: {count} files, for any static host")
        return

    def ready(url: str) -> None:
        if as_json:
            echo_json(json.dumps({"url": url, "pid": os.getpid()}))
        else:
            echo(f"{url}\nCtrl-C ends it.")
            if "SSH_CONNECTION" in os.environ:
                found = url.split("/")[2].rpartition(":")[2]
                echo(f"From your own machine: ssh -L {found}:127.0.0.1:{found} THIS_HOST", err=True)
        sys.stdout.flush()
        if not (no_open or as_json or "SSH_CONNECTION" in os.environ):
            import webbrowser

            webbrowser.open(url)

    serve(shown, host=host, port=port, cache=cache, frame=frame, ready=ready)
