"""Scoring: code by execution, edits by applying them, labels; reward functions."""
