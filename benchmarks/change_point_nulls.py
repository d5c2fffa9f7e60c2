"""Simulates the nulls of the test of change, and writes them as the table that the test reads.

    .venv/bin/python benchmarks/change_point_nulls.py        # a minute on one core

Series of each length and autocorrelation in which nothing changes, for `diagnostics/change_points.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from greenward.diagnostics import change_points
from greenward.diagnostics.change_points import AUTOCORRELATIONS, SIMULATIONS, simulated_null

POINTS = (30, 40, 55, 75, 100, 140, 200, 280, 400, 512)
LEVELS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4)


def main() -> None:
    levels = np.array(LEVELS)
    cells = [[simulated_null(n, phi, levels, SIMULATIONS) for phi in AUTOCORRELATIONS] for n in POINTS]
    table = {"points_N": np.array(POINTS, float), "levels_L": levels}
    for name in cells[0][0]:
        table[name] = np.array([[cell[name] for cell in row] for row in cells], np.float32)
    record = np.zeros((), [(name, values.dtype, values.shape) for name, values in table.items()])
    for name, values in table.items():
        record[name] = values
    path = Path(change_points.__file__).with_suffix(".npy")
    np.save(path, record)
    print(f"wrote {path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
