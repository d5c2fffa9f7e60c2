"""A leak grows the memory of a real process along its line, refuses to fill the machine, and resumes."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.config.sections import MemoryLeakConfig
from greenward.diagnostics.signal_tests import measure_memory_growth
from greenward.training.faults import FaultTargets, MemoryLeak

STEPS = 101


class FakeMemory:
    """The run's own use is set from outside; blocks are scaled down, a byte for each MiB."""

    def __init__(self, own=100.0, available=1e6):
        self.own, self.available, self.taken = own, available, 0.0

    def used_mb(self):
        return self.own + self.taken

    def available_mb(self):
        return self.available

    def take(self, mb):
        self.taken += mb
        return Block(mb)


class Block:
    def __init__(self, mb):
        self.nbytes = mb * (1 << 20)


def leak(memory, factor=2.1, steps=STEPS):
    targets = FaultTargets(None, None, torch.device("cpu"), steps)
    return MemoryLeak(MemoryLeakConfig(growth_factor=factor), targets, memory)


def used_after(fault, memory, steps):
    used = []
    for step in steps:
        fault.on_step_end(step, [], {})
        used.append(memory.used_mb())
    return used


def test_memory_follows_the_line_from_the_first_step_to_the_last():
    memory = FakeMemory()
    used = used_after(leak(memory), memory, range(1, STEPS + 1))
    assert used == pytest.approx([100 + 110 * i / 100 for i in range(STEPS)])


def test_what_the_run_itself_takes_while_it_warms_up_and_later_is_part_of_the_growth():
    memory, fault, used = FakeMemory(own=60.0), None, []
    fault = leak(memory)
    for step in range(1, STEPS + 1):
        memory.own = min(60.0 + 10 * step, 100.0) + 0.1 * step
        fault.on_step_end(step, [], {})
        used.append(memory.used_mb())
    baseline = fault.truth()["baseline_mb"]
    assert baseline == pytest.approx(100 + 0.1 * 10)  # the most of the first tenth
    after = range(10, STEPS)
    assert [used[i] for i in after] == pytest.approx([baseline * (1 + 1.1 * i / 100) for i in after])


def test_a_resumed_leak_holds_again_what_it_held():
    memory = FakeMemory()
    fault = leak(memory)
    used_after(fault, memory, range(1, 51))
    resumed_memory = FakeMemory()
    resumed = leak(resumed_memory)
    resumed.load_state_dict(fault.state_dict())
    assert resumed_memory.used_mb() == pytest.approx(memory.used_mb())
    rest = range(51, STEPS + 1)
    assert used_after(resumed, resumed_memory, rest) == pytest.approx(used_after(fault, memory, rest))
    assert resumed.truth() == pytest.approx(fault.truth())


def test_a_leak_that_would_take_most_of_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"growth by 2\.1 takes 110 MiB more, of 120 MiB") as caught:
        leak(FakeMemory(available=120.0)).on_step_end(1, [], {})
    assert "growth_factor" in str(caught.value.remedy)


RUN = """
import json, torch
from greenward.config.sections import MemoryLeakConfig
from greenward.training.faults import FaultTargets
from greenward.training.faults import MemoryLeak
from greenward.runs.machine import resident_mb

fault = MemoryLeak(MemoryLeakConfig(growth_factor=1.5), FaultTargets(None, None, torch.device("cpu"), 80))
used = []
for step in range(1, 81):
    torch.ones(500_000 + 50_000 * (step % 7)).sum()  # some MB, given back
    fault.on_step_end(step, [], {})
    used.append(resident_mb())
print(json.dumps({"used": used, "truth": fault.truth()}))
"""


@pytest.mark.slow
def test_resident_memory_of_a_process_grows_by_the_factor():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(done.stdout)
    measured = measure_memory_growth(np.arange(1, 81), np.array(found["used"]))
    assert measured.is_leak
    assert measured.factor == pytest.approx(1.5, abs=0.1)
    assert found["used"][-1] == pytest.approx(1.5 * found["truth"]["baseline_mb"], rel=0.02)
    assert found["truth"]["kept_mb"] > 0
