"""Doctests: their examples run in the sandbox, and what they print is compared here with what they expect.

The examples of one doctest share a copy of the answer's namespace, as in `doctest`. What is expected never
enters the answer's process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import, and few problems have doctests
    from doctest import Example

EXAMPLE_SETUP = """
def __example__(test, source, _namespaces={}):
    import contextlib, io, sys, traceback
    names = _namespaces.setdefault(test, dict(globals()))
    printed, raised = io.StringIO(), None
    sys.displayhook = sys.__displayhook__
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "<example>", "single"), names)
    except BaseException as error:
        raised = traceback.format_exception_only(type(error), error)[-1]
    return [printed.getvalue(), raised]
"""
_QUALIFIED_NAME = re.compile(r"(?:.*\.)?([^.:\n]*)")


def read_examples(text: str) -> list[Example]:
    """The examples in a text that are not to be skipped. Raises `ValueError` for one that is malformed."""
    import doctest

    examples = doctest.DocTestParser().get_examples(text)
    return [one for one in examples if not _flags(one) & doctest.SKIP]


def is_met(example: Example, value: Any) -> bool:
    """Whether what `__example__` gave is what the example must print or raise."""
    import doctest

    check, flags, wanted = doctest.OutputChecker().check_output, _flags(example), example.exc_msg
    match value:
        case [str(printed), None]:
            printed += "" if printed.endswith("\n") or not printed else "\n"
            return check(example.want, printed, flags)
        case [str(), str(raised)] if wanted is not None:
            ignores = flags & doctest.IGNORE_EXCEPTION_DETAIL
            if ignores and check(_exception_class(wanted), _exception_class(raised), flags):
                return True
            return check(wanted, raised, flags)
    return False


def _flags(example: Example) -> int:
    return sum(flag for flag, is_on in example.options.items() if is_on)


def _exception_class(message: str) -> str:
    found = _QUALIFIED_NAME.match(message.partition("\n")[0].partition(":")[0])
    return found[1] if found else message
