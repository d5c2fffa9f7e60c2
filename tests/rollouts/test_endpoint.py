"""Models behind a server: what is sent, what comes back, and the server as a rollout engine."""

from __future__ import annotations

import pytest

from greenward.common.errors import ConfigError, EngineError
from greenward.common.http import RequestError, RetryPolicy
from greenward.rollouts.endpoint import Endpoint, EndpointEngine, TextTokenizer, is_endpoint
from greenward.rollouts.protocols import SamplingParams, StopReason
from openai_server import KEY, OpenAIServer

QUICK = RetryPolicy(attempts=2, attempt_seconds=0.25, total_seconds=2.0, first_wait=0.01)


def endpoint(server: OpenAIServer, **options) -> Endpoint:
    return Endpoint(f"tiny@{server.url}", patience=QUICK, **options)


def test_names_of_servers_are_told_from_folders_and_ids() -> None:
    assert all(map(is_endpoint, ["a/b@http://h/v1", "https://h", "a@b@http://h/v1", "http://h/v1"]))
    assert not any(map(is_endpoint, ["Qwen/Qwen3-0.6B", "runs/mine", "a@b", "ftp://h", "runs/http:/h"]))


def test_a_question_is_sent_in_the_terms_of_the_api() -> None:
    with OpenAIServer() as server:
        asked = endpoint(server)
        params = SamplingParams(max_tokens=7, temperature=0.5, top_p=0.9, stop_strings=tuple("abcdef"))
        messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
        answer = asked.ask(messages, params, seed=1)
        assert (answer.text, answer.truncated, answer.prompt_tokens) == ("answer to hello#1", False, 1)
        assert asked.ask("hello", SamplingParams(max_tokens=2, temperature=0.0)).truncated
    assert server.payloads == [
        {"model": "tiny", "messages": messages, "max_tokens": 7, "temperature": 0.5, "top_p": 0.9}
        | {"stop": list("abcd"), "seed": 1},
        {"model": "tiny", "prompt": "hello", "max_tokens": 2, "temperature": 0.0},
    ]


def test_a_server_that_knows_only_the_newer_limit_gets_it() -> None:
    with OpenAIServer(new=True) as server:
        asked = endpoint(server)
        for _ in range(2):
            assert asked.ask([{"role": "user", "content": "p"}], SamplingParams()).text == "answer to p"
        assert [sorted(one)[0] for one in server.payloads] == ["max_tokens", *["max_completion_tokens"] * 2]
        with pytest.raises(RequestError, match="Unsupported parameter"):
            asked.ask("p", SamplingParams())  # the completions API has one name only


# As OpenAI, FastAPI's validation and others word it.
REFUSALS = {
    "temperature": {"error": {"message": "Unsupported value: 'temperature' does not support 0.5 with this model."}},
    "top_p": {"error": {"message": "Invalid value.", "type": "invalid_request_error", "param": "top_p"}},
    "stop": {"detail": [{"type": "extra_forbidden", "loc": ["body", "stop"], "msg": "Extra inputs are not permitted"}]},
    "seed": {"error": "Unrecognized request argument supplied: seed"},
}  # fmt: skip


@pytest.mark.parametrize("refused", [*([name] for name in REFUSALS), list(REFUSALS)])
@pytest.mark.parametrize("chat", [True, False])
def test_a_parameter_that_is_refused_by_name_is_left_out_from_then_on(refused, chat) -> None:
    params = SamplingParams(max_tokens=7, temperature=0.5, top_p=0.9, stop_strings=("\n\n",))
    prompt = [{"role": "user", "content": "p"}] if chat else "p"
    with OpenAIServer(refuses={name: REFUSALS[name] for name in refused}) as server:
        asked = endpoint(server)
        for number in range(3):
            answer = asked.ask(prompt, params, seed=number)
            assert answer.text.startswith("answer to p")
            assert answer.refused == tuple(sorted(refused))
        assert asked.refused == set(refused)
        assert len(server.payloads) == len(refused) + 3
        assert all(payload.keys().isdisjoint(refused) for payload in server.payloads[-3:])
        assert server.payloads[-1].keys() >= set(REFUSALS) - set(refused)
        plain = asked.ask(prompt, SamplingParams(temperature=0.0))
        assert plain.refused == tuple(name for name in ("temperature",) if name in refused)


def test_of_two_parameters_that_exclude_each_other_the_lesser_is_left_out() -> None:
    both = {"error": {"message": "`temperature` and `top_p` cannot both be specified for this model."}}
    with OpenAIServer(refuses={"top_p": both}) as server:
        answer = endpoint(server).ask("p", SamplingParams(temperature=0.2, top_p=0.9))
        assert answer.refused == ("top_p",)
        assert server.payloads[-1]["temperature"] == 0.2


@pytest.mark.parametrize(
    "message", ["Your prompt holds a temperature and a seed.", "max_tokens is too large: 512.", "No."]
)
def test_a_request_that_is_refused_for_another_reason_is_refused_and_keeps_its_parameters(message) -> None:
    with OpenAIServer() as server:
        asked = endpoint(server)
        server.refuses = {"model": {"error": {"message": message}}}
        with pytest.raises(RequestError, match=f"answered 400: {message}"):
            asked.ask([{"role": "user", "content": "p"}], SamplingParams(temperature=0.5), seed=1)
        assert len(server.payloads) <= 3
        server.refuses = {}
        assert asked.ask("p", SamplingParams(temperature=0.5), seed=1).refused == ()
        assert {"temperature", "seed", "max_tokens"} <= server.payloads[-1].keys()


def test_a_limit_of_tokens_that_is_refused_by_its_name_gets_the_newer_one() -> None:
    old = {"error": {"message": "Unsupported parameter.", "param": "max_tokens"}}
    with OpenAIServer(refuses={"max_tokens": old, "temperature": REFUSALS["temperature"]}) as server:
        answer = endpoint(server).ask([{"role": "user", "content": "p"}], SamplingParams(max_tokens=9))
        assert (answer.refused, server.payloads[-1]["max_completion_tokens"]) == (("temperature",), 9)
        assert len(server.payloads) == 3


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        ({"content": ["a", {"type": "output_text", "text": "b"}]}, "ab"),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}, {"text": "b"}]},
            "b",
        ),
        ({"content": []}, ""),
        ({"content": None, "reasoning_content": "so …", "reasoning": "so …"}, ""),
        ({"content": None, "refusal": "I cannot."}, "I cannot."),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "I cannot."),
        ({"content": "a", "refusal": None}, "a"),
        ({"role": "assistant"}, ""),
    ],
)
@pytest.mark.parametrize("finish", [None, "stop"])
def test_answers_in_parts_or_without_content_are_texts_at_the_first_attempt(message, text, finish) -> None:
    with OpenAIServer() as server:
        server.completion = lambda: {
            "choices": [{"message": message, "finish_reason": finish}],
            "usage": None,
        }
        answer = endpoint(server).ask([{"role": "user", "content": "p"}], SamplingParams())
        assert (answer.text, answer.truncated, len(server.payloads)) == (text, False, 1)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"choices": []}, "it holds no choice"),
        ({"choices": None}, "it holds no choice"),
        ({"choices": [{"delta": {"content": "a"}}]}, "a part of a streamed answer"),
        ({"choices": [{"message": {"content": [1]}}]}, "the content is no text"),
        ({"choices": [{"message": {"content": 1}}]}, "the content is no text"),
    ],
)
def test_what_is_no_answer_is_told_in_words(found, message) -> None:
    with OpenAIServer() as server:
        server.completion = lambda: found
        with pytest.raises(RequestError, match=message):
            endpoint(server).ask([{"role": "user", "content": "p"}], SamplingParams())


def test_a_server_that_only_streams_is_told_in_words_and_not_asked_again() -> None:
    with OpenAIServer() as server:
        asked = endpoint(server)
        asked.ask("p", SamplingParams())
        server.fault = lambda *_: "stream"
        with pytest.raises(RequestError, match="found a stream of parts") as refused:
            asked.ask("q", SamplingParams())
        assert server.attempts["q"] == 1
        server.fault, server.refuses = (
            lambda *_: None,
            {"model": {"error": {"message": "stream must be true"}}},
        )
        with pytest.raises(RequestError, match="stream must be true") as also:
            asked.ask("q", SamplingParams())
        for error in (refused.value, also.value):
            assert "switch streaming off" in str(asked.explained(error))


def test_the_only_model_of_a_server_needs_no_name() -> None:
    with OpenAIServer(models=("only",)) as server:
        assert Endpoint(server.url).model == "only"
        server.models = ("one", "two")
        with pytest.raises(ConfigError, match=r"serves 2 models: one, two\.\n  Name one of them"):
            Endpoint(server.url)
        with pytest.raises(ConfigError, match=r"404: an HTML page .404: not here.*\n  URLs .* end in /v1"):
            Endpoint(server.url.removesuffix("/v1"))
    with pytest.raises(EngineError, match=r"connection failed .*\n  Is the server running"):
        Endpoint(server.url)


def test_the_key_comes_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    with OpenAIServer(key=KEY) as server:
        assert endpoint(server, key_variable="OTHER_KEY").ask("p", SamplingParams()).text
        for set_to in ("sk-wrong", ""):
            monkeypatch.setenv("OPENAI_API_KEY", set_to)
            with pytest.raises(ConfigError, match=r"401: .*\n  The key comes from .* OPENAI_API_KEY"):
                Endpoint(server.url)
        for name, message in (
            ("UNSET_KEY", "UNSET_KEY is not set"),
            (KEY, "is the name, in capital letters"),
        ):
            with pytest.raises(ConfigError, match=message) as error:
                endpoint(server, key_variable=name)
            assert KEY not in str(error.value)


@pytest.mark.parametrize("found", [[], {}, "text", {"choices": []}, {"choices": [{"text": 7}]}, None])
def test_other_json_is_no_answer(found) -> None:
    with OpenAIServer() as server:
        asked = endpoint(server)
        asked.ask("p", SamplingParams())
        server.completion = lambda: found
        with pytest.raises(RequestError, match="expected other JSON"):
            asked.ask("p", SamplingParams())
        assert server.attempts["p"] == 3


def test_an_answer_without_content_is_empty_and_one_without_usage_counts_no_tokens() -> None:
    with OpenAIServer() as server:
        server.completion = lambda: {"choices": [{"message": {"content": None}, "finish_reason": "length"}]}
        answer = endpoint(server).ask([{"role": "user", "content": "p"}], SamplingParams())
        assert (answer.text, answer.truncated, answer.completion_tokens) == ("", True, None)


def test_halves_of_characters_are_replaced() -> None:
    with OpenAIServer(lambda _: "a\ud800b\x00") as server:
        assert endpoint(server).ask("p", SamplingParams()).text == "a?b\x00"


def test_text_and_conversations_become_tokens_and_text_again() -> None:
    tokens = TextTokenizer()
    for text in ("", "a\n\U0010ffff\ud800 <|user|>"):
        assert tokens.prompt(tokens.encode(text)) == tokens.decode(tokens.encode(text)) == text
    messages = [{"role": role, "content": role * 2} for role in ("system", "user", "assistant", "user")]
    ids = tokens.render_chat(messages)
    assert tokens.prompt(ids) == messages
    assert tokens.decode(tokens.render_chat([{"role": "user", "content": "hi"}])) == "hi"
    answered = [*tokens.render_chat(messages[:2]), *tokens.encode("assistant" * 2)]
    following = tokens.render_next_message(messages[:2], messages[3])
    assert tokens.prompt([*answered, *following]) == messages


def test_as_an_engine_it_answers_all_prompts_several_at_a_time() -> None:
    with OpenAIServer(seconds=0.05) as server:
        engine, tokens = EndpointEngine(endpoint(server, concurrency=4)), TextTokenizer()
        prompts = [tokens.encode(f"p{number}") for number in range(6)]
        seen, told = {}, []
        engine.on_tokens = told.append
        groups = engine.sample(prompts, 2, SamplingParams(), seed=0, on_group=seen.__setitem__)
        assert len(told) == 12 and min(told) > 0  # as the server counts them
        assert [[tokens.decode(one.token_ids) for one in group] for group in groups] == [
            [f"answer to p{number}"] * 2 for number in range(6)
        ]
        assert dict(sorted(seen.items())) == dict(enumerate(groups))
        assert 2 <= server.most_at_once <= 4
        ((short,), (whole,)) = engine.sample(prompts[:2], [1, 1], SamplingParams(max_tokens=2), seed=0)
        assert (short.stop_reason, whole.stop_reason) == (StopReason.LENGTH, StopReason.LENGTH)


def test_as_an_engine_it_gives_the_other_groups_when_one_answer_fails_for_good() -> None:
    with OpenAIServer(fault=lambda prompt, _: "500" if prompt == "p3" else None) as server:
        engine, tokens = EndpointEngine(endpoint(server, concurrency=1)), TextTokenizer()
        seen = {}
        prompts = [tokens.encode(f"p{number}") for number in range(6)]
        with pytest.raises(EngineError, match="answered 500"):
            engine.sample(prompts, 1, SamplingParams(), seed=0, on_group=seen.__setitem__)
        assert sorted(seen) == [0, 1, 2, 4, 5]
