"""Persistence: run directory, metrics, checkpoints, trackers; the only reader of run directories."""
