"""Operations on text and on lists of words.

Every one is defined on every input: where a list may be empty, the phrase says what comes then.
"""

from __future__ import annotations

from greenward.problems.families.operation import Kind, Template

TEXTUAL: dict[tuple[Kind, Kind], tuple[Template, ...]] = {
    (Kind.TEXT, Kind.TEXT): (
        Template("upper", "change the text to upper case", "s.upper()", ("s.lower()", "s.capitalize()")),
        Template("lower", "change the text to lower case", "s.lower()", ("s.upper()", "s.capitalize()")),
        Template("swap_case", "swap the case of the text", "s.swapcase()", ("s.upper()", "s.lower()")),
        Template("reverse_text", "reverse the text", "s[::-1]", ("s[:-1]", "s[::1]")),
        Template(
            "strip",
            "strip the spaces around the text",
            "s.strip()",
            ('s.replace(" ", "")', "s.lstrip()"),
        ),
        Template(
            "remove_spaces",
            "remove the spaces",
            's.replace(" ", "")',
            ("s.strip()", 's.replace(" ", "-")'),
        ),
        Template(
            "replace_spaces",
            "replace the spaces with dashes",
            's.replace(" ", "-")',
            ('s.replace("-", " ")', 's.replace(" ", "")'),
        ),
        Template(
            "remove_vowels",
            "remove the lower case vowels",
            '"".join(c for c in s if c not in "aeiou")',
            ('"".join(c for c in s if c in "aeiou")', '" ".join(c for c in s if c not in "aeiou")'),
        ),
        Template(
            "keep_vowels",
            "keep the lower case vowels",
            '"".join(c for c in s if c in "aeiou")',
            ('"".join(c for c in s if c not in "aeiou")', '" ".join(c for c in s if c in "aeiou")'),
        ),
        Template(
            "keep_letters",
            "keep only the letters",
            '"".join(c for c in s if c.isalpha())',
            ('"".join(c for c in s if c.isalnum())', '"".join(c for c in s if c.isdigit())'),
        ),
        Template(
            "first_characters",
            "keep the first {k} characters",
            "s[:{k}]",
            ("s[{k}:]", "s[:{less}]", "s[-{k}:]"),
            constants=(3, 5),
        ),
        Template(
            "last_characters",
            "keep the last {k} characters",
            "s[-{k}:]",
            ("s[:-{k}]", "s[:{k}]"),
            constants=(3, 5),
        ),
        Template(
            "drop_first_characters",
            "drop the first {k} characters",
            "s[{k}:]",
            ("s[:{k}]", "s[{less}:]", "s[{more}:]"),
            constants=(2, 3),
        ),
        Template(
            "drop_last_characters",
            "drop the last {k} characters",
            "s[:-{k}]",
            ("s[-{k}:]", "s[:{k}]"),
            constants=(2, 3),
        ),
        Template(
            "double_characters",
            "double each character",
            '"".join(c * 2 for c in s)',
            ("s * 2", '"".join(c * 3 for c in s)'),
        ),
        Template(
            "repeat_text",
            "repeat the text {k} times",
            "s * {k}",
            ('"".join(c * {k} for c in s)', "s * {more}"),
            constants=(2, 3),
        ),
        Template(
            "sort_characters",
            "sort the characters in ascending order",
            '"".join(sorted(s))',
            ('"".join(sorted(s, reverse=True))', '" ".join(sorted(s))'),
        ),
        Template("append_mark", "append an exclamation mark", 's + "!"', ('"!" + s', 's + " !"')),
    ),
    (Kind.TEXT, Kind.NUMBER): (
        Template("count_characters", "count the characters", "len(s)", ("len(s) - 1", "len(s.split())")),
        Template("count_spaces", "count the spaces", 's.count(" ")', ("len(s.split())", 's.find(" ")')),
        Template(
            "count_vowels",
            "count the lower case vowels",
            'sum(c in "aeiou" for c in s)',
            ('sum(c not in "aeiou" for c in s)', 'sum(c in "aeiou" for c in s[1:])'),
        ),
        Template(
            "count_capitals",
            "count the capital letters",
            "sum(c.isupper() for c in s)",
            ("sum(c.islower() for c in s)", "sum(c.isalpha() for c in s)"),
        ),
    ),
    (Kind.TEXT, Kind.WORDS): (
        Template("split", "split the text into words", "s.split()", ("list(s)", 's.split(",")')),
    ),
    (Kind.WORDS, Kind.WORDS): (
        Template(
            "sort_words",
            "sort the words in ascending order",
            "sorted(words)",
            ("sorted(words, reverse=True)", "sorted(words, key=len)"),
        ),
        Template(
            "sort_words_by_length",
            "sort the words by length",
            "sorted(words, key=len)",
            ("sorted(words)", "sorted(words, key=len, reverse=True)"),
        ),
        Template(
            "reverse_words",
            "reverse the order of the words",
            "words[::-1]",
            ("[w[::-1] for w in words]", "words[:-1]"),
        ),
        Template(
            "reverse_each_word",
            "reverse each word",
            "[w[::-1] for w in words]",
            ("words[::-1]", "[w[:-1] for w in words]"),
        ),
        Template(
            "upper_each_word",
            "change each word to upper case",
            "[w.upper() for w in words]",
            ("[w.lower() for w in words]", "[w.capitalize() for w in words]"),
        ),
        Template(
            "keep_long_words",
            "keep the words longer than {k} characters",
            "[w for w in words if len(w) > {k}]",
            ("[w for w in words if len(w) >= {k}]", "[w for w in words if len(w) < {k}]"),
            constants=(2, 3),
        ),
        Template(
            "drop_first_word",
            "drop the first word",
            "words[1:]",
            ("words[:1]", "words[:-1]"),
        ),
    ),
    (Kind.WORDS, Kind.NUMBER): (
        Template("count_words", "count the words", "len(words)", ("len(words) - 1", "len(set(words))")),
        Template(
            "longest_length",
            "find the length of the longest word or 0",
            "max(map(len, words), default=0)",
            ("min(map(len, words), default=0)", "max(map(len, words), default=1)"),
        ),
    ),
    (Kind.WORDS, Kind.TEXT): (
        Template(
            "join_words",
            "join the words with spaces",
            '" ".join(words)',
            ('"".join(words)', '",".join(words)'),
        ),
        Template(
            "join_initials",
            "join the first letters of the words",
            '"".join(w[:1] for w in words)',
            ('"".join(w[-1:] for w in words)', '" ".join(w[:1] for w in words)'),
        ),
        Template(
            "last_word",
            "take the last word or an empty text",
            'words[-1] if words else ""',
            ('words[0] if words else ""', 'words[-2] if words else ""'),
        ),
    ),
    (Kind.WORDS, Kind.NUMBERS): (
        Template(
            "word_lengths",
            "list the lengths of the words",
            "[len(w) for w in words]",
            ("[len(w) - 1 for w in words]", "[len(words) for w in words]"),
        ),
    ),
}
