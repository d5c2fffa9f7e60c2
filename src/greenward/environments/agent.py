"""The environment of agents: a policy works on a repository by tools, and hidden tests judge what it leaves.

An episode is one transcript: what the policy wrote, and between that the outputs of its calls, which are
never trained on. It ends with an answer without a call, with `submit`, or with a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from greenward.config.sections import ToolsConfig
from greenward.environments.code import CodeEnvironment, ProblemDialogue
from greenward.environments.dialogue import Request, Waiting
from greenward.environments.episode import Episode
from greenward.environments.prompts import PromptRenderer, PromptTokenizer, without_special
from greenward.environments.tools import (
    INSTRUCTION,
    NATIVE_INSTRUCTION,
    STOP_STRINGS,
    SUBMIT,
    TOOLS,
    ToolFormat,
    final_answer,
    parse_call,
    run_call,
)
from greenward.errors import ConfigError
from greenward.grading.edits.answers import PATH, editable_files
from greenward.grading.extraction import Extracted
from greenward.grading.grader import Grader
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Family, Status, Verdict
from greenward.policies.engine import Completion, RolloutEngine, SamplingParams, StopReason
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Executor
from greenward.sandbox.workspaces import Workspace, WorkspaceError, WorkspaceLimits

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
                "environment.tools.format is native, but this model's chat template knows no <tool_call>.",
                remedy="Set environment.tools.format=tags.",
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
        message = {
            "role": TOOL if native else "user",
            "content": output if native else f"<output>\n{output}</output>",
        }
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
        calls = [call for one in kept for call in one.succeeded]
        return {
            "tools/calls": [float(len(one.succeeded)) for one in kept],
            "tools/success_rate": list(map(float, calls)),
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
        return dialogue(group_id=group_id, problem=problem, workspace=workspace)

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
        call = parse_call(self.renderer.completion_text(completion.token_ids))
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
        output = output.encode("utf-8", "replace").decode()  # names of files need not be UTF-8
        self.succeeded.append(succeeded)
        ended = self.completions[-1].stop_reason is StopReason.END
        self._tell(output, self.renderer.output_ids(self.problem, output, ended=ended))
        written, most = sum(len(one.token_ids) for one in self.completions), self.tools.max_tokens
        if (
            len(self.succeeded) >= self.tools.max_calls
            or self.workspace.seconds >= self.tools.seconds
            or (most is not None and written + self.sampling.max_tokens > most)
            or len(self._ids) + self.sampling.max_tokens > self.max_positions
        ):
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
        written = self._ids[len(self._prompt_ids) :]
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
