"""numpy's scalars and arrays as the plain values that they hold.

A scalar becomes a bool, int, float, complex, str, bytes, date, datetime or timedelta; an array becomes
nested lists, one without dimensions the value in it. numpy's own functions do this, bound before an
answer is loaded, so that no method of an answer's subclass takes part.

Standard library only: this module is loaded in the worker, too, and numpy only where it is allowed.
"""

from __future__ import annotations

import sys
from typing import Any

from greenward.sandbox.standard_types import NotStandard


class _Numpy:
    """What is used of numpy."""

    def __init__(self, numpy: Any) -> None:
        self.array, self.scalar = numpy.ndarray, numpy.generic
        self.size_of, self.to_list = numpy.ndarray.size.__get__, numpy.ndarray.tolist
        self.item = numpy.generic.item
        self.long_float, self.to_float = numpy.longdouble, numpy.longdouble.__float__
        self.long_complex, self.to_complex = numpy.clongdouble, numpy.clongdouble.__complex__


_numpy: _Numpy | None = None


def know_numpy() -> None:
    """Has numpy's values accepted from now on, if this process has loaded numpy."""
    global _numpy
    if _numpy is None and hasattr(numpy := sys.modules.get("numpy"), "ndarray"):
        _numpy = _Numpy(numpy)


def is_of_numpy(kind: type) -> bool:
    """Whether instances of a type are scalars or arrays of numpy."""
    return _numpy is not None and issubclass(kind, (_numpy.array, _numpy.scalar))


def plain(value: Any, kind: type, most_elements: int) -> Any:
    """What a scalar or an array holds. Raises `NotStandard` for an array with more elements."""
    assert _numpy is not None
    if issubclass(kind, _numpy.array):
        size = _numpy.size_of(value)
        if size > most_elements:
            raise NotStandard(f"the array has {size} elements; at most {most_elements} are allowed")
        return _numpy.to_list(value)
    if issubclass(kind, _numpy.long_float):  # Python has no such type: its item is itself
        return _numpy.to_float(value)
    if issubclass(kind, _numpy.long_complex):
        return _numpy.to_complex(value)
    return _numpy.item(value)
