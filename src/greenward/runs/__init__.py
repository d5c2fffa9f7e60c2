"""Persistence: the run directory, its metrics, checkpoints and readers, trackers, and progress.

The package knows nothing of torch, models or algorithms: it takes plain dicts, and a callable of the caller
writes what goes into a checkpoint.
"""
