"""Repair problems: correct programs with one plausible bug put into each."""

from greenward.problems.bugs.mutate import KINDS, Mutant, mutants
from greenward.problems.bugs.repair import original_id, repair_candidates

__all__ = ["KINDS", "Mutant", "mutants", "original_id", "repair_candidates"]
