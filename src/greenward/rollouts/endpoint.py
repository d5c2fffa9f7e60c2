"""Models behind OpenAI-compatible servers: asked by text, many requests at a time, and as rollout engines.

- The key is that of `OPENAI_API_KEY` (in the environment or `.env`), or of the variable of `--api-key-env`.
  It goes to this server only and is never written. A key on the command line or in a URL is refused.
  Redirects are not followed and proxies are not used.
- Parameters that the server refuses (`temperature`, `top_p`, `stop`, `seed`) are left out from then on, and
  `refused_parameters` names them.
- After 429 all requests wait, as long as `Retry-After` says; after 408, 425, 5xx or a lost connection there
  are up to six attempts. An answer whose attempts have failed is lost to the infrastructure and is tried
  again by the same command. The command ends with the server's message after 401, 402, 403, 404 and a quota
  that is used up.
- Resuming asks for the missing answers only; whether the server still serves the same weights is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from greenward.common.errors import ConfigError, EngineError, GreenwardError
from greenward.common.http import (
    TOO_MANY,
    JsonClient,
    RequestError,
    RequestFailed,
    RequestRefused,
    RetryPolicy,
    is_on_this_machine,
)
from greenward.common.interruption import POLL_SECONDS, check
from greenward.common.text import encodable, load_keys, visible
from greenward.rollouts.protocols import Completion, OnGroup, OnTokens, SamplingParams, StopReason, per_prompt

if TYPE_CHECKING:
    from greenward.models.policy import Policy

API_KEY = "OPENAI_API_KEY"
CONCURRENCY = 8
_MAX_STOPS = 4  # OpenAI takes no more
_NEWER_LIMIT = "max_completion_tokens"  # newer models of OpenAI know this name of `max_tokens` only
# What a server may refuse and is asked without then, that first which changes the answers least.
_DISPENSABLE = ("seed", "stop", "top_p", "temperature")
_WITHOUT_STREAM = "Whole answers are needed: switch streaming off in the server, or ask another one."
_PLACE = re.compile(r"(?:(.*)@)?(https?://.*)", re.DOTALL)
_ROLES = ("system", "user", "assistant")
_FIRST_ROLE = 0x110000  # ids from here on are no characters

Prompt = str | Sequence[Mapping[str, str]]
"""A text that is continued (completions API), or the messages of a conversation (chat API)."""


@dataclass(frozen=True)
class Answer:
    """What a server answered. The numbers of tokens are the server's own, None where it gives none.

    `refused` are the parameters that it did not take, so that it decoded without them.
    """

    text: str
    truncated: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    refused: tuple[str, ...] = ()


def refuses_all(error: RequestError) -> bool:
    """Whether the server would refuse every request: by the key, the model or a quota that is used up."""
    return isinstance(error, RequestRefused) and error.status in (401, 402, 403, 404, TOO_MANY)


def is_endpoint(name: str) -> bool:
    """Whether `name` is MODEL@URL or the URL of a server, and no folder or Hugging Face id."""
    return _PLACE.fullmatch(name) is not None


class Endpoint:
    """The model that `name`, MODEL@URL or a URL, stands for; of a URL alone, the only one that it serves.

    The key comes from the environment variable `key_variable`, else from OPENAI_API_KEY there or in a file
    `.env`, if there is one. At most `concurrency` requests are under way. Raises `ConfigError` for a name, a
    variable or a choice of model that cannot be, and what `explained` gives if the server cannot be asked
    which models it has.

    `refused` are the parameters that the server has refused by name, and is not sent any more.
    """

    def __init__(
        self,
        name: str,
        *,
        key_variable: str | None = None,
        concurrency: int = CONCURRENCY,
        patience: RetryPolicy | None = None,
    ) -> None:
        place = _PLACE.fullmatch(name)
        self._client = JsonClient(place[2] if place else name, token=_key(key_variable), patience=patience)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="endpoint")
        self._limit = "max_tokens"
        self.refused: frozenset[str] = frozenset()
        self.url = self._client.url
        self.model = (place and place[1]) or self._only_model()

    @property
    def leaving_line(self) -> str | None:
        """One line on what leaves this machine; None for a server on it."""
        if is_on_this_machine(self.url):
            return None
        return f"Leaves this machine: all prompts, to {self.url} (a model that is loaded here keeps them)."

    def ask(self, prompt: Prompt, params: SamplingParams, seed: int | None = None) -> Answer:
        """The answer to one prompt. The server draws by `seed`, if there is one. Raises `RequestError`."""
        is_chat = not isinstance(prompt, str)
        limit, refused = self._limit if is_chat else "max_tokens", self.refused
        stops = params.stop_strings[:_MAX_STOPS] or None
        optional = {"top_p": params.top_p if params.top_p < 1 else None, "stop": stops, "seed": seed}
        payload: dict[str, Any] = {"temperature": params.temperature}
        payload |= {name: value for name, value in optional.items() if value is not None}
        path = "/chat/completions" if is_chat else "/completions"
        while True:
            sent = {
                "model": self.model,
                "messages" if is_chat else "prompt": prompt,
                limit: params.max_tokens,
            }
            sent |= {name: value for name, value in payload.items() if name not in refused}
            try:
                answer: Answer = self._client.request("POST", path, sent, parse=_answer)
            except RequestRefused as error:
                if error.status not in (400, 422):
                    raise
                if is_chat and "max_tokens" in sent and _refuses_limit(error.message):
                    limit = _NEWER_LIMIT
                elif named := [name for name in _DISPENSABLE if name in sent and _names(error.message, name)]:
                    refused |= {named[0]}
                else:
                    raise
            else:  # only now is it sure that the parameters were what was wrong
                self._limit = limit if is_chat else self._limit
                self.refused |= refused
                return replace(answer, refused=tuple(sorted(refused & payload.keys())))

    def ask_all(
        self,
        asked: Sequence[tuple[Prompt, int | None]],
        params: SamplingParams,
        keep: Callable[[int, Answer], None] = lambda *_: None,
    ) -> Iterator[list[tuple[int, Answer | RequestError]]]:
        """The answers to prompts with their seeds, each with its number, in the order in which they arrive.

        In place of an answer that failed for good there is the reason. `keep` gets each answer at once, in
        one of several threads.
        """
        arrived: SimpleQueue[tuple[int, Answer | BaseException]] = SimpleQueue()

        def ask(number: int) -> None:
            prompt, seed = asked[number]
            try:
                answer = self.ask(prompt, params, seed)
                keep(number, answer)
                arrived.put((number, answer))
            except BaseException as error:
                arrived.put((number, error))

        futures = [self._pool.submit(ask, number) for number in range(len(asked))]
        left = len(asked)
        try:
            while left:
                check()
                batch = []
                with suppress(Empty):
                    batch.append(arrived.get(timeout=POLL_SECONDS))
                    while True:
                        batch.append(arrived.get_nowait())
                left -= len(batch)
                found: list[tuple[int, Answer | RequestError]] = []
                for number, answer in batch:
                    if not isinstance(answer, Answer | RequestError):
                        raise answer
                    found.append((number, answer))
                yield found
        except (KeyboardInterrupt, GeneratorExit):
            self.close()
            raise
        finally:
            for future in futures:
                future.cancel()

    def explained(self, error: RequestError) -> GreenwardError:
        """The error of a request as one that ends a command, with what to do about it.

        It is an `EngineError` where the same request may succeed later.
        """
        remedy: str | None = None
        if error.status in (401, 403):
            remedy = f"The key comes from the environment variable {API_KEY}, or from --api-key-env NAME."
        elif isinstance(error, RequestRefused) and _names(error.message, "stream(s|ing)?"):
            remedy = _WITHOUT_STREAM
        elif error.status in (200, 404):
            remedy = "URLs of such servers usually end in /v1."
            with suppress(RequestError):
                remedy = f"It serves: {', '.join(self._models())[:300]}."
        elif error.status == 400 and ("context" in error.message or "max_tokens" in error.message):
            remedy = "Lower the number of tokens of an answer (--max-tokens), or serve a longer context."
        elif not error.status:
            remedy = "Is the server running, and is the URL right?"
        later = isinstance(error, RequestFailed) and error.status != 200
        return (EngineError if later else ConfigError)(error.message, remedy=remedy)

    def close(self) -> None:
        self._client.close()
        self._pool.shutdown(cancel_futures=True)

    def _models(self) -> list[str]:
        return self._client.request(
            "GET", "/models", parse=lambda listed: [visible(one["id"], 200) for one in listed["data"]]
        )

    def _only_model(self) -> str:
        try:
            models = self._models()
        except RequestError as error:
            raise self.explained(error) from None
        if len(models) == 1:
            return models[0]
        raise ConfigError(
            f"{self.url} serves {len(models)} models: {', '.join(models)[:300]}.",
            remedy="Name one of them: MODEL@URL, or --model MODEL with --base-url.",
        )


class TextTokenizer:
    """The tokens of engines that are asked by text: the number of each character, and one for each role.

    In a conversation, the number of its role comes before each message and before the answer.
    """

    chat_template = "the server's"
    begins_answers = False
    special_ids: Mapping[str, int] = {}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return list(map(ord, text))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text, without roles."""
        return "".join(chr(one) for one in map(int, ids) if one < _FIRST_ROLE)

    decode_answer = decode

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        begun: str = "",
    ) -> list[int]:
        ids = []
        for message in (*messages, {"role": "assistant", "content": ""}):
            ids += [_FIRST_ROLE + _ROLES.index(message["role"]), *self.encode(message["content"])]
        return ids

    def render_next_message(
        self, messages: Sequence[dict[str, Any]], message: dict[str, Any], *, ended: bool = True
    ) -> list[int]:
        return self.render_chat([message])

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """The inverse of `render_chat`, or of `encode` where there are no roles."""
        starts = [place for place, one in enumerate(ids) if one >= _FIRST_ROLE]
        messages = [
            {"role": _ROLES[ids[start] - _FIRST_ROLE], "content": self.decode(ids[start:end])}
            for start, end in pairwise([*starts, len(ids)])
        ]
        return messages[:-1] if messages else self.decode(ids)


class EndpointEngine:
    """An endpoint as a rollout engine: its tokens are those of `TextTokenizer`, its log-probabilities 0."""

    deterministic = False
    max_positions = 1 << 30  # the server knows; it refuses what is too long
    on_tokens: OnTokens | None = None

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        """As `RolloutEngine.sample`, but for the seed, which is not used.

        Raises `EngineError` if an answer failed for good, once all groups have been asked for.
        """
        sizes = per_prompt(group_sizes, len(prompts))
        groups: list[list[Completion]] = [[] for _ in prompts]
        group_of = [group for group, size in enumerate(sizes) for _ in range(size)]
        asked = [(TextTokenizer().prompt(prompts[group]), None) for group in group_of]
        failed: RequestError | None = None
        for batch in self._endpoint.ask_all(asked, params):
            for number, answer in batch:
                group = groups[group_of[number]]
                if isinstance(answer, RequestError):
                    failed = answer
                    continue
                if self.on_tokens is not None:
                    self.on_tokens(answer.completion_tokens or 0)  # those that the server has counted
                ids = np.array(TextTokenizer().encode(answer.text), dtype=np.int64)
                stop = StopReason.LENGTH if answer.truncated else StopReason.END
                group.append(Completion(ids, np.zeros(len(ids), dtype=np.float32), stop, 0))
                if on_group and len(group) == sizes[group_of[number]]:
                    on_group(group_of[number], group)
        if failed:
            raise EngineError(failed.message)
        return groups

    def sync(self, policy: Policy) -> None:
        """Nothing: the server has its own weights."""


def _names(message: str, parameter: str) -> bool:
    return re.search(rf"(?<!\w){parameter}(?!\w)", message) is not None


def _refuses_limit(message: str) -> bool:
    """Whether an error is about the name `max_tokens`, and not about the number of tokens."""
    unknown = re.search(
        r"unsupported|not supported|unrecogni[sz]ed|unknown|not permitted", message, re.IGNORECASE
    )
    return _NEWER_LIMIT in message or (_names(message, "max_tokens") and unknown is not None)


def _answer(found: Any) -> Answer:
    """The first choice of a completion. Raises `ValueError`, `LookupError` or `TypeError` for other JSON."""
    if isinstance(found, dict) and "choices" in found and not found["choices"]:
        raise ValueError("it holds no choice")
    choice, usage = found["choices"][0], found.get("usage")
    if "message" in choice:
        message = dict(choice["message"])
        # Without content, all tokens went into the reasoning, which servers send apart, or it refused.
        text = _joined(message.get("content")) or _joined(message.get("refusal"))
    elif "delta" in choice:
        raise ValueError("it is a part of a streamed answer")
    else:
        text = _joined(choice["text"])
    counts = usage if isinstance(usage, dict) else {}
    prompt, completion = (
        count if isinstance(count := counts.get(name), int) and 0 <= count < 1 << 53 else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    return Answer(encodable(text), choice.get("finish_reason") == "length", prompt, completion)


def _joined(content: Any) -> str:
    """A text, or the texts among the parts of an answer; those of other types hold no answer."""
    if isinstance(content, str | None):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, str | dict) for part in content):
        raise ValueError("the content is no text")
    texts = [part if isinstance(part, str) else part.get("text") or part.get("refusal") for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def _key(variable: str | None) -> str | None:
    """The key in an environment variable. Messages do not repeat what may be a key itself."""
    load_keys()
    if variable is None:
        return os.environ.get(API_KEY, "").strip() or None
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        raise ConfigError(
            "--api-key-env is the name, in capital letters, of the environment variable that holds the key.",
            remedy=f"Set the variable to the key first: export {API_KEY}=….",
        )
    if key := os.environ.get(variable, "").strip():
        return key
    raise ConfigError(f"the environment variable {variable} is not set; it should hold the server's key.")


@dataclass(frozen=True)
class ServedModel:
    """A model behind a server, in the form of a `FoundModel`. What only its files would say is unknown."""

    endpoint: Endpoint
    tokenizer = TextTokenizer()
    recipe = None
    max_positions = None

    @property
    def name(self) -> str:
        return self.endpoint.model

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "step": None, "weights": None, "server": self.endpoint.url}
