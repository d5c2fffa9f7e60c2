"""Rewards with faults, for FaultBench: a term that is always 0, and one that is easily hacked."""

from __future__ import annotations


def dead(completions: list[str], **kwargs: object) -> list[float]:
    """A term whose author looks for what no answer has."""
    return [float("<answer>" in text) for text in completions]


def hackable(completions: list[str], **kwargs: object) -> list[float]:
    """Pays for each `return`, right or wrong."""
    return [min(text.count("return"), 4) / 4 for text in completions]
