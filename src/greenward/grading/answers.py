"""Reads what a model wrote: the thought, the final text, its code blocks and the program in them.

Every reader of answers begins here. It takes linear time for any text and runs nothing. An answer is read in
this order:

1. What the prompt had begun of the answer (a thought, a code block) is put in front of it.
2. Padding and headers in front are dropped, and everything from the token on that ends the answer. OpenAI's
   Harmony format is read by its channels.
3. Thoughts are taken out. A thought that never ends leaves no answer.
4. The program is found in the fenced blocks of what is left: the last that defines the entry point counts,
   else the text from a line of code on, else the last Python block as the body of the starter code. Imports
   and helpers come from other blocks, and tests behind the function are cut (`extract_code`).

A tag or token inside of Python code (in a string or a comment) is part of the code.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from greenward.grading.extracted import MOST_PARSED, Extracted, is_prose
from greenward.problems.problem import Problem, hole_of, place
from greenward.problems.python_source import (
    UNREADABLE,
    dotted_name,
    first_line,
    loaded_names,
    parse,
    parse_or_none,
    parse_prompt,
    source_lines,
)

Style = Literal["completion", "chat"]

# Tokens that end an answer or begin the next turn: of ChatML (Qwen, SmolLM, Yi), Llama 2 to 4, Mistral,
# Gemma, Phi, DeepSeek, GPT-2, StarCoder, Command, GLM, Granite, OpenChat, Nemotron, Kimi, CodeLlama, Exaone,
# Ling, Seed-OSS, InternLM, MiniMax and OpenThinker.
_ENDS = (
    "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>",
    "<|start_header_id|>", "<|header_start|>", "</s>", "<end_of_turn>", "<start_of_turn>", "<eos>", "<EOT>",
    "<|end|>", "<|user|>", "<|system|>", "<|observation|>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<|EOT|>",
    "<|endofmask|>", "<file_sep>", "<|file_sep|>", "<|repo_name|>",
    "<|file_separator|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>",
    "<|end_of_role|>", "<|start_of_role|>", "<|end_of_turn|>", "<extra_id_1>", "<|EOS|>", "<|eos|>",
    "<|eod|>", "<|return|>", "<|im_user|>", "<pad>", "<|pad|>", "<unk>", "<|assistant_end|>",
    "<|endofprompt|>", "<|END_RESPONSE|>", "<|end_of_solution|>", "<|role_end|>", "<turn|>", "<|turn>",
    "[|endofturn|]", "[|user|]", "<seed:eos>", "<seed:bos>", "<eoa>", "[e~[", "]~b]", "<|answer_suffix|>",
)  # fmt: skip
_STARTS = (
    "<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "<|startoftext|>",
    "<BOS_TOKEN>", "<｜Assistant｜>", "<|assistant|>", "[PYTHON]", "[ANSWER]", "[BEGIN]",
    "<|assistant_start|>",
    "<|START_RESPONSE|>", "<|begin_of_solution|>", "[|assistant|]", "<role>ASSISTANT</role>", "[gMASK]",
    "<sop>", "[BOS]", "<|answer_prefix|>", "\ufeff",
)  # fmt: skip
# By their first character: at most places of a text no token is tried.
_ENDS_BY_FIRST = {end[0]: [other[1:] for other in _ENDS if other[0] == end[0]] for end in _ENDS}
_ANY_END = "|".join(
    rf"{re.escape(first)}(?:{'|'.join(map(re.escape, rests))})" for first, rests in _ENDS_BY_FIRST.items()
)
_WORDS = (
    r"\[(?:DONE|/PYTHON|/ANSWER|INST|EOS|PAD)\]"  # lists in Python, unless they begin a line or end a block
)
# The next turn, where the tokens around it were not decoded or never there (Llama 3; Alpaca, Vicuna).
_NEXT_TURN = (
    r"(?<=[`~>])(?:assistant|user)(?=\r?\n)|(?<=\n)(?:#{2,3} ?(?:Instruction|Human|User):|(?:USER|Human):)"
)
_END_BEGINS = re.escape("".join(_ENDS_BY_FIRST)) + r"\[ \tau#UH"  # the last ones of words and of a next turn
_END = re.compile(
    rf"(?=[{_END_BEGINS}])(?:{_ANY_END}|(?:(?<=\n)|(?<=```)|(?<=~~~))[ \t]*{_WORDS}|{_NEXT_TURN})"
)
_LAST = re.compile(rf"(?:{_ANY_END}|<[|｜][\w▁]{{1,40}}[|｜]>|(?:(?<=\n)|(?<=```)|(?<=~~~))[ \t]*{_WORDS})\Z")
_HEADER = re.compile(
    r"\s*(?:<\|im_start\|>(?:assistant\b(?:<\|im_sep\|>)?)?|<\|im_assistant\|>assistant<\|im_middle\|>"
    r"|<start_of_turn>model\b|<\|turn>model\b|<seed:bos>assistant\b|(?:<extra_id_1>)?[Aa]ssistant(?=\r?\n)"
    r"|(?:\[/INST\]|### (?:Response|Assistant):|ASSISTANT:) ?"
    r"|<\|(?:start_header_id|header_start)\|>assistant<\|(?:end_header_id|header_end)\|>"
    r"|<\|start_of_role\|>assistant<\|end_of_role\|>|<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|>"
    rf"|{'|'.join(map(re.escape, _STARTS))}|{_ANY_END})(?:\r?\n)*"
)
# How the text of a prompt begins, and the header behind which its answer does: some files hold both.
_ECHOES = tuple(
    re.compile(
        rf"\s*(?:(?:{'|'.join(map(re.escape, _STARTS))})\s*)*(?:{prompt}).*?(?:{answer})[ \t]*(?:\r?\n)*",
        re.DOTALL | re.MULTILINE,
    )
    for prompt, answer in (
        (
            r"Below is an instruction that describes a task|### ?(?:Instruction|Human|User):",
            r"^### ?(?:Response|Assistant):",
        ),
        ("@@ Instruction", "^@@ Response"),
        (r"<\|im_start\|>(?:system|user)\b", r"<\|im_start\|>assistant\b(?:<\|im_sep\|>)?"),
        (
            r"<\|start_header_id\|>(?:system|user)<\|end_header_id\|>",
            r"<\|start_header_id\|>assistant<\|end_header_id\|>",
        ),
        (r"<start_of_turn>user\b", r"<start_of_turn>model\b"),
        (r"<\|(?:system|user)\|>", r"<\|assistant\|>"),
        ("<｜User｜>", "<｜Assistant｜>"),
        (r"\[INST\]", r"\[/INST\]"),
        (r"A chat between a curious|USER:", "ASSISTANT:"),
        (r"(?:system|user)\r?\n", r"^assistant\r?$"),  # without its tokens
    )
)
_THOUGHTS = {
    "<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>",
    "<reasoning>": "</reasoning>", "<seed:think>": "</seed:think>", "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷", "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>", "<|channel>thought": "<channel|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
}  # fmt: skip
_CLOSING = {opening.lower(): closing.lower() for opening, closing in _THOUGHTS.items()}
_TAG = re.compile("|".join(map(re.escape, (*_THOUGHTS, *_THOUGHTS.values()))), re.IGNORECASE)
_OPENED = re.compile(
    rf"(?:<\|channel\|>analysis<\|message\|>|{'|'.join(map(re.escape, _THOUGHTS))})\s*\Z", re.IGNORECASE
)
_CHANNEL = re.compile(r"\s*(?:<\|start\|>assistant[^<]{0,80})?<\|channel\|>")
_MESSAGE = re.compile(
    r"<\|channel\|>\s*(\w+)[^<]{0,200}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"
    r"((?:(?!<\|(?:end|return|call)\|>\s*(?:<\||\Z)|<\|start\|>assistant|<\|channel\|>\w).)*)",
    re.DOTALL,
)
# Granite 3, which has no tags; within an answer, these words are prose.
_THOUGHT_IN_WORDS = re.compile(r"\s*Here(?:'s| is) my thought process:")
_RESPONSE_IN_WORDS = re.compile(r"Here(?:'s| is) my response:")
_BARE_CHANNEL, _BARE_FINAL = re.compile(r"\s*analysis(?=[A-Z\"'`*])"), "assistantfinal"
_NEAR = 500  # characters of a line that are looked at around a tag

_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")  # what ends a line in Python, and no other character
_FENCE = re.compile(
    rf"[ \t]*(`{{3,}}|~{{3,}})[ \t]*([^`]*?)[ \t]*(?:(?:{_ANY_END}|{_WORDS}|assistant|user)[ \t]*)*\Z"
)
_FENCE_BEHIND_TEXT = re.compile(
    r"(?:[^`~]{1,500}(?:[:>*]|(?=[`~]{3,}[ \t]*py))|[ \t]*(?:[-+]|\d{1,3}[.)])[ \t])"
    r"[ \t]*(`{3,}|~{3,})[ \t]*([\w.+-]*)\Z"
)
_CODE_IN_LINE = re.compile(
    r"[ \t]*(```|~~~)(?![`~])[ \t]*(?:python3?|py)?[ \t]+([^`\s][^`]*)\1[ \t]*\Z", re.IGNORECASE
)
_PYTHON = re.compile(r"[{.]*(?:python|py|ipython)[\d.]*\b|[\w./-]*\.py\Z", re.IGNORECASE)
_LANGUAGE_LINE = re.compile(r"\s*(?:python|py)[\d.]*[ \t]*\n", re.IGNORECASE)
_WRAPPERS = ("", "markdown", "md", "text", "txt", "plaintext", "answer", "xml", "html")
_QUOTE = re.compile(r"""'''|\"\"\"|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#.*""")
_QUOTE_ENDS = {quote: re.compile(rf"(?:\\.|[^\\])*?{quote}") for quote in ("'''", '"""')}
_EDIT_MARKER = re.compile(r"^[ \t]*(?:(<{5,99})[ \t]*SEARCH|>{5,99}[ \t]*REPLACE)", re.M | re.I)
_LEXEME = re.compile(r"""(?<![\w'"])[rbfuRBFU]{0,2}('''|\"\"\"|'|")(?:\\.|(?!\1).)*\1|\#.*""")
_STATEMENT = (
    r"(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[(:]|@\w"
    r"|from[ \t]+[\w.]+[ \t]+import\b|import[ \t]+[\w.]+(?:[ \t]+as[ \t]+\w+)?[ \t]*(?:[,;#].*)?$"
)
_CODE_START = re.compile(rf"^(?:{_STATEMENT})", re.MULTILINE)
_BLANK_IN_FRONT = re.compile(rf"(?:[ \t]*\n)* (?={_STATEMENT})", re.MULTILINE)  # as SentencePiece decodes
# How a program that defines nothing may begin; prose hardly ever begins a line like this.
_PROGRAM_START = re.compile(
    rf"^(?:{_STATEMENT}|(?:for|while|if|with|try|match)\b.*:[ \t]*$|@|(?:print|exec)\("
    r"|[A-Za-z_][\w.\[\]]*(?:[ \t]*,[ \t]*[A-Za-z_]\w*)*[ \t]*(?:,[ \t]*)?=[^=])",
    re.MULTILINE,
)
_READS_INPUT = re.compile(
    r"\b(?:input|stdin)\b(?!\s*=[^=])|\bopen\s*\(\s*0|\bfileinput\b|\bos\.read\s*\(\s*0"
)

_WRITES_OUTPUT = re.compile(r"\bprint\b|\bwrite(?:lines)?\b|\bstdout\b")
_SHELL = re.compile(r"\s*(?:[$!%>]|(?:sudo )?(?:pip|python|uv|conda)3? )")

_MOST_STARTS = 8  # lines from which on a text is tried to be a program
_MOST_CUTS = 20  # places at which a text is cut that is not Python, before it stays as it is
_MOST_DEPTHS = 3  # indentations that the first line of a body may have lost
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDINGS = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Answer:
    """A completion as it is read: the thought, and the text that is the answer.

    `is_cut` says that the thought never ended, so that there is no answer.
    """

    thought: str
    text: str
    is_cut: bool = False


def read_answer(completion: str, begun: str = "") -> Answer:
    """What of a completion is thought and what is the answer; `begun` is what its prompt wrote of it."""
    whole = begun + completion if begun else _without_echo(completion)
    if _CHANNEL.match(whole):
        return _by_channels(whole)
    if bare := _BARE_CHANNEL.match(whole):  # Harmony without its special tokens
        thought, final, text = whole[bare.end() :].partition(_BARE_FINAL)
        return Answer(thought, _without_tokens(text), is_cut=not final)
    text = _without_tokens(whole)
    if begins := _THOUGHT_IN_WORDS.match(text):
        thought, *response = _RESPONSE_IN_WORDS.split(text[begins.end() :], maxsplit=1)
        return Answer(thought, "".join(response), is_cut=not response)
    return _without_thoughts(text)


def final_text(completion: str, begun: str = "") -> str:
    """The text of an answer without its thought; empty if the thought never ended."""
    return read_answer(completion, begun).text


def plain_text(completion: str, begun: str = "") -> str:
    """The whole answer with its thought, without padding, headers and end tokens, with plain line ends."""
    whole = begun + completion if begun else _without_echo(completion)
    return _with_plain_line_ends(_without_tokens(whole))


def _with_plain_line_ends(text: str) -> str:
    return re.sub(r"\r\n?", "\n", text)


def _without_echo(text: str) -> str:
    """The text behind the prompt that it repeats, if it begins with one and is no program."""
    found = next((found for echo in _ECHOES if (found := echo.match(text))), None)
    return text if found is None or _parsed(text) is not None else text[found.end() :]


def _without_tokens(text: str) -> str:
    return _cut_at_end(_without_headers(text))


def _without_headers(text: str) -> str:
    at = 0
    while found := _HEADER.match(text, at):
        at = found.end()
    return text[at:]


def begun_thought(prompt: str) -> str:
    """The tag with which a prompt opens a thought, as some chat templates do; empty without one."""
    found = _OPENED.search(prompt, max(0, len(prompt) - 200))
    return found[0] if found else ""


def _by_channels(text: str) -> Answer:
    """OpenAI's Harmony: messages in the channels analysis, commentary (calls of tools) and final."""
    messages = [found.groups() for found in _MESSAGE.finditer(text)]
    finals = [body for channel, body in messages if channel == "final"]
    thought = "\n".join(body for channel, body in messages if channel != "final")
    return Answer(thought, _without_tokens("\n".join(finals)), is_cut=not finals)


def _cut_at_end(text: str) -> str:
    """The text up to the token that ends it."""
    text = _without_last_tokens(text)
    code = _Code(text)
    ends = (found.start() for found in _END.finditer(text) if not code.holds(*found.span()))
    end = next(ends, None)
    return text if end is None else _without_last_tokens(text[:end])


def _without_last_tokens(text: str) -> str:
    end = cut = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        found = _LAST.search(text, max(0, end - 60), end)
        if found is None:
            return text[:cut]
        end = cut = found.start()


def _without_thoughts(text: str) -> Answer:
    """An opening tag counts where it begins or ends a line; a closing one alone ends all before it."""
    kept, thoughts, at, closing = list[str](), list[str](), 0, ""
    code = _Code(text)
    for found in _TAG.finditer(text):
        tag, (start, end) = found[0].lower(), found.span()
        opens = tag in _CLOSING
        line_start = max(text.rfind("\n", max(0, start - 80), start) + 1, start - 80, 0)
        is_at_edge = not text[line_start:start].strip() or text[end : end + 1] in "\r\n"
        counts = tag == closing if closing else is_at_edge or not opens
        if not counts or code.holds(start, end):
            continue
        if opens:
            kept.append(text[at:start])
            closing = _CLOSING[tag]
        else:
            thoughts += [text[at:start]] if closing else [*kept, text[at:start]]
            kept, closing = kept if closing else [], ""
        at = end
    (thoughts if closing else kept).append(text[at:])
    final = "\n".join(filter(str.strip, kept)) if len(kept) > 1 else "".join(kept)
    return Answer("\n".join(thoughts), _without_headers(final), bool(closing) and not final.strip())


class _Code:
    """Where a text is code: as a whole, in closed blocks, in edits, in strings and comments of a line."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        if (tree := _parsed(self._text)) is not None:
            marks = (node.lineno for node in tree.body if _is_bracketed_word(node))
            return [(0, len("".join(source_lines(self._text)[: next(marks, 1 << 60) - 1])))]
        blocks = (one for one in fenced_blocks(self._text) if one.is_closed)
        spans = [(one.start, one.end) for one in blocks if one.tree or one.language in ("diff", "patch")]
        begins = None
        for marker in _EDIT_MARKER.finditer(self._text):
            if marker[1]:
                begins = marker.start()
            elif begins is not None:
                spans.append((begins, marker.start()))
                begins = None
        return sorted(spans)

    def holds(self, start: int, end: int) -> bool:
        """Whether a tag at this place belongs to code, or is quoted in prose."""
        text = self._text
        if text[start - 1 : start] == text[end : end + 1] in ("`", "'", '"') and text[end : end + 3] != "```":
            return True
        begin = max(text.rfind("\n", max(0, start - _NEAR), start) + 1, start - _NEAR, 0)
        may_be_within = any(
            mark in text[begin:start] for mark in "'\"#"
        )  # where a string or a comment begins
        line = text[begin : end + _NEAR].partition("\n")[0] if may_be_within else ""
        for lexeme in _LEXEME.finditer(line):
            if lexeme.start() < start - begin < lexeme.end():
                in_comment = lexeme[0].startswith("#")
                if (
                    not in_comment
                    or parse_or_none(text[begin : begin + lexeme.start()].strip() or "(") is not None
                ):
                    return True
        at = bisect_right(self._spans, (start, len(text))) - 1
        return at >= 0 and self._spans[at][0] <= start < self._spans[at][1]


def _is_bracketed_word(node: ast.stmt) -> bool:
    """Whether a statement is only a list of names, as `[DONE]` is to Python."""
    found = node.value if isinstance(node, ast.Expr) else None
    return isinstance(found, ast.List) and all(isinstance(one, ast.Name) for one in found.elts)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language in lower case, its code, and where its lines stand in the text."""

    language: str
    code: str
    start: int
    end: int
    is_closed: bool

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree; None for what is not Python."""
        return _parsed(self.code)


@dataclass
class _Open:
    """A block that is being read. `quote` is that of a string of several lines, `fence_in_quote` the line of
    the first fence in it.
    """

    fence: str
    language: str
    start: int
    lines: list[str]
    quote: str = ""
    fence_in_quote: int | None = None

    def closed(self, end: int, *, dedent: bool, is_closed: bool = True) -> Block:
        code = "\n".join(self.lines) + "\n"
        if self.language in ("", "python") and (found := _LANGUAGE_LINE.match(code)):
            self.language, code = "python", code[found.end() :]
        # `textwrap.dedent` alone would empty blank lines of strings.
        is_indented = dedent and all(line[0] in " \t" for line in self.lines if line.strip())
        return Block(
            self.language, textwrap.dedent(code) if is_indented else code, self.start, end, is_closed
        )


def fenced_blocks(text: str, *, dedent: bool = True) -> list[Block]:
    """The fenced blocks of a text.

    A fence within a string of several lines is part of the code. A fence with a language inside of a block
    that holds nothing or prose opens a block in it; inside of code it says that the block before was not
    closed. `dedent` takes away the indentation that all lines of a block have.
    """
    found = [(one[1], one.start(), one.end()) for one in _LINE.finditer(text)]
    lines = found[:-1] if len(found) > 1 and not found[-1][0] else found
    blocks, wrappers = list[Block](), list[str]()
    block: _Open | None = None
    at, first, tracks_quotes = 0, 0, True
    while at < len(lines):
        line, start, end = lines[at]
        at += 1
        fence = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if block is None:
            if whole := _CODE_IN_LINE.match(line):
                blocks.append(Block("python", f"{whole[2].rstrip()}\n", start, end, is_closed=True))
            elif fence and not fence[2] and wrappers and fence[1].startswith(wrappers[-1]):
                wrappers.pop()
            elif opener := fence or _FENCE_BEHIND_TEXT.match(line[-600:].rstrip(" \t")):
                block, first = _opened(opener[1], opener[2], end), at
            continue
        # No line of Python outside of strings is a fence, so that one of any length ends it.
        is_python = block.language == "python"
        opens = fence is not None and _is_info(fence[2])
        closes = fence is not None and not opens and (is_python or fence[1].startswith(block.fence))
        if block.quote:
            if closes and block.fence_in_quote is None:
                block.fence_in_quote = at
        elif closes:
            blocks.append(block.closed(start, dedent=dedent))
            block = None
            continue
        elif fence and opens and not (is_python and len(fence[1]) < len(block.fence)):
            if block.language in _WRAPPERS and not _PROGRAM_START.search("\n".join(block.lines)):
                wrappers.append(block.fence)
            else:
                blocks.append(block.closed(start, dedent=dedent, is_closed=False))
            block, first = _opened(fence[1], fence[2], end), at
            continue
        elif (code := line.rstrip()).endswith(block.fence) and not (code := code.rstrip("`~"))[-1:].isspace():
            block.lines.append(code)  # the fence is glued to the last line
            blocks.append(block.closed(end, dedent=dedent))
            block = None
            continue
        block.lines.append(line)
        if tracks_quotes and block.language not in ("markdown", "md"):
            block.quote = _quote_after(line, block.quote)
            block.fence_in_quote = block.fence_in_quote if block.quote else None
        if at == len(lines) and block.fence_in_quote is not None:  # the string never ended
            at, tracks_quotes = block.fence_in_quote, False
            block.lines = [one for one, _, _ in lines[first : at - 1]]
            blocks.append(block.closed(lines[at - 1][1], dedent=dedent))
            block = None
    if block is not None:
        blocks.append(block.closed(len(text), dedent=dedent, is_closed=False))
    return blocks


def _is_info(text: str) -> bool:
    """Whether the text behind a fence says what the block holds; else it is prose behind the end of one."""
    begins = re.match(r"[\w.{]", text) is not None
    return begins and (" " not in text or bool(_PYTHON.match(text) or re.search("[={]", text)))


def _opened(fence: str, info: str, start: int) -> _Open:
    """A block by its first line, which may hold its first line of code."""
    language, _, rest = info.partition(" ")
    rest = rest.strip()
    if _CODE_START.match(info):
        return _Open(fence, "", start, [info])
    is_python = _PYTHON.match(language) is not None
    begins = is_python and (_CODE_START.match(rest) or ("(" in rest and _PROGRAM_START.match(rest)))
    return _Open(fence, "python" if is_python else language.lower(), start, [rest] if begins else [])


def _quote_after(line: str, quote: str) -> str:
    """The quotes of the string that is open after a line, empty if there is none."""
    at = 0
    while at < len(line):
        found = _QUOTE_ENDS[quote].match(line, at) if quote else _QUOTE.search(line, at)
        if found is None:
            return quote
        at, quote = found.end(), "" if quote else found[0] if found[0] in _QUOTE_ENDS else ""
    return quote


def last_block(text: str, begun: str = "", *, dedent: bool = True) -> str | None:
    """The contents of the last fenced block after the thought; None without one."""
    blocks = fenced_blocks(final_text(text, begun), dedent=dedent)
    return blocks[-1].code if blocks else None


def holds_fence(text: str) -> bool:
    """Whether a line of the text opens a fenced block."""
    return any(_FENCE.match(line[1]) or _CODE_IN_LINE.match(line[1]) for line in _LINE.finditer(text))


def extract_code(text: str, problem: Problem, style: Style | None = None, begun: str = "") -> Extracted:
    """The program in a model's answer.

    `completion`: the starter code followed by the answer; where that is not Python, as much of it as is, or
    the answer with its first line indented, else a program in the answer itself. `chat`: of the fenced blocks
    the last that defines the entry point (or a method of that name), Python's and untagged ones before
    others; else the text from a line of code on, if it defines it; else the last block, as the body of the
    starter code if it is one. Where a whole program is required (no entry point), the last block that is a
    program and neither a test nor a use of one. What a block uses and does not define comes from other
    blocks. The torn end and the tests behind the entry point
    go. None: `completion` where there is starter code and the text has neither a block nor an unindented
    definition of the entry point.

    `begun` is what the prompt wrote of the answer. Where a function of a file is required, the code is that
    file with the answer's function in its place (`placement`).
    """
    if problem.label is not None:  # the answer itself is judged
        is_empty = not text.strip()
        return Extracted(
            None if is_empty else begun + text, "the answer is empty" if is_empty else "", rule="label"
        )
    answer = read_answer(text, begun)
    if not answer.text.strip():
        thought = "the reasoning was cut off" if answer.is_cut else "nothing follows the reasoning"
        return Extracted(None, thought if answer.thought.strip() or answer.is_cut else "the answer is empty")
    written = _with_plain_line_ends(answer.text).lstrip("\ufeff")  # as Python reads it
    if begins := _BLANK_IN_FRONT.match(written):
        written = written[begins.end() :]
    continues = style == "completion" or (style is None and continues_starter(written, problem))
    found = _continued(written, problem) if continues else _in_text(written, problem)
    if found.code is None or (hole := hole_of(problem)) is None:
        return found
    code = place(written if continues else found.code, problem, hole, continues=continues)
    return replace(
        found, code=code, reason="" if code else f"no definition of {problem.entry_point} that is Python"
    )


def _parsed(text: str) -> ast.Module | None:
    """The syntax tree of a text; None for what is not Python or too long to be parsed."""
    return parse_or_none(text) if len(text) <= MOST_PARSED else None


def continues_starter(text: str, problem: Problem) -> bool:
    """Whether a text goes on after the starter code: it has neither a block nor an unindented definition."""
    name = re.escape(problem.entry_point.partition(".")[0])
    defined = name and re.search(rf"^(?:async\s+def|def|class)\s+{name}\b", text, re.MULTILINE)
    return bool(problem.starter_code) and not holds_fence(text) and not defined


def _continued(text: str, problem: Problem) -> Extracted:
    whole = problem.starter_code + text
    code, changes = _trimmed(whole, problem)
    if len(code.rstrip()) <= len(problem.starter_code.rstrip()):  # nothing of the answer is left
        code, changes = whole, ()
    if "cut" not in changes and is_prose(code):
        if (indented := _indented(text, problem)) is not None:
            return indented
        alone = _in_text(text, problem)
        if alone.code and not is_prose(alone.code) and _defined(problem).search(alone.code):
            return alone
    return Extracted(code, rule=" ".join(("starter", *changes)))


def _indented(text: str, problem: Problem) -> Extracted | None:
    """The text with the indentation that it has lost, as a whole or in its first line, which goes where an
    answer is stripped; None where it is no body of the starter code then, which returns something: words
    could else pass for a statement.
    """
    lines = source_lines(text.strip("\n"))
    last = problem.starter_code.rstrip().rpartition("\n")[2]
    if not problem.starter_code.endswith("\n") or not lines:
        return None
    indent = last[: len(last) - len(last.lstrip())] + ("    " if last.endswith(":") else "")
    first, rest = lines[0].lstrip(), "".join(lines[1:])
    behind = {line[: len(line) - len(line.lstrip())] for line in lines[1:] if line.strip()}
    deeper = sorted((one for one in behind if len(one) > len(indent)), key=len)[:_MOST_DEPTHS]
    bodies = [one + first + rest for one in (indent, *deeper)]
    if not lines[0][:1].isspace():
        bodies.append(textwrap.indent("".join(lines), indent))
    for body in bodies:
        code, changes = _trimmed(problem.starter_code + body, problem)
        tree = None if is_prose(code) else _parsed(code)
        if tree is not None and any(
            isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)) for node in ast.walk(tree)
        ):
            return Extracted(code, rule=" ".join(("starter", "indented", *changes)))
    return None


def _in_text(text: str, problem: Problem) -> Extracted:
    opened, behind = _begun_block(text, problem)
    blocks = [block for block in fenced_blocks(behind) if block.code.strip()]
    if opened is not None:
        blocks = [opened, *blocks]
    elif _parsed(text) is not None:  # fences in strings and comments
        blocks = []
    chosen, rule = (_function_block if problem.entry_point else _program_block)(blocks, problem)
    joined: tuple[str, ...] = ()
    if rule not in ("block", "program") and (bare := _bare_program(text, problem)) is not None:
        code, changes, rule = *_trimmed(bare, problem, is_text=True), "text"
    elif chosen is None:
        missing = (
            f"definition of {problem.entry_point}" if problem.entry_point else "line that begins a program"
        )
        return Extracted(None, f"no Python block and no {missing}")
    elif rule == "body":
        code = problem.starter_code + textwrap.indent(textwrap.dedent(chosen.code), "    ")
        code, changes = _trimmed(code, problem)
    else:
        code, changes = _trimmed(chosen.code, problem)
        code, joined = _joined(code, chosen, blocks)
        rule = "closed" if chosen is opened else rule
    return Extracted(code, rule=" ".join((rule, *joined, *changes)))


def _begun_block(text: str, problem: Problem) -> tuple[Block | None, str]:
    """The block that the prompt has opened, if a fence closes one before it opens one, and what is behind.

    Where a fence opens another block, what continues the starter code before it counts as such a block.
    """
    opening = "```python\n"
    block = fenced_blocks(opening + text, dedent=False)[0]
    continues = block.code.lstrip("\r\n")[:1].isspace()
    if block.start > len(opening) or not (block.is_closed or (continues and block.end < len(opening + text))):
        return None, text
    if continues:
        code = problem.starter_code + block.code
        block = replace(block, code=_trimmed(code, problem)[0] if is_prose(code) else code)
    is_program = problem.entry_point or _PROGRAM_START.search(block.code)
    if not is_program or not _defined(problem).search(block.code) or is_prose(block.code):
        return None, text
    behind = text[block.end - len(opening) :]
    return block, behind.partition("\n")[2] if block.is_closed else behind


def _bare_program(text: str, problem: Problem) -> str | None:
    """The text from a line of code on, where it has what is asked for; None where it has not.

    Lines that Markdown reads as code, since they are indented, count where no others do.
    """
    tree = _parsed(text)
    acts = tree is not None and any(isinstance(node, ast.Call) for node in ast.walk(tree))
    if tree is not None and _defined(problem).search(text) and (problem.entry_point or acts):
        return text
    indented = "".join(line[4:] for line in source_lines(text) if line.startswith("    ") or line.isspace())
    found = _last_program(text, problem) or _last_program(indented, problem)
    if found or not _defined(problem).search(text):
        return found
    if begin := (_CODE_START if problem.entry_point else _PROGRAM_START).search(text):
        return text[begin.start() :]
    return text if problem.entry_point else None


def _last_program(text: str, problem: Problem) -> str | None:
    """The text from its last definition of the entry point on, or from its last program that reads input."""
    defines, found, at = _defined(problem), None, 0
    for _ in range(_MOST_STARTS):
        if (begin := _PROGRAM_START.search(text, at)) is None:
            break
        at = begin.end()
        code = _python_part(text[begin.start() :], problem, is_text=True) or ""
        if not code or not defines.search(code):
            continue
        if found is None or problem.entry_point or _READS_INPUT.search(code):
            found, at = text[begin.start() :], begin.start() + len(code)
    return found


def _defined(problem: Problem) -> re.Pattern[str]:
    """Finds where the entry point, or a method of that name, is defined; anything without an entry point."""
    name = re.escape(problem.entry_point.rpartition(".")[2])
    definition = rf"^[ \t]*(?:async\s+def|def|class)\s+{name}\b"
    binding = rf"^{name}[ \t]*(?::[^=\n]*)?=(?!=)|^(?:from|import)\b.*\bas[ \t]+{name}\b"
    return re.compile(f"{definition}|{binding}" if name else "", re.MULTILINE)


def _function_block(blocks: Sequence[Block], problem: Problem) -> tuple[Block | None, str]:
    defines = _defined(problem)
    python = [block for block in blocks if block.language in ("", "python")]
    for those in (python, blocks):  # models tag blocks as text or by a file's name, too
        if found := [block for block in reversed(those) if defines.search(block.code)]:
            return next((one for one in found if not _is_sketch(one, problem.entry_point)), found[0]), "block"
    if not python:
        return None, ""
    last, starter = python[-1], problem.starter_code
    is_body = starter and parse_or_none(starter + textwrap.indent(last.code, "    ")) and _is_body(last)
    return last, "body" if is_body else "last_block"


def _is_sketch(block: Block, entry_point: str) -> bool:
    """Whether a block has only the signature of the entry point, or a method of its name in another class."""
    try:
        body = parse_prompt(block.code).body
    except UNREADABLE:
        return False  # torn, and yet the answer
    for name in entry_point.split("."):
        found = [node for node in body if name in _bound_here(node)]
        if not found:
            return True
        body = getattr(found[-1], "body", [found[-1]])
    return all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _is_body(block: Block) -> bool:
    """Whether a block can only be the body of a function: it returns something on its outermost level."""
    return any(
        isinstance(node, ast.Return | ast.Expr) for node in (block.tree.body if block.tree else ())
    ) and bool(re.search(r"^return\b", block.code, re.MULTILINE))


def _program_block(blocks: Sequence[Block], problem: Problem) -> tuple[Block | None, str]:
    blocks = [block for block in blocks if block.tree is None or block.tree.body]  # no comments alone
    tagged = [block for block in blocks if block.language == "python"]
    programs = [block for block in blocks if block in tagged or (not block.language and _is_program(block))]
    programs = programs or [block for block in blocks if not block.language]
    programs = programs or [block for block in blocks if block.tree and _is_program(block)]
    programs = [one for one in programs if not _SHELL.match(one.code)][-_MOST_CUTS:] or programs[-1:]
    for number, block in reversed(list(enumerate(programs))):
        if number == 0 or not _tests_others(block, programs[:number]):
            return block, "program"
    return None, ""


def _is_program(block: Block) -> bool:
    """Whether a block looks like a program, and not like input or output that is shown."""
    does = block.tree is None or any(
        isinstance(node, (ast.Call, *_DEFINITIONS)) for node in ast.walk(block.tree)
    )
    return does and _PROGRAM_START.search(block.code) is not None


def _tests_others(block: Block, earlier: Sequence[Block]) -> bool:
    """Whether a block tests or shows the program of an earlier one, instead of being one."""
    if block.tree is None:
        return False
    known = {name for one in earlier if one.tree for node in one.tree.body for name in _bound(node)}
    is_part = not (_WRITES_OUTPUT.search(block.code) or _free(block.tree) & known)
    if is_part and any(_WRITES_OUTPUT.search(one.code) for one in earlier):
        return True
    if _READS_INPUT.search(block.code):
        return False
    nodes = list(ast.walk(block.tree))
    tests = any(
        isinstance(node, ast.Assert)
        or (isinstance(node, _DEFINITIONS) and node.name.lower().startswith("test"))
        for node in nodes
    )
    done = [
        one.tree
        for one in earlier
        if one.tree and not all(isinstance(node, _BINDINGS) for node in one.tree.body)
    ]
    uses = _free(block.tree) & {name for tree in done for node in tree.body for name in _bound(node)}
    return tests or bool(uses) or any(_READS_INPUT.search(one.code) for one in earlier if one.tree in done)


def _joined(code: str, block: Block, blocks: Sequence[Block]) -> tuple[str, tuple[str, ...]]:
    """The code of a block after what it uses of others: of those before it, else of those behind it."""
    tree = _parsed(code)
    if len(blocks) == 1 or tree is None or not (missing := _free(tree)):
        return code, ()
    at = next(number for number, one in enumerate(blocks) if one is block)
    statements = [
        (number, node)
        for number in (*range(at + 1, len(blocks))[::-1], *range(at))
        if blocks[number].language in ("", "python") and (other := blocks[number].tree)
        for node in other.body
        if not (isinstance(node, ast.Assert) or _is_main_guard(node))
    ]
    providers: dict[str, list[int]] = {}  # the places in one block, of those before it the last
    for index, (number, node) in enumerate(statements):
        names = set(_bound_here(node)) | (set() if isinstance(node, _DEFINITIONS) else set(_changed(node)))
        for name in names:
            if name not in providers or statements[providers[name][0]][0] != number:
                providers[name] = []
            providers[name].append(index)
    taken, wanted = set[int](), list(missing)
    while wanted:
        name = wanted.pop()
        for index in providers.get(name, providers.get("*", ())):
            if index not in taken:
                taken.add(index)
                wanted += _free(statements[index][1])
    if not taken:
        return code, ()
    chosen = sorted((statements[index] for index in taken), key=lambda one: (one[0], one[1].lineno))
    source = "".join(_source(blocks[number].code, node) for number, node in chosen)
    lines = source_lines(code)
    future = (one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__")
    first = max((one.end_lineno or 0 for one in future), default=0)
    return "".join((*lines[:first], source, *lines[first:])), ("joined",)


def _source(code: str, node: ast.stmt) -> str:
    return "".join(source_lines(code)[first_line(node) - 1 : node.end_lineno]).rstrip("\n") + "\n"


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds, those inside of functions included; `*` for an import of all."""
    for one in ast.walk(node):
        match one:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                yield name


def _free(node: ast.AST) -> set[str]:
    """The names that code uses and binds nowhere, without those that Python has."""
    return loaded_names(node) - set(_bound(node)) - vars(builtins).keys()


def _trimmed(code: str, problem: Problem, *, is_text: bool = False) -> tuple[str, tuple[str, ...]]:
    """Code without what is not Python at its end, and without the tests behind the entry point.

    A function has to be whole before the end that goes: statements of its own are cut only behind its last
    `return`. Of a program, only its last statement may be torn, unless it stands in a text (`is_text`).
    """
    part = _python_part(code, problem, is_text=is_text)
    if part is None:
        return code, ()
    changes = ["cut"] if len(part) < len(code) else []
    code, tree = part, parse(part)
    if problem.entry_point and (tests := _tests_behind(tree, problem.entry_point.partition(".")[0])):
        lines = source_lines(code)
        for node in tests:
            begin, end = first_line(node) - 1, node.end_lineno or 0
            lines[begin:end] = [""] * (end - begin)
        code = "".join(lines)
        changes.append("tests_dropped")
    return code, tuple(changes)


def _python_part(code: str, problem: Problem, *, is_text: bool) -> str | None:
    """The longest beginning that is Python and holds all that is asked for; None without one."""
    if len(code) > MOST_PARSED:
        return None
    try:
        parse(code)
    except UNREADABLE as error:
        error_line = error.lineno if isinstance(error, SyntaxError) and error.lineno else 1 << 60
    else:
        return code
    lines = source_lines(code)
    defines, name = _defined(problem), problem.entry_point.rpartition(".")[2]
    starts = [number for number, line in enumerate(lines) if number and line[0] not in " \t\r\n\f#"]
    possible = [number for number in starts if number < error_line]
    if not (name or is_text):
        possible = possible[-1:] if possible and possible[-1] == starts[-1] else []
    for end in possible[: -_MOST_CUTS - 1 : -1]:
        prefix = "".join(lines[:end])
        if prefix.strip() and defines.search(prefix) and parse_or_none(prefix) is not None:
            return prefix
    for end in range(min(error_line - 1, len(lines)), 0, -1)[:_MOST_CUTS] if name else ():
        prefix = "".join(lines[:end])
        tree = parse_or_none(prefix) if defines.search(prefix) else None
        if tree is not None:
            functions = [one for one in ast.walk(tree) if isinstance(one, _DEFINITIONS) and one.name == name]
            ends = functions and isinstance(functions[-1].body[-1], (ast.Return, ast.Raise))
            return prefix if ends else None
    return None


def _tests_behind(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The statements behind the definition of `name` that only try it: asserts, calls, the main guard.

    Expressions that do nothing go, too, since a torn end begins with them. What may bind or change something
    that the definition needs stays, and so do statements that share a line.
    """
    places = [number for number, node in enumerate(tree.body) if name in _bound_here(node)]
    if not places:
        return []
    needed, pending = set[str](), [name]
    bound = [set(_bound_here(node)) for node in tree.body]
    changed = [set(_changed(node)) for node in tree.body]
    while pending:
        if (one := pending.pop()) not in needed:
            needed.add(one)
            pending += [used for node, names in zip(tree.body, bound, strict=True) if one in names
                        for used in _free(node)]  # fmt: skip
    prepare = {
        node.name
        for node, changes in zip(tree.body, changed, strict=True)
        if isinstance(node, _DEFINITIONS) and node.name not in needed and changes & needed
    }
    tests, trying, last_line = list[ast.stmt](), {name}, 0
    begun = [first_line(node) for node in tree.body[1:]]
    for number, node in enumerate(tree.body):
        shares_line = first_line(node) == last_line or begun[number : number + 1] == [node.end_lineno]
        last_line, loaded = node.end_lineno or 0, loaded_names(node)
        if number <= places[0] or isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        is_needed = bound[number] & needed or changed[number] & needed or loaded & prepare
        is_test = isinstance(node, ast.Assert) or _is_main_guard(node)
        if is_test or (not is_needed and (loaded & trying or _only_tries(node))):
            trying |= bound[number]
            if not (shares_line or isinstance(node, _DEFINITIONS)):
                tests.append(node)
    return tests


def _bound_here(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds where it stands."""
    if isinstance(node, _DEFINITIONS):
        yield node.name
    else:
        yield from _bound(node)


def _changed(node: ast.AST) -> Iterator[str]:
    """The names whose objects code may change: it sets attributes or elements, or calls methods of them."""
    for one in ast.walk(node):
        match one:
            case ast.Global(names=names):
                yield from names
            case (
                ast.Attribute(value=value, ctx=ast.Store() | ast.Del())
                | ast.Subscript(value=value, ctx=ast.Store() | ast.Del())
                | ast.Call(func=ast.Attribute(value=value))
                | ast.Call(func=ast.Name(id="setattr"), args=[value, *_])
            ):
                while isinstance(value, ast.Attribute | ast.Subscript):
                    value = value.value
                if isinstance(value, ast.Name):
                    yield value.id


def _is_main_guard(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If):
        return False
    match node.test:
        case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]) | ast.Compare(
            ast.Constant("__main__"), [ast.Eq()], [ast.Name("__name__")]
        ):
            return True
    return False


def _only_tries(node: ast.stmt) -> bool:
    """Whether a statement runs the tests of its module, or is an expression without an effect."""
    if not isinstance(node, ast.Expr):
        return False
    calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    runners = ("unittest.main", "doctest.testmod", "pytest.main")
    return not calls or dotted_name(calls[0]) in runners
