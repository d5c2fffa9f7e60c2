from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from greenward.common.errors import CheckpointError
from greenward.models.tokenizer import END, PAD, Tokenizer, train_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHAT = [
    {"role": "system", "content": "Write Python."},
    {"role": "user", "content": "Define `add`: {% raw %} é"},
]


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda s: "<|" not in s))
def test_decoding_gives_back_the_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode(text)) == text.encode()


@pytest.mark.parametrize(
    "text", ["\r\n\r\n \t x\t\n", "  \n\n    \n", "a  +   b\n\n\tc", "1234567.5e-3 'é∑🙂'"]
)
def test_unusual_whitespace_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_known_lexemes_are_single_tokens():
    text = "def total(xs):\n    result = 0\n    for x in xs:\n        result += x\n"
    tokenizer = train_tokenizer([text] * 3, 400)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    head = ["def", " total", "(", "xs", "):", "\n    ", "result", " =", " 0"]
    loop = ["\n    ", "for", " x", " in", " xs", ":", "\n        ", "result", " +=", " x", "\n"]
    assert pieces == head + loop


def test_the_size_bound_holds_and_special_tokens_come_first(tokenizer):
    assert tokenizer.vocab_size <= 300
    assert tokenizer.special_ids == {END: 0, PAD: 1}
    assert (tokenizer.eos_id, tokenizer.pad_id) == (0, 1)
    assert train_tokenizer(["ab ab"], 258).vocab_size == 258
    assert tokenizer.decode([0, *tokenizer.encode("x"), 1]) == "x"


def test_training_is_deterministic():
    texts = ["a = b\n", "b = c\n", "c = a\n"]
    first, second = (train_tokenizer(texts, 270).backend.to_str() for _ in range(2))
    assert first == second


def test_auto_tokenizer_reads_a_saved_folder_and_gives_the_same_ids(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    again = Tokenizer.load(tmp_path)
    for text in ("def f(x):\n    return x\n", "é∑\t\n", f"a{END}b"):
        assert auto.encode(text) == tokenizer.encode(text) == again.encode(text)
    assert (auto.eos_token_id, auto.pad_token_id) == (tokenizer.eos_id, tokenizer.pad_id)
    assert again.eos_ids == tokenizer.eos_ids


def chat_tokenizer(folder):
    tokenizer = train_tokenizer(["hello\n"], 300)
    tokenizer.backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.chat_template = CHATML
    tokenizer.save(folder)
    return tokenizer


@pytest.mark.parametrize("place", ["jinja file", "tokenizer_config.json", "named list"])
def test_chats_render_as_transformers_renders_them(tmp_path, place):
    transformers = pytest.importorskip("transformers")
    chat_tokenizer(tmp_path)
    if place != "jinja file":
        (tmp_path / "chat_template.jinja").unlink()
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "x"}]
        config["chat_template"] = CHATML if place == "tokenizer_config.json" else named
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for prompt in (True, False):
        expected = auto.apply_chat_template(CHAT, add_generation_prompt=prompt, return_dict=False)
        assert tokenizer.render_chat(CHAT, add_generation_prompt=prompt) == expected


def test_what_follows_an_answer_continues_the_conversation_token_by_token(tmp_path):
    """Prompt, answer with its end token and what follows are the conversation as a whole."""
    made = chat_tokenizer(tmp_path)
    end = made.special_ids["<|im_end|>"]
    tokenizer = Tokenizer(made.backend, eos_ids=[end], chat_template=made.chat_template)
    reply, feedback = {"role": "assistant", "content": "pass"}, {"role": "user", "content": "A test fails."}
    answer = [*tokenizer.encode("pass"), end]
    parts = [*tokenizer.render_chat(CHAT), *answer, *tokenizer.render_next_message(CHAT, feedback)]
    assert parts == tokenizer.render_chat([*CHAT, reply, feedback])
    cut = tokenizer.render_next_message(CHAT, feedback, ended=False)  # by a stop string: no end token
    assert [*tokenizer.render_chat(CHAT), *tokenizer.encode("pass"), *cut] == parts


def test_a_begun_answer_is_rendered_as_evalplus_renders_it(tmp_path):
    """EvalPlus renders a whole answer with a mark in it, and cuts the text at the mark."""
    transformers = pytest.importorskip("transformers")
    tokenizer, begun = chat_tokenizer(tmp_path), "Below is a script:\n```python\n"
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    answer = {"role": "assistant", "content": f"{begun}MARK\n```\n"}
    expected = auto.apply_chat_template([*CHAT, answer], tokenize=False).split("MARK")[0]
    assert tokenizer.decode(tokenizer.render_chat(CHAT, begun=begun), skip_special_tokens=False) == expected
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    with pytest.raises(CheckpointError, match="does not render the assistant's answers"):
        tokenizer.render_chat(CHAT, begun=begun)


def test_an_answer_keeps_the_tokens_that_mark_its_parts(tmp_path):
    made = chat_tokenizer(tmp_path)
    made.backend.add_special_tokens(["<think>", "</think>"])
    tokenizer = Tokenizer(made.backend, eos_ids=[made.special_ids["<|im_end|>"]], pad_id=made.pad_id)
    text = "<think>pass</think>return"
    ids = [*tokenizer.encode(text), tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode_answer(ids) == text
    assert tokenizer.decode(ids) == "passreturn"


def test_a_template_that_drops_answers_cannot_go_on_after_one(tmp_path):
    tokenizer = chat_tokenizer(tmp_path)
    tokenizer.chat_template = "{{ messages[-1]['content'] }}"
    with pytest.raises(CheckpointError, match="does not render the assistant's answers"):
        tokenizer.render_next_message(CHAT, {"role": "user", "content": "A test fails."})


def test_a_template_cannot_reach_into_python(tmp_path):
    tokenizer = chat_tokenizer(tmp_path)
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(CheckpointError, match="chat template"):
        tokenizer.render_chat(CHAT)


def test_without_a_template_chat_is_refused(tokenizer):
    with pytest.raises(CheckpointError, match="prompt_style"):
        tokenizer.render_chat(CHAT)


def test_ends_of_text_come_from_all_files(tmp_path):
    chat_tokenizer(tmp_path)
    assert Tokenizer.load(tmp_path).eos_ids == (0,)
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 0]}')
    assert Tokenizer.load(tmp_path).eos_ids == (5, 0)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").unlink()
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match="end-of-sequence"):
        Tokenizer.load(tmp_path)


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json, found no such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_half_a_character_is_a_question_mark():
    tokenizer = train_tokenizer(["a ? b"] * 3, vocab_size=300)
    assert tokenizer.encode("a \ud800 é") == tokenizer.encode("a ? é")


def with_marks(tokens, special):
    """A tokenizer with added tokens, the first three of which mark a gap."""
    tokenizer = train_tokenizer(["a = 1\n"], 270)
    tokenizer.backend.add_tokens([AddedToken(one, special=special, normalized=False) for one in tokens])
    return Tokenizer(tokenizer.backend, eos_ids=tokenizer.eos_ids)


MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def test_of_a_long_text_what_is_near_the_gap_is_rendered():
    tokenizer = with_marks(MARKS, True)
    prefix, suffix, middle = (tokenizer.backend.token_to_id(one) for one in MARKS)
    before, after = tokenizer.encode("a = 1\n" * 20), tokenizer.encode("b = 2\n" * 20)
    whole = [prefix, *before, suffix, *after, middle]
    assert tokenizer.render_gap("a = 1\n" * 20, "b = 2\n" * 20, most=len(whole)) == whole
    for most in (3, 4, 20, 21, 22, len(whole) - 1):
        ids = tokenizer.render_gap("a = 1\n" * 20, "b = 2\n" * 20, most=most)
        at = ids.index(suffix)
        assert len(ids) == most and (ids[0], ids[-1]) == (prefix, middle)
        assert ids[1:at] == before[len(before) - at + 1 :] and ids[at + 1 : -1] == after[: len(ids) - at - 2]
        assert at - 1 == min(len(before), most - 3 - (most - 3) // 3)


@pytest.mark.parametrize("special", [True, False])
def test_what_fills_a_gap_ends_at_an_added_token_that_is_no_space(special):
    tokenizer = with_marks([*MARKS, "<|file_sep|>"], special)
    tokenizer.backend.add_tokens([AddedToken(" " * 4, normalized=False)])
    ids = tokenizer.encode("    return 1<|file_sep|>    return 2")
    assert tokenizer.backend.token_to_id("    ") in ids
    assert tokenizer.decode_filling(ids) == "    return 1"
    assert tokenizer.decode_filling([*tokenizer.encode("x"), tokenizer.eos_id, *ids]) == "x"
