"""greenward: reinforcement learning that turns failing tests green."""

__version__ = "0.1.0"
