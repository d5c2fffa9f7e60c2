"""EvalPlus's own `evaluate`, called as its command line calls it. Runs in EvalPlus's environment.

    run_evalplus.py expected DATASET
    run_evalplus.py evaluate DATASET SAMPLES WORKERS MIN_TIME_LIMIT

The data, the cache and what may use the network are the caller's to say, by environment variables.
Prints one line, RESULT and a JSON object.
"""

from __future__ import annotations

import json
import sys
import time

from evalplus.data import (
    get_human_eval_plus,
    get_human_eval_plus_hash,
    get_mbpp_plus,
    get_mbpp_plus_hash,
)
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.evaluate import evaluate, get_groundtruth
from measures import cpu_seconds, peak_memory_bytes


def compute_expected_values(dataset: str) -> None:
    """What `evaluate` does first where it has not yet been done."""
    if dataset == "mbpp":
        get_groundtruth(get_mbpp_plus(), get_mbpp_plus_hash(), MBPP_OUTPUT_NOT_NONE_TASKS)
    else:
        get_groundtruth(get_human_eval_plus(), get_human_eval_plus_hash(), [])


def main() -> None:
    task, dataset, *rest = sys.argv[1:]
    began, used = time.perf_counter(), cpu_seconds()
    if task == "expected":
        compute_expected_values(dataset)
    else:
        samples, workers, min_time_limit = rest
        evaluate(dataset, samples, parallel=int(workers), min_time_limit=float(min_time_limit))
    measured = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": cpu_seconds() - used,
        "peak_memory_bytes": peak_memory_bytes(),
    }
    print("RESULT " + json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
