"""Reads what trainers print: mappings, JSON inside other text, tables, progress bars, and names with numbers.

- Mappings: transformers' `{'loss': 0.1, …}` (trainer_callback.py, PrinterCallback), and JSON after the prefix
  of a logger.
- verl's `step:1 - actor/entropy:0.6 - …` (verl/utils/tracking.py, LocalLogger).
- Boxes with a name and a number in each line: Stable-Baselines3 (logger.py, HumanOutputFormat), Spinning Up,
  OpenAI Baselines. Markdown tables, and tables whose columns are parted by spaces.
- Bars of tqdm with values behind the rate.
- Lists of names and numbers without a sign between them: mlx-lm (`Iter 10: Train loss 2.3, It/sec 0.5, …`),
  rlkit and the summaries of W&B (a name, a gap and a number in each line), and the tuples of Python 2.
- Lines and blocks of names and numbers: minimind (`Epoch:[1/1](1/500), Reward: 0.4, …`), prime-rl
  (`Step 28 | Time: 3.1s | Reward: 0.5 | …`), TF-Agents (`step = 200: loss = 0.1`), rsl_rl's blocks below
  `Learning iteration 12/1500`, CleanRL, ML-Agents, and most that people write themselves.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import NamedTuple

from greenward.diagnostics.readers.names import is_known, known_name
from greenward.diagnostics.readers.rows import (
    MAX_NAME,
    NUMBER,
    STEP_KEYS,
    Log,
    Row,
    evaluated,
    flat,
    json_object,
    number_in,
    plain_key,
    text_lines,
)

_LINE = 100_000  # bytes that are looked at
_WORDS_AT = 4000  # characters of a line in which names and numbers are looked for
_MOST_ROWS = 500_000
_STEPS = frozenset(STEP_KEYS)
_CALL = r"(?:[A-Za-z_][\w.]{0,20}\(\[?)?"
_MAPPED = re.compile(rf"['\"]([^'\"]{{1,256}})['\"]:\s{{0,4}}{_CALL}['\"]?({NUMBER}%?)(?=[^\w.-])")
_VERL = re.compile(rf"(?<![\w/@.-])([\w/@.-]{{1,256}}):{_CALL}({NUMBER})")
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\[\d{1,2}(?:;\d{1,3}){0,4}m")
_QUOTES = re.compile(r"(?:\s{0,9}>{1,3}\s?){1,9}|\$ ")
# Ray's "(main_task pid=19443, ip=10.0.0.1)", torchrun's "[rank0]:", W&B's "wandb:", Python's "INFO:root:".
_WRITER = re.compile(
    r"\s{0,9}(?:\(\w[\w.:-]{0,80} pid=\d{1,9}(?:, ip=[\w.:]{1,40})?\)|\[rank\d{1,5}\]:|wandb:|"
    r"(?:INFO|DEBUG|WARNING|ERROR):[\w.]{1,80}:) ?"
)
_LOGURU = re.compile(
    r"\d{4}-\d\d-\d\d [\d:.]{8,15} \| [A-Z]{4,8} {1,5}\| [\w.]{1,120}:[\w<>]{1,80}:\d{1,9} - "
)
_TUPLE = re.compile(r"\(['\"].{1,4000}\),?")  # what print("Episode", 3, "reward", 0.5) gives in Python 2
_OF_TUPLE = re.compile(rf"u?(?:'([^']{{0,200}})'|\"([^\"]{{0,200}})\")|({NUMBER})")
_BAR = re.compile(r"\|?\s*(\d{1,15})/(\d{1,15})\s?\[([^\[\]]{0,20}<[^\[\]]{0,4000})\]")
_EDGE = "|│┃║"
_SPLIT = re.compile(f"[{_EDGE}]")
_ASSIGNED_CELL = re.compile(
    rf"[{_EDGE}]\s{{0,9}}[^\W\d][\w/ .@-]{{0,80}}(?:=|:\s{{1,9}}){NUMBER}\S{{0,12}}\s{{0,200}}[{_EDGE}]"
)
_RULE = re.compile(r"[\s:|+=#*_\u2500-\u257f-]{3,}")


# Names in what transformers' trainers, verl and Tinker cookbook print, of which no other line has several.
_OF_TRAINERS = frozenset({
    *("loss", "grad_norm", "learning_rate", "reward", "reward_std", "kl", "epoch", "num_tokens"),
    *("actor/pg_loss", "actor/grad_norm", "actor/lr", "critic/score/mean", "critic/rewards/mean"),
    *("response_length/mean", "global_seqlen/mean", "timing_s/step", "train/loss", "train/grad_norm"),
    *("env/all/reward/total", "env/all/total_episodes", "env/all/turns_per_episode", "optim/lr"),
})  # fmt: skip
_SURE = 3
_CLOSING = "train_runtime"  # in the summary that ends a training
_HEADER = "\0header"  # of a row: the steps in the line before it
_HEADER_LENGTH = 60
_FEW = 5  # rows that name no signal may be settings and sizes


class _Rows:
    """Rows that were printed, and in which way; `chosen` gives those that are the log."""

    def __init__(self) -> None:
        self.strong: list[Row] = []  # mappings and tables
        self.weak: list[Row] = []  # names and numbers
        self.bars: list[Row] = []
        self.all: list[Row] = []  # in the order in which they begin
        self.torn = self.beyond = 0
        self.of_trainers = 0  # rows that only a trainer prints
        self.telling = 0  # mappings and rows of tables that name a signal
        self.torn_last = False

    def add(self, rows: list[Row], row: Row) -> None:
        if rows is self.strong:
            self.of_trainers += _is_of_trainer(row)
            self.telling += _tells(row)
        if len(rows) < _MOST_ROWS:
            rows.append(row)
            if rows is not self.weak:
                self.all.append(row)
        else:
            self.beyond += 1

    def chosen(self, log: Log) -> Iterator[Row]:
        if self.beyond:
            log.notes.append(f"{self.beyond} printed row(s) beyond the first {_MOST_ROWS} were left out")
        if (torn := self.torn - self.torn_last) > 0:
            log.notes.append(f"{torn} torn line(s) were left out")
        if self.torn_last:
            log.notes.append("the last line is torn and was left out")
        headers = {id(row): row.pop(_HEADER) for row in self.strong if _HEADER in row}
        if 2 * len(headers) > sum(not _has_step(row) for row in self.strong):
            for row in self.strong:
                row |= {**headers.get(id(row), {}), **row}
        strong = [row for row in self.strong if _CLOSING not in row]
        if closing := len(self.strong) - len(strong):
            log.set_aside["the closing summary of the trainer"] += closing
        closed = accumulate(_CLOSING in row for row in self.strong)
        before = dict(zip(map(id, self.strong), closed, strict=True))  # closing summaries
        stepped, counted = _parted(strong)
        _uncount_answers(self.weak)
        lines, loose = _parted(self.weak)
        lines = [row for row in lines if not all(map(_names_step, row))]
        for rows in (stepped, lines):
            _count_through_epochs(rows)
        lines = _without_prose(lines)
        seen = Counter(name for row in loose for name in row)
        told = [row for row in loose if any(seen[name] > 2 and tells(name) for name in row)]
        loose = told or [row for row in loose if any(seen[name] > 2 or is_metric(name) for name in row)]
        usual = Counter(name for row in counted for name in row)
        counted = [
            row
            for row in counted
            if any(2 * usual[name] >= len(counted) for name in row) or _evaluates(row) or _is_of_trainer(row)
        ]
        kinds = [
            (sum(map(_tells, rows)) or len(rows) / 10, rows)
            for rows in (stepped, counted, lines, self.bars, loose)
            if any(map(_tells, rows)) or (rows is not loose and len(rows) > _FEW)
        ]
        if not kinds:  # settings, sizes and times, of which nothing is a signal
            return
        kinds.sort(key=lambda kind: not any(map(_tells, kind[1])))
        most = max(size for size, _ in kinds)
        best = next(rows for size, rows in kinds if size >= min(max(3, most / 10), most))
        if best is loose or not any(map(_tells, best)):  # of single moves or answers, or no metrics at all
            best = max(filter(_say_rewards, (stepped, counted, lines)), key=len, default=best)
            if best is lines:
                _without_single_rewards(lines, loose)
        if self.of_trainers > 1:  # samples that were printed between the steps may be many more
            best = max(stepped, counted, key=lambda rows: (sum(map(_is_of_trainer, rows)), len(rows)))
        beside = [] if self.of_trainers else _beside(best, [stepped, lines])
        chosen = {*map(id, best), *map(id, beside)}
        if best is stepped:
            yield from self._stepped(self._in_order(strong, beside), chosen, log)
        elif best is counted:
            yield from _counted(counted, before, log)
        elif best is lines:
            yield from self._lines(self._in_order(self.weak, beside), chosen, log)
        else:
            yield from best

    def _in_order(self, rows: list[Row], beside: list[Row]) -> list[Row]:
        """Rows of one kind, and those of another kind between them."""
        together = {*map(id, rows), *map(id, beside)}
        return [row for row in self.all if id(row) in together] if beside else rows

    def _lines(self, rows: list[Row], stepped: set[int], log: Log) -> Iterator[Row]:
        """The lines with a step, and what was evaluated between them, at the step before it."""
        last: Row = {}
        before: list[Row] = []
        names = {plain_key(name) for row in rows if id(row) in stepped for name in row}
        without = 0
        for row in rows:
            if id(row) in stepped:
                last = {name: value for name, value in row.items() if _names_step(name)}
                yield row
                yield from ({**found, **last} for found in before)
                before = []
                continue
            found = {name: value for name, value in row.items() if _is_result(name)}
            if any(map(is_metric, found)) and names.isdisjoint(map(plain_key, found)):
                if last:
                    yield {**found, **last}
                else:
                    before = [found]
            without += bool(last) and any(is_metric(name) for name in row if name not in found)
        if without:
            log.set_aside["they were printed without a step, beside others that have one"] += without

    def _stepped(self, rows: list[Row], stepped: set[int], log: Log) -> Iterator[Row]:
        """The rows with a step. Without one, evaluations and rows of other signals that are printed again and
        again are of the step that they follow.
        """
        last: Row = {}
        without = 0
        printed = Counter(tuple(row) for row in rows)
        known = {name for row in rows if id(row) in stepped for name in row}
        for row in rows:
            if id(row) in stepped:
                last = {name: value for name, value in row.items() if plain_key(name) in _STEPS}
                yield row
            elif last and (
                _evaluates(row)
                or (
                    not self.of_trainers
                    and printed[tuple(row)] > _FEW
                    and known.isdisjoint(row)
                    and _is_of_signals(row)
                )
            ):
                yield {**row, **last}
            else:  # a config that was printed has other names
                without += not known.isdisjoint(row)
        if without:
            log.set_aside["they were printed without a step, beside others that have one"] += without


def _beside(best: list[Row], kinds: list[list[Row]]) -> list[Row]:
    """The rows of another kind than the best that tell signals which the best rows lack, unless their steps
    go back as those of answers do.
    """
    (other,) = (rows for rows in kinds if rows is not best) if any(best is one for one in kinds) else ([],)
    known = {name for row in best for name in row}
    telling = [row for row in other if _tells({name: row[name] for name in row if name not in known})]
    return [] if len(telling) <= _FEW or _go_back(telling) else telling


def _is_of_signals(row: Row) -> bool:
    """Whether a row names a signal and holds nothing but numbers, as no sample does."""
    return _tells(row) and all(isinstance(value, (int, float)) for value in row.values())


def _tells(row: Row) -> bool:
    return any(tells(name) and not _names_step(name) for name in row)


def _say_rewards(rows: list[Row]) -> bool:
    return sum(map(_is_reward, chain(*rows))) > _FEW


def _without_single_rewards(lines: list[Row], loose: list[Row]) -> None:
    """Take the rewards of moves, printed below lines with a step, from those that have one of their own."""
    moves = Counter(name for row in loose for name in row if _is_reward(name))
    for row in lines:
        single = [name for name in row if moves[name] > len(lines)]
        if any(_is_reward(name) for name in row if name not in single):
            for name in single:
                del row[name]


def _is_reward(name: str) -> bool:
    return known_name(name) == "reward/mean"


def _without_prose(lines: list[Row]) -> list[Row]:
    """The lines that name a signal, where the steps of the others are those of an answer that was printed."""
    telling = [row for row in lines if _tells(row)]
    return telling if len(telling) > 2 and _go_back([row for row in lines if not _tells(row)]) else lines


def _uncount_answers(lines: list[Row]) -> None:
    """Take the steps of an answer ("Step 1: 3 hours = 180 minutes") from what was printed below it."""
    numbered = [row for row in lines if sum(map(_names_step, row)) == 1 and "step" in row]
    if _go_back([row for row in numbered if _tells(row)]) and _go_back(numbered):
        for row in numbered:
            del row["step"]


def _go_back(rows: list[Row]) -> bool:
    """Whether the steps of rows go back again and again."""
    steps = [step[0] for row in rows for name in row if _names_step(name) and (step := _of(row[name]))]
    back = sum(now < was for was, now in pairwise(steps))
    return len(steps) > _FEW and 4 * back > len(steps)


def _is_of_trainer(row: Row) -> bool:
    return len(_OF_TRAINERS.intersection(row)) >= _SURE


@lru_cache(4096)
def _is_result(name: str) -> bool:
    """Whether a name is that of an evaluation, or of a mean return, which stands apart from the losses."""
    return evaluated(name) is not None or bool(_MEAN_RETURN.fullmatch(name))


_MEAN_RETURN = re.compile(r"(?:average|avg|mean)[ _]?(?:episode[ _]?)?(?:return|reward)", re.IGNORECASE)


def _counted(rows: list[Row], closed: Mapping[int, int], log: Log) -> Iterator[Row]:
    """Rows that name no step, as transformers prints them: evaluations follow the step that they are of.

    Where the epoch goes back, the run was resumed, or another one begins. `closed` counts the runs that a
    summary closed before a row: behind it another one begins.
    """
    epochs: list[float] = []  # of each step
    counted = ended = 0
    for row in rows:
        if not (epochs and _evaluates(row)):
            if closed[id(row)] > ended:
                epochs, ended = [], closed[id(row)]
            epoch = row.get("epoch")
            epoch = epoch if isinstance(epoch, float) else epochs[-1] if epochs else 0.0
            if epochs and epoch < epochs[-1]:
                del epochs[bisect_left(epochs, epoch) :]
            epochs.append(epoch)
            counted += 1
        yield {**row, "step": len(epochs)}
    if counted:
        log.notes.append(f"{counted} printed lines name no step; lines are counted")


def _parted(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows that have a step, and the others. What is not whole in each row, as epochs, or stands
    still in those of a trainer, as epochs that are rounded, is no step.
    """
    fractions = {
        name for row in rows for name, value in row.items() if _names_step(name) and not _is_count(value)
    }
    told: dict[str, list[str]] = defaultdict(list)
    for row in filter(_is_of_trainer, rows):
        for name in filter(_names_step, row):
            told[name].append(str(row[name]))
    fractions |= {name for name, values in told.items() if len(values) > 1 and len({*values}) == 1}
    parts: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        parts[not _has_step(row, fractions)].append(row)
    return parts


def _evaluates(row: Row) -> bool:
    return all(name == "epoch" or evaluated(name) is not None for name in row)


def _has_step(row: Row, others: Collection[str] = ()) -> bool:
    return any(_names_step(name) and name not in others and _is_count(value) for name, value in row.items())


@lru_cache(4096)
def _names_step(name: str) -> bool:
    return len(name) <= MAX_NAME and plain_key(name) in _STEPS


def _is_count(value: object) -> bool:
    if isinstance(value, str):
        value = number_in(value.partition("/")[0])
    return isinstance(value, (int, float)) and float(value).is_integer()


_METRIC = re.compile(
    r"reward|return(?![_ ]code)|loss|score|entropy|accuracy|"
    r"(?<![a-z])(?:(?:approx|mean)?kl|lr|(?:ep_?)?rew|grads?)(?![a-z])",
    re.IGNORECASE,
)


_RATE = re.compile(r"win(?:s|_?rate)?(?![a-z])|success|solved|utility|fitness|perplexity", re.IGNORECASE)
_SETTING = re.compile(
    r"coef|warm_?up|clip|batch|size|target|window|temperature|decay|gamma|max_|num_|\blr$|learning_rate$|"
    r"accumulation|\w\.\w+\.",
    re.IGNORECASE,
)


def is_metric(name: str) -> bool:
    """Whether a name is one that trainers give to a signal."""
    return bool(_METRIC.search(name))


@lru_cache(4096)
def tells(name: str) -> bool:
    """Whether a name may be that of a signal, and not of a setting."""
    return (is_metric(name) or bool(_RATE.search(name)) or is_known(name)) and not _SETTING.search(name)


def _count_through_epochs(rows: list[Row]) -> None:
    """Where steps begin again in each epoch, and their number is given ("12/500"), count on."""
    of_all = [(row, _of(row.get("epoch")), _of(row.get("step"))) for row in rows]
    known = [(row, epoch, step) for row, epoch, step in of_all if epoch and step and step[1]]
    if any(now[1][0] > was[1][0] and now[2][0] <= was[2][0] for was, now in pairwise(known)):
        first = known[0][1][0]
        for row, epoch, step in known:
            row["step"] = float((epoch[0] - first) * step[1] + step[0])


def _of(value: object) -> tuple[int, int] | None:
    """(number, of how many; 0 where that is not said)."""
    if isinstance(value, float) and value.is_integer():
        return int(value), 0
    if isinstance(value, str) and (found := re.fullmatch(r"(\d{1,15})/(\d{1,15})", value)):
        return int(found[1]), int(found[2])
    return None


def _plain(text: str) -> str:
    """A line without colours, and without the marks of a quotation or a prompt."""
    if "\x1b" in text or "[" in text:
        text = _COLOURS.sub("", text)
    if quoted := _QUOTES.match(text):
        text = text[quoted.end() :]
    if (":" in text or "pid=" in text) and (writer := _WRITER.match(text)):
        text = text[writer.end() :]
    if " | " in text and (logger := _LOGURU.match(text)):
        text = text[logger.end() :]
    if text.startswith(("('", '("')) and _TUPLE.fullmatch(text.rstrip()):
        text = _of_tuple(text)
    return text.replace("\xa0", " ")


def _of_tuple(text: str) -> str:
    """The names and the numbers of a tuple as `name: number`, each name with the number behind it."""
    name, pairs = "", []
    for single, double, number in _OF_TUPLE.findall(text):
        if number and name:
            pairs.append(f"{name}: {number}")
        name = "" if number else (single or double).replace("\\t", " ").replace("\\n", " ").strip(" :=,#")
    return ", ".join(pairs)


def rows_of_texts(texts: Iterable[str], log: Log) -> Iterator[Row]:
    """The rows in lines of text, without their ends."""
    found = _Rows()
    tables, words, bars = _Tables(found), _Blocks(found), _Bars(found)
    parts = (_plain(part) for text in texts for part in (text.split("\r") if "\r" in text else (text,)))
    for text in _joined(parts):
        plain = text.strip()
        found.torn_last = found.torn_last and not plain
        is_box = plain[:1] and plain[0] in _EDGE and ("=" in plain or ": " in plain)
        if is_box and _ASSIGNED_CELL.search(plain):  # of "name=number" in each cell
            words.take(" | ".join(cell.strip() for cell in _SPLIT.split(plain[1:].rstrip(_EDGE))))
            continue
        if tables.take(plain):
            continue
        if plain[:1] in ("'", '"') and "{" not in plain and len(_MAPPED.findall(f"{plain} ")) > 2:
            plain = "{" + plain.rstrip("},") + "}"  # it was pasted without its first character
        if not plain:
            words.close()
        elif "step:" in plain and " - " in plain and (row := _verl(plain)):
            found.add(found.strong, row)
            found.of_trainers += _is_of_trainer(row)  # counts twice: no config has this form
        elif (opened := _opens(plain)) is not None:
            _take_mapping(plain, opened, found, words.header())
        elif "/" in plain and (bar := _BAR.search(plain)):
            bars.take(plain, bar)
        else:
            words.take(plain)
    tables.close()
    words.end()
    bars.close()
    return found.chosen(log)


def _verl(text: str) -> Row | None:
    row: Row = {name: number_in(value) for name, value in _VERL.findall(text)}
    return row if row.get("step") is not None else None


_OPENING = re.compile(r"\{\s*(?:['\"]|$)")


def _opens(text: str) -> int | None:
    """Where a mapping begins in a line."""
    if "{" not in text:
        return None
    found = _OPENING.search(text)
    return None if found is None else found.start()


# slime: "perf 12: {…}"
_BEFORE = re.compile(r"\b(?:train|eval|perf|multi_turn|passrate) (\d{1,15}):\s{0,9}$")


def _take_mapping(text: str, opened: int, found: _Rows, header: Row) -> None:
    """`header` holds the steps that the line before names, where it names nothing else."""
    end = text.rfind("}")
    if end < opened:
        pairs = len(_MAPPED.findall(text[opened:]))
        found.torn += pairs > 2
        found.torn_last = pairs > 0
        return
    inner = text[opened : end + 1]
    row = json_object(inner) if inner[1:].lstrip().startswith('"') else None
    row = flat(row) if row else {name: number_in(value) for name, value in _MAPPED.findall(inner)}
    if not any(
        number_in(value) is not None if isinstance(value, str) else value is not None
        for value in row.values()
    ):
        return
    before = _pairs(text[:opened])
    row = {**{pair.name: pair.value for pair in before if pair.is_assigned and tells(pair.name)}, **row}
    if not _has_step(row):  # "step 12: {…}"
        steps = {pair.name: pair.value for pair in before if pair.is_step}
        if not steps and (counted := _BEFORE.search(text[:opened])):
            steps = {"step": float(counted[1])}
        row = {**steps, **row} if steps or not header else {**row, _HEADER: header}
    found.add(found.strong, row)


_JOINED_LINES = 100


def _joined(parts: Iterator[str]) -> Iterator[str]:
    """The lines; a mapping that is printed over several becomes one."""
    held: list[str] = []
    depth = size = 0
    for part in parts:
        if not held:
            if "{" not in part or _opens(part) is None or (depth := part.count("{") - part.count("}")) <= 0:
                yield part
                continue
            held, size = [part], len(part)
            continue
        held.append(part)
        depth, size = depth + part.count("{") - part.count("}"), size + len(part)
        if depth <= 0:
            yield " ".join(held)
        elif len(held) < _JOINED_LINES and size < _LINE:
            continue
        else:  # nothing that ends: each line by itself
            yield from held
        held = []
    yield from held


class _Tables:
    """Boxes of names and numbers, and tables with headings."""

    def __init__(self, found: _Rows) -> None:
        self._found = found
        self._box: Row = {}
        self._group = ""
        self._headings: list[str] = []
        self._before: list[str] = []  # what the line before would be as headings
        self._line_before = ""
        self._is_spaced = False  # gaps of two spaces part the columns, below a rule with gaps

    def close(self) -> None:
        self._end_box()
        self._headings, self._before, self._is_spaced = [], [], False

    def _end_box(self) -> None:
        if self._box:
            self._found.add(self._found.strong, self._box)
        self._box, self._group = {}, ""

    def take(self, plain: str) -> bool:
        """Whether the line belongs to a table."""
        line_before, self._line_before = self._line_before, plain
        if _RULE.fullmatch(plain):
            if "|" in plain:  # Markdown without bars at the edges
                self._headings = self._headings or self._before
            self._end_box()
            headings = _GAP.split(line_before)
            if "- " in plain and len(headings) == len(plain.split()) > 1:  # tabulate, as of Ray's trials
                self._headings, self._is_spaced = headings, True
            return "|" in plain or self._is_spaced
        if self._is_spaced and len(cells := _GAP.split(plain)) == len(self._headings):
            self._row(cells)
            return True
        if plain[:1] and plain[0] in _EDGE and plain[-1] in _EDGE and len(plain) > 2:
            self._cells([cell.strip() for cell in _SPLIT.split(plain[1:-1])])
            return True
        headings, self._before = self._headings or self._before, []
        if "{" not in plain:
            barred = "|" in plain
            cells = (
                [cell.strip() for cell in plain.split("|")] if barred else plain.split(None, _MOST_COLUMNS)
            )
            # Columns that are parted by spaces; pandas writes an index before the first.
            if headings and len(cells) - len(headings) in ((0,) if barred else (0, 1)):
                numbers = [number_in(cell) for cell in cells]
                if self._headings if barred else None not in numbers:
                    self._headings = headings
                    self._row(cells[len(cells) - len(headings) :])
                    return True
            if 1 < len(cells) <= _MOST_COLUMNS and (
                barred or (plain[0].isalpha() and any(map(_names_step, cells)))
            ):
                before = cells
                self.close()
                self._before = before
                return False
        self.close()
        return False

    def _cells(self, cells: list[str]) -> None:
        numbers = [number_in(cell) for cell in cells]
        if len(cells) == 2 and cells[0] and numbers[0] is None and (numbers[1] is not None or not cells[1]):
            self._headings = []
            if not cells[1]:
                self._group = cells[0] if cells[0].endswith("/") else ""
                return
            name = f"{self._group}{cells[0]}"[:MAX_NAME]
            if name in self._box:
                group = self._group
                self._end_box()
                self._group = group
            self._box[name] = numbers[1]
        elif len(cells) == len(self._headings) and numbers.count(None) < len(cells):
            self._row(cells)
        elif not any(number is not None for number in numbers):
            self.close()
            self._headings = cells

    def _row(self, cells: list[str]) -> None:
        named = {name: cell for name, cell in zip(self._headings, cells, strict=True) if name and cell}
        row: Row = {
            name: number_in(cell) if number_in(cell) is not None else cell for name, cell in named.items()
        }
        self._found.add(self._found.strong, row)


_MOST_COLUMNS = 100
_GAP = re.compile(r"\s{2,}")


class _Bars:
    """Bars of tqdm; of those that show the same number the last one counts."""

    def __init__(self, found: _Rows) -> None:
        self._found = found
        self._open: dict[str, Row] = {}
        self._offset: Counter[str] = Counter()  # bars that have ended, in their rows; of evaluations, passes
        self._trained = 0  # the step of the newest bar of training

    def take(self, text: str, bar: re.Match[str]) -> None:
        values = (*bar[3].split(",", 2), "", "")[2]  # behind the times and the rate
        before = text[: bar.start()]
        if before.startswith("[") and not values:  # trlX: "[losses/total_loss: 0.2 | …]:   1%|…"
            values, _, before = before[1:].rpartition("]")
        about = re.sub(r"[\d%]+", "", before.partition("|")[0]).strip(" :")[:80]
        prefix = "" if evaluated(about) is None else "eval/"
        row: Row = {f"{prefix}{pair.name}": pair.value for pair in _pairs(values)}
        if not row:
            return
        number, total = int(bar[1]), int(bar[2])
        last = self._open.get(about)
        if prefix:  # running means over what is evaluated: the last ones are the result
            if last is not None and number <= last["_number"]:
                self._close(about)
                self._offset[about] += 1
            if last is not None or len(self._open) < 1000:
                step = self._trained or self._offset[about] + 1
                self._open[about] = {**row, "_number": number, "_total": total, "step": step}
            return
        if last is not None and number < last["_number"]:
            self._offset[about] += last["_total"]
        if last is not None and number != last["_number"]:
            self._close(about)
        if len(self._open) < 1000:
            self._trained = self._offset[about] + number
            self._open[about] = {**row, "_number": number, "_total": total, "step": self._trained}

    def _close(self, about: str) -> None:
        row = self._open.pop(about)
        self._found.add(
            self._found.bars, {name: one for name, one in row.items() if name not in ("_number", "_total")}
        )

    def close(self) -> None:
        for about in [*self._open]:
            self._close(about)


class _Pair(NamedTuple):
    name: str
    value: float | str  # a text such as "12/500" where it says of how many
    is_step: bool
    is_assigned: bool  # by a colon or an equals sign


_EPOCH = re.compile(r"\b(epoch):?\s?\[(\d{1,9})(/\d{1,9})?\]\s?[\[(](\d{1,12}/\d{1,12})[\])]", re.IGNORECASE)
_WRAPPED = re.compile(rf"\b(?:np\.\w{{1,20}}|tensor|array|Array)\(\[?\s?({NUMBER})[^()]{{0,80}}\)")
_STAMP = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9}\s{1,9}\d{1,20} [\w.]{1,80}:\d{1,9}\]|"
    r"\W?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d[:.]\d\d[:.]\d\d\S{0,12}|\[?\d\d:\d\d:\d\d\S{0,8}"
)
# "DQN INFO", "- __main__ - INFO -", behind a time
_LOGGER = re.compile(
    r"[\s|,:—-]{0,9}(?:[\w.]{1,80}[\s|:—-]{1,9})?(?:INFO|DEBUG|WARNING|ERROR|SUCCESS)\b[\s|:—-]{0,9}"
)
# "[Evaluator] …", "Eval num_timesteps=10000, …", "Test | …"
_OF_EVALUATION = re.compile(r"[\W_]{0,4}(?:eval\w*|validation|test(?:ing)?)\b(?![/_=:@-])", re.IGNORECASE)
_NUMBERED = re.compile(r"#\s?(?=\d)")  # "Epoch #1"
_ALIGNED = re.compile(
    rf"([^\W\d][\w/.@%()+-]{{0,80}}(?: [\w/.@%()+-]{{1,40}}){{0,6}})(?:\s{{2,40}}|\t)({NUMBER}%?)"
    rf"|([\w.@-]{{1,80}}(?:/[\w.@-]{{1,80}}){{1,4}}) \[?({NUMBER}%?)\]?(?: (\d{{1,15}}))?"
)
_TOKEN = re.compile(
    rf"(?P<number>(?<![\w.])(?<!\d[:/,-])(?P<digits>[-+]?[1-9]\d{{0,2}}(?:,\d{{3}}){{1,6}}(?:\.\d{{1,40}})?(?![\d,])|{NUMBER})"
    r"(?P<of>\s?/\s{0,9}\d{1,15})?(?P<unit>[%kKM]|ms|secs?|s|min|h|it/s|s/it|GB|GiB|MB|MiB)?(?![\w/]))"
    r"|(?P<word>[^\W\d][\w/.@%#^*&+-]{0,255}(?: ?\([A-Za-z_/% ]{1,20}\)(?=\s?[:=]))?)"
    r"|(?P<assign>=>|->|[:=])|(?P<open>[\[(])|(?P<stop>\s{2,}|\t|[^\s\w])"
)
_LEVELS = frozenset({
    "INFO", "DEBUG", "WARNING", "WARN", "ERROR", "SUCCESS", "TRACE", "CRITICAL", "NOTICE", "I"
})  # fmt: skip
_UNITS = frozenset({
    *("s", "ms", "sec", "seconds", "steps/s", "it/s", "s/it", "tokens/s", "tokens", "tokens/sample"),
    *("samples/s", "gb", "gib", "mb", "mib", "%"),
})  # fmt: skip
_MOST_WORDS = 6
_COUNTERS = frozenset({"number", "num", "no", "nr", "index"})
_LISTED = re.compile(
    rf"(?:^|[,;|:])\s*([^\W\d][\w/.-]{{0,80}}(?: [\w/.()-]{{1,80}}){{0,{_MOST_WORDS - 1}}}) ({NUMBER}%?)"
    r"(?: ?[A-Za-z/]{1,12})?(?=\s*(?:[,;|]|$))"
)
_LEAST_LISTED = 3
_FIRST = re.compile(r"\W{0,3}([A-Za-z_]{1,20})\s?[:=#]?\s?\d")
_LIST = re.compile(rf"(?<=[:=])\s?\[\s?({NUMBER}(?:,\s?{NUMBER}){{1,63}})\s?\]")  # of agents, or of answers

# Sample Factory's, of policies: [(0, '12.3'), (1, '11.9')]
_BY_POLICY = re.compile(rf"\[((?:\(\d{{1,4}}, '{NUMBER}'\)(?:, )?){{1,64}})\]")


def _mean_by_policy(found: re.Match[str]) -> str:
    numbers = [float(one) for one in found[1].split("'")[1::2]]
    return f"{sum(numbers) / len(numbers):.9g}"


def _mean_of_list(found: re.Match[str]) -> str:
    numbers = [float(one) for one in found[1].split(",")]
    return f" {sum(numbers) / len(numbers):.9g}"


def _listed(text: str) -> Collection[str]:
    """The names of a list of names, each with its number behind it, of which two are signals, or whose first
    one is a step.
    """
    names = {name for name, _ in _LISTED.findall(text)}
    if len(names) < _LEAST_LISTED:
        return ()
    first = _FIRST.match(text)
    return names if (first and _names_step(first[1])) or sum(map(is_metric, names)) >= 2 else ()


_NEW_BEST = re.compile(r"\bnew best\b", re.IGNORECASE)


def _pairs(text: str) -> list[_Pair]:
    """The names and their numbers in a line; none where it says that a value is the best one so far."""
    text = text[:_WORDS_AT]
    if _NEW_BEST.search(text):
        return []
    if stamp := _STAMP.match(text):
        text = text[stamp.end() :]
        if logger := _LOGGER.match(text):
            text = text[logger.end() :]
    if "#" in text:
        text = _NUMBERED.sub("", text)
    if (aligned := _ALIGNED.fullmatch(text.strip())) and not _names_step(name := aligned[1] or aligned[3]):
        value = number_in(aligned[2] or aligned[4])
        counted = [_Pair("global_step", float(aligned[5]), True, True)] if aligned[5] else []
        return [] if value is None else [_Pair(name, value, False, True), *counted]
    text = _EPOCH.sub(r"\1 \2\3, step \4, ", text)
    if "[" in text:
        text = _LIST.sub(_mean_of_list, _BY_POLICY.sub(_mean_by_policy, text))
    if "(" in text:
        text = _WRAPPED.sub(r"\1", text)
    listed = _listed(text) if "," in text or "|" in text or ";" in text else ()
    found: list[_Pair] = []
    words: list[str] = []
    assigned = after_number = gap = False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "number":
            if words:
                _take_pair(found, words, token, assigned or " ".join(words) in listed)
            words, assigned, after_number = [], False, True
        elif kind == "word":
            word = token["word"]
            if assigned or gap:
                words, assigned = [], False
            if after_number and word.lower().rstrip(".,") in _UNITS:
                continue
            if word.endswith(".") and len(word) > 5:  # the end of a sentence
                words = []
            elif word == "is" and words and is_metric(words[-1]):  # "kl is 0.1"
                assigned = True
            elif word == "and":
                words = []
            elif word not in _LEVELS:
                words.append(word)
            after_number = False
        elif kind == "assign":
            assigned, after_number = bool(words), False
        elif kind == "stop" and token["stop"].isspace():
            gap = True
            continue
        elif not assigned or (kind == "stop" and token["stop"] not in "'\""):  # "= [0.3]" goes on
            words, assigned, after_number = [], False, False
        gap = False
    if _OF_EVALUATION.match(text):
        return [
            pair
            if pair.is_step or evaluated(pair.name) is not None
            else pair._replace(name=f"eval/{pair.name}")
            for pair in found
        ]
    return found


def _take_pair(found: list[_Pair], words: list[str], token: re.Match[str], assigned: bool) -> None:
    words = words[-_MOST_WORDS:]
    if len(words) > 1 and words[-1].lower() in _COUNTERS:  # "Game number: 12"
        words = words[:-1]
    # What stands before a step is a prefix: "Training Step 12", "Eval num_timesteps=10000".
    last = plain_key(words[-1].rstrip("."))
    whole = plain_key(" ".join(words))
    digits, of = token["digits"].replace(",", ""), token["of"]
    is_step = (whole in _STEPS or last in _STEPS) and digits.isdecimal() and len(digits) < 19
    if is_step:
        name = whole if whole in _STEPS else last
        total = of.strip(" /") if of else ""
        found.append(_Pair(name, f"{digits}/{total}" if total else float(digits), True, assigned))
        return
    name = " ".join(words)
    if not assigned and not _METRIC.search(words[-1]):
        return
    if len(name) <= MAX_NAME and not re.search(r"\.(?:py|cc|cpp|cu|h)$", name):
        unit = token["unit"] if token["unit"] in ("%", "k", "K", "M") else ""
        value = number_in(f"{digits}{unit or ''}")
        if value is not None and not of:
            found.append(_Pair(name, value, False, assigned))


_OTHERS = 3  # lines of other text that a block below a step may have between its own


_YAML = re.compile(r"[\w.-]{1,80}:(?: \S{1,200})?")


class _Blocks:
    """Lines of names and numbers: a row is a line that names a step, or a block until a name returns."""

    def __init__(self, found: _Rows) -> None:
        self._found = found
        self._row: Row = {}
        self._stepped = False
        self._others = 0  # lines without numbers since the last one with some

    def close(self) -> None:
        """The end of a block: below a step, empty lines and rules may stand."""
        if not self._stepped:
            self.end()

    def end(self) -> None:
        if self._row:
            self._found.add(self._found.weak, self._row)
        self._row, self._stepped, self._others = {}, False, 0

    def header(self) -> Row:
        """The steps that the line before named: "Step 3", or "Step 3 | Loss: 0.1", above a mapping."""
        if not self._stepped or self._others:
            return {}
        header = {name: value for name, value in self._row.items() if _names_step(name)}
        if len(header) == len(self._row):
            self._row, self._stepped = {}, False
        return header

    def take(self, plain: str) -> None:
        if self._found.telling > 1000 and len(plain) > _HEADER_LENGTH:
            return
        if _RULE.fullmatch(plain):
            self.close()
            return
        pairs = _pairs(plain)
        steps = [pair for pair in pairs if pair.is_step]
        if not pairs or not (steps or any(pair.is_assigned for pair in pairs)):
            if self._row and _YAML.fullmatch(plain):  # RLlib's results: "hostname: a", "info:"
                return
            self._others += 1
            if not self._stepped or self._others > _OTHERS:
                self.end()
            return
        self._others = 0
        row: Row = {}
        for (
            pair
        ) in pairs:  # of several steps in a line the first counts: those of the actor, then the learner's
            if not (pair.is_step and pair.name in row):
                row[pair.name] = pair.value
        clashes = not self._row.keys().isdisjoint(row)
        begins = steps and (len(row) > len(steps) or not steps[0].is_assigned)
        header_only = self._stepped and all(name in _STEPS for name in self._row)
        # "iteration 9", "epoch 1/4", "epoch 2/4": what follows is of both.
        counts_on = header_only and len(self._row) > 1 and self._row.keys() > row.keys()
        if (clashes and not counts_on) or (begins and not header_only):
            self.end()
        if not self._row and len(self._found.weak) < _MOST_ROWS:
            self._found.all.append(self._row)
        self._row |= row
        self._stepped = self._stepped or bool(steps)


def printed_rows(files: list[Path], log: Log) -> Iterator[Row]:
    """The rows of what was printed into files, one after another."""
    return rows_of_texts(chain.from_iterable(text_lines(path, _LINE) for path in files), log)
