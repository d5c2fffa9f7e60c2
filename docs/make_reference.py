"""Writes docs/reference from the source of rewards and audit: .venv/bin/python docs/make_reference.py"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import greenward
from greenward.evaluation import audit_calls
from greenward.evaluation.audit_programs import FAMILIES
from greenward.evaluation.audit_report import Kind
from greenward.evaluation.audit_texts import HONEST_FAMILIES, TEXT_FAMILIES
from greenward.grading import edits
from greenward.grading.reward_terms import SHIPPED_REWARDS
from greenward.models import gguf
from greenward.tasks import TASKS, find_task
from greenward.training.trainer import RLTrainer

FOLDER = Path(__file__).parent / "reference"
REWARDS = """# Reward terms

`docs/make_reference.py` writes this page from the functions themselves. [Rewards](../rewards.md) says how a
recipe names them and how it sets their options. Where a score is None, the term does not apply.
"""
AUDIT = """# What the audit says and tries

`docs/make_reference.py` writes this page from `greenward.evaluation`. [Auditing a reward
function](../audit.md) says how to use it.
"""
EDITS = """# Edits in answers

`docs/make_reference.py` writes this page from `greenward.grading.edits`. [Repair by edits](../repair.md) says
what happens when edits cannot be applied.
"""


API = """# Names of the Python API

`docs/make_reference.py` writes this page from the names that `from greenward import …` gives. They are
stable. [Python API](../python.md) has examples.
"""
GGUF = """# Files of llama.cpp

`docs/make_reference.py` writes this page from `greenward.models.gguf`. [Models](../models.md#gguf-files) says
where a file may be named.
"""
METRICS = """# Metrics of an update

`docs/make_reference.py` writes this page from `greenward.training.trainer`. [Algorithms](../algorithms.md)
has the formulas; w and r are those of [a sampler that is not the
trainer](../algorithms.md#when-the-sampler-is-not-the-trainer).
"""


def rewards() -> str:
    """A section for each reward term, those of a task after those of every task."""
    own = {
        f"{name}` of the task `{task}": made
        for task in TASKS
        for name, made in find_task(task).rewards.items()
    }
    return "\n".join(
        [REWARDS, *(line for one in {**SHIPPED_REWARDS, **own}.items() for line in section(*one))]
    )


def section(name: str, made: Callable[..., object]) -> Iterator[str]:
    """The heading, the options and the text of a reward term."""
    yield f"## `{name}`\n"
    options = [one for one in inspect.signature(made).parameters.values() if one.kind is one.KEYWORD_ONLY]
    if options:
        yield f"Options: {', '.join(f'`{one.name}` ({default(one.default)})' for one in options)}.\n"
    yield f"{inspect.getdoc(made)}\n"


def default(value: object) -> str:
    """The default of an option as a recipe has it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def audit() -> str:
    """The kinds of graders, and what each family of answers means when it is not judged as it should be."""
    families = {
        "Programs": FAMILIES,
        "Attacks in text": TEXT_FAMILIES,
        "Right answers in text": HONEST_FAMILIES,
    }
    lines = [AUDIT, "## How a function is called", "", (audit_calls.__doc__ or "").partition("\n\n")[2]]
    lines += ["## Kinds", "", inspect.getdoc(Kind).partition("\n\n")[2], ""]
    for title, meanings in families.items():
        lines += [f"## {title}", "", "| family | what it means when it is judged wrongly |", "|---|---|"]
        lines += [*(f"| {name} | {meaning} |" for name, meaning in meanings.items()), ""]
    return "\n".join(lines)


def forms_of_edits() -> str:
    """The text of `greenward.grading.edits` without its first line."""
    return f"{EDITS}\n{(edits.__doc__ or '').partition(chr(10) * 2)[2]}"


def files_of_llama_cpp() -> str:
    """The text of `greenward.models.gguf` without its first line."""
    return f"{GGUF}\n{(gguf.__doc__ or '').partition(chr(10) * 2)[2]}"


def metrics() -> str:
    """The list in the text of the method that trains on one batch."""
    listed = (inspect.getdoc(RLTrainer.update) or "").rpartition("\n\n")[2]
    return f"{METRICS}\n{listed}\n"


def api() -> str:
    """A section for each stable name of the package: its signature, if it is a function, and its text."""
    lines = [API]
    for name in greenward.__all__:
        found = getattr(greenward, name)
        if inspect.isroutine(found):
            lines.append(f"## `{name}`\n\n```python\n{name}{arguments(found)}\n```\n")
        else:
            lines.append(f"## `{name}`\n")
        lines.append(f"{inspect.getdoc(found)}\n")
    return "\n".join(lines)


def arguments(function: Callable[..., object]) -> str:
    """The parameters of a function with their defaults, without types."""
    found = inspect.signature(function)
    plain = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


PAGES = {
    "rewards.md": rewards,
    "audit.md": audit,
    "edits.md": forms_of_edits,
    "metrics.md": metrics,
    "python.md": api,
    "gguf.md": files_of_llama_cpp,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
