"""`greenward sandbox serve`: the sandbox of this machine for other programs and machines."""

from __future__ import annotations

import os

import click

from greenward.cli.arguments import COUNT, LEVEL
from greenward.errors import ConfigError


@click.group()
def sandbox() -> None:
    """The sandbox for answers, as a server."""


@sandbox.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0: a free one.")
@click.option(
    "--token-env", metavar="NAME", help="Environment variable with the token that clients must send."
)
@click.option("--workers", type=COUNT, help="Answers at a time.  [default: the CPUs]")
@click.option("--require", type=LEVEL, default="B", help="Least isolation level.")
@click.option("--package", "packages", multiple=True, help="What answers may import; may be repeated.")
@click.option("--memory-mb", type=click.IntRange(64), default=1024, help="Of a /run_code program.")
@click.option("--max-jobs", type=COUNT, default=1024, help="In flight; more get 429.")
@click.option("--max-body-mb", type=COUNT, default=64, help="Of a request.")
def serve(
    host: str, port: int, *, token_env: str | None, workers: int | None, require: str,
    packages: tuple[str, ...], memory_mb: int, max_jobs: int, max_body_mb: int,
) -> None:  # fmt: skip
    """Run code that is sent by HTTP, until interrupted.

    POST /run_code takes Python programs in the form of SandboxFusion; POST /run_jobs takes the jobs of a
    training with sandbox.backend=http. A token is required unless the address is the loopback.
    """
    from greenward.sandbox.http_server import SandboxServer, serve
    from greenward.sandbox.isolation import Level
    from greenward.sandbox.job_server import JobServer

    token = os.environ.pop(token_env, "") if token_env else None
    if token == "":
        raise ConfigError(f"--token-env: the environment variable {token_env} is not set.")
    with JobServer(workers or os.cpu_count() or 1, require=Level(require), packages=packages) as jobs:
        limits = {"max_jobs": max_jobs, "max_body_bytes": max_body_mb << 20, "memory_bytes": memory_mb << 20}
        server = SandboxServer(jobs, host, port, token=token, **limits)
        level = jobs.isolation.level.value
        click.echo(f"Serving on http://{host}:{server.server_port} at level {level}, {jobs.workers} workers.")
        serve(server)
