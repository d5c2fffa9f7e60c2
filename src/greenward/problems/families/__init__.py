"""Generated problems: compositions of small list, string and number functions."""

from greenward.problems.families.generate import generate, split

__all__ = ["generate", "split"]
