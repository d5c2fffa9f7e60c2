"""Turns problems into the tokens that a policy sees, and its tokens back into code.

There are two styles. In *completion* the prompt is the signature with its docstring, which the answer
continues (base models, our own small decoder). In *chat* the prompt is a user message rendered by the
tokenizer's chat template, and the answer holds a fenced code block (instruction-tuned models). What is asked
follows from the form of the problem: a function, a program that reads standard input, a repair, edits, a
label. Of public suites, `prompt` names the harness whose prompt is used. Line ends are plain (MBPP's file has
CRLF).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from greenward.common.errors import ConfigError
from greenward.config.recipe import EditSections, ModelRecipe, ToolSections
from greenward.config.sections import ToolsConfig
from greenward.grading.answers import Style, begun_thought, extract_code
from greenward.grading.edits import AnswerForm, editable_files, extract_edited, written_edits
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import EDIT_ERRORS, Verdict
from greenward.problems.problem import Assertion, Problem, PromptName, StdioCase, hole_of
from greenward.rollouts.endpoint import TextTokenizer

if TYPE_CHECKING:
    from greenward.models.tokenizer import Tokenizer

INSTRUCTION = (
    "Complete this Python function. Answer with the whole function in one ```python code block.\n\n"
    "```python\n{starter}```"
)


PROGRAM_INSTRUCTION = (
    "Write this Python program. Answer with the whole program in one ```python code block.\n\n"
    "```python\n{starter}```"
)


STDIN_INSTRUCTION = (
    "Write a Python program that solves this problem. It reads the input from standard input and prints the "
    "output to standard output. Answer with the whole program in one ```python code block.\n\n{specification}"
)
_STDIN_COMMENT = "Reads standard input, prints to standard output."


REPAIR_INSTRUCTION = (
    "Fix the bug in this Python {what}.{specification} Answer with the whole {what} in one ```python code "
    "block.\n\n```python\n{buggy}```{failing_test}"
)


IN_FILE_INSTRUCTION = (
    "Complete the function {name} of the file {path}. Answer with this function alone, as a whole, in one "
    "```python code block; what it imports, it imports itself.\n\n```python\n{starter}```"
)


EDIT_INSTRUCTION = "{task} in this Python program.{specification} Answer with {form}\n\n{files}{failing_test}"
_FORMS = {
    "search_replace": """SEARCH/REPLACE blocks. The lines to search for must be those of the file, whole and \
exactly, and must occur only once:

path/to/file.py
<<<<<<< SEARCH
lines of the file
=======
lines in their place
>>>>>>> REPLACE""",
    "diff": "one unified diff, with paths and hunks as in `git diff`.",
}
MAX_SHOWN_CHARS = 20_000  # of the files beside the one that is wrong
_EDIT_HEADING = {"search_replace": "# Edit:\n", "diff": "# Diff:\n"}

FEEDBACK = "A test fails: {failure}"
EDIT_FEEDBACK = "Your edits cannot be applied: {failure}"


# EvalPlus's (Liu et al. 2023) for models with a chat template, which BigCodeBench took over. A model that is
# loaded here goes on after the begun answer; a server gets the instruction alone, as from EvalPlus.
_EVALPLUS = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code "
    "block:\n"
)
_EVALPLUS_BEGUN = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:\n```python\n"
)
_EVALPLUS_STOPS = ("\nif __name__", "\ndef main(", "\nprint(", "\n```\n")
# Those of EvalPlus for models that continue a text. Where the prompt ends inside a function, the next
# definition ends the answer, too.
SCRIPT_STOPS = ('\n"""', "\nassert", "\nif __name__", "\ndef main(", "\nprint(")
BODY_STOPS = (*SCRIPT_STOPS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ")
# LiveCodeBench's (Jain et al. 2024) for models of chats.
_LIVECODEBENCH_SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will "
    "generate a correct Python program that matches the specification and passes all tests."
)
_LIVECODEBENCH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code "
    "within delimiters.\n```python\n{starter}\n```"
)
_LIVECODEBENCH_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on "
    "the sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program "
    "runs, it reads the inputs, runs the algorithm and writes output to STDOUT.\n"
    "```python\n# YOUR CODE HERE\n```"
)
_LIVECODEBENCH = (
    "### Question:\n{specification}\n\n### Format: {format}\n\n"
    "### Answer: (use the provided format with backticks)\n\n"
)
# The examples of MBPP's paper (Austin et al. 2021), for models that continue a text.
_MBPP_TASK = (
    "You are an expert Python programmer, and here is your task: {prompt} Your code should pass these "
    "tests:\n\n{tests}\n[BEGIN]\n"
)
DONE = "[DONE]"

PromptTokenizer: TypeAlias = "Tokenizer | TextTokenizer"
"""That of a policy, or of a model behind a server."""


class PromptRenderer:
    """Renders problems for one policy, in one style, by one of the `PromptName`s, and reads its answers.

    `style` "auto" is chat when the tokenizer has a chat template and completion otherwise. The published
    prompts ask for functions and programs; all else, and what a system prompt says, is ours. `shots` are
    solved examples that come before each problem (completion style, problems with assertions). Raises
    `ConfigError` when chat is asked of a tokenizer without a template, and for examples in chat style.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        style: Literal["auto", "completion", "chat"] = "auto",
        prompt: PromptName = "greenward",
        shots: Sequence[Problem] = (),
        system_prompt: str | None = None,
        show_failing_test: bool = False,
        answer: AnswerForm = "function",
    ) -> None:
        if style == "chat" and not tokenizer.chat_template:
            raise ConfigError(
                "model.prompt_style is chat, but this model's tokenizer has no chat template.",
                remedy="Set model.prompt_style=completion, or use an instruction-tuned model.",
            )
        self._tokenizer = tokenizer
        usual: Style = "chat" if tokenizer.chat_template and not shots else "completion"
        self.style: Style = usual if style == "auto" else style
        if shots and self.style == "chat":
            raise ConfigError("Examples (--fewshot) are for base models; chat prompts have none.")
        self.prompt = prompt
        self._shots = tuple(shots)
        self._system_prompt = system_prompt
        self._show_failing_test = show_failing_test
        self.answer = answer

    def prompt_text(self, problem: Problem) -> str:
        """What is asked, as text: what the model continues, or the user message in chat style.

        Where there is a buggy program to repair, it stands in comments before the starter code, or in
        the user message. Where answers are edits, raises `ProblemError` for a problem without such a program.
        """
        if self._shots:
            return _with_examples(problem, self._shots)
        if self._is_published(problem):
            return _published(problem, self.style, self.prompt, fenced_as=self._fence)
        return question(problem, self.style, show_failing_test=self._show_failing_test, answer=self.answer)

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        if self.style == "completion":
            # With what the model expects at the start of a text (BOS for Llama).
            return tuple(self._tokenizer.encode(self.prompt_text(problem), add_special_tokens=True))
        return tuple(self._tokenizer.render_chat(self.messages(problem), begun=self._begun_by_us(problem)))

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The messages of the prompt in chat style; none in completion style."""
        if self.style == "completion":
            return []
        usual = (
            _LIVECODEBENCH_SYSTEM if self.prompt == "livecodebench" and self._is_published(problem) else None
        )
        content = self._system_prompt or usual
        system = [{"role": "system", "content": content}] if content else []
        return [*system, {"role": "user", "content": self.prompt_text(problem)}]

    def begun(self, problem: Problem) -> str:
        """What the prompt writes of the answer itself: its first words, or the tag that opens a thought."""
        return self._begun_by_us(problem) or (self._thought if self.style == "chat" else "")

    def stop_strings(self, problem: Problem) -> tuple[str, ...]:
        """What ends an answer to this problem, by the published harnesses."""
        if self._shots:
            return (DONE,)
        if self.style == "chat" or not self._is_published(problem):
            return _EVALPLUS_STOPS if self._begun_by_us(problem) else ()
        return BODY_STOPS if f"def {problem.entry_point}(" in problem.starter_code else SCRIPT_STOPS

    def common_stops(self, problems: Iterable[Problem]) -> tuple[str, ...]:
        """The stop strings that all the problems share; the others count once the answer is drawn."""
        stops = [self.stop_strings(problem) for problem in problems]
        return tuple(stop for stop in stops[0] if all(stop in others for others in stops))

    def feedback_ids(self, problem: Problem, verdict: Verdict, *, ended: bool = True) -> tuple[int, ...]:
        """The tokens between a wrong answer and the next one; `ended`: the answer has an end token."""
        failure = without_special(verdict.failure, self._tokenizer)  # which may show a value of an answer
        feedback = (EDIT_FEEDBACK if verdict.status in EDIT_ERRORS else FEEDBACK).format(failure=failure)
        edit_heading = _EDIT_HEADING.get(self.answer)
        if self.style == "completion":
            heading = edit_heading or f"# Right:\n{problem.starter_code}"
            return tuple(self._tokenizer.encode(f"\n{_commented(feedback)}{heading}"))
        feedback += "\nAnswer again with edits of the original program." if edit_heading else ""
        message = {"role": "user", "content": feedback}
        return tuple(self._tokenizer.render_next_message(self.messages(problem), message, ended=ended))

    def completion_text(self, completion_ids: Iterable[int]) -> str:
        """The text of an answer, with the tokens that mark its parts."""
        return self._tokenizer.decode_answer(completion_ids)

    def extracted(self, problem: Problem, text: str) -> Extracted:
        """The program extracted from an answer, or the reason why there is none."""
        begun = self.begun(problem)
        if self.answer != "function":
            return extract_edited(text, problem, self.answer, begun)
        ends = [text.find(stop) for stop in self.stop_strings(problem)]
        text = text[: min((end for end in ends if end >= 0), default=len(text))]
        if self._shots:  # they show whole functions
            problem = replace(problem, starter_code="")
        return extract_code(text, problem, self.style, begun)

    def written(self, problem: Problem, program: str) -> str:
        """The answer that amounts to this program: what continues the starter code, in chat style the whole
        in a code block, or edits.
        """
        if self.answer != "function":
            return written_edits(problem, program, self.answer)
        if self.style == "completion":
            return program.removeprefix(problem.starter_code)
        return f"```python\n{program.strip()}\n```"

    def _is_published(self, problem: Problem) -> bool:
        """Whether a published prompt asks for what this problem asks for."""
        is_plain = problem.label is None and not problem.buggy_code and hole_of(problem) is None
        return self.prompt != "greenward" and self.answer == "function" and is_plain

    @property
    def _begins_answers(self) -> bool:
        return self.style == "chat" and self._tokenizer.begins_answers

    def _begun_by_us(self, problem: Problem) -> str:
        begins = self._begins_answers and self.prompt != "livecodebench" and self._is_published(problem)
        return _EVALPLUS_BEGUN if begins else ""

    @property
    def _fence(self) -> str:
        return "" if self._begins_answers else "python"

    @cached_property
    def _thought(self) -> str:
        return template_thought(self._tokenizer)


def template_thought(tokenizer: PromptTokenizer) -> str:
    """The tag with which a chat template begins each answer as a thought; empty for others."""
    if not tokenizer.chat_template:
        return ""
    ids = tokenizer.render_chat([{"role": "user", "content": "?"}])
    return begun_thought(tokenizer.decode(ids[-20:], skip_special_tokens=False))


def without_special(text: str, tokenizer: PromptTokenizer) -> str:
    """A text that others wrote, with every control token of the tokenizer taken apart."""
    for special in tokenizer.special_ids:
        text = text.replace(special, f"{special[:1]} {special[1:]}")
    return text


def question(
    problem: Problem, style: Style, *, show_failing_test: bool = False, answer: AnswerForm = "function"
) -> str:
    """What is asked, as text: see `PromptRenderer.prompt_text`."""
    if problem.label is not None:
        return problem.label.question(problem, chat=style == "chat")
    if answer != "function":
        return _edit_prompt(problem, problem.failing_test if show_failing_test else "", style, answer)
    if problem.buggy_code:
        return _repair_prompt(problem, problem.failing_test if show_failing_test else "", style)
    starter = problem.context + described_starter(problem)
    if style == "completion":
        return _commented(_STDIN_COMMENT) * reads_input(problem) + starter
    if reads_input(problem) and not problem.starter_code:
        return STDIN_INSTRUCTION.format(specification=problem.prompt.strip())
    instruction = INSTRUCTION if problem.entry_point else PROGRAM_INSTRUCTION
    if hole_of(problem) is not None:
        instruction = IN_FILE_INSTRUCTION
    return instruction.format(starter=_whole_lines(starter), name=problem.entry_point, path=problem.path)


def reads_input(problem: Problem) -> bool:
    """Whether answers are programs that read standard input and print."""
    return any(isinstance(test, StdioCase) for test in problem.tests)


def _published(problem: Problem, style: Style, prompt: PromptName, *, fenced_as: str) -> str:
    """The prompt of a published harness for a problem."""
    own = problem.starter_code
    if '"""' not in own and "'''" not in own:  # it does not say what is asked for
        own = described_starter(problem)
    if style == "completion":
        return own
    if prompt == "livecodebench":
        starter = problem.starter_code.strip()
        form = _LIVECODEBENCH_STARTER.format(starter=starter) if starter else _LIVECODEBENCH_STDIN
        return _LIVECODEBENCH.format(specification=problem.prompt.strip(), format=form)
    if prompt == "bigcodebench-instruct":
        return f"{_EVALPLUS}{problem.prompt.strip()}\n"
    end = "" if fenced_as else "\n"
    return f"{_EVALPLUS}```{fenced_as}\n{own.strip()}\n```{end}"


def _with_examples(problem: Problem, shots: Sequence[Problem]) -> str:
    if not problem.sources(Assertion):
        raise ConfigError(f"{problem.task_id}: MBPP's examples go with problems that have assertions.")

    def asked(one: Problem) -> str:
        return _MBPP_TASK.format(prompt=one.prompt, tests="\n".join(one.sources(Assertion)))

    return "".join((*(f"{asked(one)}{one.reference.strip()}\n{DONE}\n\n" for one in shots), asked(problem)))


def described_starter(problem: Problem) -> str:
    """The starter code, after the specification in comments unless it holds that already."""
    if _says(problem.starter_code, problem.prompt):
        return problem.starter_code
    return _commented(problem.prompt) + problem.starter_code


def _repair_prompt(problem: Problem, failing_test: str, style: Style) -> str:
    specification = "" if _says(problem.buggy_code, problem.prompt) else problem.prompt.strip()
    buggy = _whole_lines(problem.buggy_code.strip("\n"))
    if style == "completion":
        return (
            f"{_commented(specification)}# Wrong:\n{_commented(buggy)}"
            f"{_commented(failing_test)}# Right:\n{problem.starter_code}"
        )
    return REPAIR_INSTRUCTION.format(
        what="function" if problem.entry_point else "program",
        buggy=buggy,
        **_told(specification, failing_test),
    )


def _edit_prompt(problem: Problem, failing_test: str, style: Style, form: AnswerForm) -> str:
    files = editable_files(problem)
    program = next(iter(files.values()))
    specification = "" if _says(program, problem.prompt) else problem.prompt.strip()
    room = MAX_SHOWN_CHARS - len(program)
    others = accumulate(len(text) for text in islice(files.values(), 1, None))
    files = dict(islice(files.items(), 1 + sum(total <= room for total in others)))
    if style == "completion":
        # As they stand: what is searched for has the same tokens. The wrong one is next to its edit.
        shown = [f"# File: {path}\n{_whole_lines(text)}" for path, text in list(files.items())[:0:-1]]
        shown.append(f"# Wrong:{problem.path and ' '}{problem.path}\n{_whole_lines(program)}")
        heading = f"{_commented(failing_test)}{_EDIT_HEADING[form]}"
        return f"{_commented(specification)}{''.join(shown)}{heading}"
    return EDIT_INSTRUCTION.format(
        task="Fix the bug" if problem.buggy_code else f"Write the function {problem.entry_point}",
        form=_FORMS[form],
        files="\n".join(f"{path}\n```python\n{_whole_lines(text)}```" for path, text in files.items()),
        **_told(specification, failing_test),
    )


def _told(specification: str, failing_test: str) -> dict[str, str]:
    """What an instruction says of a program, as far as it is known."""
    return {
        "specification": specification and f" {specification}",
        "failing_test": failing_test and f"\n\nA test fails: {failing_test}",
    }


def _whole_lines(code: str) -> str:
    """Code up to its last line, which ends: starter code may end in the indentation of what is asked for."""
    return code.rstrip() + "\n"


def _says(code: str, specification: str) -> bool:
    return " ".join(specification.split()) in " ".join(code.split())


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.strip().splitlines())


def prompt_options(recipe: ModelRecipe | None, style: Style | None = None) -> dict[str, Any]:
    """The arguments of `PromptRenderer` that a recipe decides, with another `style` if one is asked for."""
    if recipe is None:
        return {"style": style or "auto"}
    return {
        "style": style or recipe.model.prompt_style,
        "system_prompt": recipe.model.system_prompt,
        "show_failing_test": recipe.problems.bugs.show_failing_test,
    }


def answer_form(recipe: ModelRecipe | None) -> AnswerForm:
    """The form of answers that a recipe asks for: `function` unless it says otherwise."""
    return recipe.environment.answer if isinstance(recipe, EditSections) else "function"


def tools_of(recipe: ModelRecipe | None) -> ToolsConfig | None:
    """The tools of a recipe's agent, if it has one."""
    return recipe.tools if isinstance(recipe, ToolSections) else None
