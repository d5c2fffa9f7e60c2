"""The JSON client against a server that fails in every way: what is repeated, what is refused, what is shown."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from greenward.common.errors import ConfigError
from greenward.common.http import JsonClient, RequestFailed, RequestRefused, RetryPolicy
from openai_server import FAULTS, KEY, OpenAIServer

QUICK = RetryPolicy(attempts=3, attempt_seconds=0.25, total_seconds=5.0, first_wait=0.01, longest_wait=0.02)


def met(server: OpenAIServer, **options) -> JsonClient:
    """A client that has had an answer."""
    client = JsonClient(server.url, **{"patience": QUICK, **options})
    client.request("GET", "/models")
    return client


def asked(client: JsonClient, prompt: str = "p", model: str = "tiny"):
    payload = {"model": model, "prompt": prompt, "max_tokens": 99}
    return client.request("POST", "/completions", payload, parse=lambda found: found["choices"][0]["text"])


@pytest.mark.parametrize("fault", [*FAULTS, "drip"])
def test_an_answer_is_repeated_until_it_comes(fault) -> None:
    with OpenAIServer(fault=lambda _, attempt: fault if attempt < 3 else None) as server:
        assert asked(met(server)) == "answer to p"
        assert server.attempts["p"] == 3


@pytest.mark.parametrize(
    "fault, message",
    [
        ("500", r"answered 500: overloaded �\[31m�$"),
        ("hang", "no answer within 0.25 seconds"),
        ("drip", "no answer within 0.25 seconds"),
        ("cut", "the connection failed .*cut short"),
        ("cut_at_once", "the connection failed .*without response"),
        ("not_json", r'expected other JSON, found {"choices": \['),
        ("html", r"expected other JSON, found an HTML page \(Welcome\)"),
        ("other_json", "expected other JSON, found {"),
        ("big", "more than 4000000 bytes"),
    ],
)
def test_what_always_fails_is_infrastructure_after_three_attempts(fault, message) -> None:
    with OpenAIServer(fault=lambda *_: fault) as server:
        client = met(server, max_bytes=4_000_000)
        with pytest.raises(RequestFailed, match=message) as failed:
            asked(client)
        assert "\x1b" not in str(failed.value) and "\n" not in str(failed.value)
        assert server.attempts["p"] == 3
        with pytest.raises(RequestFailed):
            asked(client, "q")
        assert server.attempts["q"] == 1  # the server may have died; nobody waits for it again
        server.fault = lambda *_: None
        assert asked(client, "q") == "answer to q"
        server.fault = lambda prompt, attempt: "500" if attempt < 3 else None
        assert asked(client, "r") == "answer to r"


def test_a_server_that_never_answered_gets_one_attempt() -> None:
    with OpenAIServer(fault=lambda *_: "500") as server:
        with pytest.raises(RequestFailed, match="answered 500"):
            asked(JsonClient(server.url))
        assert server.attempts["p"] == 1


def test_a_refusal_is_shown_and_not_repeated() -> None:
    with OpenAIServer(context=8) as server:
        client = JsonClient(server.url, patience=QUICK)
        with pytest.raises(RequestRefused, match="answered 400: This model's maximum context") as refused:
            asked(client)
        assert (refused.value.status, server.attempts["p"]) == (400, 1)
        with pytest.raises(RequestRefused, match="404: The model `other` does not exist"):
            asked(client, model="other")
        with pytest.raises(RequestRefused, match=r"/nothing answered 404: Not Found"):
            client.request("POST", "/nothing", {})


def test_too_many_requests_are_no_failures_and_all_wait() -> None:
    until = time.monotonic() + 0.5
    with OpenAIServer(fault=lambda *_: "429" if time.monotonic() < until else None) as server:
        client = JsonClient(server.url, patience=RetryPolicy(attempts=1, first_wait=0.01))
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: asked(client), range(4))) == {"answer to p"}
        assert 8 < server.attempts["p"] < 4 * 0.5 / 0.05 + 8


def test_waits_for_a_rate_limit_that_names_no_time_grow() -> None:
    patience = RetryPolicy(attempts=1, total_seconds=1.0, first_wait=0.02)
    with OpenAIServer(fault=lambda *_: "429", retry_after=None) as server:
        with pytest.raises(RequestFailed, match="answered 429"):
            asked(JsonClient(server.url, patience=patience))
        assert 3 <= server.attempts["p"] <= 8


def test_a_quota_that_is_used_up_is_a_refusal() -> None:
    with OpenAIServer(fault=lambda *_: "quota") as server:
        with pytest.raises(RequestRefused, match="answered 429: You exceeded your current quota"):
            asked(JsonClient(server.url))
        assert server.attempts["p"] == 1


@pytest.mark.parametrize("date", [False, True])
def test_who_is_asked_to_wait_longer_than_allowed_gives_up_at_once(date) -> None:
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with OpenAIServer(
        fault=lambda *_: "429", retry_after=format_datetime(later, usegmt=True) if date else "3600"
    ) as server:
        with pytest.raises(RequestFailed, match="answered 429: rate limit"):
            asked(JsonClient(server.url, patience=QUICK))
        assert server.attempts["p"] == 1


def test_connections_are_kept_and_a_closed_one_is_replaced() -> None:
    with OpenAIServer() as server:
        client = JsonClient(server.url, patience=RetryPolicy(attempts=1))
        for number in range(5):
            asked(client, str(number))
        assert len(server.connections) == 1
        server.hang_up()
        time.sleep(0.05)
        assert asked(client) == "answer to p"
        assert len(server.connections) == 2
    with pytest.raises(RequestFailed, match="connection failed"):
        asked(client)


def test_closing_ends_what_is_under_way() -> None:
    with OpenAIServer(fault=lambda *_: "hang") as server, ThreadPoolExecutor(2) as pool:
        client = JsonClient(server.url)
        waiting = [pool.submit(asked, client) for _ in range(2)]
        while server.running < 2:
            time.sleep(0.01)
        threading.Timer(0.05, client.close).start()
        for one in waiting:
            with pytest.raises(RequestFailed):
                one.result(timeout=10)


def test_the_key_is_sent_and_never_shown() -> None:
    with OpenAIServer(answer=lambda _: f"your key is {KEY}", key=KEY) as server:
        client = JsonClient(server.url, token=KEY, patience=QUICK)
        assert asked(client) == "your key is ***"
        with pytest.raises(RequestRefused, match=r"answered 401: Incorrect API key provided: \*\*\*\."):
            server.key = "another"
            asked(client)
        assert KEY not in repr(client)
    with OpenAIServer(answer=lambda _: "result: EMPTY", key="EMPTY") as server:  # a placeholder, no secret
        assert asked(JsonClient(server.url, token="EMPTY", patience=QUICK)) == "result: EMPTY"
    for wrong in (f"{KEY}\n", f"{KEY} {KEY}", "", "ключ"):
        with pytest.raises(ConfigError, match="holds characters that no key has") as error:
            JsonClient(server.url, token=wrong)
        assert KEY not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://host/v1", "http://", "http:///v1", "http://host:port/v1"),
        *("http://[::1/v1", "http://host/\x1b[31m", "http://host:0/v1", "http://ho st/v1"),
    ],
)
def test_what_is_no_url_is_refused(url) -> None:
    with pytest.raises(ConfigError, match="expected the URL of a server, found") as error:
        JsonClient(url)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    "url", [f"http://me:{KEY}@host/v1", f"http://host/v1?key={KEY}", f"http://host/#{KEY}"]
)
def test_a_url_with_a_key_is_refused_without_showing_it(url) -> None:
    with pytest.raises(ConfigError, match="no user, no query and no fragment") as error:
        JsonClient(url)
    assert KEY not in str(error.value)
