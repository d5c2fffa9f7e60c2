"""Whether a program is judged alike in all the ways in which families of models write an answer.

    .venv/bin/python benchmarks/answer_forms.py --json answer_forms.json

Twenty problems of four forms (a function, a program on standard input, edits of a program, a label), a right
and a wrong answer to each. Every answer is written in each way that makes sense for its form: with thoughts,
headers, end tokens, fences and text around it as chat templates and their models have them. Where a way has
a draft, it is the opposite answer: a wrong one before the right, the right one before the wrong. Ways that
hold no answer (a thought that never ends) must never pass. Each answer is read as `greenward eval` reads it
and as the rewards for other trainers do, and the programs are run.

Exits with 1 where less than 99.5 % of the right answers or any wrong answer passes.
"""

from __future__ import annotations

import argparse
import ast
import json
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from greenward.grading.answers import extract_code, final_text
from greenward.grading.edits import extract_edited, form_of
from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.integrations.rewards import extracted_answer
from greenward.problems.problem import Case, Problem, StdioCase
from greenward.tasks.vulnerability.labels import Label

Form = Literal["function", "stdin", "edit", "label"]
FORMS: tuple[Form, ...] = ("function", "stdin", "edit", "label")
CODE: tuple[Form, ...] = ("function", "stdin")
LEAST_RIGHT = 0.995


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes of the sandbox")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--all", action="store_true", help="print every way, not only those that miss")
    options = parser.parse_args()
    began = time.perf_counter()
    answers = [one for task in tasks() for is_right in (True, False) for one in written(task, is_right)]
    with Grader(workers=options.workers) as grader:
        verdicts = grader.grade([(one.task.problem, one.found.answer) for one in answers])
    passed = [verdict.passed for verdict in verdicts]
    record = figures(answers, passed)
    record["seconds"] = round(time.perf_counter() - began, 1)
    show(record, show_all=options.all)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if record["holds"] else 1


@dataclass(frozen=True)
class Task:
    """A problem with a right and a wrong answer in its plainest form: code, edits or a label."""

    form: Form
    problem: Problem
    right: str
    wrong: str


@dataclass(frozen=True)
class Given:
    """What a way writes: the answer, and its opposite as a draft."""

    form: Form
    code: str
    draft: str
    problem: Problem

    @property
    def reply(self) -> str:
        return self.told(self.code)

    def told(self, code: str) -> str:
        """A short answer of a chat."""
        return f"It is short.\n\n{code}" if self.form == "label" else f"Here it is:\n\n{fenced(code)}"


@dataclass(frozen=True)
class Way:
    """`write` gives the text, or what the prompt begins of the answer and the text; None where the way makes
    no sense for an answer. `holds_answer` is False where nothing may pass.
    """

    name: str
    write: Callable[[Given], str | tuple[str, str] | None]
    forms: tuple[Form, ...] = FORMS
    holds_answer: bool = True


@dataclass(frozen=True)
class Written:
    """An answer as one way writes it and one reader reads it."""

    task: Task
    way: Way
    is_right: bool
    reader: str
    text: str
    found: Extracted


def written(task: Task, is_right: bool) -> Iterator[Written]:
    code, draft = (task.right, task.wrong) if is_right else (task.wrong, task.right)
    given = Given(task.form, code, draft, task.problem)
    for way in ALL_WAYS:
        made = way.write(given) if task.form in way.forms else None
        if made is None:
            continue
        begun, text = made if isinstance(made, tuple) else ("", made)
        for reader, read in READERS.items():
            yield Written(task, way, is_right, reader, text, read(text, task.problem, begun))


def _as_eval(text: str, problem: Problem, begun: str) -> Extracted:
    if problem.buggy_code:
        return extract_edited(text, problem, form_of(final_text(text, begun)), begun)
    return extract_code(text, problem, "chat", begun)


READERS: dict[str, Callable[[str, Problem, str], Extracted]] = {
    "eval": _as_eval,
    "rewards": extracted_answer,
}


def figures(answers: Sequence[Written], passed: Sequence[bool]) -> dict[str, Any]:
    by_form: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    by_way: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    misses = []
    for one, has_passed in zip(answers, passed, strict=True):
        is_wrong = not (one.is_right and one.way.holds_answer)
        for counts in (by_form[one.task.form], by_way[one.way.name]):
            counts[2 * is_wrong] += has_passed
            counts[2 * is_wrong + 1] += 1
        if has_passed is is_wrong:
            misses.append(
                {
                    "way": one.way.name,
                    "problem": one.task.problem.task_id,
                    "reader": one.reader,
                    "right": not is_wrong,
                    "text": one.text,
                    "read": one.found.code or one.found.reason,
                    "rule": one.found.rule,
                }
            )
    right, rights, wrong, _ = map(sum, zip(*by_form.values(), strict=True))
    names = ("right_passed", "right", "wrong_passed", "wrong")
    return {
        "ways": {form: len({one.way.name for one in answers if one.task.form == form}) for form in FORMS},
        "holds": right >= LEAST_RIGHT * rights and wrong == 0,
        "by_form": {form: dict(zip(names, counts, strict=True)) for form, counts in by_form.items()},
        "by_way": {way: dict(zip(names, counts, strict=True)) for way, counts in by_way.items()},
        "misses": misses,
    }


def show(record: dict[str, Any], *, show_all: bool) -> None:
    for title, part in (("by_way", record["by_way"]), ("by_form", record["by_form"])):
        for name, counts in part.items():
            misses = counts["right_passed"] < counts["right"] or counts["wrong_passed"]
            if title == "by_form" or misses or show_all:
                ways = f"   in {record['ways'][name]} ways" if title == "by_form" else ""
                print(
                    f"{name:55} right {counts['right_passed']:5} of {counts['right']:5}"
                    f"   wrong {counts['wrong_passed']:3} of {counts['wrong']:5}{ways}"
                )
    print(
        f"{'PASS' if record['holds'] else 'FAIL'}: at least {LEAST_RIGHT:.1%} of the right answers pass"
        f" and no wrong one; {record['seconds']} s"
    )


# ---------------------------------------------------------------------------------------------------- ways


def fenced(code: str, info: str = "python", fence: str = "```") -> str:
    return f"{fence}{info}\n{code}\n{fence}"


# How the turn ends, by the tokenizers of the families; some decode them, some put padding behind.
ENDS = {
    "ChatML": "<|im_end|>",
    "ChatML, own line": "\n<|im_end|>",
    "ChatML and padding": "<|im_end|><|endoftext|><|endoftext|><|endoftext|>",
    "ChatML and new line": "<|im_end|>\n",
    "GPT-2, StarCoder, OLMo": "<|endoftext|>",
    "Llama 2, Mistral, Yi": "</s>",
    "Llama 2 with a space": " </s>",
    "padding of Llama 2": "</s><unk><unk><unk>",
    "Llama 3": "<|eot_id|>",
    "Llama 3, two": "<|eom_id|><|eot_id|>",
    "Llama 3, base": "<|end_of_text|>",
    "padding of Llama 3": "<|eot_id|><|finetune_right_pad_id|><|finetune_right_pad_id|>",
    "Llama 4": "<|eot|>",
    "Gemma": "<end_of_turn>\n<eos>",
    "Gemma 4": "<turn|>",
    "padding of Gemma": "<end_of_turn><pad><pad><pad>",
    "Phi": "<|end|>",
    "Phi, all": "<|end|><|endoftext|>",
    "DeepSeek": "<｜end▁of▁sentence｜>",
    "DeepSeek Coder": "\n<|EOT|>",
    "padding of DeepSeek": "<｜end▁of▁sentence｜><｜▁pad▁｜><｜▁pad▁｜>",
    "StarCoder": "<file_sep>",
    "CodeLlama": " <EOT>",
    "CodeLlama, tag": "\n[/PYTHON]",
    "Command": "<|END_OF_TURN_TOKEN|>",
    "Command A": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "GLM": "\n<|user|>",
    "GLM, tool": "<|observation|>",
    "Granite": "<|end_of_text|>\n",
    "Nemotron": "<extra_id_1>",
    "Exaone": "[|endofturn|]",
    "Ling": "<|role_end|>",
    "Kimi": "<|im_end|>[EOS]",
    "Seed-OSS": "<seed:eos>",
    "InternLM": "<eoa>",
    "MiniMax": "[e~[",
    "MBPP": "\n[DONE]",
    "MBPP, same line": " [DONE]",
    "ERNIE": "<|end_of_sentence|>",
    "all of them": "<|im_end|></s><|eot_id|><end_of_turn><eos>\n<|endoftext|>",
}  # fmt: skip

# Where a model runs on into the turn of the user, which asks for the opposite.
RUN_ONS = {
    "ChatML": "<|im_end|>\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n{}",
    "Llama 3": "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAgain.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{}",
    "Llama 2": "</s><s>[INST] Again. [/INST] {}",
    "Llama 4": "<|eot|><|header_start|>user<|header_end|>\n\nAgain.<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\n{}",
    "Gemma": "<end_of_turn>\n<start_of_turn>user\nAgain.<end_of_turn>\n<start_of_turn>model\n{}",
    "Phi": "<|end|>\n<|user|>\nAgain.<|end|>\n<|assistant|>\n{}",
    "DeepSeek": "<｜end▁of▁sentence｜><｜User｜>Again.<｜Assistant｜>{}",
    "Command": "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Again."
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{}",
    "Granite": "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Again.<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>{}",
    "GLM": "<|user|>\nAgain.<|assistant|>\n{}",
    "the end again and again": "<|endoftext|>{0}<|endoftext|>{0}<|endoftext|>",
    "Alpaca": "\n\n### Instruction:\nAgain.\n\n### Response:\n{}",
    "Llama 3 without its tokens": "assistant\n\nAgain:\n\n{}",
    "MBPP": "\n[DONE]\n\nYou are an expert Python programmer. Again.\n[BEGIN]\n{}\n[DONE]",
}

# Headers and padding in front.
HEADS = {
    "ChatML": "<|im_start|>assistant\n",
    "left padding": "<|endoftext|><|endoftext|><|endoftext|><|im_start|>assistant\n",
    "Llama 2": "<s> [/INST] ",
    "Llama 3": "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "Llama 4": "<|header_start|>assistant<|header_end|>\n\n",
    "Mistral": "[/INST]",
    "Gemma": "<bos><start_of_turn>model\n",
    "Gemma, padding": "<pad><pad><bos><start_of_turn>model\n",
    "Phi-3": "<|assistant|>\n",
    "Phi-4": "<|im_start|>assistant<|im_sep|>",
    "DeepSeek": "<｜begin▁of▁sentence｜><｜Assistant｜>",
    "Command": "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "Command A": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>",
    "GLM": "[gMASK]<sop><|assistant|>\n",
    "Granite": "<|start_of_role|>assistant<|end_of_role|>",
    "Kimi": "<|im_assistant|>assistant<|im_middle|>",
    "Nemotron": "<extra_id_1>Assistant\n",
    "Exaone": "[|assistant|]",
    "Ling": "<role>ASSISTANT</role>",
    "Seed-OSS": "<seed:bos>assistant\n",
    "Alpaca, WizardCoder": "### Response:\n",
    "Vicuna": "ASSISTANT: ",
    "Llama 3 without its tokens": "assistant\n\n",
    "blank lines": "\n\n \n\n",
    "byte order mark": "\ufeff",
}

# A thought that holds the opposite answer, closed.
THOUGHTS = {
    "Qwen3": ("<think>\n", "\n</think>\n\n"),
    "Qwen3, glued": ("<think>", "</think>"),
    "DeepSeek R1": ("<think>\n", "\n</think>\n"),
    "GLM": ("\n<think>", "</think>\n"),
    "Claude": ("<thinking>\n", "\n</thinking>\n\n"),
    "recipes of R1": ("<reasoning>\n", "\n</reasoning>\n"),
    "thought": ("<thought>\n", "\n</thought>\n"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Kimi": ("◁think▷", "◁/think▷"),
    "Seed-OSS": ("<seed:think>", "</seed:think>"),
    "Command A": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    "Sky-T1, OpenThinker": (
        "<|begin_of_thought|>\n\n",
        "\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\n",
    ),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "Granite 3": ("Here is my thought process:\n\n", "\n\nHere is my response:\n\n"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "gpt-oss with header": (
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "gpt-oss without its tokens": ("analysisWe write it.\n", "assistantfinal"),
    "two thoughts": ("<think>\nFirst.\n</think>\n<think>\n", "\n</think>\n"),
    "with a header": ("<|im_start|>assistant\n<think>\n", "\n</think>\n\n"),
    "indented": ("  <think>\n", "\n  </think>\n"),
    "upper case": ("<THINK>\n", "\n</THINK>\n"),
    "ends in its last line": ("<think>\nSo: ", " That is it.</think>\n"),
    "names its tag": ("<think>\nI have to close this with `</think>`.\n", "\n</think>\n"),
    "Hunyuan": ("<think>\n", "\n</think>\n<answer>\n"),
    "ERNIE": ("<think>\n", "\n</think>\n\n<response>\n"),
}  # fmt: skip

OPENED = ("<think>\n", "<think>", "<thinking>\n", "[THINK]", "<seed:think>", "<|START_THINKING|>", "◁think▷")
CLOSED = ("</think>", "</think>", "</thinking>", "[/THINK]", "</seed:think>", "<|END_THINKING|>", "◁/think▷")

EVALPLUS = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:\n```python\n"
)


# A whole turn with a thought and its tokens: what the prompt begins, what is before and behind the answer.
TURNS = {
    "Qwen3": ("", "<|im_start|>assistant\n<think>\n{}\n</think>\n\n", "<|im_end|>\n<|endoftext|>"),
    "DeepSeek R1": ("<think>\n", "{}\n</think>\n\n", "<｜end▁of▁sentence｜>"),
    "Magistral": ("", "<s>[/INST][THINK]{}[/THINK]", "</s></s>"),
    "gpt-oss": (
        "<|start|>assistant",
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|return|>",
    ),
    "gpt-oss without its tokens": ("", "analysisWe need this. {}assistantfinal", ""),
    "Command A": ("", "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "GLM": ("", "\n<think>{}</think>\n", "<|user|>"),
    "Llama 3 running on": (
        "",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{}",
    ),
}  # fmt: skip


def turned(way: Way, name: str) -> Way:
    """A way within a whole turn of a family."""
    begun, before, behind = TURNS[name]

    def write(given: Given) -> tuple[str, str] | None:
        made, draft = way.write(given), given.told(given.draft)
        if made is None or isinstance(made, tuple):
            return None
        return begun, before.replace("{}", draft) + made + behind.replace("{}", draft)

    return replace(way, name=f"in a turn of {name}: {way.name}", write=write)


def ways() -> list[Way]:
    alone = [*label_ways(), *block_ways()]
    return [*ways_around(), *alone, *(turned(way, name) for way in alone for name in TURNS)]


def ways_around() -> list[Way]:
    return [
        Way("plain", lambda given: given.reply),
        *(Way(f"end: {name}", lambda given, end=end: given.reply + end) for name, end in ENDS.items()),
        *(
            Way(f"end without a fence: {name}", lambda given, end=end: given.code + end)
            for name, end in ENDS.items()
            if not end.startswith(" [")  # an index in Python
        ),
        *(
            Way(f"run-on: {name}", lambda given, on=on: given.reply + on.format(given.told(given.draft)))
            for name, on in RUN_ONS.items()
        ),
        *(Way(f"head: {name}", lambda given, head=head: head + given.reply) for name, head in HEADS.items()),
        *(
            Way(f"head without a fence: {name}", lambda given, head=head: head + given.code)
            for name, head in HEADS.items()
        ),
        *(
            Way(
                f"thought: {name}",
                lambda given, tags=tags: (
                    f"{tags[0]}{given.told(given.draft)}{tags[1]}{given.reply}<|im_end|>"
                ),
            )
            for name, tags in THOUGHTS.items()
        ),
        *(
            Way(
                f"thought without an end: {name}",
                lambda given, tags=tags: f"{tags[0]}{given.told(given.draft)}\nWait, let me",
                holds_answer=False,
            )
            for name, tags in THOUGHTS.items()
        ),
        *(
            Way(
                f"thought opened by the prompt: {tag!r}",
                lambda given, tag=tag, end=end: (
                    tag,
                    f"{given.told(given.draft)}\n{end}\n\n{given.reply}",
                ),
            )
            for tag, end in zip(OPENED, CLOSED, strict=True)
        ),
        *(
            Way(
                f"thought opened by the prompt without an end: {tag!r}",
                lambda given, tag=tag: (tag, given.told(given.draft)),
                holds_answer=False,
            )
            for tag in OPENED
        ),
        *(
            Way(
                f"thought and a refusal: {name}",
                lambda given, tags=tags: f"{tags[0]}{given.told(given.draft)}{tags[1]}I cannot do this.",
                holds_answer=False,
            )
            for name, tags in THOUGHTS.items()
        ),
        Way(
            "thought with a block that is not closed",
            lambda given: f"<think>\n{given.told(given.draft)[:-4]}\n</think>\n\n{given.reply}",
            ("function", "stdin"),
        ),
        Way(
            "thought with a block that is not closed, untagged answer",
            lambda given: f"<think>\n{given.told(given.draft)[:-4]}\n</think>\n\n{fenced(given.code, '')}",
            ("function", "stdin"),
        ),
        Way(
            "Harmony of three channels",
            lambda given: (
                f"<|channel|>analysis<|message|>{given.told(given.draft)}<|end|><|start|>assistant"
                f"<|channel|>commentary<|message|>I write it.<|end|><|start|>assistant"
                f"<|channel|>final<|message|>{given.reply}<|return|>"
            ),
        ),
        Way(
            "Harmony, opened by the prompt",
            lambda given: (
                "<|start|>assistant<|channel|>analysis<|message|>",
                f"{given.told(given.draft)}<|end|><|start|>assistant<|channel|>final<|message|>{given.reply}",
            ),
        ),
        Way("thought opened by a prompt that is not known", _unknown_thought),
        Way("thought that is empty", lambda given: f"<think>\n\n</think>\n\n{given.reply}"),
        Way("thought behind the answer", lambda given: f"{given.reply}\n<think>\n{given.told(given.draft)}"),
        Way(
            "a thought closed behind the answer",
            lambda given: (
                f"<think>\nYes.\n</think>\n{given.reply}\n<think>\n{given.told(given.draft)}\n</think>\n"
            ),
        ),
        Way("tag in a thought's program", _tag_in_draft, CODE),
        *(
            Way(f"literal in a string: {tag}", lambda given, tag=tag: _with_line(given, f'TAG = "{tag}"'))
            for tag in LITERALS
        ),
        *(
            Way(f"literal in a comment: {tag}", lambda given, tag=tag: _with_line(given, f"# up to {tag}"))
            for tag in LITERALS
        ),
        *(
            Way(
                f"literal in a text of lines: {tag}",
                lambda given, tag=tag: _with_line(given, f'TAG = """a\n{tag}\nb\n"""'),
            )
            for tag in LITERALS
        ),
        *(
            Way(
                f"literal in bare code: {tag}",
                lambda given, tag=tag: f'TAG = "{tag}"\n{given.code}' if given.form in CODE else None,
            )
            for tag in LITERALS
        ),
        *(
            Way(
                f"literal after a thought: {tag}",
                lambda given, tag=tag: (
                    f"<think>\n{given.told(given.draft)}\n</think>\n" + _with_line(given, f"TAG = '{tag}'")
                    if given.form in CODE
                    else None
                ),
            )
            for tag in LITERALS
        ),
        Way(
            "Windows line ends",
            lambda given: given.reply.replace("\n", "\r\n"),
        ),
        Way(
            "Windows line ends and an end token",
            lambda given: (
                f"<think>\n{given.told(given.draft)}\n</think>\n{given.reply}\n<|im_end|>\n".replace(
                    "\n", "\r\n"
                )
            ),
        ),
        Way("answer tag", lambda given: f"<answer>\n{given.reply}\n</answer>", ("function", "stdin", "edit")),
        Way(
            "answer tag behind a thought",
            lambda given: (
                f"<think>\n{given.told(given.draft)}\n</think>\n<answer>\n{given.reply}\n</answer><|im_end|>"
            ),
            ("function", "stdin", "edit"),
        ),
        Way("solution tag", lambda given: f"<solution>\n{given.reply}\n</solution>"),
        *(
            Way(
                f"{tag} tag without a fence",
                lambda given, tag=tag: f"<{tag}>\n{given.code}\n</{tag}>",
                ("function", "stdin", "edit"),
            )
            for tag in ("answer", "solution", "code", "python", "final_answer")
        ),
        Way(
            "answer tags of a reasoning recipe without a fence",
            lambda given: (
                f"<reasoning>\n{given.told(given.draft)}\n</reasoning>\n<answer>\n{given.code}\n</answer>"
            ),
            ("function", "stdin", "edit"),
        ),
        Way(
            "details of HTML",
            lambda given: f"<details>\n<summary>Answer</summary>\n\n{given.reply}\n\n</details>",
        ),
        Way("boxed", lambda given: f"\\boxed{{\n{given.reply}\n}}"),
        Way("heading", lambda given: f"# Answer\n\n## Code\n\n{given.reply}\n\n---\n\n**Done!**\n"),
        Way("prose behind", lambda given: f"{given.reply}\n\nThis takes linear time: for each one, O(1).\n"),
    ]


LITERALS = (
    "</think>", "<think>", "<|im_end|>", "<|endoftext|>", "</s>", "<|channel|>", "<|end|>", "[DONE]", "```",
    "assistant", "### Instruction:", "<answer>", "[/INST]",
)  # fmt: skip


def _unknown_thought(given: Given) -> str:
    return f"Let me see.\n\n{given.told(given.draft)}\n\nYes.\n</think>\n\n{given.reply}"


def _tag_in_draft(given: Given) -> str:
    draft = f'END = "</think>"\n{given.draft}'
    return f"<think>\nFirst:\n{given.told(draft)}\nNo.\n</think>\n\n{given.reply}"


def _with_line(given: Given, line: str) -> str | None:
    """The answer with one more line of code in front, which changes nothing."""
    if given.form not in CODE:
        return None
    if "```" in line and "\n```\n" in line:
        return None  # no reader can tell it from the end of the block, unless the block is Python
    return given.told(f"{line}\n{given.code}")


def label_ways() -> list[Way]:
    """Labels in the forms in which models write them."""

    def only(name: str, write: Callable[[Given], str]) -> Way:
        return Way(f"label {name}", write, ("label",))

    return [
        only("behind a draft", lambda given: f"At first I thought {given.draft}, but no: {given.code}"),
        only("upper case", lambda given: given.code.upper()),
        only("in a block", lambda given: fenced(given.code, "")),
        only("in a block of XML", lambda given: fenced(given.code, "xml")),
        only("bold", lambda given: f"**{given.code}**"),
        only("in code", lambda given: f"`{given.code}`"),
        only("with line ends", lambda given: given.code.replace(">", ">\n", 1).replace("</", "\n</")),
        only("with spaces", lambda given: given.code.replace(">", ">  ", 1).replace("</", "  </")),
        only("with a full stop behind", lambda given: f"{given.code}."),
        only("of a spaced weakness", lambda given: given.code.replace("CWE-", "CWE ")),
        only("with a comma", lambda given: given.code.replace("vulnerable CWE", "vulnerable, CWE")),
        only("with a colon", lambda given: given.code.replace("vulnerable CWE", "vulnerable: CWE")),
        only("with brackets", lambda given: given.code.replace("CWE-78", "(CWE-78)")),
    ]


def block_ways() -> list[Way]:
    """Fences, and how a program is split over them."""

    def code(name: str, write: Callable[[Given], str | tuple[str, str] | None]) -> Way:
        return Way(name, write, CODE)

    def function(name: str, write: Callable[[Given], str | tuple[str, str] | None]) -> Way:
        return Way(name, write, ("function",))

    infos = (
        "", "py", "Python", "python3", "PYTHON", " python", "python ", "py3", "ipython", "{.python}",
        "python:", "python title=\"a.py\"", "solution.py", "python solution.py",
        "python {linenos=true}", "python\t",
        "text", "plaintext", "code", "pycon3", "Python 3", "{python}", "{.python .numberLines}",
        "python=", "Python3.11", "python,ignore", "main.py", "src/main.py", "Solution", "py title=main.py",
    )  # fmt: skip
    return [
        *(
            code(f"info string {info!r}", lambda given, info=info: f"Here:\n\n{fenced(given.code, info)}")
            for info in infos
        ),
        code("language line", lambda given: fenced(f"python\n{given.code}", "")),
        code("language line twice", lambda given: fenced(f"python\n{given.code}")),
        code("file name as first comment", lambda given: fenced(f"# solution.py\n{given.code}")),
        code("longer fence", lambda given: fenced(given.code, fence="````")),
        code("tildes", lambda given: fenced(given.code, fence="~~~")),
        code("spaces behind fences", lambda given: fenced(given.code, "python   ") + "   \n"),
        code("no new line in front of the fence", lambda given: f"Here it is: {fenced(given.code)}"),
        code("closing fence glued", lambda given: f"```python\n{given.code}```"),
        code("closing fence glued with its end token", lambda given: f"```python\n{given.code}```<|im_end|>"),
        code("closing fence missing", lambda given: f"```python\n{given.code}"),
        code("closing fence missing, end token", lambda given: f"```python\n{given.code}<|im_end|>"),
        code("closing fence longer", lambda given: f"```python\n{given.code}\n`````"),
        code("closing fence shorter", lambda given: f"````python\n{given.code}\n```"),
        code("closing fence shorter, prose", lambda given: f"````python\n{given.code}\n```\nThat's all."),
        code("closing fence of another kind", lambda given: f"~~~python\n{given.code}\n```\nThat's all."),
        code(
            "Windows line ends without a fence", lambda given: f"Here:\n\n{given.code}".replace("\n", "\r\n")
        ),
        code("comments tagged as Python behind", lambda given: f"{given.reply}\n\n{fenced('# Output: 3')}"),
        code(
            "the prompt opened a fence that is not known, the answer again",
            lambda given: f"{given.draft}\n```\n\nOutput:\n```\n3\n```\n\nBetter:\n\n{fenced(given.code)}",
        ),
        code("closing fence indented", lambda given: f"```python\n{given.code}\n  ```"),
        code("closing fence twice", lambda given: f"{given.reply}\n```"),
        code("prose behind the closing fence", lambda given: f"{given.reply} That is all."),
        code("one line", _one_line),
        code("one line in a fence", lambda given: f"```python {given.code}\n```"),
        code("blank lines within", lambda given: fenced(f"\n\n{given.code}\n\n")),
        code("in a list", lambda given: "1. So:\n\n" + textwrap.indent(fenced(given.code), "   ")),
        code("in a list, glued", lambda given: "- " + textwrap.indent(fenced(given.code), "  ").lstrip()),
        code("indented block of Markdown", lambda given: "So:\n\n" + textwrap.indent(given.code, "    ")),
        code("tabs", lambda given: fenced(given.code.replace("    ", "\t"))),
        code("markdown around", lambda given: fenced(given.reply, "markdown", "````")),
        code("markdown around, equal fences", lambda given: fenced(f"{given.reply}\n", "markdown")),
        code("a fence around a fence", lambda given: f"```\n{fenced(given.code)}\n```"),
        code("a fence around a fence with its text", lambda given: f"```\n{given.reply}\n```"),
        code("without a fence", lambda given: given.code),
        code("without a fence behind prose", lambda given: f"Here is the program:\n\n{given.code}"),
        code("without a fence before prose", lambda given: f"{given.code}\n\nIt takes linear time, I hope."),
        code(
            "without a fence within prose",
            lambda given: f"Sure, here it is.\n\n{given.code}\n\nNotes:\n- It's short.\n- It isn't slow.",
        ),
        code("the prompt opened the fence", lambda given: (EVALPLUS, f"{given.code}\n```\n\nThat is it.")),
        code(
            "the prompt opened the fence, end token",
            lambda given: (EVALPLUS, f"{given.code}\n```<|im_end|>"),
        ),
        code("the prompt opened the fence, not closed", lambda given: (EVALPLUS, given.code)),
        code(
            "the prompt opened the fence, which is opened again",
            lambda given: (EVALPLUS, fenced(given.code)),
        ),
        code("the prompt opened a fence that is not known", lambda given: f"{given.code}\n```\nThat is it."),
        code(
            "the prompt opened a fence that is not known, tests behind",
            lambda given: f"{given.code}\n```\n\nTry it:\n\n```python\n{_usage(given)}\n```",
        ),
        code("a draft before", lambda given: f"{given.told(given.draft)}\n\nBetter:\n\n{fenced(given.code)}"),
        code("a draft before, alike", lambda given: f"{fenced(given.draft)}\n\n{fenced(given.code)}"),
        code(
            "an untagged draft before",
            lambda given: f"{fenced(given.draft, '')}\n\nBetter:\n\n{fenced(given.code)}",
        ),
        code(
            "a tagged draft before an untagged end",
            lambda given: f"{given.told(given.draft)}\n\nFixed:\n\n{fenced(given.code, '')}",
        ),
        code("a draft in prose", lambda given: f"At first:\n\n{given.draft}\n\nBut:\n\n{fenced(given.code)}"),
        code(
            "a draft without a fence before",
            lambda given: (
                f"At first:\n\n{given.draft}\n\nBut this is right:\n\n{given.code}\n\nDone, I hope."
            ),
        ),
        code(
            "a draft that is not closed",
            lambda given: f"```python\n{given.draft}\n\nBetter:\n{fenced(given.code)}",
        ),
        code("steps before", lambda given: _steps(given) + f"\n\nThe whole program:\n\n{fenced(given.code)}"),
        code("imports in another block", _imports_apart),
        code("helpers in another block", _helpers_apart),
        code("helpers in a later block", _helpers_behind),
        *(
            code(
                f"fence behind {text!r}, a draft before",
                lambda given, text=text, end=end: (
                    f"{fenced(given.draft)}\n\nNo.\n\n{text}{fenced(given.code)}{end}\n\n{fenced('3', '')}"
                ),
            )
            for text, end in (
                ("<answer>", "</answer>"),
                ("**Solution:**", "**"),
                ("### Solution ", ""),
                ("Use ", " for it."),
                ("So: ", ""),
                ("* ", ""),
                ("1. ", ""),
                ("> ", ""),
                ("\\boxed{", "}"),
            )
        ),
        code("words of MBPP", lambda given: f"[BEGIN]\n{given.code}\n[DONE]\nagain"),
        code("shell before", lambda given: f"{fenced('pip install nothing', 'bash')}\n\n{given.reply}"),
        code("shell behind", lambda given: f"{given.reply}\n\nRun it:\n\n{fenced('python a.py', 'bash')}"),
        code("output behind", lambda given: f"{given.reply}\n\nOutput:\n\n{fenced('3', '')}"),
        code("output tagged", lambda given: f"{given.reply}\n\nOutput:\n\n{fenced('3 4', 'output')}"),
        code(
            "sample input before",
            lambda given: f"Input:\n\n{fenced('3 4', '')}\n\nOutput: `7`\n{given.reply}",
        ),
        code("usage behind", lambda given: f"{given.reply}\n\nUse it:\n\n{fenced(_usage(given))}"),
        code(
            "tests behind",
            lambda given: f"{given.reply}\n\nTests:\n\n{fenced(_tests(given))}\n\nAll of them pass.",
        ),
        code(
            "a table behind",
            lambda given: f"{given.reply}\n\n| a | b |\n|---|---|\n| `x` | ```y``` |\n",
        ),
        code("JSON behind", lambda given: f"{given.reply}\n\n" + fenced('{"time": "O(n)"}', "json")),
        code("inline code before", lambda given: f"Use `dict` and ```list```.\n\n{given.reply}"),
        code("prompt of a shell in a block", lambda given: fenced(f"#!/usr/bin/env python3\n{given.code}")),
        code("coding line", lambda given: fenced(f"# -*- coding: utf-8 -*-\n{given.code}")),
        code("byte order mark in the code", lambda given: f"\ufeff{given.code}"),
        code("no-break spaces around", lambda given: f"\u00a0\n{given.reply}\n\u00a0"),
        code("carriage returns alone", lambda given: f"Here:\n\n{fenced(given.code)}".replace("\n", "\r")),
        function(
            "a failing assert behind", lambda given: fenced(f"{given.code}\n\nassert {_call(given)} == 'x'")
        ),
        function(
            "a call that fails behind",
            lambda given: fenced(f"{given.code}\n\nprint({_name(given)}(input()))"),
        ),
        function(
            "a torn function behind", lambda given: f"```python\n{given.code}\n\ndef main():\n    print(f(in"
        ),
        function(
            "a torn call behind", lambda given: f"```python\n{given.code}\n\nprint({_name(given)}([1, 2"
        ),
        function("a torn text behind", lambda given: f'```python\n{given.code}\n\ndef test():\n    """Tries'),
        function("a torn comment behind", lambda given: f"```python\n{given.code}\n\n# Test the fu"),
        function("a torn assert behind, bare", lambda given: f"{given.code}\n\nassert {_name(given)}(["),
        function(
            "a main guard behind",
            lambda given: fenced(
                f'{given.code}\n\nif __name__ == "__main__":\n    {_name(given)}(1, 2, 3, 4)'
            ),
        ),
        function(
            "doctests behind", lambda given: fenced(f"{given.code}\n\nimport doctest\ndoctest.testmod()")
        ),
        function(
            "a failing class of unittest behind",
            lambda given: fenced(
                f"{given.code}\n\nimport unittest\n\nclass T(unittest.TestCase):\n    def test(self):\n"
                f"        self.assertEqual({_call(given)}, 'x')\n\nunittest.main()"
            ),
        ),
        function(
            "a session behind",
            lambda given: f"{given.reply}\n\n{fenced('>>> ' + _call(given) + chr(10) + '3', 'pycon')}",
        ),
        function("a docstring with a fence", _docstring_with_fence),
        function(
            "a fence in a comment",
            lambda given: fenced(f"# ```python\n# {_name(given)}(1)\n# ```\n{given.code}"),
        ),
        function(
            "explained by an excerpt",
            lambda given: f"{given.reply}\n\nThe line\n\n```python\n    return result\n```\n\nends it.",
        ),
    ]


def _name(given: Given) -> str:
    return given.problem.entry_point


def _call(given: Given) -> str:
    case = given.problem.tests[0]
    assert isinstance(case, Case)
    return f"{_name(given)}({', '.join(map(repr, case.args))})"


def _usage(given: Given) -> str:
    if given.form == "function":
        return f"print({_call(given)})\nprint({_name(given)}(None))"
    return "import subprocess\nprint(subprocess.run(['python', 'a.py'], input='1 2', text=True))"


def _tests(given: Given) -> str:
    if given.form == "function":
        return f"def test_it():\n    assert {_call(given)} == 'x'\n\ntest_it()"
    return "def test_program():\n    assert run('1 2') == '3'\n\ntest_program()"


def _one_line(given: Given) -> str | None:
    return f"```python {given.code} ```" if "\n" not in given.code else None


def _steps(given: Given) -> str:
    first = given.code.split("\n")[0]
    parts = (f"{first}\n    ...", "n = 0", "n += 1")
    return "\n\n".join(f"{n}. Step:\n\n{fenced(part)}" for n, part in enumerate(parts, start=1))


def _parts(code: str) -> tuple[list[str], list[str], list[str]]:
    """The imports, the definitions and assignments before the last statement, and the rest."""
    lines, tree = code.split("\n"), ast.parse(code)
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for number, node in enumerate(tree.body):
        is_last = number == len(tree.body) - 1
        binds = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign) and not is_last and not parts[2]
        place = 0 if isinstance(node, ast.Import | ast.ImportFrom) else 1 if binds else 2
        parts[place].append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    return parts


def _imports_apart(given: Given) -> str | None:
    imports, helpers, rest = _parts(given.code)
    first, last = "\n".join(imports), "\n\n".join(helpers + rest)
    return f"First:\n\n{fenced(first)}\n\nThen:\n\n{fenced(last)}" if imports else None


def _helpers_apart(given: Given) -> str | None:
    imports, helpers, rest = _parts(given.code)
    first, last = "\n\n".join(imports + helpers), "\n\n".join(rest)
    return f"First:\n\n{fenced(first)}\n\nThen:\n\n{fenced(last)}" if helpers else None


def _helpers_behind(given: Given) -> str | None:
    imports, helpers, rest = _parts(given.code)
    if not helpers or given.form == "stdin":
        return None
    first, last = "\n\n".join(rest), "\n\n".join(imports + helpers)
    return f"{fenced(first)}\n\nwith the helper\n\n{fenced(last)}"


def _docstring_with_fence(given: Given) -> str:
    text = '"""How to use it.\n\n```python\nprint(1)\n```\n\nThat is all.\n"""\n'
    return fenced(text + given.code)


# ------------------------------------------------------------------------------------------------ problems


def tasks() -> list[Task]:
    return [*function_tasks(), *stdin_tasks(), *edit_tasks(), *label_tasks()]


def _dedented(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def function_tasks() -> list[Task]:
    def task(name: str, right: str, wrong: str, *cases: tuple[Any, Any], starter: str = "") -> Task:
        tests = tuple(Case((argument,), expected) for argument, expected in cases)
        problem = Problem(f"function/{name}", "Write it.", name, tests=tests, starter_code=starter)
        return Task("function", problem, _dedented(right), _dedented(wrong))

    running = """
        from typing import List

        def running_max(values: List[int]) -> List[int]:
            \"\"\"The largest value up to each place.\"\"\"
            found = []
            for value in values:
                found.append(value if not found else max(found[-1], value))
            return found
    """
    balanced = """
        PAIRS = {")": "(", "]": "["}

        def is_opening(letter):
            return letter in PAIRS.values()

        def is_balanced(text):
            stack = []
            for letter in text:
                if is_opening(letter):
                    stack.append(letter)
                elif letter in PAIRS:
                    if not stack or stack.pop() != PAIRS[letter]:
                        return False
            return not stack
    """
    median = """
        import math
        from collections import Counter

        def rounded(value):
            return math.floor(value + 0.5)

        def typical(values):
            count = Counter(values)
            if len(count) == 1:
                return values[0]
            return rounded(sum(values) / len(values))
    """
    fence = '''
        def fence(code):
            """Puts code into a fence, as in

            ```python
            print(1)
            ```
            """
            return "```python\\n" + code + "\\n```"
    '''
    return [
        task(
            "running_max",
            running,
            running.replace("max(found", "min(found"),
            ([1, 3, 2, 5], [1, 3, 3, 5]),
            ([-2, -3], [-2, -2]),
            starter="from typing import List\n\ndef running_max(values: List[int]) -> List[int]:\n"
            '    """The largest value up to each place."""\n',
        ),
        task(
            "is_balanced",
            balanced,
            balanced.replace("return not stack", "return True"),
            ("([])", True),
            ("(]", False),
            ("((", False),
            starter="def is_balanced(text):\n",
        ),
        task(
            "strip_end",
            'def strip_end(text): return text.replace("<|im_end|>", "").replace("</think>", "").strip()',
            'def strip_end(text): return text.replace("<|im_end|>", " ").replace("</think>", "")',
            ("a<|im_end|>\n", "a"),
            ("b</think><|im_end|>c", "bc"),
        ),
        task("fence", fence, fence.replace('"\\n```"', '"\\n```\\n"'), ("x = 1", "```python\nx = 1\n```")),
        task(
            "typical",
            median,
            median.replace("+ 0.5", "- 0.5"),
            ([1, 2], 2),
            ([4, 4], 4),
            ([1, 1, 2, 8], 3),
        ),
    ]


def stdin_tasks() -> list[Task]:
    def task(name: str, right: str, wrong: str, *cases: tuple[str, str]) -> Task:
        problem = Problem(f"stdin/{name}", "Write it.", "", tests=tuple(StdioCase(*case) for case in cases))
        return Task("stdin", problem, _dedented(right), _dedented(wrong))

    words = """
        import sys
        from collections import Counter

        def counted(text):
            return Counter(text.split())

        for word, count in sorted(counted(sys.stdin.read()).items()):
            print(word, count)
    """
    largest = """
        import sys

        def solve(values):
            best = values[0]
            for value in values:
                if value > best:
                    best = value
            return best

        def main():
            data = sys.stdin.read().split()
            print(solve([int(one) for one in data[1:]]))

        if __name__ == "__main__":
            main()
    """
    stairs = """
        n = int(input())
        for line in range(1, n + 1):
            print("#" * line)
    """
    queue = """
        class Queue:
            def __init__(self):
                self.items = []

            def put(self, item):
                self.items.append(item)

            def take(self):
                return self.items.pop(0)

        queue = Queue()
        for item in input().split():
            if item == "-":
                print(queue.take())
            else:
                queue.put(item)
    """
    return [
        task(
            "sum",
            "print(sum(map(int, input().split())))",
            "print(max(map(int, input().split())))",
            ("3 4\n", "7"),
            ("1 0\n", "1"),
        ),
        task("words", words, words.replace("sorted(", "list("), ("b a b\n", "a 1\nb 2"), ("x\n", "x 1")),
        task(
            "largest",
            largest,
            largest.replace("value > best", "value < best"),
            ("3\n1 5 2\n", "5"),
            ("1\n-4\n", "-4"),
        ),
        task("stairs", stairs, stairs.replace("n + 1", "n"), ("3\n", "#\n##\n###"), ("1\n", "#")),
        task("queue", queue, queue.replace("pop(0)", "pop()"), ("a b - -\n", "a\nb"), ("x -\n", "x")),
    ]


def edit_tasks() -> list[Task]:
    def blocks(search: str, replacement: str) -> str:
        return f"<<<<<<< SEARCH\n{search}\n=======\n{replacement}\n>>>>>>> REPLACE"

    def diff(before: str, search: str, replacement: str) -> str:
        at = before.split("\n").index(search)
        return f"--- a/solution.py\n+++ b/solution.py\n@@ -{at + 1} +{at + 1} @@\n-{search}\n+{replacement}"

    def task(
        name: str, buggy: str, bug: str, right: str, wrong: str, *cases: tuple[Any, Any], form: str = "blocks"
    ) -> Task:
        buggy = _dedented(buggy) + "\n"
        tests = tuple(Case((argument,), expected) for argument, expected in cases)
        problem = Problem(f"edit/{name}", "Mend it.", name, tests=tests, buggy_code=buggy)
        made = [blocks(bug, one) if form == "blocks" else diff(buggy, bug, one) for one in (right, wrong)]
        return Task("edit", problem, made[0], made[1])

    return [
        task(
            "double",
            "def double(n):\n    return 3 * n",
            "    return 3 * n",
            "    return 2 * n",
            "    return 4 * n",
            (2, 4),
            (0, 0),
        ),
        task(
            "last",
            "def last(items):\n    if not items:\n        return None\n    return items[1]",
            "    return items[1]",
            "    return items[-1]  # not <|im_end|>",
            "    return items[0]",
            ([1, 2, 3], 3),
            ([], None),
        ),
        task(
            "tail",
            'def tail(text):\n    return text.partition("<think>")[2]',
            '    return text.partition("<think>")[2]',
            '    return text.partition("</think>")[2]',
            '    return text.partition("</think>")[0]',
            ("a</think>b", "b"),
        ),
        task(
            "count",
            "def count(items):\n    found = 0\n    for item in items:\n        found = 1\n    return found",
            "        found = 1",
            "        found += 1",
            "        found += 2",
            ([1, 1], 2),
            ([5], 1),
            form="diff",
        ),
        task(
            "sign",
            "def sign(n):\n    if n > 0:\n        return 1\n    return -1 if n else 1",
            "    return -1 if n else 1",
            "    return -1 if n else 0",
            "    return 1 if n else 0",
            (-3, -1),
            (0, 0),
            form="diff",
        ),
    ]  # fmt: skip


def label_tasks() -> list[Task]:
    functions = {
        "shell": ("def run(x):\n    os.system(x)\n", "CWE-78", True),
        "list": ("def run(x):\n    subprocess.run([x])\n", "CWE-78", False),
        "path": ("def read(x):\n    return open(ROOT + x).read()\n", "CWE-22", True),
        "constant": ("def read():\n    return open('a').read()\n", "CWE-22", False),
        "query": ("def find(x):\n    return db.execute('select ' + x)\n", "CWE-89", True),
    }
    found = []
    for name, (code, cwe, is_vulnerable) in functions.items():
        label = Label(is_vulnerable, cwe, name, (2,) if is_vulnerable else None)
        answers = [f"<answer>vulnerable {cwe}</answer>", "<answer>safe</answer>"]
        right, wrong = answers if is_vulnerable else answers[::-1]
        found.append(Task("label", Problem(f"label/{name}", code, "", label=label), right, wrong))
    return found


ALL_WAYS = ways()

if __name__ == "__main__":
    from entry import run_main

    run_main(main)
