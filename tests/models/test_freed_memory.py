"""What importing the package sets up for the memory of models on CPUs."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import pytest
import torch

from greenward.models import heap


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_most_blocks_that_are_freed_are_used_again_without_new_pages():
    """glibc does not find every block again (those that were aligned), so that some passes need new pages."""

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(40 << 18).fill_(1.0)  # 40 MiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    for _ in range(20):
        faults()
    later = sum(faults() for _ in range(30))
    assert later < 10 * (40 << 20) // resource.getpagesize()


def test_without_proc_nothing_is_given_back(monkeypatch, tmp_path):
    monkeypatch.setattr(heap, "Path", lambda name: tmp_path / name.lstrip("/"))
    heap.return_free_pages()


FREED = """
import sys
import torch
from greenward.models.heap import return_free_pages

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))

kept = [torch.ones(1 << 18) for _ in range(int(sys.argv[1]))][-1]  # of 1 MiB each; the last is at the top
full = resident()
return_free_pages()
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(
    ("megabytes", "least", "most"),
    [(350, -10, 10), pytest.param(1500, 1300, 1600, marks=pytest.mark.slow)],
)
def test_free_pages_of_a_large_process_are_given_back_and_those_of_a_small_one_kept(megabytes, least, most):
    """Those of a small one serve the next step without new pages."""
    command = [sys.executable, "-c", FREED, str(megabytes)]
    given_back = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert least <= given_back <= most
