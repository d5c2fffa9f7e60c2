"""Draws the packages and their imports into docs/architecture.md: .venv/bin/python docs/make_picture.py"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "greenward"
PAGE = ROOT / "docs" / "architecture.md"
REGISTRY = "greenward.tasks"  # names the tasks, and imports none before it is asked
BELOW_ALL = ("config", "reports", "runs", "common")
_PICTURE = re.compile(r"(?<=<!-- docs/make_picture.py -->\n).*?(?=\n<!-- end -->)", re.DOTALL)


def imports() -> dict[str, set[str]]:
    """Package -> the packages that it imports, also inside functions; without those below all, and types."""
    found: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        package = file.relative_to(SOURCE).with_suffix("").parts[0]
        if package.startswith("__") or package in BELOW_ALL:
            continue
        used = found.setdefault(package, set())
        for module in _modules(ast.parse(file.read_text(encoding="utf-8"))):
            other = module.split(".")[1] if module.startswith("greenward.") else ""
            if module == REGISTRY or other in ("", package, *BELOW_ALL) or other.startswith("__"):
                continue
            used.add(other)
    return found


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return []
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module == "greenward":
        return [f"greenward.{alias.name}" for alias in node.names]
    own = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    blocks = (getattr(node, block, ()) for block in ("body", "orelse", "finalbody", "handlers", "cases"))
    return own + [module for block in blocks for inner in block for module in _modules(inner)]


def picture() -> str:
    """A Mermaid graph: an arrow stands for an import that no chain of other arrows implies."""
    used = {package: {one for one in others if one != "__version__"} for package, others in imports().items()}
    used = {package: others & used.keys() for package, others in used.items()}
    order = list(TopologicalSorter(used).static_order())
    reaches: dict[str, set[str]] = {}
    for package in order:
        reaches[package] = used[package].union(*(reaches[other] for other in used[package]))
    lines = ["```mermaid", "graph TD"]
    for package in sorted(used, key=lambda one: (-len(reaches[one]), one)):
        direct = [
            other
            for other in used[package]
            if not any(other in reaches[via] for via in used[package] - {other})
        ]
        lines += [f"  {package} --> {other}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_PICTURE.sub(lambda _: picture(), page), encoding="utf-8")
