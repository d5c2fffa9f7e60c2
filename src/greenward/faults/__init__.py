"""Bugs planted in a training, and the record of what was planted (docs/faults.md)."""
