"""Steps of decoding as CUDA graphs: one launch for each token, where Python launches hundreds of kernels.

A graph repeats what was recorded on the same memory. So it serves until the number of rows changes or the
cache of keys and values moves, and is then captured anew. The first one is compared with the step that it was
captured from. `GREENWARD_KERNELS=off` leaves graphs aside.

Shape suffixes: B rows being decoded, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from greenward.policies.kernels.build import are_switched_off

_TOLERANCE = 3e-2  # beside the largest logit: the rounding of bfloat16, with room

Replay = Callable[[], Tensor]


def captures(device: torch.device) -> bool:
    """Whether steps on this device are captured."""
    return device.type == "cuda" and not are_switched_off()


class StepGraph:
    """Runs steps by their operations, and on CUDA by a graph of these as long as no tensor moves."""

    def __init__(self, device: torch.device) -> None:
        self._captures = captures(device)
        self._is_proven = False
        self._replay: Replay | None = None

    def run(
        self,
        step: Callable[[Tensor], Tensor],
        token_ids_B: Tensor,
        counters: list[Tensor],
        *,
        moved: bool,
    ) -> Tensor:
        """The logits (B, V) that `step` gives, which the next call may overwrite.

        `step` counts `counters` up by one and keeps nothing else that a repetition would change. `moved` says
        that it reads or writes other memory than at the last call.
        """
        if not self._captures:
            return step(token_ids_B)
        if moved or self._replay is None:
            self._replay = None  # its memory is free for the next one
            self._token_ids_B = token_ids_B.clone()
            logits_BV = step(self._token_ids_B)
            self._replay = self._captured(lambda: step(self._token_ids_B), logits_BV, counters)
            return logits_BV
        self._token_ids_B.copy_(token_ids_B)
        return self._replay()

    def _captured(self, step: Replay, logits_BV: Tensor, counters: list[Tensor]) -> Replay | None:
        """The step that gave these logits as a graph; None, from now on, where that fails."""
        try:
            replay = capture(step, logits_BV.device)
            if not self._is_proven:
                counted = [counter.clone() for counter in counters]
                torch._foreach_sub_(counters, 1)
                error = (replay() - logits_BV).abs().max() / logits_BV.abs().max()
                torch._foreach_copy_(counters, counted)
                if error > _TOLERANCE:
                    raise RuntimeError(f"logits differ by {float(error):.1e} of the largest")
                self._is_proven = True
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as failure:
            self._captures = False
            reason = str(failure).partition("\n")[0]
            warnings.warn(f"Sampling goes on without CUDA graphs, which takes longer: {reason}", stacklevel=2)
            return None
        return replay


def capture(step: Replay, device: torch.device) -> Replay:
    """Record `step`, which is not run: a function that runs it and gives the same tensor each time."""
    graph = torch.cuda.CUDAGraph()
    # An update may go on in another thread.
    recording = torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local")
    with torch.cuda.device(device), recording:
        out = step()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
