"""All layers together: what a worker prepares once and every answer's process puts on.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from greenward.sandbox.layers import landlock, privileges, seccomp
from greenward.sandbox.layers.levels import Layer
from greenward.sandbox.layers.resources import limit_worker

Limits = Mapping[str, Any]


class Shield:
    """The layers `wanted`, as far as this kernel has them; `missing` says why it lacks the others.

    Making one changes this process, a worker: what every answer inherits from it is done once, here
    (privileges, the limits that are the same for all). `readable` and `writable` are the files and
    folders that an answer may use, `user_tasks` how many threads the user may have in all.
    Namespaces are not put on by answers: their worker lives in them.
    """

    def __init__(
        self, wanted: Collection[Layer], readable: Sequence[str], writable: Sequence[str], user_tasks: int
    ) -> None:
        self.missing: dict[Layer, str] = {}
        self._steps: dict[Layer, Callable[[Limits], None]] = {}
        prepare: dict[Layer, Callable[[], Callable[[Limits], None]]] = {
            Layer.RESOURCES: lambda: limit_worker(user_tasks),
            Layer.PRIVILEGES: _privileges,
            Layer.LANDLOCK: lambda: _landlock(readable, writable),
            Layer.SECCOMP: _seccomp,
        }
        for layer, make in prepare.items():
            if layer in wanted:
                try:
                    self._steps[layer] = make()
                except OSError as error:
                    self.missing[layer] = str(error)
        if self._steps.keys() & {Layer.LANDLOCK, Layer.SECCOMP}:
            privileges.no_new_privileges()  # the kernel demands it

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What `put_on` applies, in order."""
        return tuple(self._steps)

    def put_on(self, limits: Limits, *, after: Callable[[Layer], None] | None = None) -> None:
        """Applies every layer to this process, for good; `after` is called behind each one."""
        for layer, step in self._steps.items():
            step(limits)
            if after is not None:
                after(layer)


def _privileges() -> Callable[[Limits], None]:
    privileges.drop_bounding_set()
    privileges.drop_capabilities()
    privileges.no_new_privileges()
    return lambda _: None


def _landlock(readable: Sequence[str], writable: Sequence[str]) -> Callable[[Limits], None]:
    if landlock.abi() == 0:
        raise OSError("this kernel has no Landlock")
    ruleset = landlock.make_ruleset(readable, writable)
    return lambda _: landlock.restrict_self(ruleset)


def _seccomp() -> Callable[[Limits], None]:
    if not seccomp.supported():
        raise OSError("this kernel has no seccomp filters")
    program = seccomp.build_program(os.uname().machine)
    return lambda _: seccomp.install(program, os.getpid())
