import json

import pytest

from greenward.errors import ProblemError
from greenward.recipes.supervised_data import read_pairs


class Words:
    chat_template = "{{ messages }}"

    def encode(self, text):
        return [len(word) for word in text.split()]

    def render_chat(self, messages):
        return [number for m in messages for number in self.encode(m["content"])]


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_reads_prompts_with_completions_and_conversations(tmp_path):
    path = write(
        tmp_path / "pairs.jsonl",
        {"prompt": "a bb", "completion": "ccc"},
        "",
        {"messages": [{"role": "user", "content": "dddd"}, {"role": "assistant", "content": "e ff"}]},
    )
    assert list(read_pairs(path, Words())) == [((1, 2), (3,)), ((4,), (1, 2))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"line 2.*: not JSON"),
        ("[1]", r"row 2 \(line 2\): expected an object, found a list"),
        ({"prompt": "a"}, r"row 2 \(line 2\): field 'completion' must be text, found nothing"),
        ({"prompt": 3, "completion": "a"}, r"row 2 \(line 2\): field 'prompt' must be text, found a number"),
        ({"messages": [{"role": "user", "content": "a"}]}, r"row 2 .*'messages' must be a list"),
        (
            {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]},
            r"row 2 .*ends with the assistant",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "pairs.jsonl", {"prompt": "a", "completion": "b"}, line)
    with pytest.raises(ProblemError, match=message):
        list(read_pairs(path, Words()))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProblemError, match="there is no file"):
        list(read_pairs(tmp_path / "none.jsonl", Words()))


def test_messages_need_a_chat_template(tmp_path):
    path = write(
        tmp_path / "pairs.jsonl",
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    )
    tokenizer = Words()
    tokenizer.chat_template = None
    with pytest.raises(ProblemError, match="chat template"):
        list(read_pairs(path, tokenizer))
