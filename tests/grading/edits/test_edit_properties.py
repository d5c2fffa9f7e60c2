"""Edits of arbitrary texts: what is printed is read again, and a difference that is applied is gone."""

from __future__ import annotations

import subprocess

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from greenward.grading.edits import (
    Edit,
    FileDiff,
    Hunk,
    apply_edits,
    blocks_between,
    diff_between,
    parse_blocks,
    parse_diff,
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
