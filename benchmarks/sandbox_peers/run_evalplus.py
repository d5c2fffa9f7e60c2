"""EvalPlus's executor, called as its own `evaluate` calls it: directly, or from a pool of processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version

if "torch" in sys.argv:
    import torch  # noqa: F401

from evalplus.eval import PASS, untrusted_check
from side import ENTRY_POINT, EXPECTED, INPUTS, serve


def passes(code: str) -> bool:
    status, _ = untrusted_check(
        "mbpp",
        code,
        INPUTS,
        ENTRY_POINT,
        expected=EXPECTED,
        atol=0,
        ref_time=[0.0] * len(INPUTS),
        fast_check=True,
    )
    return bool(status == PASS)


if __name__ == "__main__":
    pools: dict[int, ProcessPoolExecutor] = {}

    def grade(codes: Sequence[str], workers: int) -> Sequence[bool]:
        if workers == 1:
            return [passes(code) for code in codes]
        if workers not in pools:
            pools[workers] = ProcessPoolExecutor(workers)
        return list(pools[workers].map(passes, codes))

    serve({"grade": grade}, {"version": version("evalplus")})
