"""Provides functions with a vulnerability and their fixes, generated from templates or read from files.

A template is one misuse of an interface. In `data/vulnerabilities.txt`, lines after `-` are those of the
vulnerable version alone, lines after `+` those of the fixed one. `$f` stands for the name of the function,
`$x` for the value that comes from outside, `$r` for a result, `$w` for a word, `$n` for a number. Of every
weakness at least one template is held out: a policy that only knows the misuses it has seen does not
recognise it. The formats of files are those of SVEN (He and Vechev 2023, arXiv 2302.05319), of PrimeVul
(Ding et al. 2024, arXiv 2403.18624), and plain pairs. Both versions of a pair stay together.
"""

from __future__ import annotations

import keyword
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from string import Template as Text
from typing import Any, Literal

from greenward.problems.problem import Label, Problem, ProblemSet
from greenward.problems.rows import Format, Row, read_sections

VULNERABILITIES = "vulnerabilities"
TRAINING_PAIRS, HELD_OUT_PAIRS = 8000, 310
_CONSONANTS, _VOWELS = "bdfghklmnprstvz", "aeiou"
_NAME = re.compile(r"(?<![\w$%\\])[A-Za-z_]\w{2,}(?!\w)")  # longer than the prefix of a string
_NUMBERS = (4, 6, 8, 10, 12, 16, 20, 30)


@dataclass(frozen=True)
class Template:
    """A function with a weakness and the same function without it."""

    name: str
    cwe: str
    vulnerable: str
    fixed: str
    held_out: bool


@cache
def templates() -> tuple[Template, ...]:
    """All templates, in the order of the file."""
    found = []
    for heading, lines in read_sections("vulnerabilities.txt").items():
        cwe, _, name = heading.removesuffix(" (held out)").partition(" ")
        vulnerable, fixed = ("\n".join(line[1:] for line in lines if line[:1] != other) for other in "+-")
        found.append(Template(name, cwe, vulnerable, fixed, heading.endswith(" (held out)")))
    return tuple(found)


def vulnerability_pairs(part: Literal["train", "held_out"]) -> ProblemSet:
    """Both versions of each pair, one after the other; the templates of the two parts are different ones."""
    held_out = part == "held_out"
    used = [one for one in templates() if one.held_out is held_out]
    problems: list[Problem] = []
    seen: set[str] = set()
    number = 0
    while len(problems) < 2 * (HELD_OUT_PAIRS if held_out else TRAINING_PAIRS):
        rng = random.Random(f"{part}/{number}")
        template = used[number % len(used)]
        number += 1
        vulnerable, fixed = _written(template, rng)
        if vulnerable not in seen:
            seen.add(vulnerable)
            problems += pair(f"{part}/{number}", vulnerable, fixed, template.cwe, (template.name,))
    return ProblemSet(problems, name=f"{VULNERABILITIES}:{part}")


def pair(name: str, vulnerable: str, fixed: str, cwe: str, tags: tuple[str, ...] = ()) -> Iterator[Problem]:
    """The two versions of a function as problems, each with its lines that the other one does not have."""
    ours, theirs = (text.rstrip("\n").split("\n") for text in (vulnerable, fixed))  # as they are numbered
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes()
    changed = [places for kind, *places in blocks if kind != "equal"]  # start and end in either text
    for code, is_vulnerable, at in ((vulnerable, True, 0), (fixed, False, 2)):
        own_lines = tuple(line + 1 for places in changed for line in range(places[at], places[at + 1]))
        yield Problem(
            task_id=f"{name}/{'vulnerable' if is_vulnerable else 'fixed'}",
            prompt=code,
            entry_point="",
            label=Label(is_vulnerable, cwe, name, own_lines),
            tags=(cwe, *tags),
        )


def _written(template: Template, rng: random.Random) -> tuple[str, str]:
    """Both versions with the same names, the same harmless lines and the same layout.

    Only training varies the layout (quotes, a second name of the value, a line before the end), so that the
    held-out pairs, with which figures are compared, stay as they are. There, half of the pairs have a word
    without a meaning in place of one name that both versions use: what is left to tell them apart is the
    difference between them, which does not depend on that name.
    """
    if not template.held_out and rng.random() < 0.5:
        template = _renamed(template, rng)
    words = dict.fromkeys(_word(rng) for _ in range(40))
    both = template.vulnerable + template.fixed
    function, value, result, word, other, renamed = [one for one in words if one not in both][:6]
    slots = {"f": function, "x": value, "r": result, "w": word, "n": rng.choice(_NUMBERS)}
    signature = template.vulnerable.partition("def ")[2].partition(":")[0]
    harmless = [f'"""{other.capitalize()} {word}."""'] * (rng.random() < 0.3)
    harmless += [f'print("{other}")'] * (rng.random() < 0.3)
    if "($x" in signature:
        harmless += [f"if not {value}:\n        return None"] * (rng.random() < 0.3)
    harmless += [f"count = {rng.choice(_NUMBERS)}"] * (rng.random() < 0.2)
    inside, late, single = slots, list[str](), False
    if not template.held_out:
        if "$x" in signature and rng.random() < 0.3:
            inside = slots | {"x": renamed}
            harmless.append(f"{renamed} = {value}")
        single = "'" not in both and rng.random() < 0.3
        if rng.random() < 0.3:
            late = [rng.choice((f'print("{other}")', f"{other} = []", f"# {other} {word}", f"{other} = 0"))]

    def laid_out(text: str) -> str:
        lines = text.replace('"', "'").split("\n") if single else text.split("\n")
        start = next(n for n, line in enumerate(lines) if line.startswith(("def ", "async def "))) + 1
        end = len(lines) - 1 if lines[-1][4] != " " else len(lines)
        head, body, last = (
            [Text(line).substitute(names) for line in part]
            for part, names in ((lines[:start], slots), (lines[start:end], inside), (lines[end:], inside))
        )
        added = [[f"    {line}" for line in part] for part in (harmless, late if last else [])]
        return "\n".join([*head, *added[0], *body, *added[1], *last])

    return laid_out(template.vulnerable), laid_out(template.fixed)


def _renamed(template: Template, rng: random.Random) -> Template:
    """The template with another word for one of the names that both versions have, if there is one."""
    vulnerable, fixed = (set(_NAME.findall(text)) for text in (template.vulnerable, template.fixed))
    shared = sorted((vulnerable & fixed) - set(keyword.kwlist))
    if not shared:
        return template
    name, word = re.compile(rf"(?<![\w$]){rng.choice(shared)}(?!\w)"), _word(rng)
    return replace(
        template, vulnerable=name.sub(word, template.vulnerable), fixed=name.sub(word, template.fixed)
    )


def _word(rng: random.Random) -> str:
    """A name without a meaning, so that nothing but the use of an interface tells two versions apart."""
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3))))


def _sven(row: Row) -> tuple[Problem, ...]:
    is_python = str(row.values.get("file_name", "")).endswith(".py")
    return _pair(row, "func_src_before", "func_src_after", "vul_type", ("python",) if is_python else ())


def _pair(row: Row, before: str, after: str, cwe: str, tags: tuple[str, ...]) -> tuple[Problem, ...]:
    for field in (before, after):
        if not row.text(field).strip():
            raise row.error(field, "is empty")
    if row.text(before) == row.text(after):
        raise row.error(after, f"is the same as {before!r}: the fix changes nothing")
    name = f"{row.file.stem}/{row.number}"
    return tuple(pair(name, row.text(before), row.text(after), _cwe(row, cwe, row.text(cwe)), tags))


def _primevul(row: Row) -> Problem:
    """One version of a function; which lines the fix changed is known once both are read."""
    if not row.text("func").strip():
        raise row.error("func", "is empty")
    target = row.values["target"]
    if target not in (0, 1):
        raise row.error("target", f"must be 0 or 1, found {target!r}")
    found: Any = row.values["cwe"]
    names = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    if not names:
        raise row.error("cwe", f"must name a weakness, found {found!r}")
    cwe, name = _cwe(row, "cwe", names[0]), f"{row.file.stem}/{row.number}"
    return Problem(
        task_id=name,
        prompt=row.text("func"),
        entry_point="",
        label=Label(bool(target), cwe, name),
        tags=(cwe,),
    )


def _cwe(row: Row, field: str, name: Any) -> str:
    match = re.fullmatch(r"(?:CWE-?)?0*([1-9]\d{0,4})", str(name).strip(), re.IGNORECASE)
    if match is None:
        raise row.error(field, f"must name a weakness as CWE-89 does, found {name!r:.60}")
    return f"CWE-{match[1]}"


def _joined(one: tuple[Row, Problem], other: tuple[Row, Problem]) -> tuple[Problem, Problem] | None:
    """Two neighbouring rows with the lines in which they differ; None unless they are of one function."""
    (row, problem), (next_row, following) = one, other
    assert problem.label is not None and following.label is not None
    origins = [{key: each.values.get(key) for key in ("project", "commit_id")} for each in (row, next_row)]
    if problem.label.vulnerable == following.label.vulnerable or origins[0] != origins[1]:
        return None
    vulnerable, fixed = (problem, following) if problem.label.vulnerable else (following, problem)
    name = f"{row.file.stem}/{(row.number + 1) // 2}"
    first, second = pair(name, vulnerable.prompt, fixed.prompt, problem.label.cwe)
    return (first, second) if problem is vulnerable else (second, first)


SVEN = Format(
    "SVEN",
    ("func_src_before", "func_src_after", "vul_type"),
    '{"func_src_before": …, "func_src_after": …, "vul_type": "cwe-089"}',
    _sven,
)
PRIMEVUL = Format(
    "PrimeVul (paired)",
    ("func", "target", "cwe"),
    '{"func": …, "target": 1, "cwe": ["CWE-89"]}, each before the row of its fix',
    _primevul,
    pair=_joined,
)
PAIRS = Format(
    "vulnerable functions and their fixes",
    ("vulnerable", "fixed", "cwe"),
    '{"vulnerable": …, "fixed": …, "cwe": "CWE-89"}',
    lambda row: _pair(row, "vulnerable", "fixed", "cwe", ()),
)
