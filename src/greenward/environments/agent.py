"""Implements agents: a policy works on a repository by tools, and hidden tests judge what it leaves.

An episode is one transcript: what the policy wrote, and between that the outputs of its calls, which are
never trained on. It ends with an answer without a call, with `submit`, or with a budget. Calls have one of
two formats. `native`, for chat templates that know tools, is `<tool_call>{"name": …, "arguments":
{…}}</tool_call>` (Hermes, Qwen). A call counts only in what the policy itself wrote. `tags`, for models of
our own and for any server, is as follows; `submit` is optional:
    <shell>python3 -m unittest</shell>
    <apply_patch>SEARCH/REPLACE blocks (`grading.edits`)</apply_patch>
    <submit>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from greenward.common.errors import ConfigError, SandboxError
from greenward.common.text import encodable
from greenward.config.sections import ToolsConfig
from greenward.environments.code import CodeEnvironment, ProblemDialogue
from greenward.environments.prompts import PromptRenderer, PromptTokenizer, without_special
from greenward.grading.answers import final_text
from greenward.grading.edits import PATH, Edit, EditError, apply_edits, editable_files, parse_blocks
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer
from greenward.grading.testcases import program_changes
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import Problem
from greenward.rollouts.driver import Request, Waiting
from greenward.rollouts.protocols import Completion, Episode, RolloutEngine, SamplingParams, StopReason
from greenward.sandbox.inside.files import (
    MAX_FILES,
    MAX_FILES_BYTES,
    MAX_FOLDERS,
    folders_above,
    path_error,
    text_bytes,
)
from greenward.sandbox.protocol import Executor, Limits, Outcome
from greenward.sandbox.workspaces import Workspace, WorkspaceError, WorkspaceLimits

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


def parse_call(text: str, begun: str = "") -> ToolCall | None:
    """The first call in an answer, after its thought; None for an answer without one."""
    found = _TAGS.search(final_text(text, begun))
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
        return f"Changed: {', '.join(_patched(workspace, call, default_path))}.\n", True
    except (EditError, SandboxError) as error:
        if isinstance(error, WorkspaceError) and error.outcome is Outcome.INFRASTRUCTURE:
            raise
        return f"{_cut(error.message, most_chars)}\n", False


def _patched(workspace: Workspace, call: ToolCall, default_path: str) -> list[str]:
    """The paths of the files that a patch changed. Raises `EditError` and `SandboxError`."""
    if "blocks" in call.arguments:
        edits = parse_blocks(call.arguments["blocks"])
    else:
        texts = [call.arguments[name] for name in ("search", "replace")]
        search, replace = (text if not text or text.endswith("\n") else f"{text}\n" for text in texts)
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
        return Extracted(after[own], rule="workspace")
    paths = sorted({*before, *after} - {own})
    changes = ((path, after.get(path)) for path in paths if before.get(path) != after.get(path))
    changed = program_changes(changes, problem)
    fixed = {**before, **changed, **(problem.test_files or {}), own: after[own]}
    new = changed.keys() - before.keys()
    for path in _strays(new, {path: text for path, text in fixed.items() if text is not None}):
        del changed[path]
    return Extracted(after[own], files=tuple(changed.items()), rule="workspace")


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


TOOL = "tool"
MAX_FILES_SHOWN = 100


class AgentPrompts(PromptRenderer):
    """Renders issues and the outputs of tools.

    `tool_format` auto is native where the chat template knows tools. Raises `ConfigError` for native
    calls without such a template. `options` are those of `PromptRenderer`.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        tool_format: Literal["auto", "tags", "native"] = "auto",
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        knows_tools = self.style == "chat" and "tool_call" in (tokenizer.chat_template or "")
        if tool_format == "native" and not knows_tools:
            raise ConfigError(
                "tools.format is native, but this model's chat template knows no <tool_call>.",
                remedy="Set tools.format=tags.",
            )
        self.format: ToolFormat = "native" if knows_tools and tool_format != "tags" else "tags"

    def prompt_text(self, problem: Problem) -> str:
        """The issue, the failing test if it is shown, and the paths of the repository."""
        paths = sorted(editable_files(problem))
        shown = ", ".join(paths[:MAX_FILES_SHOWN]) + (", …" if len(paths) > MAX_FILES_SHOWN else "")
        failing = problem.failing_test if self._show_failing_test else ""
        if self.style == "completion":
            lines = (*problem.prompt.strip().splitlines(), *failing.splitlines(), f"Files: {shown}")
            return "".join(f"# {line}\n" for line in lines)
        instruction = NATIVE_INSTRUCTION if self.format == "native" else INSTRUCTION
        parts = (
            f"{instruction}\nIssue:\n{problem.prompt.strip()}\n",
            failing and f"A test fails: {failing}\n",
        )
        return "\n".join((*filter(None, parts), f"Files: {shown}"))

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        if self.format == "tags":
            return super().prompt_ids(problem)
        return tuple(self._tokenizer.render_chat(self.messages(problem), tools=TOOLS))

    def output_ids(self, problem: Problem, output: str, *, ended: bool) -> tuple[int, ...]:
        """The tokens between a call and the next answer; `ended`: the call has an end token.

        Control tokens in the output are taken apart.
        """
        output = without_special(output, self._tokenizer)
        if self.style == "completion":
            return tuple(self._tokenizer.encode(f"\n<output>\n{output}</output>\n"))
        native = self.format == "native"
        content = output if native else f"<output>\n{output}</output>"
        message = {"role": TOOL if native else "user", "content": content}
        return tuple(self._tokenizer.render_next_message(self.messages(problem), message, ended=ended))


@dataclass(eq=False, kw_only=True)
class AgentEnvironment(CodeEnvironment):
    """As `CodeEnvironment`, with episodes of calls. `executor` holds the workspaces, `grader` judges them."""

    executor: Executor
    tools: ToolsConfig

    def _dialogues(self, group_id: int, policy: RolloutEngine) -> list[Any]:
        problem = self.problems[self.task(group_id)]
        make = agent_maker(self.executor, self.renderer, self.sampling, self.tools, policy.max_positions)
        return [make(group_id, problem) for _ in range(self.group_size)]

    def _judge(self, dialogues: Sequence[Any]) -> None:
        judge_agents(dialogues, self.grader)

    def _metrics(self, dialogues: Sequence[Any]) -> dict[str, list[float]]:
        kept = [one for one in dialogues if one.verdict.status.family is not Family.INFRASTRUCTURE]
        return {
            "tools/calls": [float(len(one.succeeded)) for one in kept],
            "tools/success_rate": [float(succeeded) for one in kept for succeeded in one.succeeded],
            "tools/submitted": [float(one.submitted) for one in kept],
        }


def agent_maker(
    executor: Executor,
    prompts: PromptRenderer,
    sampling: SamplingParams,
    tools: ToolsConfig,
    max_positions: int,
) -> Callable[[int, Problem], AgentDialogue]:
    """What makes the dialogue of an agent with a problem, in a workspace of its own."""
    assert isinstance(prompts, AgentPrompts)
    sampling = replace(sampling, stop_strings=STOP_STRINGS)
    limits = WorkspaceLimits(
        call_seconds=tools.call_seconds, seconds=tools.seconds, calls=4 * tools.max_calls + 8
    )

    dialogue = partial(
        AgentDialogue, renderer=prompts, sampling=sampling, tools=tools, max_positions=max_positions
    )

    def make(group_id: int, problem: Problem) -> AgentDialogue:
        completes = problem.path if problem.path in (problem.files or {}) else ""
        workspace = executor.open(editable_files(problem), replace(limits, completes=completes))
        prompt_ids = prompts.prompt_ids(problem)
        return dialogue(group_id=group_id, problem=problem, prompt_ids=prompt_ids, workspace=workspace)

    return make


def judge_agents(dialogues: Sequence[AgentDialogue], grader: Grader) -> None:
    """Judges what agents have left, those of all dialogues side by side."""
    kept = [one for one in dialogues if one.final is not None]
    verdicts = grader.grade([(one.problem, one.final.answer) for one in kept if one.final])
    for dialogue, verdict in zip(kept, verdicts, strict=True):
        dialogue.verdict = verdict


@dataclass(eq=False, kw_only=True)
class AgentDialogue(ProblemDialogue):
    """One episode of an agent. `final` is what it leaves, None where the infrastructure failed.

    `succeeded` says of each call whether it did what it says, `submitted` whether the agent ended by itself.
    """

    renderer: AgentPrompts
    workspace: Workspace
    tools: ToolsConfig
    teller = TOOL

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pending: Future[Any] | None = None
        self._ends = self._is_over = self.submitted = False
        self.succeeded: list[bool] = []
        self.final: Extracted | None = None
        self.verdict = Verdict(Status.INFRASTRUCTURE)

    def request(self) -> Request | Waiting | None:
        while self._pending is not None:
            if not self._pending.done():
                return Waiting(self._pending)
            self._take(self._pending)
        return None if self._is_over else self._next()

    def respond(self, completion: Completion) -> None:
        super().respond(completion)
        text = self.renderer.completion_text(completion.token_ids)
        call = parse_call(text, self.renderer.begun(self.problem))
        self.submitted = call is None or call.name == SUBMIT
        if call is None or self.submitted:
            self._end()
        else:
            path, most = self.problem.path or PATH, self.tools.output_chars
            self._pending = self.workspace.submit(lambda own: run_call(own, call, path, most))

    def _take(self, done: Future[Any]) -> None:
        """Goes on after a call, or after what the agent left has been read."""
        self._pending = None
        try:
            found = done.result()
        except WorkspaceError as error:
            self.verdict = Verdict(Status.INFRASTRUCTURE, error_message=error.message)
            self._is_over = True
            self.workspace.close()
            return
        if self._ends:
            self.final, self._is_over = found, True
            self.workspace.close()
            return
        output, succeeded = found
        output = encodable(output)  # names of files need not be UTF-8
        self.succeeded.append(succeeded)
        ended = self.completions[-1].stop_reason is StopReason.END
        self._tell(output, self.renderer.output_ids(self.problem, output, ended=ended))
        written, most = sum(len(one.token_ids) for one in self.completions), self.tools.max_tokens
        more = self.sampling.max_tokens
        has_room = len(self._ids) + more <= self.max_positions and (most is None or written + more <= most)
        is_spent = len(self.succeeded) >= self.tools.max_calls or self.workspace.seconds >= self.tools.seconds
        if is_spent or not has_room:
            self._end()

    def _end(self) -> None:
        self._ends = True
        self._pending = self.workspace.submit(lambda own: final_answer(self.problem, own))

    def finish(self) -> Episode:
        rewards: tuple[float, ...] = ()
        if self.tools.call_reward:
            done = [*self.succeeded, False][: len(self.completions)]  # the last one may hand in
            rewards = tuple(self.tools.call_reward * one for one in done)
        answer = (self.final.code if self.final else None) or ""
        return self._episode(self.verdict, answer, self.transcript(), rewards)

    def text(self) -> str:
        steps = enumerate(self.transcript(), 1)
        return "".join(f"[{number}. {role}]\n{text.rstrip()}\n" for number, (role, text) in steps)

    def graded_answer(self) -> GradedAnswer:
        """What the agent left, as reward terms read it."""
        written = self._ids[len(self.prompt_ids) :]
        return self._graded(self.verdict, self.text(), written, self.final or Extracted(None))


def demonstration(problem: Problem, program: str) -> tuple[tuple[str, str], ...]:
    """Calls with their outputs that read the file with the bug and write `program` from its starter code on.

    Small decoders learn to write what comes next long before they can copy lines to search for.
    """
    path = problem.path or PATH
    before, starter = editable_files(problem)[path], problem.starter_code
    kept = starter[: starter.rfind("\n") + 1]
    if not (before.startswith(kept) and program.startswith(kept)):
        kept = ""
    cut = f"sed -i '{kept.count(chr(10)) + 1},$d' {path}; " if kept else f": > {path}; "
    calls = (f"cat {path}", f"{cut}cat >> {path} <<'E'\n{program[len(kept) :]}E\n")
    return tuple((f"<shell>{call}</shell>", output) for call, output in zip(calls, (before, ""), strict=True))
