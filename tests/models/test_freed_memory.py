"""What importing the package sets up for the memory of models on CPUs."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

import greenward.models  # noqa: F401


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
