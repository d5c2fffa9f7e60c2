"""What has been sampled so far, row by row, and which rows have ended.

Shape suffixes: B rows still in the batch, R all rows, T positions.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from greenward.policies.protocol import Completion, SamplingParams, StopReason
from greenward.policies.tokenizer import Tokenizer


class RowProgress:
    """`rows_B` names the rows in the batch; `alive_B` is False for those that have ended."""

    def __init__(self, rows: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.rows_B = np.arange(rows)
        self.alive_B = np.ones(rows, dtype=bool)
        self._eos_ids = np.array(tokenizer.eos_ids)
        self._token_ids_RT = np.zeros((rows, params.max_tokens), dtype=np.int64)
        self._logprobs_RT = np.zeros((rows, params.max_tokens), dtype=np.float32)
        self._lengths_R = np.full(rows, params.max_tokens)
        self._reasons = [StopReason.LENGTH] * rows
        self._stops = StopStrings(params.stop_strings, rows, tokenizer) if params.stop_strings else None

    def record(self, step: int, token_ids_B: Tensor, logprobs_B: Tensor) -> list[int]:
        """Note token number `step` of every row in the batch; the rows that end with it.

        Rows that ended before ignore theirs.
        """
        were_alive_B = self.alive_B.copy()
        ids_B = token_ids_B.cpu().numpy()
        self._token_ids_RT[self.rows_B, step] = ids_B
        self._logprobs_RT[self.rows_B, step] = logprobs_B.cpu().numpy()
        ended_B = self.alive_B & np.isin(ids_B, self._eos_ids)
        self._end(np.flatnonzero(ended_B), step, StopReason.END)
        if self._stops is not None:
            stops = self._stops
            alive = np.flatnonzero(self.alive_B)
            stopped = [b for b in alive if stops.completed(int(self.rows_B[b]), int(ids_B[b]))]
            self._end(np.array(stopped, dtype=np.int64), step, StopReason.STOP_STRING)
        return [int(row) for row in self.rows_B[were_alive_B & ~self.alive_B]]

    def drop_finished(self) -> np.ndarray:
        """Take finished rows out of the batch; the places, in the old batch, of those that stay."""
        kept = np.flatnonzero(self.alive_B)
        self.rows_B = self.rows_B[kept]
        self.alive_B = np.ones(len(kept), dtype=bool)
        return kept

    def completion(self, row: int, version: int) -> Completion:
        """What a row that has ended consists of; one that has not was cut at the limit."""
        length = self._lengths_R[row]
        return Completion(
            self._token_ids_RT[row, :length].copy(),
            self._logprobs_RT[row, :length].copy(),
            self._reasons[row],
            version,
        )

    def _end(self, ended: np.ndarray, step: int, reason: StopReason) -> None:
        self.alive_B[ended] = False
        for row in self.rows_B[ended]:
            self._lengths_R[row] = step + 1
            self._reasons[row] = reason


class StopStrings:
    """Finds stop strings in the bytes of a row's text as it grows, across token boundaries."""

    def __init__(self, stop_strings: tuple[str, ...], rows: int, tokenizer: Tokenizer) -> None:
        self._stops = [stop.encode() for stop in stop_strings]
        self._token_bytes = tokenizer.token_bytes
        self._keep = max(map(len, self._stops)) - 1
        self._tails = [b""] * rows

    def completed(self, row: int, token_id: int) -> bool:
        """Whether the row's text, with this token added, now holds a stop string."""
        added = self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""
        text = self._tails[row] + added
        self._tails[row] = text[len(text) - self._keep :] if self._keep < len(text) else text
        return any(stop in text for stop in self._stops)
