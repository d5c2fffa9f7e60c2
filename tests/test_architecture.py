"""Rules of the architecture: one-way dependencies, a command line that imports nothing heavy."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from greenward.tasks import TASKS

SOURCE = Path(__file__).resolve().parents[1] / "src" / "greenward"
MODULES = sorted(SOURCE.rglob("*.py"))


def dotted_name(file: Path) -> str:
    parts = ("greenward", *file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted_name(file): file for file in MODULES}

# From the command line down: a package imports packages of lower layers only, never one beside it.
LAYERS = (
    {"cli"},
    {"integrations", "ui"},
    {"api"},
    {"recipes"},
    {"tasks"},
    {"training"},
    {"evaluation", "diagnostics"},
    {"environments"},
    {"models"},
    {"hardware", "rollouts"},
    {"grading"},
    {"problems"},
    {"sandbox"},
)
# Every package may import these.
LEAVES = {"config", "runs", "reports", "common"}
BETWEEN_LEAVES = {
    "common": (),
    "config": ("common",),
    "runs": ("common", "config"),
    "reports": ("common", "runs"),
}
REGISTRY = "greenward.tasks"
"""Names the tasks and imports none of them before it is asked, so that every package may use it."""
HEIGHT = {package: -depth for depth, layer in enumerate(LAYERS) for package in layer}
# What loads models, or serves other packages.
NEED_TORCH = {"models", "recipes", "training"}
NEED_PACKAGES = {
    "greenward.__main__",  # runs the command
    "greenward.integrations.evaluation_callback",
    "greenward.integrations.openenv",
    "greenward.integrations.verifiers",
    "greenward.problems.greenward_trace",  # runs in a workspace
    "greenward.tasks.corpus",
    "greenward.tasks.repair.fix",
    "greenward.tasks.self_play.evaluation",
    "greenward.tasks.self_play.pettingzoo_env",
    "greenward.tasks.self_play.role_gradients",
    "greenward.tasks.token_mdp.dqn",
    "greenward.tasks.token_mdp.gym_env",
    "greenward.tasks.token_mdp.trainer",
    "greenward.ui.server",
}
HEAVY = ("torch", "pydantic", "rich", "numpy", "yaml", "transformers")


def package_holding(file: Path) -> str:
    """The package of a source file; `python -m greenward` belongs to the command line."""
    package = file.relative_to(SOURCE).with_suffix("").parts[0]
    return "cli" if package in ("__main__", "__init__") else package


def package_of(module: str) -> str | None:
    """The package of a dotted module name; None outside greenward and for greenward itself."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] or None if package == "greenward" else None


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imported_modules(file: Path) -> tuple[tuple[int, str], ...]:
    """(line, dotted name) of every import in the file, those inside functions included, those of types not."""

    found: list[tuple[int, str]] = []
    left: list[ast.AST] = list(parsed(file).body)
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.append((node.lineno, name if name in NAMES else node.module or ""))
        left += statements_in(node)
    return tuple(found)


def statements_in(node: ast.AST) -> list[ast.AST]:
    """The statements, handlers and cases directly below a statement; no expression holds an import."""
    return [
        one
        for block in ("body", "orelse", "finalbody", "handlers", "cases")
        for one in getattr(node, block, ())
    ]


def may_import(importer: str, imported: str) -> bool:
    if imported == importer or imported in LEAVES:
        return importer not in LEAVES or imported in {importer, *BETWEEN_LEAVES[importer]}
    return importer not in LEAVES and HEIGHT[imported] < HEIGHT[importer]


def test_dependencies_point_one_way() -> None:
    wrong = []
    for file in MODULES:
        importer = package_holding(file)
        for line, module in imported_modules(file):
            imported = package_of(module)
            if imported is None or imported.startswith("__") or module == REGISTRY:
                continue
            if not may_import(importer, imported):
                wrong.append(f"{file.relative_to(SOURCE)}:{line}: {importer} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_layer() -> None:
    packages = {entry.name for entry in SOURCE.iterdir() if entry.is_dir() and any(entry.glob("*.py"))}
    assert packages <= HEIGHT.keys() | LEAVES


@pytest.mark.parametrize("module", ["greenward.cli.main", "greenward.common.errors"])
def test_command_line_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_files_import_each_other_in_a_circle() -> None:
    imported = {
        dotted_name(file): {name for _, name in imported_modules(file) if name in NAMES} for file in MODULES
    }
    TopologicalSorter(imported).prepare()  # raises CycleError, which names the files


def test_what_every_answer_inherits_is_small() -> None:
    """The processes of answers load the standard library, each other and what says how they are isolated."""
    allowed = {"greenward.common.errors", "greenward.sandbox.isolation"}
    for file in (SOURCE / "sandbox" / "inside").glob("*.py"):
        for line, module in imported_modules(file):
            own = module.startswith("greenward.sandbox.inside") or module in allowed
            standard = module.partition(".")[0] in sys.stdlib_module_names
            assert own or standard, f"{file.name}:{line}: {module}"


def test_what_trains_no_model_loads_without_torch() -> None:
    modules = [
        dotted_name(file)
        for file in MODULES
        if package_holding(file) not in NEED_TORCH and dotted_name(file) not in NEED_PACKAGES
    ]
    hidden = ("torch", "tokenizers", "safetensors", "transformers", "gymnasium", "pettingzoo", "textarena")
    code = f"import sys; sys.modules.update(dict.fromkeys({hidden})); import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_picture_in_the_documentation_is_drawn_from_the_imports() -> None:
    path = SOURCE.parents[1] / "docs" / "make_picture.py"
    spec = importlib.util.spec_from_file_location("make_picture", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.picture() in made.PAGE.read_text(encoding="utf-8")


# Commands and adapters of one task are offered to users where they look for them.
MAY_NAME_A_TASK = {"cli/tasks.py", "integrations/openenv.py", "integrations/verifiers.py"}


def test_a_task_is_known_in_its_folder_and_in_the_registry_alone() -> None:
    """Nobody else imports a task's modules, nor compares with its name (the ones that are no English words)."""
    tasks = {entry.name for entry in (SOURCE / "tasks").iterdir() if (entry / "task.py").is_file()}
    assert tasks == TASKS.keys()
    told = {"vulnerability", "vulnerabilities", *(name for name in tasks if "_" in name)}
    wrong = []
    for file in MODULES:
        place = file.relative_to(SOURCE).as_posix()
        own = place.split("/")[1] if place.startswith("tasks/") and place.count("/") > 1 else ""
        if place in {"tasks/__init__.py", "config/upgrade.py", *MAY_NAME_A_TASK}:
            continue  # `upgrade` tells what recipes of earlier versions called the tasks
        for line, module in imported_modules(file):
            parts = module.split(".")
            if parts[:2] == ["greenward", "tasks"] and len(parts) > 3 and parts[2] in tasks - {own}:
                wrong.append(f"{place}:{line} imports {module}")
        for node in ast.walk(parsed(file)):
            if (
                isinstance(node, ast.Constant)
                and node.value in told
                and not str(node.value).startswith(own[:5] or "?")
            ):
                wrong.append(f"{place}:{node.lineno} names {node.value}")
    assert not wrong, "\n".join(wrong)
