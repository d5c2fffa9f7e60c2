"""What a worker reported about one job, read as hostile text: frames in, `RunResult` out."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from greenward.sandbox.codec import PlainDataError, decode_untrusted
from greenward.sandbox.harness import FRAME_LENGTH, NONCE_CHARS
from greenward.sandbox.protocol import CallResult, Outcome, RunResult

_KILLED = {
    "cpu": (Outcome.TIMEOUT, "CPUTimeLimit"),
    "wall": (Outcome.TIMEOUT, "WallTimeLimit"),
    "output": (Outcome.OUTPUT_LIMIT, "OutputLimit"),
    "processes": (Outcome.CHEATING, "ProcessLimit"),
    "folder": (Outcome.OUTPUT_LIMIT, "FolderLimit"),
}
_NOT_LOADED = "the child ended before the answer was loaded ({})"
_SIGNALS = {one.value: one.name for one in signal.Signals}
_ENDED = {
    outcome.value: outcome
    for outcome in (
        Outcome.LOAD_ERROR,
        Outcome.SYNTAX_ERROR,
        Outcome.NO_ENTRY_POINT,
        Outcome.EXITED,
        Outcome.MEMORY,
    )
}


class _Forged(Exception):
    """Bytes on the result channel that our harness does not write."""


class _Frames:
    """The frames of one run, checked one by one: nonce, length, kind, order."""

    def __init__(self, results_expected: int) -> None:
        self.done = False
        self.results: list[CallResult] = []
        self.ended: tuple[Outcome, str, str] | None = None
        self._results_expected = results_expected

    def read(self, data: bytes, nonce: str) -> None:
        """Raises `_Forged` at the first frame that cannot be ours; what came before it stays."""
        prefix, start = nonce.encode("ascii"), 0
        while start < len(data):
            body = start + NONCE_CHARS + FRAME_LENGTH.size
            if len(data) < body or data[start : start + NONCE_CHARS] != prefix:
                raise _Forged
            (length,) = FRAME_LENGTH.unpack_from(data, start + NONCE_CHARS)
            start = body + length
            if len(data) < start:
                raise _Forged
            try:
                frame = decode_untrusted(data[body:start].decode("ascii"))
            except (PlainDataError, UnicodeDecodeError):
                raise _Forged from None
            self._take(frame)

    def _take(self, frame: Any) -> None:
        if type(frame) is not list or not frame or self.done or self.ended:
            raise _Forged
        kind, fields = frame[0], frame[1:]
        if kind == "done" and not fields and len(self.results) == self._results_expected:
            self.done = True
        elif kind == "ended" and len(fields) == 3 and _text(fields[0]) in _ENDED:
            self.ended = (_ENDED[fields[0]], _text(fields[1]), _text(fields[2]))
        else:
            self.results.append(self._result(kind, fields))

    def _result(self, kind: Any, fields: list[Any]) -> CallResult:
        position = len(self.results)
        if position >= self._results_expected or fields[:1] != [position]:
            raise _Forged
        if kind == "value" and len(fields) == 2:
            return CallResult(True, fields[1])
        if kind == "opaque" and len(fields) == 2:
            return CallResult(True, error_message=_text(fields[1]), plain=False)
        if kind == "raised" and len(fields) == 3:
            return CallResult(False, error_class=_text(fields[1]), error_message=_text(fields[2]))
        raise _Forged


def _text(field: Any) -> str:
    if type(field) is not str:
        raise _Forged
    return field


def read_report(
    results_expected: int, nonce: str, header: Mapping[str, Any], blobs: bytes, layers: tuple[str, ...]
) -> RunResult:
    """The result of a job from its worker's report.

    What ended before the worker knew that every layer was on ended before the answer's code was
    loaded: that is the infrastructure's failure. What came later is the answer's doing, and so is
    whatever surprises the reader of its frames.
    """
    results_end, stdout_end = header["lengths"][0], sum(header["lengths"][:2])
    frames = _Frames(results_expected)
    forged = False
    try:
        frames.read(blobs[:results_end], nonce)
    except Exception:  # `_Forged`, or what an answer has thought of and we have not
        forged = True
    outcome, error_class, message = _outcome(frames, forged, header)
    return RunResult(
        outcome=outcome,
        results=tuple(frames.results),
        error_class=error_class,
        error_message=message,
        stdout=blobs[results_end:stdout_end].decode("utf-8", "replace"),
        stderr=blobs[stdout_end:].decode("utf-8", "replace"),
        cpu_seconds=header["cpu_seconds"],
        wall_seconds=header["wall_seconds"],
        waiting_seconds=header["waiting_seconds"],
        layers=layers,
        call_seconds=tuple(header.get("call_seconds", ())[: len(frames.results)]),
    )


def _outcome(frames: _Frames, forged: bool, header: Mapping[str, Any]) -> tuple[Outcome, str | None, str]:
    killed, exit_code = header["killed"], header["exit"]
    if not header["ready"]:
        return Outcome.INFRASTRUCTURE, None, header["failure"] or _NOT_LOADED.format(exit_code)
    if killed is not None:
        outcome, error_class = _KILLED[killed]
        return outcome, error_class, "stopped at its limit"
    if forged:
        return Outcome.CHEATING, "ForgedResult", "wrote to the private result channel"
    if frames.ended is not None:
        return frames.ended
    if frames.done:
        return Outcome.COMPLETED, None, ""
    if exit_code >= 0:
        return Outcome.EXITED, "Exit", f"left with status {exit_code} before its calls were made"
    name = _SIGNALS.get(-exit_code, f"signal {-exit_code}")
    outcome = Outcome.TIMEOUT if -exit_code == signal.SIGXCPU else Outcome.EXITED
    return outcome, name, f"ended by {name}"
