"""Builds the sections of a report that only games have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from greenward.common.statistics import Estimate
from greenward.reports.document import (
    NOTHING,
    Block,
    Chart,
    Code,
    KeyFigure,
    Paragraph,
    Role,
    Section,
    Table,
    Unit,
    charts,
    percent,
    section,
    value_text,
)
from greenward.reports.runs import (
    Curve,
    Evaluation,
    Evaluations,
    Group,
    evaluation_series,
    pooled,
    step_charts,
    suites_of,
)
from greenward.runs.reading import RecordedRun

# Figures with a chart, by their names without the role.
_FIGURES = {
    "lines/lost": "lines lost with greedy play",
    "random/not_lost": "not lost against random play",
    "expert/not_lost": "not lost against the expert",
    "exploitability": "exploitability (chips per hand; uniform play has 0.458)",
    "value": "value for the first player (chips per hand; −1/18 in equilibrium)",
    "deals": "games with a deal",
    "efficiency": "share of the possible gains that deals reached",
    "rationality": "games with a deal in which nobody lost value",
    "policy_beats_start": "wins of the generator over the predictor of the start",
    "frozen_beats_start": "wins of the frozen generator over the predictor of the start",
    "frozen_beats_policy": "wins of the frozen generator over the predictor",
    "policy_beats_policy": "wins of the generator over the predictor",
    "valid": "programs that are valid",
}
_IN_CHIPS = ("exploitability", "value")
_MATCH = ("won", "drawn", "lost", "illegal")
_SHARES = ("win", "draw", "loss", "illegal")
_TRAINING = (*_SHARES, "length", "entropy", "baseline")
_ROLES: tuple[Role, ...] = ("main", "second")
_WORTH = {1.0: "win", 0.0: "draw", -1.0: "loss"}
_SHOWN_ERRORS, _BOARDS_IN_A_ROW = 8, 4


def games_section(group: Group) -> Section:
    """What a training reached in its games; no blocks without games."""
    names = suites_of(group.runs, games=True)
    blocks: list[Block | None] = [Paragraph(described(group.first))] if names else []
    blocks.append(charts(game_charts([replace(group, label="")])))
    for name in names:
        played = group.on(name)
        first, last = (played.first.evaluations[place]["step"] for place in (0, -1))
        blocks += game_blocks(name, {f"Start, step {first}": played.at(0), f"Step {last}": played.at(-1)})
    return section("Games", *blocks)


def played_section(group: Group) -> Section:
    """How the roles went at each step of a training in games; no blocks without games."""
    return section(
        "Games of the training, by opponent and role",
        charts(step_charts(group.runs, list(_training_curves(group.runs))), "small", in_json=False),
        level="detail",
    )


def described(run: RecordedRun) -> str:
    """What its task says of a training in games."""
    return run.task.described(run.config) if run.task else ""


def games_headline(run: RecordedRun) -> str:
    """The figures at the start and now; empty without games."""
    parts = []
    for name in suites_of([run], games=True):
        first, last = run.suites[name][0], run.suites[name][-1]
        part = f"{name}: {last.get('headline', '')} after {last['step']} steps"
        parts.append(part + (f" (at the start: {first.get('headline', '')})" if last is not first else ""))
    return f"{'; '.join(parts)}." if parts else ""


def game_figures(group: Group) -> Iterator[KeyFigure]:
    """The exact figures at the head of a page; against random play, where there are none."""
    for name in suites_of(group.runs, games=True):
        played = group.on(name)
        keys = _charted(played.first.evaluations[-1])
        exact = [key for key in keys if not key.startswith(("random/", "expert/"))] or keys[:2]
        for key in exact:
            before, after = pooled(played.at(0), key), pooled(played.at(-1), key)
            yield KeyFigure(f"{name}, {_label(key)}", _figure(key, after), _figure(key, before))


def game_charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """A chart for each figure of each game: a line for each role, or of several runs one for each run."""
    for name in suites_of([run for group in groups for run in group.runs], games=True):
        of_game = [group.on(name) for group in groups]
        found: dict[str, Chart] = {}
        last = next(group.first.evaluations[-1] for group in of_game if group.runs)
        for key in _charted(last):
            kind, role = _kind_and_role(key)
            title = f"{name}: {_FIGURES[kind]}" + (f" as {role} player" if role and len(groups) > 1 else "")
            unit: Unit = "number" if key in _IN_CHIPS else "share"
            lines = []
            for group in of_game:
                if len(groups) == 1 and role:
                    group = replace(group, label=role, role=_ROLES[last["roles"].index(role)])
                lines += evaluation_series(group, key, shown=unit)
            if any(len(line.points) > 1 for line in lines):
                chart = found.get(title) or Chart(title, "step", (), unit)
                found[title] = replace(chart, series=(*chart.series, *lines))
        yield from found.values()


def game_blocks(name: str, stages: Mapping[str, Evaluations]) -> list[Block]:
    """Tables of a game: its figures at each stage, the matches of the last one, and the errors in it."""
    *_, evaluations = stages.values()
    last = next(one for one in evaluations if one is not None)
    figures = tuple(
        (_label(key).capitalize(), *(_figure(key, pooled(found, key)) for found in stages.values()))
        for key in _charted(last)
    )
    matches = tuple(
        (opponent, role, *(percent(pooled(evaluations, f"{opponent}/{role}/{one}")) for one in _MATCH))
        for opponent in ("random", "expert")
        for role in last["roles"]
        if f"{opponent}/{role}/won" in last["metrics"]
    )
    remark = f" The expert plays {str(last['expert']).replace('_', ' ')}." if last.get("expert") else ""
    caption = (
        f"{last.get('games')} games against each opponent at temperature {last.get('temperature')}; "
        f"Wilson's 95 % intervals. Illegal moves lose; these games are among the lost ones.{remark}"
    )
    blocks: list[Block] = [Table(f"{name}: figures", ("Figure", *stages), figures)]
    if matches:
        columns = ("Against", "As", *map(str.capitalize, _MATCH))
        blocks.append(Table(f"{name}: matches", columns, matches, caption))
    if strategy := last.get("strategy"):
        blocks.append(_strategy_table(name, strategy))
    for role in last["roles"]:
        if errors := [one for one in last.get("errors", ()) if one.get("role") == role]:
            shown = f"the {min(len(errors), _SHOWN_ERRORS)} positions that most lines meet"
            blocks.append(Paragraph(f"{name}: errors of greedy play as {role} player, {shown}."))
            blocks.append(Code(_boards(errors)))
    return blocks


def _training_curves(runs: Sequence[RecordedRun]) -> Iterator[Curve]:
    """The metrics of roles that the steps have: games/TASK/ROLE/FIGURE and baseline/TASK/ROLE."""
    found = []
    for key in {key for run in runs for row in run.metrics for key in row}:
        kind, *parts = [*key.split("/"), "baseline"] if key.startswith("baseline/") else key.split("/")
        if kind in ("games", "baseline") and len(parts) > 2 and parts[-1] in _TRAINING:
            found.append(("/".join(parts[:-2]), _TRAINING.index(parts[-1]), parts[-2], key))
    roles = sorted({role for _, _, role, _ in found})
    for task, number, role, key in sorted(found):
        unit: Unit = "share" if _TRAINING[number] in _SHARES else "number"
        yield Curve(f"{task}: {_TRAINING[number]}", key, role, _ROLES[roles.index(role) % 2], unit)


def _charted(evaluation: Evaluation) -> list[str]:
    """The metrics of an evaluation that are shown on their own, in the order of `_FIGURES`."""
    order = list(_FIGURES)
    found = [key for key in evaluation["metrics"] if _kind_and_role(key)[0] in order]
    return sorted(found, key=lambda key: order.index(_kind_and_role(key)[0]))


def _kind_and_role(key: str) -> tuple[str, str]:
    """`lines/lost` and `first` of `lines/first/lost`; no role where there is none."""
    parts = key.split("/")
    return (f"{parts[0]}/{parts[2]}", parts[1]) if len(parts) == 3 else (key, "")


def _label(key: str) -> str:
    kind, role = _kind_and_role(key)
    return f"{_FIGURES[kind].partition(' (')[0]}{f' as {role} player' if role else ''}"


def _figure(key: str, estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    if key in _IN_CHIPS:
        return value_text(estimate.value, "number")
    return percent(estimate) if estimate.low < estimate.high else f"{100 * estimate.value:.1f} %"


def _strategy_table(name: str, strategy: Mapping[str, Mapping[str, float]]) -> Table:
    rows = tuple(
        (
            observation,
            ", ".join(f"{action} {100 * chance:.1f} %" for action, chance in chances.items()),
            f"{100 * max(0.0, 1 - sum(chances.values())):.2f} %",
        )
        for observation, chances in strategy.items()
    )
    return Table(f"{name}: probabilities", ("Information set", "Actions", "Illegal"), rows)


def _boards(errors: Sequence[Mapping[str, Any]]) -> str:
    """Positions side by side, each with the move and what it costs."""
    texts = [
        [
            *str(one["position"]).splitlines(),
            f"plays {one['move']}",
            f"{_WORTH.get(one['value'])} to {_WORTH.get(one['after'])}",
            f"in {one['lines']} lines",
        ]
        for one in errors[:_SHOWN_ERRORS]
    ]
    groups = [texts[i : i + _BOARDS_IN_A_ROW] for i in range(0, len(texts), _BOARDS_IN_A_ROW)]
    return "\n\n".join(
        "\n".join(
            "".join(f"{line:<20}" for line in row).rstrip() for row in zip_longest(*group, fillvalue="")
        )
        for group in groups
    )
