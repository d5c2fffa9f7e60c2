"""Single cases of edits: what is accepted, and what the message says of what is not."""

from __future__ import annotations

import json

import pytest

from greenward.grading.edits import (
    PATH,
    Edit,
    EditError,
    apply_edits,
    extract_edited,
    form_of,
    holds_edits,
    parse_blocks,
    parse_diff,
    parse_edits,
)
from greenward.grading.verdict import Family, Status
from greenward.problems.problem import Problem

FILES = {"a.py": "one\ntwo\n\nthree\n    two\n", "b.py": "x\n"}


def block(search, replace, path=""):
    return f"{path}<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def edits(text):
    return [(one.path, one.search, one.replace) for one in parse_blocks(text)]


def indented(text, indent):
    return "".join(f"{indent}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


def markers(length):
    return f"{'<' * length} SEARCH\na\n{'=' * length}\nb\n{'>' * length} REPLACE\n"


# The behaviour that aider's tests of its edit blocks ask for, in words of our own.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Do this:\n\n```text\nf.txt\n" + block("a\n", "b\n") + "```\nDone.", [("f.txt", "a\n", "b\n")]),
        ("Do this:\n\nf.txt\n```text\n" + block("a\n", "b\n") + "```\n", [("f.txt", "a\n", "b\n")]),
        (" ```python\nf.txt\n```\n```python\n" + block("a\n", "b\n") + "```", [("f.txt", "a\n", "b\n")]),
        ("f.txt\n" + block("a\n", "b\n").rstrip(), [("f.txt", "a\n", "b\n")]),
        (
            "f.txt\n" + block("a\n", "b\n") + "\n...\n\n" + block("c\n", "d\n"),
            [("f.txt", "a\n", "b\n"), ("", "c\n", "d\n")],
        ),
        ("p/new.txt\n```\n" + block("", "a\n") + "```", [("p/new.txt", "", "a\n")]),
        ("f.txt\n````\n" + block("", "```\na\n```\n") + "````", [("f.txt", "", "```\na\n```\n")]),
        ("### src/f.py\n```python\n" + block("a\n", "b\n") + "```", [("src/f.py", "a\n", "b\n")]),
        ("**f.py**\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("`f.py`:\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("f.py\n\n\n\n```python\n\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("File: `f.py`\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("### Path: f.py\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("```python:s/f.py\n" + block("a\n", "b\n"), [("s/f.py", "a\n", "b\n")]),
        ("```python f.py\n" + block("a\n", "b\n"), [("f.py", "a\n", "b\n")]),
        ("..\\f.py\n" + block("a\n", "b\n"), [("..\\f.py", "a\n", "b\n")]),
        ("Done.\n" + block("a\n", "b\n"), [("", "a\n", "b\n")]),
        ("For Python\n3.11\n" + block("a\n", "b\n"), [("", "a\n", "b\n")]),
        ("This is what I change:\n" + block("a\n", "b\n"), [("", "a\n", "b\n")]),
        (block("a\n\n  b\n", "\n\n"), [("", "a\n\n  b\n", "\n\n")]),
        (block("a\n", ""), [("", "a\n", "")]),
        (block("a\n=====\n", "<<<<<<<< SEARCH\n"), [("", "a\n=====\n", "<<<<<<<< SEARCH\n")]),
        (block("a\n", "b\n").replace("\n", "\r\n"), [("", "a\n", "b\n")]),
        ("Title\n=======\n", []),
        (
            "f.txt\n" + block("a\n", "b\n").replace("SEARCH", "search").replace("REPLACE", "Replace"),
            [("f.txt", "a\n", "b\n")],
        ),
        (
            "f.txt\n" + block("a\n", "b\n").replace("SEARCH", "ORIGINAL").replace("REPLACE", "UPDATED"),
            [("f.txt", "a\n", "b\n")],
        ),
        (block("a\n", "b\n").replace(" ", ""), [("", "a\n", "b\n")]),
        (
            block("a\n", "b\n").replace("=\n", "=  \t\n").replace("REPLACE", "REPLACE \t"),
            [("", "a\n", "b\n")],
        ),
        ("```\n" + block("a\n", "b\n").rstrip() + "```\n", [("", "a\n", "b\n")]),
        ("```\n" + block("a\n", "b\n").rstrip() + " ~~~", [("", "a\n", "b\n")]),
        (block("a\n", "b\n").replace("SEARCH", "SEARCH f.txt"), [("f.txt", "a\n", "b\n")]),
        (block("a\n", "b\n").replace("SEARCH", "SEARCH: `f.txt`"), [("f.txt", "a\n", "b\n")]),
        ("g.txt\n" + block("a\n", "b\n").replace("SEARCH", "SEARCH (f.txt)"), [("f.txt", "a\n", "b\n")]),
        ("1. `f.txt`:\n" + block("a\n", "b\n"), [("f.txt", "a\n", "b\n")]),
        ("- **f.txt**\n" + block("a\n", "b\n"), [("f.txt", "a\n", "b\n")]),
        (
            "```f.txt\n" + block("a\n", "b\n") + "\n" + block("c\n", "d\n") + "```",
            [("f.txt", "a\n", "b\n"), ("", "c\n", "d\n")],
        ),
        (indented(block("  a\n\nb\n", "c\n", "f.txt\n"), "   "), [("f.txt", "  a\n\nb\n", "c\n")]),
        (indented(block("", "\ta\n", "f.txt\n"), "\t"), [("f.txt", "", "\ta\n")]),
        (block("  <<<<<<< SEARCH\n", "  =======\n"), [("", "  <<<<<<< SEARCH\n", "  =======\n")]),
        *((markers(length), [("", "a\n", "b\n")]) for length in range(5, 10)),
    ],
)
def test_blocks_are_found_in_what_models_write(text, expected):
    assert edits(text) == expected
    assert form_of(text) == ("search_replace" if expected else "diff") and holds_edits(text) is bool(expected)


@pytest.mark.parametrize("path", ["Makefile", "my file.py", "[id].py", "#1.py", "3.11"])
def test_a_file_that_is_there_is_known_whatever_its_name(path):
    (found,) = parse_blocks(f"{path}\n" + block("a\n", "b\n"), {"f.py", path})
    assert found.path == path


@pytest.mark.parametrize(
    "heading", ["### Cart.total", "`Cart.total`:", "**prices.total**", "and/or", "Fix/Change:"]
)
def test_a_heading_is_no_path_where_the_files_are_known(heading):
    (found,) = parse_blocks(f"{heading}\n" + block("a\n", "b\n"), {"f.py", "g.txt"})
    assert found.path == ""
    for path in ("other.py", "new.txt"):  # named, though it is not there
        assert parse_blocks(f"{path}\n" + block("a\n", "b\n"), {"f.py", "g.txt"})[0].path == path
    assert parse_blocks("docs/LICENCE\n" + block("", "b\n"), {"f.py"})[0].path == "docs/LICENCE"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<<<<<<< SEARCH\na\n=======\nb\n", "Block 1 is malformed: it has no line '>>>>>>> REPLACE'"),
        ("<<<<<<< SEARCH\na\n", "it has no line '======='"),
        ("<<<<<<< SEARCH\na\n>>>>>>> REPLACE\n", "'>>>>>>> REPLACE' comes before '======='"),
        (block("a\n=======\n", "b\n"), "'=======' comes before '>>>>>>>'"),
        (block("a\n", "b\n").replace("REPLACE", "REPLACE1"), "line 5: '>>>>>>> REPLACE1' is no marker"),
        (block("a\n", "b\n").replace("SEARCH", "SERCH"), "line 1: '<<<<<<< SERCH' is no marker"),
        (block("a\n", "b\n").replace("SEARCH", "HEAD"), "line 1: '<<<<<<< HEAD' is no marker"),
        (block("a\n", "b\n").replace("SEARCH", "SEARCH and"), "line 1: '<<<<<<< SEARCH and' is no marker"),
        (block("a\n", "b\n").replace("REPLACE", "REPLACE x") * 2, "line 5: '>>>>>>> REPLACE x' is no marker"),
        (markers(4), "line 1: '<<<< SEARCH' is no marker: at least five characters and SEARCH or REPLACE"),
        (block("a\n", "b\n") + markers(3), "Block 2 is malformed: line 6: '<<< SEARCH' is no marker"),
        (block("a\n", ">>>>>>> main\n"), "line 4: '>>>>>>> main' is no marker"),
        (block("a\n", "b\n").replace(">>>>>>>", "  >>>>>>>"), "it has no line '>>>>>>> REPLACE'"),
        (
            block("a\n", "b\n").replace("=======", "========"),
            "line 5: '>>>>>>> REPLACE' comes before '======='",
        ),
        (block("a\n", "b\n") + block("<<<<<<< SEARCH\n", ""), "Block 2 is malformed"),
        (">>>>>>> REPLACE\n", "REPLACE comes without SEARCH"),
    ],
)
def test_blocks_that_are_not_well_formed_are_named(text, message):
    with pytest.raises(EditError) as error:
        parse_blocks(text)
    assert error.value.status is Status.EDIT_MALFORMED
    assert message in error.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (block("one\n", "1\n", "a.py\n"), {"a.py": "1\ntwo\n\nthree\n    two\n"}),
        (block("    two\n", "", "a.py\n"), {"a.py": "one\ntwo\n\nthree\n"}),
        (block("two\n\n", "2\n", "./a.py\n"), {"a.py": "one\n2\nthree\n    two\n"}),
        (
            block("one\n", "1\n", "a.py\n") + block("three\n", "3\n") + block("x\n", "y\n", "b.py\n"),
            {"a.py": "1\ntwo\n\n3\n    two\n", "b.py": "y\n"},
        ),
        (
            block("three\n", "3\n", "a.py\n") + block("one\n", "three\n"),
            {"a.py": "three\ntwo\n\n3\n    two\n"},
        ),
        (block("", "new\n", "c/d.py\n"), {"c/d.py": "new\n"}),
        (block("x\n", "", "b.py\n"), {"b.py": ""}),
        (block("", "", "c/__init__.py\n"), {"c/__init__.py": ""}),
    ],
)
def test_edits_are_applied_to_the_original_text(text, expected):
    assert apply_edits(FILES, parse_blocks(text)) == expected


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("I would rather not.", Status.EDIT_MALFORMED, "no edit"),
        ("SEARCH ======= REPLACE", Status.EDIT_MALFORMED, "no edit"),
        (block("one\n", "1\n"), Status.EDIT_MALFORMED, "Edit 1 names no file. Files: a.py, b.py"),
        (block("", "1\n", "a.py\n"), Status.EDIT_MALFORMED, "Edit 1 names no line of a.py"),
        (block("  two\n", "2\n", "a.py\n"), Status.EDIT_NOT_FOUND, "Line 2 differs in white space: 'two'"),
        (block("thred\n", "3\n", "a.py\n"), Status.EDIT_NOT_FOUND, "Nearest is line 4: 'three'"),
        (block("one\nthree\n", "3\n", "a.py\n"), Status.EDIT_NOT_FOUND, "but not one after the other"),
        (block("x\n", "y\n", "bb.py\n"), Status.EDIT_NOT_FOUND, "there is no file bb.py. Nearest: b.py"),
        (block("one\n", "one\n", "a.py\n"), Status.EDIT_NO_OP, "Edit 1 of a.py changes nothing"),
        (block("one\ntwo\n", "1\n", "a.py\n") + block("two\n\n", ""), Status.EDIT_OVERLAP, "Edits 1 and 2 of a.py"),
        (block("one\n", "1\n", "a.py\n") * 2, Status.EDIT_OVERLAP, "Edits 1 and 2"),
        (block("", "1\n", "n.py\n") * 2, Status.EDIT_OVERLAP, "both create the file n.py"),
        (block("", "1\n", "../x.py\n"), Status.EDIT_OUTSIDE, "'../x.py' is not allowed"),
        (block("", "1\n", ".git/config\n"), Status.EDIT_OUTSIDE, "it belongs to git"),
        (block("", "1\n", "a/.GIT/hooks/post-checkout.py\n"), Status.EDIT_OUTSIDE, "it belongs to git"),
        (block("", "1\n", "/etc/x.py\n"), Status.EDIT_OUTSIDE, "'/etc/x.py' is not allowed"),
    ],
)  # fmt: skip
def test_edits_that_cannot_be_applied_have_a_status_and_a_reason(text, status, message):
    with pytest.raises(EditError) as error:
        apply_edits(FILES, parse_blocks(text))
    assert (error.value.status, error.value.status.family) == (
        status, Family.MISBEHAVED if status is Status.EDIT_OUTSIDE else Family.JUDGED,
    )  # fmt: skip
    assert message in error.value.message


@pytest.mark.parametrize(
    ("text", "count"), [("a\nb\na\n", "2"), ("a\n" * 50, "at least 10"), ("a\na\na", "3")]
)
def test_lines_that_occur_more_than_once_are_counted(text, count):
    with pytest.raises(EditError, match=f"occur {count} times in f") as error:
        apply_edits({"f": text}, [Edit("f", "a\n", "b\n")])
    assert error.value.status is Status.EDIT_AMBIGUOUS


@pytest.mark.parametrize(
    ("before", "search", "replace", "after"),
    [
        ("a\nb", "b\n", "c\n", "a\nc"),
        ("a\nb", "a\n", "c\n", "c\nb"),
        ("a\r\nb\r\n", "a\n", "c\nd\n", "c\r\nd\r\nb\r\n"),
        ("a\r\nb", "b\n", "c\n", "a\r\nc"),
        ("a\r\nb\n", "b\n", "c\n", "a\r\nc\n"),
    ],
)
def test_the_line_ends_of_a_file_stay(before, search, replace, after):
    assert apply_edits({"f": before}, [Edit("", search, replace)], "f") == {"f": after}


DIFF = """Here it is:
```diff
diff --git a/a.py b/a.py
index 123..456 100644
--- a/a.py\t2024-01-01
+++ b/a.py
@@ -1,3 +1,4 @@ def f():
-one
+1
+1.5
 two

--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+n
--- a/b.py
+++ /dev/null
@@ -1 +0,0 @@
-x
```
"""


def applied(text):
    return apply_edits(FILES, [edit for file in parse_diff(text) for edit in file.edits()], "a.py")


def test_a_diff_changes_creates_and_deletes_files():
    assert applied(DIFF) == {"a.py": "1\n1.5\ntwo\n\nthree\n    two\n", "new.py": "n\n", "b.py": None}
    assert applied(DIFF.replace("\n", "\r\n")) == applied(DIFF)


@pytest.mark.parametrize(
    "head",
    [
        *("@@ -40,2 +40,2 @@", "@@ @@", "@@ ... @@", "@@", "@@ three @@", "@@ def f():", "@@ -4,2 @@", "@@ -4 @@", "@@ -4,2 +4,2"),
        *("@@ -4,9 +4,9 @@", "@@ -4,1 +4,1 @@", "@@ -4 +4,7 @@ def f():", "@@ -4,0 +4,0 @@", "@@-4,2 +4,2@@", "@@ -X,X +X,X @@"),
    ],
)  # fmt: skip
def test_a_hunk_is_found_by_its_lines_where_its_number_is_wrong_or_missing(head):
    end = "" if "40" in head else "\n\nThis is all.\n"
    assert applied(f"{head}\n-three\n+3\n     two\n{end}") == {"a.py": "one\ntwo\n\n3\n    two\n"}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_empty_files_are_created_and_deleted(newline):
    """As `git diff` writes them, before and after the diff of another file."""
    made = "diff --git a/e/__init__.py b/e/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    gone = "diff --git a/old.py b/old.py\ndeleted file mode 100644\nindex e69de29..0000000\n"
    text = made + "diff --git a/b.py b/b.py\n--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n" + gone
    found = [edit for file in parse_diff(text.replace("\n", newline)) for edit in file.edits()]
    changed = apply_edits({"b.py": "x\n", "old.py": ""}, found)
    assert changed == {"e/__init__.py": "", "b.py": "y\n", "old.py": None}


def test_the_number_of_a_hunk_decides_between_equal_lines():
    text = "@@ -3 +3 @@\n-a\n+b\n"
    assert apply_edits({"f": "a\n" * 4}, list(parse_diff(text)[0].edits()), "f") == {"f": "a\na\nb\na\n"}


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (
            "@@ -1,2 +1 @@\n-one\n+1",
            Status.EDIT_MALFORMED,
            "announces 2 old and 1 new lines and has 1 and 1",
        ),
        ("@@@ -1,2 -1,2 +1 @@@\n- one\n", Status.EDIT_MALFORMED, "line 1, '@@@ -1,2 -1,2 +1 @@@', is not as"),
        ("@@ -1 +1 @@\nDone.\n", Status.EDIT_MALFORMED, "hunk 1 has no lines"),
        (
            "@@ -1 +1 @@\n-one\n+1\n```\n--- a/b.py\n+++ b/b.py\n",
            Status.EDIT_MALFORMED,
            "the end of the answer comes before the head",
        ),
        (
            "--- a/a.py\n+++ b/a.py\nDone.\n@@ -1 +1 @@\n-one\n+1\n",
            Status.EDIT_MALFORMED,
            "'Done.' comes before the head",
        ),
        ("@@ -1,2 +1,3 @@\n+5\n", Status.EDIT_MALFORMED, "names no line"),
        ("@@ -1 +1 @@\n-one\n+1\n  @@ -4 +4 @@\n-three\n", Status.EDIT_NOT_FOUND, "not in a.py"),
        ("@@ -1 +1 @@\n-one\n+1\n```\n  @@ -4 +4 @@\n  -three\n", Status.EDIT_MALFORMED, "line 5"),
        ("@@ -1 +1 @@\n-one\n+1\nDone.\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n", Status.EDIT_MALFORMED, "alone"),
        (
            "*** Begin Patch\n*** Update File: a.py\n@@\n-one\n+1\n*** End Patch",
            Status.EDIT_MALFORMED,
            "Begin Patch",
        ),
        # The end of a hunk is in doubt: lists, rules, signatures, heads of files, and lines without their tags.
        (
            "@@ -1,5 +1,5 @@\n-one\n+1\n\n- I changed one.\n",
            Status.EDIT_AMBIGUOUS,
            "Line 5 of the diff, '- I changed one.'",
        ),
        ("@@ @@\n-one\n+1\n\n+ I changed one.\n", Status.EDIT_AMBIGUOUS, "'+ I changed one.'"),
        ("@@ -1,5 +1,5 @@\n-one\n+1\n---\nDone.\n", Status.EDIT_AMBIGUOUS, "'---'"),
        ("@@ -1,5 +1,5 @@\n-one\n+1\n-- \n2.39.5\n", Status.EDIT_AMBIGUOUS, "'--'"),
        ("@@ -1 +1 @@\n-one\n+1\ntwo\n\n-three\n+3\n", Status.EDIT_AMBIGUOUS, "Line 6 of the diff, '-three'"),
        (
            "@@ -1,3 +1,3 @@\n-one\n+1\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n",
            Status.EDIT_AMBIGUOUS,
            "'+++ b/b.py'",
        ),
        ("@@ @@\n one\n", Status.EDIT_NO_OP, "changes nothing"),
        ("@@ @@\n-five\n+5\n", Status.EDIT_NOT_FOUND, "not in a.py"),
        ("@@ @@\n+5\n", Status.EDIT_MALFORMED, "names no line"),
        ("@@ -99,0 +99 @@\n+5\n", Status.EDIT_MALFORMED, "names no line"),
        ("@@ -1 +1 @@\n-one\n+1\n@@ -1,2 +1,2 @@\n-one\n+2\n two\n", Status.EDIT_OVERLAP, "Edits 1 and 2"),
        ("--- a/a.py\n+++ b/c.py\n@@ -1 +1 @@\n-one\n+1\n", Status.EDIT_MALFORMED, "renames"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-one\n+1\n", Status.EDIT_OUTSIDE, "'../x'"),
        (
            "--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n",
            Status.EDIT_MALFORMED,
            "not all of its lines are",
        ),
        ("Binary files a/x and b/x differ\n", Status.EDIT_MALFORMED, "binary"),
        ("new file mode 120000\n", Status.EDIT_MALFORMED, "links"),
        ("old mode 100644\nnew mode 120000\n", Status.EDIT_MALFORMED, "links"),
        ("new file mode 160000\n", Status.EDIT_MALFORMED, "links"),
        ("--- /dev/null\n+++ b/n.py\n+1\n", Status.EDIT_MALFORMED, "'+1' comes before the head of a hunk"),
        ('--- "a/\n+++ "b/\n@@ -1 +1 @@\n-one\n+1\n', Status.EDIT_MALFORMED, "cannot be read"),
    ],
)
def test_diffs_that_cannot_be_applied_have_a_status_and_a_reason(text, status, message):
    with pytest.raises(EditError) as error:
        applied(text)
    assert error.value.status is status
    assert message in error.value.message


def test_names_that_git_quotes_are_read():
    (file,) = parse_diff('--- "a/\\303\\251.py"\n+++ "b/\\303\\251.py"\n@@ -1 +1 @@\n-one\n+1\n')
    assert file.new == "é.py"


HOSTILE = {
    "heads": "<<<<<<< SEARCH\n" * 60_000,
    "long markers": "<" * 10**6,
    "spaces after a marker": ("=======" + " " * 10**5 + "x\n") * 9,
    "dividers": "=======\n" * 10**5,
    "blocks": block("a\n", "b\n") * 20_000,
    "one line": "x" * 10**6,
    "backticks": "`" * 10**6 + "\n" + block("a\n", "b\n"),
    "hunks": "@@ -1 +1 @@\n-a\n+b\n" * 40_000,
    "long hunk": "@@ -1,999999 +1,1 @@\n" + "-a\n" * 3 * 10**5,
    "files": "--- a/x\n+++ b/x\n" * 50_000,
    "repeated lines": block("a\n" * 10**5, "b\n"),
    "repeated lines, once more": "@@ @@\n" + "-a\n" * 10**5 + "+b\n",
    "unlike lines": block("\n".join(f"{n:09}" for n in range(10**5)) + "\n", "b\n"),
}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (r'"\141\"\\\a\b\f\n\r\t\v"', 'a"\\\a\b\f\n\r\t\v'),
        (r'"\303\251 \377"', "é \ufffd"),
        ('"é"', "é"),
        ('"\ud800"', "?"),
    ],
)
def test_quoted_names_have_the_escapes_of_c(name, path):
    (file,) = parse_diff(f"--- {name}\n+++ {name}\n@@ -1 +1 @@\n-one\n+1\n")
    assert file.old == file.new == path


@pytest.mark.parametrize(
    "name",
    [
        '"a",1',
        '"a',
        '"',
        '"a"b',
        r'"\"',
        r'"\8"',
        r'"\400"',
        r'"\x41"',
        r'"\12"',
        '"a" "b"',
        r'"\u0041"',
        '""" """',
    ],
)
def test_other_quoted_names_are_malformed(name):
    with pytest.raises(EditError) as raised:
        parse_diff(f"--- {name}\n+++ b\n@@ -1 +1 @@\n-one\n+1\n")
    assert raised.value.status is Status.EDIT_MALFORMED


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_end_in_a_result_or_an_edit_error(name):
    text, files = HOSTILE[name], {"f": "a\n" * 10**5 * 2 + "".join(f"{n}\n" for n in range(1000))}
    for parse in (parse_blocks, lambda text: [edit for file in parse_diff(text) for edit in file.edits()]):
        with pytest.raises(EditError):
            apply_edits(files, parse(text), "f")


def test_a_thousand_edits_far_down_in_a_large_file_are_found():
    before = "a\n" * 10**5 * 2 + "".join(f"{n}\n" for n in range(1000))
    blocks = [Edit("f", f"{n}\n", "") for n in range(1000)]
    hunks = [Edit("f", f"{n}\n", "", 2 * 10**5 + n + 1) for n in range(1000)]
    for many in (blocks, hunks):
        assert apply_edits({"f": before}, many) == {"f": "a\n" * 10**5 * 2}


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        ("", (2, 2)), ("```\n", (2, 2)), ("\n\n", (2, 2)), ("\n- I changed `two`.\n- No more.\n", (2, 2)), ("- I changed it.\n", (2, 2)),
        ("\n+ I changed `two`.\n", (2, 2)), ("---\nDone.\n", (2, 2)), ("-- \n2.39.5\n", (2, 2)), ("    Indented.\n", (2, 2)), (" ```\n", (2, 2)),
        ("", (9, 9)), ("```\n", (1, 7)), ("\n\nDone.\n", (7, 1)), ("Done:\n- I changed it.\n", (1, 1)), ("~~~\n-x\n", (4, 4)),
        ("diff --git a/b.py b/b.py\n", (5, 5)), ("\n--- a/b.py\n+++ b/b.py\n@@ @@\n-x\n+x\n+x\n", (5, 1)),
    ],
)  # fmt: skip
def test_a_hunk_ends_with_its_lines_and_counts_decide_where_it_is_in_doubt(end, counts):
    text = f"--- a/a.py\n+++ b/a.py\n@@ -1,{counts[0]} +1,{counts[1]} @@\n one\n-two\n+2\n{end}"
    files = {"a.py": "one\ntwo\nlast\n", "b.py": "x\n"}
    for newline in ("\n", "\r\n"):
        found = apply_edits(files, parse_edits(text.replace("\n", newline), "diff", files), "a.py")
        assert found.pop("a.py") == "one\n2\nlast\n" and list(found.values()) == ["x\nx\n"] * ("@@ @@" in end)


@pytest.mark.parametrize("counts", [(6, 6), (9, 9), (3, 7), (8, 8)])
def test_no_change_of_a_hunk_is_dropped_for_its_counts(counts):
    """The kind of a public report: the first six lines hold one change, and all ten hold two."""
    lines = [f"line {number}\n" for number in range(10, 20)]
    body = "".join(f"-{one}+{one.upper()}" if one[5:7] in ("12", "18") else f" {one}" for one in lines)
    before = "".join(f"line {number}\n" for number in range(30))
    after = before.replace("line 12", "LINE 12").replace("line 18", "LINE 18")
    text = f"--- a/f\n+++ b/f\n@@ -11,{counts[0]} +11,{counts[1]} @@\n{body}"
    assert apply_edits({"f": before}, parse_edits(text, "diff", {"f": before})) == {"f": after}


@pytest.mark.parametrize("counts", [(3, 3), (1, 1), (2, 2)])
def test_deleted_and_added_lines_that_look_like_the_head_of_a_file(counts):
    """As in SQL or Lua, whose comments begin with two dashes."""
    files = {"q.sql": "a\n-- x\nb\nc\n", "x": "1\n"}
    second = "@@ -4 +4 @@\n-c\n+C\n"
    text = f"--- a/q.sql\n+++ b/q.sql\n@@ -1,{counts[0]} +1,{counts[1]} @@\n a\n--- x\n+++ {{}}\n{second}"
    changed = apply_edits(files, parse_edits(text.format("y"), "diff", files))
    assert changed == {"q.sql": "a\n++ y\nb\nC\n"}
    if counts == (2, 2):
        assert apply_edits(files, parse_edits(text.format("x"), "diff", files)) == {
            "q.sql": "a\n++ x\nb\nC\n"
        }
    else:  # the lines of the second hunk are not in the other file, or it is not known which file is meant
        with pytest.raises(EditError):
            apply_edits(files, parse_edits(text.format("x"), "diff", files))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a/a.py", "b/a.py"), ("a.py", "a.py"), ("a/a.py", "a.py"), ("a.py", "b/a.py"), ("./a.py", "./a.py"),
        ("a/a.py\t2024-01-01 10:00:00", "b/a.py\t2024-01-02"), ("a/a.py 2024-01-01 10:00:00.0 +0000", "b/a.py 2025-01-01 10:00:00"),
    ],
)  # fmt: skip
def test_the_names_in_the_head_of_a_file(old, new):
    text = f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-one\n+1\n"
    assert applied(text) == applied("   " + text.replace("\n", "\n   "))
    assert list(applied(text)) == ["a.py"]
    assert list(applied("diff --git a/b.py b/b.py\n@@ -1 +1 @@\n-x\n+y\n")) == ["b.py"]


def test_a_program_without_a_name_is_meant_by_any():
    program = "def mean(values):\n    return sum(values) / (len(values) - 1)\n"
    right = program.replace("(len(values) - 1)", "len(values)")
    change = ("    return sum(values) / (len(values) - 1)\n", "    return sum(values) / len(values)\n")
    hunk = f"@@ -2 +2 @@\n-{change[0]}+{change[1]}"
    nameless = Problem("mean", "", "mean", buggy_code=program)
    named = Problem("mean", "", "mean", buggy_code=program, path="lib/means.py")
    for path in ("stats.py", "./src/stats.py", PATH):
        answers = block(*change, f"{path}\n"), f"--- a/{path}\n+++ b/{path}\n{hunk}"
        for form, text in zip(("search_replace", "diff"), answers, strict=True):
            found = extract_edited(text, nameless, form)
            assert (found.code, found.files) == (right, ())
            assert extract_edited(text, named, form).status is Status.EDIT_NOT_FOUND
    two = block(*change, "stats.py\n") + block("def mean(values):\n", "def mean(them):\n", "other.py\n")
    assert extract_edited(two, nameless, "search_replace").status is Status.EDIT_NOT_FOUND
    for path in ("../stats.py", "/stats.py", ".git/stats.py"):
        found = extract_edited(block(*change, f"File: {path}\n"), nameless, "search_replace")
        assert found.status is Status.EDIT_OUTSIDE
    new = extract_edited(
        block("", "x = 1\n", "new.py\n") + block(*change, f"{PATH}\n"), nameless, "search_replace"
    )
    assert (new.code, new.files) == (right, (("new.py", "x = 1\n"),))


def test_an_indented_block_is_read_as_it_stands_in_the_file():
    one, both = {"f": "def f():\n    x = 1\n"}, {"f": "x = 1\ndef f():\n    x = 1\n"}
    text = indented(block("x = 1\n", "x = 2\n"), "    ")
    for files, expected in ((one, "def f():\n    x = 2\n"), ({"f": "x = 1\n"}, "x = 2\n")):
        assert apply_edits(files, parse_blocks(text, files), "f") == {"f": expected}
    with pytest.raises(EditError, match="with the indentation of its markers and without") as error:
        parse_blocks(text, both)
    assert error.value.status is Status.EDIT_AMBIGUOUS
    uneven = text.replace("    x = 2", "  x = 2")
    assert edits(uneven) == [("", "    x = 1\n", "  x = 2\n")]


def test_fences_around_both_sides_are_no_lines_of_a_file_that_has_none():
    text = block("```python\na\n```\n", "```python\nb\n```\n")
    for before, after in (("a\n", "b\n"), ("```python\na\n```\n", "```python\nb\n```\n")):
        assert apply_edits({"f": before}, parse_blocks(text, {"f": before}), "f") == {"f": after}
    with pytest.raises(EditError, match="not in f"):
        apply_edits({"f": "c\n"}, parse_blocks(text, {"f": "c\n"}), "f")


STATS = '''"""Small statistics.

Means
=======

They take lists of numbers.
"""


def mean(values):
    if not values:
        return 0.0
    return sum(values) / len(values)


def spread(values):
    if not values:
        return 0.0
    return max(values) - min(values)
'''
REFUSED = {
    "path_proj": (Status.EDIT_NOT_FOUND, "there is no file proj/stats.py. Nearest: stats.py"),
    "rst_search": (Status.EDIT_MALFORMED, "line 7: '=======' comes before '>>>>>>>'; use longer markers"),
    "trailing_ws_search": (Status.EDIT_NOT_FOUND, "Line 13 differs in white space"),
    "wrong_indent": (Status.EDIT_NOT_FOUND, "Line 13 differs in white space"),
    "tab_indent": (Status.EDIT_NOT_FOUND, "Line 13 differs in white space"),
    "blank_first": (Status.EDIT_NOT_FOUND, "but not one after the other"),
    "elided": (Status.EDIT_NOT_FOUND, "This line is not there: '...'"),
    "two_same_lines": (Status.EDIT_AMBIGUOUS, "occur 2 times"),
    "missing_end": (Status.EDIT_MALFORMED, "it has no line '>>>>>>> REPLACE'"),
    "html_escaped": (Status.EDIT_MALFORMED, "no edit"),
    "mixed_markers": (Status.EDIT_MALFORMED, "'>>>>>>> REPLACE' comes before '======='"),
    "begin_patch": (Status.EDIT_MALFORMED, "'*** Begin Patch', is not as `diff -u` writes it"),
}


@pytest.mark.parametrize("path", ["stats.py", ""])
@pytest.mark.parametrize(("name", "form"), [("blocks", "search_replace"), ("diffs", "diff")])
def test_what_a_person_reads_as_the_same_repair_is_applied_or_refused_with_a_reason(public, name, form, path):
    before = public("field_inputs/edits/stats.py").read_text()
    problem = Problem("stats", "", "mean", buggy_code=before, path=path)
    answers = json.loads(public(f"field_inputs/edits/{name}.json").read_text())
    for kind, text in answers.items():
        found = extract_edited(text, problem, form)
        if kind in REFUSED and (path or kind != "path_proj"):
            status, reason = REFUSED[kind]
            assert (found.code, found.status) == (None, status), kind
            assert reason in found.reason, kind
        else:
            expected = STATS.replace("lists of ", "") if kind == "rst_search_long" else STATS
            assert (found.code, found.files) == (expected, ()), (kind, found.reason)


@pytest.mark.parametrize(
    "tag", ["<source>python", "<source>", "<code>py", "<pre>", "<sourcecode>", "````python"]
)
def test_the_path_may_stand_above_the_other_fences_of_aider(tag):
    files = {"shop/prices.py": "RATE = 1\n", "shop/cart.py": "SIZE = 1\n"}
    end = f"</{tag[1:].partition('>')[0]}>" if tag[0] == "<" else "````"
    text = f"The fix:\n\nshop/cart.py\n{tag}\n<<<<<<< SEARCH\nSIZE = 1\n=======\nSIZE = 2\n>>>>>>> REPLACE\n{end}\n"
    edits = parse_edits(text, "search_replace", files)
    assert apply_edits(files, edits) == {"shop/cart.py": "SIZE = 2\n"}


def test_a_head_may_end_the_last_hunk_before_the_fence_is_closed():
    files = {"a.py": "x = 1\ny = 2\n"}
    text = "```diff\n--- a.py\n+++ a.py\n@@ ... @@\n-x = 1\n+x = 3\n@@ ... @@\n```\n"
    for behind in ("", "\nThis is the fix.\n"):
        assert apply_edits(files, parse_edits(text + behind, "diff", files)) == {"a.py": "x = 3\ny = 2\n"}
    # No line behind it gets lost, and an answer that ends there may have been cut off.
    for cut in (
        f"{text}-y = 2\n+y = 4\n",
        text.removesuffix("```\n"),
        text.replace("-x = 1\n+x = 3\n@@ ... @@\n", ""),
    ):
        with pytest.raises(EditError, match="has no lines"):
            parse_edits(cut, "diff", files)
