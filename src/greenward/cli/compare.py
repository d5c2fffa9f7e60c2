"""`greenward compare`: two evaluations, paired by problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from greenward.evaluation.comparison import PairedComparison

MAX_IDS = 40  # printed of each kind; --json has all


@click.command()
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@click.option("--k", type=click.IntRange(min=1), default=1, show_default=True, help="Compare pass@K.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(a: Path, b: Path, *, k: int, as_json: bool) -> None:
    """Test whether B is better than A, or whether chance explains the difference.

    A and B are folders that `greenward eval` or `greenward grade` has written, run directories (their
    last evaluation counts) or EvalPlus's eval_results.json. The problems that both answered are paired:
    exact McNemar test for one answer per problem, else a paired randomisation test.

    \b
    greenward compare evaluations/before evaluations/after
    greenward compare runs/base runs/trained --k 5
    """
    from greenward.evaluation.comparison import compare as compare_evaluations
    from greenward.evaluation.stored import read_evaluation

    found = compare_evaluations(read_evaluation(a), read_evaluation(b), k=k)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)


def _print(found: PairedComparison) -> None:
    from greenward.text import visible

    for warning in _warnings(found):
        click.secho(visible(f"! {warning}"), fg="yellow")
    click.secho(visible(found.claim), bold=True)
    for side, name, rate in (("A", found.name_a, found.a), ("B", found.name_b, found.b)):
        interval = f"[{rate.low:.1%}, {rate.high:.1%}]"
        click.echo(visible(f"  {side}           pass@{found.k} {rate.value:6.1%} {interval:16} {name}"))
    points = found.difference
    interval = f"[{100 * points.low:+.1f}, {100 * points.high:+.1f}]"
    click.echo(f"  difference  {100 * points.value:+.1f} points, 95 % interval {interval}")
    if found.mid_p is not None:
        click.echo(f"  mid-p       {found.mid_p:.2g}")
    click.echo(f"  {_detectable(found)}")
    for label, ids in (("won by B", found.won), ("lost by B", found.lost)):
        more = f" … and {len(ids) - MAX_IDS} more" if len(ids) > MAX_IDS else ""
        click.echo(visible(f"  {label:11} {len(ids)}  {' '.join(ids[:MAX_IDS])}{more}".rstrip()))


def _warnings(found: PairedComparison) -> list[str]:
    warnings = [f"{name} differs: {x} in A, {y} in B" for name, (x, y) in found.other_settings.items()]
    unpaired = len(found.unpaired_a) + len(found.unpaired_b)
    if unpaired:
        warnings.append(
            f"THE PROBLEMS DIFFER: {found.problems} are compared; {len(found.unpaired_a)} are only in A and "
            f"{len(found.unpaired_b)} only in B ({_some((*found.unpaired_a, *found.unpaired_b))})"
        )
    if found.too_few:
        warnings.append(
            f"{len(found.too_few)} problems left out: fewer than {found.k} answers on a side "
            f"({_some(found.too_few)})"
        )
    if found.infrastructure:
        warnings.append(
            f"{found.infrastructure} answers were lost to the infrastructure and count as not passed"
        )
    return warnings


def _some(ids: tuple[str, ...]) -> str:
    return " ".join(ids[:3]) + (" …" if len(ids) > 3 else "")


def _detectable(found: PairedComparison) -> str:
    if found.detectable is None:
        return f"{found.problems} problems are too few to show any difference (power 80 %, alpha 5 %)"
    return (
        f"the smallest difference that these {found.problems} problems can show (power 80 %, alpha 5 %): "
        f"{100 * found.detectable:.1f} points"
    )
