"""Reward functions of the user's own, in a process that can be stopped.

The function runs in a spawned process, started once, so that a hang, a crash or a print does not
reach the trainer. Answers go in and scores come out as plain data.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from greenward.errors import RewardError
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.plain_answers import answers_to_plain
from greenward.grading.text import sanitise
from greenward.sandbox.codec import PlainDataError, encode
from greenward.sandbox.frames import receive_frame, send_frame

_MAIN = "from greenward.grading.custom_reward_process import main; main()"
IMPORT_SECONDS = 120.0
_REMEDY = "It must return one finite number, or None where it does not apply, for each answer."


class CustomReward:
    """The term `module:function`; its signatures are documented in docs/rewards.md.

    Raises `RewardError`, naming the function and the answer, when the function cannot be imported,
    raises, takes longer than `timeout_seconds` for a batch, or gives the wrong number of scores or
    a score that is not a finite number.
    """

    def __init__(
        self,
        name: str,
        weight: float = 1.0,
        options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.weight = weight
        self._timeout_seconds = timeout_seconds
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
        try:
            self._ask({"function": name, "options": dict(options or {})}, b"", IMPORT_SECONDS)
        except BaseException:
            self.close()
            raise

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        """One score per answer, None where the function says that it does not apply."""
        try:
            blob = encode(answers_to_plain(answers), max_chars=1 << 30).encode("ascii")
        except PlainDataError as error:
            raise RewardError(f"{self.name}: the answers are not plain data: {error}.") from None
        scores = self._ask({}, blob, self._timeout_seconds)["scores"]
        if len(scores) != len(answers):
            raise RewardError(
                f"{self.name} gave {len(scores)} scores for {len(answers)} answers.", remedy=_REMEDY
            )
        for index, score in enumerate(scores):
            if score is not None and not (isinstance(score, float) and math.isfinite(score)):
                raise RewardError(
                    f"{self.name} gave {sanitise(str(score), 80)} for answer {index} "
                    f"(problem {answers[index].problem.task_id}).",
                    remedy=_REMEDY,
                )
        return list(scores)

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._channel.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()

    def _ask(self, header: dict[str, Any], blob: bytes, timeout_seconds: float) -> dict[str, Any]:
        self._channel.settimeout(timeout_seconds)
        try:
            send_frame(self._channel, header, blob)
            reply = receive_frame(self._channel)
        except TimeoutError:
            self.close()
            raise RewardError(
                f"{self.name} did not answer within {timeout_seconds:g} s.",
                remedy="Make it faster, or raise timeout_seconds of this reward term.",
            ) from None
        except OSError:
            reply = None
        if reply is None:
            self.close()
            raise RewardError(
                f"{self.name}: its process ended (status {self._process.returncode}).",
                remedy="It leaves Python or crashes the interpreter: run it by hand on one answer.",
            )
        if "error" in reply[0]:
            # An exception's message may quote an answer: hostile text.
            message, remedy = sanitise(reply[0]["error"], 500), sanitise(reply[0]["remedy"], 2000)
            raise RewardError(f"{self.name}: {message}", remedy=remedy)
        return reply[0]


def _has_descriptor(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
