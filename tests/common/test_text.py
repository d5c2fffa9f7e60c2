from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from greenward.common.text import visible, visible_json


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b[31mred", "�[2J�[31mred"),
        ("\x1b]0;title\x07ok", "�]0;title�ok"),
        ("a\rb\x08c\x00", "a�b�c�"),
        ("\u202eevil\u202c", "�evil�"),
        ("\x9b31mx", "�31mx"),
        ("a line\u2028another", "a line�another"),
        ("\ud800", "�"),
        ("keep\r\n\ttabs é 中 🙂", "keep\n\ttabs é 中 🙂"),
    ],
)
def test_characters_that_a_reader_cannot_see_are_replaced(hostile, shown):
    assert visible(hostile) == shown


def test_every_control_format_and_surrogate_character_is_replaced():
    hidden = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
    assert set(visible("".join(hidden))) == {"�", "\n", "\t"}


def test_a_long_text_is_cut_with_a_mark():
    assert visible("12345", 5) == "12345"
    assert visible("123456", 5) == "1234…"


def test_json_keeps_its_values_and_shows_no_hidden_character():
    value = {"\x9b31m": ["\u202eevil", "é 中", "\U000e0041", "\n"]}
    shown = visible_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(shown) == value
    assert visible(shown) == shown
    assert "é 中" in shown
