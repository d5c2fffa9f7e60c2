"""Counts the words of a text."""

import re
from collections import Counter

STOP_WORDS = frozenset({"a", "an", "and", "of", "the", "to"})


def words(text):
    """The words in lower case, without punctuation; an apostrophe may stand inside of a word."""
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def frequencies(text, keep_stop_words=False):
    """How often each word occurs."""
    return Counter(word for word in words(text) if keep_stop_words or word not in STOP_WORDS)


def most_common(text, number):
    """The most frequent words; of equally frequent ones the first in the alphabet comes first."""
    counted = frequencies(text)
    ordered = sorted(counted, key=lambda word: (-counted[word], word))
    return ordered[:number]


def average_length(text):
    """The mean number of letters of the words, 0 for a text without any."""
    found = words(text)
    if not found:
        return 0.0
    return sum(len(word) for word in found) / len(found)
