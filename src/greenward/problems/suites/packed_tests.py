"""LiveCodeBench's private tests: base64 of zlib of a pickled JSON text, read without unpickling.

A pickle is a program, and unpickling a file from elsewhere runs it. The one that is expected puts a
single text on the stack and stops. `pickletools` lists its instructions without following them;
any other instruction is refused.
"""

from __future__ import annotations

import base64
import pickletools
import zlib

from greenward.errors import ProblemError

MAX_BYTES = 256 << 20
_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_NOTHING_DONE = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}


def unpack(packed: str) -> str:
    """The JSON text inside. Raises `ProblemError` when it is anything else than one pickled text."""
    try:
        stream = zlib.decompressobj()
        content = stream.decompress(base64.b64decode(packed, validate=True), MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise ProblemError(f"is neither JSON nor base64 of zlib: {error}") from None
    if not stream.eof:
        raise ProblemError(f"unpacks to more than {MAX_BYTES >> 20} MB, or is cut short")
    texts: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name in _TEXT:
                texts.append(str(argument))
            elif instruction.name not in _NOTHING_DONE:
                raise ProblemError(
                    f"holds a pickle that does more than give a text ({instruction.name})",
                    remedy="It was not unpickled: a pickle can run any program. Do not trust this file.",
                )
    except ValueError as error:
        raise ProblemError(f"holds a pickle that cannot be read: {error}") from None
    if len(texts) != 1:
        raise ProblemError(f"holds a pickle of {len(texts)} texts, expected one")
    return texts[0]
