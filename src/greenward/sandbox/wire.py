"""Jobs and their results as JSON: what crosses to executors in other processes and on other machines.

A request is {"version", "jobs"}, a reply {"version", "layers", "missing", "workers", "results"} or
{"error"}. Inputs and results are the codec's text, never pickled. Expected values are in neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from greenward import __version__
from greenward.errors import SandboxError
from greenward.records import check_types, is_duration
from greenward.sandbox.codec import PlainDataError, decode, decode_untrusted, encode
from greenward.sandbox.isolation import Isolation, Layer
from greenward.sandbox.protocol import MAX_JOB_CHARS, Call, CallResult, Job, Limits, Outcome, RunResult

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What a host is, and the results of a request in the order of its jobs."""

    isolation: Isolation
    workers: int
    results: Sequence[RunResult]


@cache
def source_files() -> dict[str, bytes]:
    """All of greenward that the sandbox imports, by path from the folder that holds the package."""
    package = Path(__file__).parent.parent
    modules = (
        package / f"{name}.py" for name in ("__init__", "closing", "errors", "interruption", "records")
    )
    files = [*modules, *sorted(package.glob("sandbox/**/*.py"))]
    return {str(file.relative_to(package.parent)): file.read_bytes() for file in files}


@cache
def version() -> str:
    """The version of greenward and a digest of the sandbox's source: verdicts depend on both."""
    digest = hashlib.sha256(b"".join(source_files().values())).hexdigest()
    return f"{__version__}+{digest[:8]}"


def write_job(job: Job) -> tuple[Json, int]:
    """A job and its characters. Raises `SandboxError` for inputs that are not plain data, or too long."""
    try:
        calls = [call.text for call in job.calls]
    except PlainDataError as error:
        raise SandboxError(f"the inputs of a job are not plain data: {error}.") from None
    files = [*job.files.values(), *filter(None, job.changes.values())]
    if (chars := sum(map(len, [*_texts(job), *files, *calls]))) > MAX_JOB_CHARS:
        raise SandboxError(f"a job takes {chars} characters; at most {MAX_JOB_CHARS} are allowed.")
    parts = {one.name: getattr(job, one.name) for one in fields(Job)}
    mappings = {"limits": asdict(job.limits), "files": dict(job.files), "changes": dict(job.changes)}
    return parts | mappings | {"calls": calls}, chars


def write_request(jobs: Sequence[Json]) -> Json:
    """A request for written jobs. Without jobs it asks what the host is."""
    return {"version": version(), "jobs": list(jobs)}


def read_request(request: Any) -> list[Job]:
    """Raises `SandboxError` for a request of another version, and for what is no request."""
    try:
        _check_version(request["version"])
        return [_read_job(**job) for job in request["jobs"]]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SandboxError(f"no request can be read there ({type(error).__name__}: {error}).") from None


def write_reply(reply: Reply) -> Json:
    """The JSON of a reply."""
    return {
        "version": version(),
        "workers": reply.workers,
        "layers": [layer.value for layer in reply.isolation.layers],
        "missing": dict(reply.isolation.missing),
        "results": [_write_result(result) for result in reply.results],
    }


def write_error(error: SandboxError) -> Json:
    """A reply that raises this error where it is read."""
    return {"error": [error.message, error.remedy]}


def read_reply(reply: Any, expected: int) -> Reply:
    """Raises `SandboxError` for an error and for another version, `ValueError` for what is no such reply."""
    try:
        if "error" in reply:
            message, remedy = reply["error"]
            raise SandboxError(str(message), remedy=remedy)
        _check_version(reply["version"])
        results = [_read_result(**result) for result in reply["results"]]
        isolation = Isolation(tuple(map(Layer, reply["layers"])), reply["missing"])
        if len(results) != expected:
            raise ValueError(f"{len(results)} results for {expected} jobs")
        return Reply(isolation, max(1, int(reply["workers"])), results)
    except (PlainDataError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _check_version(theirs: str) -> None:
    if theirs != version():
        raise SandboxError(
            f"one side runs greenward {version()}, the other side {str(theirs)[:100]}.",
            remedy="Install the same greenward on all machines.",
        )


def _tuples(parts: Json) -> Json:
    """JSON has lists only, records have tuples."""
    return {name: tuple(part) if type(part) is list else part for name, part in parts.items()}


def _texts(job: Job) -> list[str]:
    texts = [job.code, job.preamble, job.setup_code, job.check_setup]
    return [*texts, *job.expressions, *job.checks, *job.stdins]


def _read_job(calls: list[str], limits: Json, files: Json, changes: Json, **parts: Any) -> Job:
    inputs = (decode(call) for call in calls)
    arguments = tuple(Call(tuple(args), kwargs) for args, kwargs in inputs)
    mappings: Json = {"limits": Limits(**limits), "files": dict(files), "changes": dict(changes)}
    job = Job(**_tuples(parts), **mappings, calls=arguments)
    for record in (job, job.limits):
        check_types(record)
    job.check_files()
    return job


def _write_result(result: RunResult) -> Json:
    values = [vars(one) | {"value": encode(one.value, max_chars=MAX_JOB_CHARS)} for one in result.results]
    return vars(result) | {"outcome": result.outcome.value, "results": values}


def _read_result(results: list[Json], outcome: str, **parts: Any) -> RunResult:
    calls = tuple(CallResult(**one | {"value": decode_untrusted(one["value"])}) for one in results)
    result = RunResult(Outcome(outcome), calls, **_tuples(parts))
    for record in (result, *calls):
        check_types(record)
    times = (result.cpu_seconds, result.wall_seconds, result.idle_seconds or 0.0, *result.call_seconds)
    if not all(map(is_duration, times)):
        raise ValueError("a time is no finite number from 0 on")
    return result
