"""Doctests: their examples run in the sandbox, and what they print is compared here with what they expect.

The examples of one doctest share a copy of the answer's namespace, as in `doctest`. What is expected never
enters the answer's process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Example:
    """One example: what is run, and what it must print or raise, with the flags of `doctest`."""

    source: str
    want: str
    raises: str | None
    flags: int

    def call(self, test: int) -> str:
        """The expression that runs it after `EXAMPLE_SETUP`, as an example of doctest number `test`."""
        return f"__example__({test}, {self.source!r})"

    def is_met_by(self, value: Any) -> bool:
        """Whether the value of `call` is what is expected."""
        import doctest

        check = doctest.OutputChecker().check_output
        match value:
            case [str(printed), None]:
                printed += "" if printed.endswith("\n") or not printed else "\n"
                return check(self.want, printed, self.flags)
            case [str(), str(raised)] if self.raises is not None:
                ignores = self.flags & doctest.IGNORE_EXCEPTION_DETAIL
                wanted, found = _exception_class(self.raises), _exception_class(raised)
                if ignores and check(wanted, found, self.flags):
                    return True
                return check(self.raises, raised, self.flags)
        return False


def read_examples(text: str) -> Iterator[Example]:
    """The examples in a text that are not to be skipped. Raises `ValueError` for one that is malformed."""
    import doctest

    for one in doctest.DocTestParser().get_examples(text):
        flags = sum(flag for flag, is_on in one.options.items() if is_on)
        if not flags & doctest.SKIP:
            yield Example(one.source, one.want, one.exc_msg, flags)


def _exception_class(message: str) -> str:
    found = _QUALIFIED_NAME.match(message.partition("\n")[0].partition(":")[0])
    return found[1] if found else message
