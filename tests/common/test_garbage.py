"""The search for garbage rests while packages are imported, and is afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from greenward.common.garbage import collection_paused


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    was_enabled = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_inside_and_all_is_as_before_afterwards(enabled: bool) -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_an_import_that_fails_leaves_it_as_it_was(enabled: bool) -> None:
    with pytest.raises(ModuleNotFoundError), collection_paused():
        import greenward.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled() == enabled
