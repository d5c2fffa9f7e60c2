"""Writes docs/reference from the source: .venv/bin/python docs/make_reference.py"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import greenward
from greenward.cli.rldk_names import ALIASES, OPTIONS, VERBS, Theirs
from greenward.common import files, statistics
from greenward.config import loading, upgrade
from greenward.diagnostics import calibration, change_points, diff, readers
from greenward.diagnostics.readers import formats
from greenward.evaluation import answer_rows, audit_calls, audit_repository, store, suites
from greenward.evaluation import audit as audited
from greenward.evaluation.audit_programs import FAMILIES
from greenward.evaluation.audit_report import Kind
from greenward.evaluation.audit_texts import HONEST_FAMILIES, TEXT_FAMILIES
from greenward.grading import answers, compare, edits, judge, user_rewards
from greenward.grading.reward_terms import SHIPPED_REWARDS
from greenward.grading.testcases import program_changes
from greenward.grading.verdict import Status
from greenward.integrations.recorder import Recorder
from greenward.models import chat_template, checkpoint, gguf, lora, vllm
from greenward.problems import catalog, contests, generated, mining, mutation, repositories
from greenward.problems import formats as problem_formats
from greenward.problems.problem import TEST_KINDS, Comparison
from greenward.rollouts import endpoint
from greenward.runs import directory, output, publish, repository, selection, trackers
from greenward.sandbox import http, remote, workspaces
from greenward.sandbox.inside import codec
from greenward.sandbox.isolation import Layer, Level
from greenward.sandbox.protocol import Limits
from greenward.tasks import TASKS, find_task
from greenward.tasks.code_game.task import CodeGame
from greenward.tasks.repair import fix, infilling
from greenward.tasks.self_play import environment, games
from greenward.tasks.self_play import evaluation as measures
from greenward.tasks.spec import verify
from greenward.tasks.token_mdp import dqn, grammar, gym_env, mdp
from greenward.tasks.vulnerability import data as vulnerabilities
from greenward.tasks.vulnerability import labels
from greenward.training import advantages, distributed, own, ppo
from greenward.training import losses as losses_module
from greenward.training.collector import collection_metrics
from greenward.training.losses import LOSSES, ImportanceCorrection
from greenward.training.own import OwnAdvantage, OwnLoss
from greenward.training.trainer import RLTrainer
from greenward.ui import bundle, cache, recognized
from greenward.ui.logs import BesideLogs, Repeated

FOLDER = Path(__file__).parent / "reference"
SOURCE = Path(greenward.__file__).parent
REWARDS = """# Reward terms

`docs/make_reference.py` writes this page from the functions themselves. [Rewards](../rewards.md) says how a
recipe names them and how it sets their options. Where a score is None, the term does not apply.
"""
AUDIT = """# What the audit says and tries

`docs/make_reference.py` writes this page from `greenward.evaluation`. [Auditing a reward
function](../audit.md) says how to use it.
"""
INDEX = """# Reference

`docs/make_reference.py` writes these pages from the source. [Keys of recipes](../keys/README.md) and
[findings](../findings/README.md) have folders of their own.
"""
PACKAGES = """# Packages

`docs/make_reference.py` writes this page from the docstrings of the packages.
[Architecture](../architecture.md) says how they work together.
"""
RLDK = """# Commands and options of RLDK

`docs/make_reference.py` writes this page from `greenward.cli.rldk_names`. What is spelt alike is not listed.
[Coming from another system](../migration.md#ppo-code-fix-with-planted-bugs-rldk) has examples.
"""
API = """# Names of the Python API

`docs/make_reference.py` writes this page from the names that `from greenward import …` gives. They are
stable. [Python API](../python.md) has examples.
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
    lines += ["## What is tried", "", explained(audited), "", "## The grader of a repository", ""]
    lines += [explained(audit_repository), "", "## Kinds", "", inspect.getdoc(Kind).partition("\n\n")[2], ""]
    for title, meanings in families.items():
        lines += [f"## {title}", "", "| family | what it means when it is judged wrongly |", "|---|---|"]
        lines += [*(f"| {name} | {meaning} |" for name, meaning in meanings.items()), ""]
    return "\n".join(lines)


def written(title: str, about: str, parts: Mapping[str, object]) -> str:
    """A page of texts by their headings: docstrings, each without its first line, and what is text already.

    What stands under the heading "" comes first, without one.
    """
    lines = [f"# {title}", "", f"`docs/make_reference.py` writes this page from docstrings. {about}", ""]
    for heading, part in parts.items():
        text = part if isinstance(part, str) else explained(part)
        # In Markdown, a block of code begins and ends with an empty line.
        text = re.sub(r"(?m)^(?! {4})(.+)\n(?= {4}\S)", r"\1\n\n", text)
        text = re.sub(r"(?m)^( {4}.+)\n(?=\S)", r"\1\n\n", text)
        lines += [*([f"## {heading}", ""] if heading else []), text, ""]
    return "\n".join(lines)


def explained(described: object) -> str:
    """A docstring without its first line."""
    return (inspect.getdoc(described) or "").partition("\n\n")[2]


def explained_in(file: str, name: str) -> str:
    """`explained` of a class of a module that needs a package which may lack here."""
    tree = ast.parse((SOURCE / file).read_text("utf-8"))
    (found,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    return (ast.get_docstring(found) or "").partition("\n\n")[2]


def keys(names: Iterable[str]) -> str:
    """Names of keys, listed."""
    return ", ".join(f"`{name}`" for name in names)


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


def losses() -> str:
    """A table with the level of the ratio, the surrogate and the average of each loss."""
    lines = ["| name | ratio = p / p_old | minimised at each token | average |", "|---|---|---|---|"]
    for name, one in LOSSES.items():
        cells = (f"`{name}`", *map(first_line, (one.log_ratio, one.surrogate, one.average)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bugs() -> str:
    """How bugs are put into programs, and a table of their kinds."""
    lines = [explained(mutation), "", "| kind | what it does |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{kind}` | {what} |" for kind, what in mutation.KINDS.items())])


def first_line(described: object) -> str:
    """The first line of a docstring without its full stop."""
    return (inspect.getdoc(described) or "").partition("\n")[0].rstrip(".")


def rldk() -> str:
    """The commands and the options of RLDK, with what each is here."""
    lines = [RLDK, "## Commands", "", "| RLDK | here |", "|---|---|"]
    lines += [f"| `rldk {' '.join(theirs)}` | `rldk {' '.join(ours)}` |" for theirs, ours in ALIASES.items()]
    lines += [f"| `rldk {' '.join(theirs)}` | {answer} |" for theirs, answer in VERBS.items()]
    for command, options in OPTIONS.items():
        if options:
            lines += ["", f"## Options of `{command}`", "", "| RLDK | here |", "|---|---|"]
        lines += [f"| `{name}` | {option_here(theirs)} |" for name, theirs in options.items()]
    return "\n".join(lines) + "\n"


def option_here(theirs: Theirs) -> str:
    """What an option of RLDK becomes."""
    if theirs.refused:
        return f"refused: {theirs.why}"
    if theirs.ours is None:
        return f"left out: {theirs.why}"
    return (
        f"`{theirs.ours}{f' …{theirs.suffix}' if theirs.suffix else ''}`" if theirs.ours else "the argument"
    )


def packages() -> str:
    """The packages of the source with the first lines of their docstrings."""
    lines = [PACKAGES, "| package | what it holds |", "|---|---|"]
    for file in sorted(SOURCE.glob("**/__init__.py")):
        name = file.parent.relative_to(SOURCE).as_posix()
        text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        if name != "." and text:
            lines.append(f"| `{name}` | {text.partition(chr(10))[0]} |")
    return "\n".join(lines) + "\n"


TEXTS: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "algorithms.md": (
        "Losses and advantages",
        "[Algorithms](../algorithms.md) says which to take.",
        {
            "Advantages": advantages,
            "A critic": ppo,
            "Losses": losses(),
            "Weights for another sampler": ImportanceCorrection,
            "Divergence from a reference": losses_module,
        },
    ),
    "answers.md": (
        "Conditions on answers",
        "`greenward rollouts --where` and [the pages](../ui.md#one-language-for-answers) take them.",
        {"": selection},
    ),
    "configuration.md": (
        "Overrides and earlier recipes",
        "[Configuration](../configuration.md) says how recipes are checked and resolved.",
        {"Overrides": loading, "Recipes of earlier versions": upgrade},
    ),
    "diagnostics.md": (
        "What diagnostics read and test",
        "[Diagnostics](../diagnostics.md) says how to use them.",
        {
            "Formats of logs": readers,
            "Formats of answers": formats,
            "Verdicts of diff": diff,
            "Tests of changes": change_points,
            "Calibration": calibration,
        },
    ),
    "edits.md": (
        "Edits in answers",
        "[Repair by edits](../repair.md) says what happens when edits cannot be applied.",
        {"": edits},
    ),
    "evaluation.md": (
        "Rules of evaluations",
        "[Evaluating a model](../evaluation.md) says how to use them.",
        {
            "Prompts": suites,
            "How programs are found": answers,
            "Times": judge,
            "Servers": endpoint,
            "Files": store,
            "Files of answers": answer_rows,
            "Intervals": statistics,
        },
    ),
    "fix.md": (
        "Repairs of a file",
        "[Repairing a file](../fix.md) has the commands.",
        {"What a repair may change": fix, "Single lines": infilling},
    ),
    "games.md": (
        "Games of two players",
        "[Self-play](../self_play.md) trains by them, and [`greenward play`](../playing.md) plays them.",
        {
            "Games": games,
            "Kuhn Poker": games.KuhnPoker,
            "Negotiation": games.SimpleNegotiation,
            "Games of TextArena": games.TextArenaGame,
            "A game of your own": games.Game,
            "Opponents and illegal moves": environment.GameEnvironment,
            "Baselines": advantages.RoleBaselineEstimator,
            "Measures": measures,
            "The game of code": CodeGame,
            "In PettingZoo": explained_in("tasks/self_play/pettingzoo_env.py", "GameAECEnv"),
        },
    ),
    "gguf.md": (
        "Files of llama.cpp",
        "[Models](../models.md#gguf-files) says where a file may be named.",
        {"": gguf},
    ),
    "grading.md": (
        "Grading",
        "[Sandbox and grading](../sandbox.md) says how an answer is judged.",
        {
            "Statuses": Status,
            "Limits": Limits,
            "Kinds of test": "\n\n".join(f"`{one.__name__}`: {inspect.getdoc(one)}" for one in TEST_KINDS),
            "Comparison of values": compare,
            "Rules of a comparison": Comparison,
            "Values that come back": codec,
            "Files that an answer changes": program_changes,
        },
    ),
    "integrations.md": (
        "Other trainers",
        "[Recorder](../recorder.md) and [other trainers and environments](../integrations.md) have examples.",
        {
            "A recorder": Recorder,
            "Problems in OpenEnv": explained_in("integrations/openenv.py", "ProblemEnvironment"),
            "Games in OpenEnv": explained_in("integrations/openenv.py", "PositionEnvironment"),
        },
    ),
    "isolation.md": (
        "Isolation",
        "[Security](../security.md) says what is promised and how it is tested.",
        {
            "Layers": Layer,
            "What holds at which level": Level,
            "Files of others": files,
            "Repositories": repository,
            "Weights": checkpoint,
            "Chat templates": chat_template,
        },
    ),
    "metrics.md": (
        "Metrics of a step",
        "[Algorithms](../algorithms.md) has the formulas; w and r are those of [a sampler that is not the "
        "trainer](../algorithms.md#when-the-sampler-is-not-the-trainer).",
        {"Answers": collection_metrics, "The update": RLTrainer.update},
    ),
    "models.md": (
        "Adapters and published models",
        "[Models](../models.md) has the commands.",
        {"Adapters": lora, "Publishing": publish.push},
    ),
    "mining.md": (
        "Problems from source",
        "[Your own repository](../own_repository.md) has the commands.",
        {"What is kept": verify, "What a problem shows": mining},
    ),
    "own_functions.md": (
        "Arguments of own functions",
        "[Your own loss and advantage](../own_algorithm.md) has examples.",
        {"A loss": OwnLoss, "An advantage": OwnAdvantage, "What is checked before training": own},
    ),
    "problems.md": (
        "How files of problems are read",
        "[Formats of files](../keys/formats.md) has the fields of each; [Problems](../problems.md) says "
        "where they are named.",
        {
            "Suites and files of functions": problem_formats,
            "Contests and verifiable rewards": contests,
            "Public suites": catalog,
            "Generated problems": generated,
            "Bugs that are put into programs": bugs(),
        },
    ),
    "processes.md": (
        "Several processes",
        "[Several processes](../several_gpus.md) has the commands.",
        {"": distributed},
    ),
    "remote_sandbox.md": (
        "Sandbox on other machines",
        "[Sandbox on other machines](../remote_sandbox.md) has examples.",
        {"Servers": http, "What both sides say": remote, "Lost hosts": remote.RemoteExecutor},
    ),
    "repositories.md": (
        "Repositories to repair",
        "[Agents](../agents.md) has the commands.",
        {"": repositories, "Workspaces": workspaces},
    ),
    "reward_functions.md": (
        "Reward functions of users",
        "[Rewards](../rewards.md#your-own-function) has both signatures.",
        {"": user_rewards},
    ),
    "runs.md": (
        "Files of runs",
        "[Runs](../runs.md) says how to read them.",
        {
            "Files of a run": directory,
            "Where greenward writes": output,
            "Keys that may change on resume": f"{keys(directory.MAY_CHANGE_ON_RESUME)}.\n\n"
            "With others of the following, sums are rounded in another order, and `provenance.json` records "
            f"`inexact_resume`: {keys(directory.INEXACT_ON_RESUME)}, the number of processes, the kernels.",
        },
    ),
    "trackers.md": (
        "What trackers get",
        "[Trackers](../trackers.md) says how to switch them on.",
        {"": trackers},
    ),
    "ui.md": (
        "What the pages in the browser read",
        "[Pages in the browser](../ui.md) says what they show.",
        {
            "Logs below a folder": recognized,
            "Logs of one training": Repeated,
            "Answers beside a log": BesideLogs,
            "Bundles": bundle,
            "Cache": cache,
        },
    ),
    "vllm.md": (
        "vLLM",
        "[Rollouts by vLLM](../vllm.md) has the commands.",
        {"": vllm, "Completions": vllm.VLLMEngine},
    ),
    "vulnerability.md": (
        "Answers and figures of vulnerable functions",
        "[Vulnerable functions](../vulnerability.md) has the commands and what was measured.",
        {"Answers": labels, "Figures": labels.classification_figures, "Data": vulnerabilities},
    ),
    "token_mdp.md": (
        "The token MDP and Q-learning",
        "[Programs token by token](../dqn.md) says how to train by it and what it reaches.",
        {"The environment": mdp, "The grammar": grammar, "In gymnasium": gym_env, "Q-learning": dqn},
    ),
}


def index() -> str:
    """The table of all pages."""
    lines = [INDEX]
    for name, made in PAGES.items():
        if made is not index:
            lines.append(f"- [{made().partition(chr(10))[0].removeprefix('# ')}]({name})")
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = {
    "README.md": index,
    "rewards.md": rewards,
    "audit.md": audit,
    "python.md": api,
    "packages.md": packages,
    "rldk.md": rldk,
    **{name: partial(written, *text) for name, text in TEXTS.items()},
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
