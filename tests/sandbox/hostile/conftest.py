from __future__ import annotations

import signal
import sys

import pytest

from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS, PORTABLE_LAYERS
from hostile.trial import Arena
from hostile.world import World

LAYER_SETS = {"all": ALL_LAYERS, "core": CORE_LAYERS, "portable": PORTABLE_LAYERS}


@pytest.fixture(scope="session", autouse=True)
def hang_ups_count():
    """Under nohup all children ignore SIGHUP, and an attack by it would seem to be stopped."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture(scope="session")
def world():
    if sys.platform != "linux":
        pytest.skip("the secret is planted in what Linux offers")
    with World() as world:
        yield world


@pytest.fixture(scope="module")
def arena(request):
    """Workers with the layers named by the parameter; skips where the machine does not have them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("greenward.sandbox.workers.CONTROL_SECONDS", 0.2)
        with Arena(LAYER_SETS[request.param]) as arena:
            if arena.missing:
                pytest.skip(f"this machine does not have {', '.join(sorted(arena.missing))}")
            yield arena
