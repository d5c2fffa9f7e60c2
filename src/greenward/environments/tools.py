"""The tools of an agent: how a call is written, what it does in a workspace, and what the agent is told.

Two formats. `tags`, for models of our own and for any server, of which `submit` is optional:

    <shell>python3 -m unittest</shell>
    <apply_patch>SEARCH/REPLACE blocks (`grading.edits.search_replace`)</apply_patch>
    <submit>

`native`, for chat templates that know tools: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes,
Qwen). A call counts only in what the policy itself wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from greenward.errors import SandboxError
from greenward.grading.answer_files import program_changes
from greenward.grading.edits.answers import PATH, editable_files
from greenward.grading.edits.edit import Edit, EditError, apply_edits
from greenward.grading.edits.search_replace import parse_blocks
from greenward.grading.extraction import Extracted, without_reasoning
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits, Outcome
from greenward.sandbox.workspace import (
    MAX_FILES,
    MAX_FILES_BYTES,
    MAX_FOLDERS,
    folders_above,
    path_error,
    text_bytes,
)
from greenward.sandbox.workspaces import Workspace, WorkspaceError

ToolFormat = Literal["tags", "native"]
SHELL, APPLY_PATCH, SUBMIT = "shell", "apply_patch", "submit"
STOP_STRINGS = (f"</{SHELL}>", f"</{APPLY_PATCH}>", f"<{SUBMIT}>", "</tool_call>")
CUT = "\n[… {} characters left out …]\n"
_TAGS = re.compile(
    rf"<(?:({SHELL}|{APPLY_PATCH})>(.*?)(?:</\1>|\Z)|({SUBMIT})>|tool_call>(.*?)(?:</tool_call>|\Z))",
    re.DOTALL,
)
_TEXT = {"type": "string"}
_PARAMETERS = {SHELL: ["command"], APPLY_PATCH: ["path", "search", "replace"], SUBMIT: list[str]()}
_DESCRIPTIONS = {
    SHELL: "Run a command of the shell in the repository.",
    APPLY_PATCH: "Replace whole lines of a file; the text to search for must occur exactly once.",
    SUBMIT: "Hand in the repository as it is now.",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": _DESCRIPTIONS[name],
            "parameters": {"type": "object", "properties": dict.fromkeys(names, _TEXT), "required": names},
        },
    }
    for name, names in _PARAMETERS.items()
]
INSTRUCTION = """\
Fix the issue in this repository. You have two tools; write one call in each answer, and its output follows:
<shell>a command of the shell, such as cat FILE or python3 -m unittest</shell>
<apply_patch>
path/to/file.py
<<<<<<< SEARCH
whole lines of the file, exactly, which must occur only once
=======
lines in their place
>>>>>>> REPLACE
</apply_patch>
When the issue is fixed, write <submit>. Hidden tests decide; changes of test files count for nothing.
"""
NATIVE_INSTRUCTION = """\
Fix the issue in this repository by the tools, with one call in each answer, and submit when it is fixed.
Hidden tests decide; changes of test files count for nothing.
"""


@dataclass(frozen=True)
class ToolCall:
    """One call: the name of the tool and its arguments; `error` says why it cannot be read."""

    name: str
    arguments: dict[str, str]
    error: str = ""


def parse_call(text: str) -> ToolCall | None:
    """The first call in an answer, after its reasoning; None for an answer without one."""
    found = _TAGS.search(without_reasoning(text))
    if found is None:
        return None
    tag, body, submit, native = found.groups()
    if submit:
        return ToolCall(SUBMIT, {})
    if tag:
        return ToolCall(tag, {"command": body.strip()} if tag == SHELL else {"blocks": body})
    try:
        call: Any = json.loads(native)
        name, arguments = call["name"], call.get("arguments") or {}
        return ToolCall(name, {key: str(arguments[key]) for key in _PARAMETERS[name]})
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        expected = f'expected {{"name": …, "arguments": {{…}}}}, with one of {_PARAMETERS}'
        return ToolCall("", {}, f"This call cannot be read ({type(error).__name__}): {expected}.\n")


def run_call(workspace: Workspace, call: ToolCall, default_path: str, most_chars: int) -> tuple[str, bool]:
    """What the agent is told of its call, cut in the middle, and whether the call did what it says.

    Raises `WorkspaceError` where the infrastructure failed.
    """
    try:
        if call.error:
            return call.error, False
        if call.name == SHELL:
            done = workspace.exec(call.arguments["command"])
            ended = done.error or (f"exit code {done.exit_code}" if done.exit_code else "")
            return (
                _cut(done.output, most_chars) + (f"[{ended}]\n" if ended else ""),
                done.outcome is Outcome.COMPLETED and not done.exit_code,
            )
        changed = _patched(workspace, call, default_path)
        return f"Changed: {', '.join(changed)}.\n", True
    except (EditError, SandboxError) as error:
        if isinstance(error, WorkspaceError) and error.outcome is Outcome.INFRASTRUCTURE:
            raise
        return f"{_cut(error.message, most_chars)}\n", False


def _patched(workspace: Workspace, call: ToolCall, default_path: str) -> list[str]:
    """The paths of the files that a patch changed. Raises `EditError` and `SandboxError`."""
    if "blocks" in call.arguments:
        edits = parse_blocks(call.arguments["blocks"])
    else:
        search, replace = (_whole_lines(call.arguments[name]) for name in ("search", "replace"))
        edits = [Edit(call.arguments["path"], search, replace)]
    paths = list(dict.fromkeys((edit.path or default_path).removeprefix("./") for edit in edits))
    try:
        found = workspace.read(*paths) if paths else {}
    except WorkspaceError as error:
        if error.outcome is Outcome.INFRASTRUCTURE:
            raise
        raise EditError(Status.EDIT_NOT_FOUND, error.message) from None
    files = {path: text for path, text in found.items() if text is not None}
    changed = apply_edits(files, edits, default_path)
    workspace.write({path: text or "" for path, text in changed.items()})
    return list(changed)


def _whole_lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def final_answer(problem: Problem, workspace: Workspace) -> Extracted:
    """What an agent leaves behind, to be judged in a fresh copy of the repository with its own tests.

    Raises `WorkspaceError` where the infrastructure failed.
    """
    before, own = editable_files(problem), problem.path or PATH
    try:
        after = workspace.read_all()
    except WorkspaceError as error:
        if error.outcome is Outcome.INFRASTRUCTURE:
            raise
        return Extracted(None, f"The workspace cannot be read: {error.message}", Status.NO_CODE)
    if own not in after:
        return Extracted(None, f"{own} is missing at the end.", Status.NO_CODE)
    if not problem.path:  # a program of one file has no others
        return Extracted(after[own])
    paths = sorted({*before, *after} - {own})
    changes = ((path, after.get(path)) for path in paths if before.get(path) != after.get(path))
    changed = program_changes(changes, problem)
    fixed = {**before, **changed, **(problem.test_files or {}), own: after[own]}
    new = changed.keys() - before.keys()
    for path in _strays(new, {path: text for path, text in fixed.items() if text is not None}):
        del changed[path]
    return Extracted(after[own], files=tuple(changed.items()))


def _strays(new: Set[str], files: Mapping[str, str]) -> list[str]:
    """The new ones of the files that a job cannot hold, such as logs, which must not cost a repair."""
    strays, old = list[str](), [path for path in files if path not in new]
    folders = {folder for path in old for folder in folders_above(path)}
    count, size = len(old), sum(text_bytes(files[path]) for path in old)
    for path in sorted(new & files.keys(), key=lambda path: (not path.endswith(".py"), path)):
        own, more = text_bytes(files[path]), {*folders_above(path)} - folders
        is_too_much = (
            count >= MAX_FILES or size + own > MAX_FILES_BYTES or len(folders) + len(more) > MAX_FOLDERS
        )
        if path_error(path) or own > Limits.file_bytes or is_too_much:
            strays.append(path)
        else:
            folders |= more
            count, size = count + 1, size + own
    return strays


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return text[:half] + CUT.format(len(text) - 2 * half) + text[-half:]
