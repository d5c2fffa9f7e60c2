"""What happened: the run directory, its metrics, its checkpoints, its mirrors and its progress.

A leaf: it imports no other room and takes plain dicts. It knows nothing of torch, models or
algorithms; what goes into a checkpoint is written by a callable that the caller hands in.
"""

from __future__ import annotations
