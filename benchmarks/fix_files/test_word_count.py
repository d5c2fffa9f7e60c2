from word_count import average_length, frequencies, most_common, words

TEXT = "The cat and the dog: a dog's life, the CAT said. Cat!"


def test_words():
    assert words("Don't stop, dog!") == ["don't", "stop", "dog"]


def test_frequencies():
    assert frequencies(TEXT) == {"cat": 3, "dog": 1, "dog's": 1, "life": 1, "said": 1}
    assert frequencies(TEXT, keep_stop_words=True)["the"] == 3


def test_most_common():
    assert most_common(TEXT, 3) == ["cat", "dog", "dog's"]


def test_average_length():
    assert average_length("one three") == 4
    assert average_length("") == 0
