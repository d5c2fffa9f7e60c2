"""Single cases of edits: what is accepted, and what the message says of what is not."""

from __future__ import annotations

import pytest

from greenward.grading.edits import Edit, EditError, apply_edits, parse_blocks, parse_diff
from greenward.grading.verdict import Family, Status

FILES = {"a.py": "one\ntwo\n\nthree\n    two\n", "b.py": "x\n"}


def block(search, replace, path=""):
    return f"{path}<<<<<<< SEARCH\n{search}=======\n{replace}>>>>>>> REPLACE\n"


def edits(text):
    return [(one.path, one.search, one.replace) for one in parse_blocks(text)]


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
    ],
)
def test_blocks_are_found_in_what_models_write(text, expected):
    assert edits(text) == expected


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


@pytest.mark.parametrize("head", ["@@ -40,2 +40,2 @@", "@@ @@", "@@ ... @@", "@@"])
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
            "@@ -1,2 +1 @@\n-one\n+1\n",
            Status.EDIT_MALFORMED,
            "announces 2 old and 1 new lines and has 1 and 1",
        ),
        ("@@ one @@\n-one\n", Status.EDIT_MALFORMED, "not a hunk's"),
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
