"""The types that EvalPlus's inputs had before JSON lost them: tuples, sets, complex numbers.

Which arguments had which type is known by problem only: MBPP's own tests call the same functions
with Python literals, and EvalPlus keeps a table of the same content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Restore = Callable[[Any], Any]


def restore(task_id: str, arguments: list[Any]) -> tuple[Any, ...]:
    """The arguments of one call with their types.

    Raises `TypeError`, `ValueError`, `AttributeError` or `IndexError` if they do not have the shape
    that the problem's arguments have.
    """
    of_arguments = _OF_ARGUMENTS.get(task_id)
    return tuple(of_arguments(arguments)) if of_arguments else tuple(arguments)


def _tuples(values: Any) -> list[tuple[Any, ...]]:
    return [tuple(value) for value in values]


def _each(restore_one: Restore) -> Restore:
    """Every argument alike."""
    return lambda arguments: [restore_one(argument) for argument in arguments]


def _by_position(*restore_one: Restore | None) -> Restore:
    """The first arguments each in its way; None and what follows are left as they are."""

    def restore_all(arguments: list[Any]) -> list[Any]:
        known = [one(value) if one else value for one, value in zip(restore_one, arguments, strict=False)]
        return known + arguments[len(restore_one) :]

    return restore_all


def _deep_tuple(value: Any) -> Any:
    return tuple(map(_deep_tuple, value)) if isinstance(value, list) else value


def _tuple_with_tuples(values: Any) -> tuple[Any, ...]:
    """A tuple whose lists were tuples, too."""
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _sets_or_empty_dicts(values: Any) -> list[Any]:
    """Mbpp/115 asks whether all are empty dictionaries; those that are not were sets."""
    return [set(value) if isinstance(value, list) and value else {} for value in values]


def _dict_of_tuples(values: Any) -> dict[Any, tuple[Any, ...]]:
    return {key: tuple(value) for key, value in values.items()}


_SHAPES: tuple[tuple[Restore, tuple[int, ...]], ...] = (
    (
        _each(tuple),
        (
            *(2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424),
            *(429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
        ),
    ),
    (_each(_tuples), (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    (_each(lambda values: tuple(_tuples(values))), (259, 401, 445)),
    (_each(_tuple_with_tuples), (278,)),
    (_each(_deep_tuple), (580, 615, 791)),
    (_by_position(tuple), (250, 307, 405, 446, 617, 720, 763, 808)),
    (_by_position(_tuples), (75, 413, 444, 753)),
    (_by_position(None, tuple), (106, 750)),
    (_by_position(_dict_of_tuples), (722,)),
    (_by_position(_sets_or_empty_dicts), (115,)),
    (_by_position(float, complex), (124,)),
    (_by_position(complex), (252,)),
)
_OF_ARGUMENTS = {f"Mbpp/{number}": restore_all for restore_all, numbers in _SHAPES for number in numbers}
