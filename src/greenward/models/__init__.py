"""Models: decoder, tokenizer, sampling and scoring; reads and writes Hugging Face folders."""

import ctypes
import os
import sys
from contextlib import suppress

# On CPUs oneDNN keeps a compiled kernel, with its buffers, for each matrix shape it has met, 1,024 of
# them in each of two caches. Batches of ragged answers bring new shapes at every step: the caches
# grew to 1.5 GB in a run whose model has 3 MB, and were never read again. Both variables are read
# when the first matrix is multiplied, which is after this.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

# glibc gives large blocks back to the system as soon as they are freed, and each pass through a model then
# waits for its pages again, for about a tenth of its time. Blocks of up to 256 MiB, or 32 where glibc takes
# no larger number, are now kept for the next pass, up to 1 GiB in all.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
    with suppress(AttributeError):  # another C library
        _mallopt = ctypes.CDLL(None).mallopt
        for _parameter, _bytes in (
            (_TRIM_THRESHOLD, 1 << 30),
            (_MMAP_THRESHOLD, 1 << 25),
            (_MMAP_THRESHOLD, 1 << 28),
        ):
            _mallopt(_parameter, _bytes)
