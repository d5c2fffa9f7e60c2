"""Models: decoder, tokenizer, sampling and scoring; reads and writes Hugging Face folders."""

import os

from greenward.models.heap import keep_free_blocks

# On CPUs oneDNN keeps a compiled kernel, with its buffers, for each matrix shape it has met, 1,024 of
# them in each of two caches. Batches of ragged answers bring new shapes at every step: the caches
# grew to 1.5 GB in a run whose model has 3 MB, and were never read again. Both variables are read
# when the first matrix is multiplied, which is after this.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")

keep_free_blocks()
