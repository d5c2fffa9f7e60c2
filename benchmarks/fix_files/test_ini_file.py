import pytest

from ini_file import merged, parse, write

TEXT = """
# A comment
[Server]
Host = example.org
url = http://a/?x=1

[client]
; another
retries = 3
"""
PARSED = {"Server": {"host": "example.org", "url": "http://a/?x=1"}, "client": {"retries": "3"}}


def test_parse():
    assert parse(TEXT) == PARSED


def test_the_line_is_named():
    with pytest.raises(ValueError, match="line 2 cannot"):
        parse("[a]\nnonsense\n")
    with pytest.raises(ValueError):
        parse("key = outside\n")


def test_there_and_back():
    assert parse(write(PARSED)) == PARSED
    assert write({"a": {"x": "1"}, "b": {}}) == "[a]\nx = 1\n\n[b]\n"


def test_merged():
    first, second = {"a": {"x": "1", "y": "2"}}, {"a": {"y": "3"}, "b": {"z": "4"}}
    assert merged(first, second) == {"a": {"x": "1", "y": "3"}, "b": {"z": "4"}}
    assert first == {"a": {"x": "1", "y": "2"}} and second["b"] == {"z": "4"}
