"""Chat templates of published models: Jinja source, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from greenward.errors import CheckpointError


def render(
    source: str, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, **tokens: str
) -> str:
    """The text of a conversation. Raises CheckpointError when the template refuses it."""
    from jinja2 import TemplateError

    try:
        return _compile(source).render(
            messages=list(messages), add_generation_prompt=add_generation_prompt, **tokens
        )
    except TemplateError as error:
        raise CheckpointError(
            f"the model's chat template cannot render this conversation: {error}"
        ) from error


@lru_cache(maxsize=8)
def _compile(source: str) -> Any:
    try:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise CheckpointError(
            "chat templates need jinja2, which is not installed", remedy="pip install 'greenward[hf]'"
        ) from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
