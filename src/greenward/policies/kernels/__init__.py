"""Kernels in C for small decoders on CPUs; without a compiler the operations of torch do the same."""
