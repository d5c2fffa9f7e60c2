"""How often the 95 % intervals of `greenward.common.statistics` hold the truth, and how wide they are.

Each study draws the rates of P problems from a distribution, then n answers to each problem. An interval
covers if it holds the mean over the distribution. Compared are the shipped interval, the percentile
bootstrap over problems, BCa (Efron 1987), Student's t, and Wilson's score interval with an effective number
of problems and Student's quantile (Franco et al. 2019, doi:10.1093/jssam/smy019).

    python benchmarks/interval_coverage.py --methods shipped student wilson   # a minute on one core
    python benchmarks/interval_coverage.py                 # with the bootstraps, which take far longer
    python benchmarks/interval_coverage.py --studies 300   # quicker, with more Monte-Carlo error
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np

from greenward.common.statistics import Z_95, paired_difference, pass_at_k, rate

PROBLEMS = (5, 10, 20, 30, 50, 100, 300)
SAMPLING = ((1, 1), (8, 1), (8, 4))  # (n, k)
RESAMPLES = 1000
NORMAL = NormalDist()

Bounds = tuple[float, float]
Draw = Callable[[np.random.Generator, "int | tuple[int, int]"], np.ndarray]

RATES: dict[str, Draw] = {
    "uniform": lambda random, shape: random.random(shape),
    "u-shaped: beta(0.3, 0.3)": lambda random, shape: random.beta(0.3, 0.3, shape),
    "nearly all solved: 0.95 to 1": lambda random, shape: random.uniform(0.95, 1.0, shape),
    "nearly none solved: 0 to 0.05": lambda random, shape: random.uniform(0.0, 0.05, shape),
    "all alike: 0.5": lambda random, shape: np.full(shape, 0.5),
    "all alike: 0.1": lambda random, shape: np.full(shape, 0.1),
    "one in 20 never, else 0.99": lambda random, shape: np.where(random.random(shape) < 0.05, 0.0, 0.99),
}


def bootstrap(values_P: np.ndarray, random: np.random.Generator) -> Bounds:
    low, high = np.quantile(_means(values_P, random), (0.025, 0.975))
    return float(low), float(high)


def bca(values_P: np.ndarray, random: np.random.Generator) -> Bounds:
    """The bootstrap corrected for bias and skew; the percentile one where it is undefined."""
    means, value = _means(values_P, random), values_P.mean()
    below = float(np.mean(means < value) + np.mean(means == value) / 2)
    centred = values_P - value
    squares = float((centred**2).sum())
    if not 0 < below < 1 or squares == 0:
        return bootstrap(values_P, random)
    shift = NORMAL.inv_cdf(below)
    skew = float((centred**3).sum()) / (6 * squares**1.5)  # of the jackknife values of a mean
    ends = []
    for z in (-Z_95, Z_95):
        ends.append(NORMAL.cdf(shift + (shift + z) / (1 - skew * (shift + z))))
    low, high = np.quantile(means, ends)
    return float(low), float(high)


def student(values_P: np.ndarray, _: np.random.Generator) -> Bounds:
    half = _t_quantile(len(values_P) - 1) * values_P.std(ddof=1) / math.sqrt(len(values_P))
    return values_P.mean() - half, values_P.mean() + half


def effective_wilson(values_P: np.ndarray, _: np.random.Generator) -> Bounds:
    """Wilson's, with as many trials as give the variance over problems; all alike: with P trials."""
    problems, value = len(values_P), float(values_P.mean())
    variance = float(values_P.var()) / problems
    trials = float(problems)
    if variance > 1e-12:
        shrunk = (Z_95 / _t_quantile(problems - 1)) ** 2
        trials = max(trials, value * (1 - value) / variance * shrunk)
    spread = Z_95**2 / trials
    centre = (value + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (value * (1 - value) + spread / 4)) / (1 + spread)
    return centre - half, centre + half


def _means(values_P: np.ndarray, random: np.random.Generator) -> np.ndarray:
    means: np.ndarray = values_P[random.integers(len(values_P), size=(RESAMPLES, len(values_P)))].mean(axis=1)
    return means


def _t_quantile(freedom: int) -> float:
    """Student's 0.975 quantile (Abramowitz and Stegun 26.7.5; off by 0.3 % at 4 degrees of freedom)."""
    z = Z_95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def shipped_rate(values_P: np.ndarray, _: np.random.Generator) -> Bounds:
    found = rate(values_P)
    return found.low, found.high


def shipped_difference(values_P: np.ndarray, _: np.random.Generator) -> Bounds:
    found = paired_difference(values_P)
    return found.low, found.high


METHODS = {"bootstrap": bootstrap, "bca": bca, "student": student}
RATE_METHODS = {"shipped": shipped_rate, **METHODS, "wilson": effective_wilson}
DIFFERENCE_METHODS = {"shipped": shipped_difference, **METHODS}


def study_rates(draw: Draw, n: int, k: int, problems: int, studies: int) -> tuple[np.ndarray, float]:
    """(pass@k of each problem in each study, its true mean)."""
    random = np.random.default_rng(1)
    truth = float((1 - (1 - draw(random, 1_000_000)) ** k).mean())
    by_count = np.array([pass_at_k(n, passed, k) for passed in range(n + 1)])
    return by_count[random.binomial(n, draw(random, (studies, problems)))], truth


def study_differences(draw: Draw, n: int, k: int, problems: int, studies: int) -> tuple[np.ndarray, float]:
    """The same for the difference to a side that solves three tenths of what was not solved before."""
    random = np.random.default_rng(2)
    every = draw(random, 1_000_000)
    truth = float(((1 - every) ** k - (0.7 * (1 - every)) ** k).mean())
    by_count = np.array([pass_at_k(n, passed, k) for passed in range(n + 1)])
    before = draw(random, (studies, problems))
    first = by_count[random.binomial(n, before)]
    return by_count[random.binomial(n, 1 - 0.7 * (1 - before))] - first, truth


def measure(studies: int, chosen: Collection[str]) -> Iterator[dict[str, object]]:
    """A row for each quantity, distribution, n, k, number of problems and method."""
    kinds = (("rate", study_rates, RATE_METHODS), ("difference", study_differences, DIFFERENCE_METHODS))
    for quantity, simulate, methods in kinds:
        for name, draw in RATES.items():
            for n, k in SAMPLING:
                for problems in PROBLEMS:
                    values, truth = simulate(draw, n, k, problems, studies)
                    for method, bounds_of in methods.items():
                        if method not in chosen:
                            continue
                        random = np.random.default_rng(3)
                        quick = values if bounds_of not in (bootstrap, bca) else values[: studies // 4]
                        found = np.array([bounds_of(one, random) for one in quick])
                        held = (found[:, 0] <= truth + 1e-9) & (truth - 1e-9 <= found[:, 1])
                        coverage = float(held.mean())
                        yield {
                            "quantity": quantity,
                            "rates": name,
                            "n": n,
                            "k": k,
                            "problems": problems,
                            "method": method,
                            "coverage": round(coverage, 4),
                            "error": round(math.sqrt(coverage * (1 - coverage) / len(quick)), 4),
                            "width": round(float((found[:, 1] - found[:, 0]).mean()), 4),
                        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--studies", type=int, default=2000, help="for each row; the bootstraps get a quarter"
    )
    parser.add_argument("--methods", nargs="+", choices=RATE_METHODS, default=list(RATE_METHODS))
    parser.add_argument("--json", type=Path, help="where to write all rows")
    arguments = parser.parse_args()
    rows = []
    print(f"{'quantity':11}{'n':>2}{'k':>3}{'P':>5}  {'method':10} coverage ± error   width   rates")
    for row in measure(arguments.studies, arguments.methods):
        rows.append(row)
        print(
            f"{row['quantity']:11}{row['n']:2}{row['k']:3}{row['problems']:5}  {row['method']:10}"
            f"   {row['coverage']:.3f} ± {row['error']:.3f}  {row['width']:.3f}   {row['rates']}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print("\nLeast and mean coverage over all distributions, and mean width:")
    for quantity in ("rate", "difference"):
        for method in dict.fromkeys(row["method"] for row in rows if row["quantity"] == quantity):
            for n in (1, 8):
                cells = []
                for problems in PROBLEMS:
                    these = [
                        row for row in rows
                        if (row["quantity"], row["method"], row["n"], row["problems"])
                        == (quantity, method, n, problems)
                    ]  # fmt: skip
                    least = min(row["coverage"] for row in these)
                    mean = np.mean([row["coverage"] for row in these])
                    width = np.mean([row["width"] for row in these])
                    cells.append(f"P={problems}: {least:.2f} {mean:.2f} {width:.2f}")
                print(f"{quantity:11}{method:10} n={n}  " + "   ".join(cells))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
