"""Edits of arbitrary texts: what is printed is read again, and a difference that is applied is gone."""

from __future__ import annotations

import difflib
import random
import re
import shutil
import subprocess
from collections import Counter

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from greenward.grading.edits import (
    PATH,
    Edit,
    EditError,
    FileDiff,
    Hunk,
    apply_edits,
    blocks_between,
    diff_between,
    parse_blocks,
    parse_diff,
    parse_edits,
    print_blocks,
    print_diff,
)
from greenward.sandbox.inside.files import path_error

# Lines that look like the marks of the formats, and others that differ in little.
LINES = st.sampled_from(
    [
        "", "a", "  a", "a ", "b", "-b", "+b", "-- b", "++ b", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "@@ @@", "\\ No",
        "=======", "<<<<<<< SEARCH", ">>>>>>> REPLACE", "========", "```", "~~~", "### x.py", "x.py", "a\r", "\u2028",
    ]
) | st.text(max_size=5).filter(lambda text: "\n" not in text)  # fmt: skip
WHOLE = st.lists(LINES, max_size=8).map(lambda lines: "".join(f"{line}\n" for line in lines))
TEXTS = st.builds(lambda lines, end: lines + end, WHOLE, LINES)
PATHS = st.one_of(
    st.sampled_from(["a.py", "pkg/a.py", "Makefile", "a b.py", "é.py", "b/a", "a/b", "x...", "# x", "end:"]),
    st.text(min_size=1, max_size=9),
).filter(lambda path: path_error(path) is None)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(Edit, PATHS | st.just(""), WHOLE, WHOLE), max_size=4))
def test_printed_blocks_are_read_again(blocks):
    assert parse_blocks(print_blocks(blocks)) == blocks


HUNK_LINES = st.builds(lambda tag, line: f"{tag}{line}\n", st.sampled_from(" -+"), LINES)
HUNKS = st.builds(Hunk, st.integers(100, 10**6), st.lists(HUNK_LINES, min_size=1, max_size=6).map(tuple))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(lambda path, hunks: FileDiff(path, path, tuple(hunks)), PATHS, st.lists(HUNKS, min_size=1, max_size=3)), max_size=3))  # fmt: skip
def test_printed_diffs_are_read_again(files):
    assert parse_diff(print_diff(files)) == files


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS, PATHS, st.integers(0, 3))
@example("a\r\nb\r\nc", "a\r\nb\r\nc\n", "x.py", 3)
@example("a\r\n", "a\n", "x.py", 3)
@example("", "a", "x.py", 3)
@example("a", "", "x.py", 3)
def test_a_difference_that_is_applied_gives_the_other_text(before, after, path, context):
    assume(before != after)
    assume(context > 0 or "\r" not in before)  # the context tells the line ends of Windows
    (file,) = parse_diff(print_diff([diff_between(before, after, path, context)]))
    assert apply_edits({path: before}, list(file.edits())) == {path: after}


@settings(max_examples=40, deadline=None)
@given(TEXTS, PATHS)
def test_a_new_file_and_a_deleted_one_are_differences_too(text, path):
    assume(text)
    (made,) = parse_diff(print_diff([diff_between(None, text, path)]))
    assert apply_edits({"other": ""}, list(made.edits())) == {path: text}
    (gone,) = parse_diff(print_diff([diff_between(text, None, path)]))
    assert apply_edits({path: text}, list(gone.edits())) == {path: None}


@settings(max_examples=100, deadline=None)
@given(WHOLE, WHOLE, PATHS)
def test_blocks_between_two_texts_are_unique_and_lead_from_one_to_the_other(before, after, path):
    assume(before != after and before and "\r" not in before)
    blocks = parse_blocks(print_blocks(blocks_between(before, after, path)))
    assert apply_edits({path: before}, blocks) == {path: after}


@settings(max_examples=20, deadline=None)
@given(TEXTS.filter(lambda text: "\r" not in text), TEXTS.filter(lambda text: "\r" not in text))
def test_git_applies_what_we_print(tmp_path_factory, before, after):
    assume(before != after)
    folder = tmp_path_factory.mktemp("git")
    (folder / "x.py").write_bytes(before.encode(errors="surrogatepass"))
    diff = print_diff([diff_between(before, after, "x.py")]).encode(errors="surrogatepass")
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=folder, input=diff, check=True)
    assert (folder / "x.py").read_bytes() == after.encode(errors="surrogatepass")


# Lines of code, and lines which look like the heads, ends and surroundings of hunks.
CODE = ["", "a", "  a", "def f():", "    return 1", "    return 2", "x = 1", "y = 2", '    """', "\tb"]
MARKS = [
    " y",
    "- z",
    "-- b",
    "++ b",
    "-- f.py",
    "++ f.py",
    "-- a/g.py",
    "++ b/g.py",
    "@@ -1 +1 @@",
    "\\ No",
    "```",
    "-",
    "+",
    "--",
    "=======",
]
BEHIND = ["```\n", "\nThis fixes it.\n", "\n- I changed it.\n- No more.\n", "- I changed it.\n", "\n+ I added it.\n", "-- \n2.39.5\n", "  It is indented.\n", "\n\n"]  # fmt: skip
HEAD = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def edited_text(rng: random.Random, lines: list[str]) -> tuple[str, str]:
    """A text of such lines, and the same with some inserted, replaced and deleted."""
    before = [rng.choice(lines) + "\n" for _ in range(rng.randint(1, 30))]
    after = list(before)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(after) + 1)
        after[at : at + rng.randint(0, 2)] = [rng.choice(lines) + "\n" for _ in range(rng.randint(0, 2))]
    return "".join(before), "".join(after)


def unified(before: str, after: str, path: str, context: int) -> str:
    """The diff as Python's `difflib` writes it."""
    sides = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*sides, f"a/{path}", f"b/{path}", n=context))


def miscounted(rng: random.Random, diff: str) -> str:
    """The diff with other counts in the heads of its hunks, as models write them."""

    def other(head: re.Match[str]) -> str:
        old, new = (max(0, int(one or 1) + rng.randint(-3, 3)) for one in head.group(2, 4))
        return f"@@ -{head[1]},{old} +{head[3]},{new} @@"

    return HEAD.sub(other, diff)


@pytest.mark.parametrize("is_nameless", [False, True])
@pytest.mark.parametrize("behind", ["", *BEHIND])
@pytest.mark.parametrize("seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))])
def test_a_diff_with_wrong_counts_gives_the_true_text_or_an_error(seed, behind, is_nameless):
    rng, seen = random.Random(seed), Counter()
    for _ in range(250):
        names = [PATH] if is_nameless else ["f.py", "g.py"][: rng.randint(1, 2)]
        has_marks, is_miscounted, is_stripped = (rng.random() < share for share in (0.5, 0.7, 0.3))
        texts = {name: edited_text(rng, CODE + MARKS * has_marks) for name in names}
        before = {name: old for name, (old, _) in texts.items()}
        after = {name: new for name, (_, new) in texts.items()}
        shown = "f.py" if is_nameless else ""
        context = rng.randint(0, 3)
        diff = "".join(unified(before[name], after[name], shown or name, context) for name in names)
        if not diff:
            continue
        diff = miscounted(rng, diff) if is_miscounted else diff
        if is_stripped:
            diff = re.sub("^ $", "", diff, flags=re.MULTILINE)  # as editors do with empty lines
        try:
            found = {**before, **apply_edits(before, parse_edits(diff + behind, "diff", before), names[0])}
        except EditError:
            assert has_marks or is_miscounted or is_stripped or not context, diff + behind
        else:
            assert found == after, diff + behind
            seen["right"] += 1
    assert seen["right"] > (40 if behind.strip(" \n`") else 180)


@pytest.mark.skipif(not (shutil.which("git") and shutil.which("patch")), reason="needs git and patch")
@pytest.mark.parametrize("seed", range(3))
def test_a_diff_gives_what_git_and_patch_make_of_it(tmp_path, seed):
    """`git apply --recount` of wrong counts, and `patch` of right ones."""
    rng, file = random.Random(seed), tmp_path / "f.py"
    recounting = ["git", "apply", "--recount", "--whitespace=nowarn", "-"]
    for _ in range(25):
        before, after = edited_text(rng, CODE)
        if not (diff := unified(before, after, "f.py", 3)):
            continue
        for command, text in ((recounting, miscounted(rng, diff)), (["patch", "-p1", "--force"], diff)):
            file.write_text(before)
            done = subprocess.run(
                command, cwd=tmp_path, input=text, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stderr
            theirs = file.read_text() if file.exists() else ""  # patch deletes a file that is left empty
            ours = apply_edits({"f.py": before}, parse_edits(text, "diff", {"f.py": before}))
            assert ours == {"f.py": theirs}
