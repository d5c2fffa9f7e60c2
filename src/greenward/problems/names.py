"""Names sources of problems, and what the ids and tags of problems begin with.

The modules that make these problems are loaded only for what is made by them.
"""

from __future__ import annotations

FAMILIES, MODULES = "families", "modules"  # generated
FAMILY_PREFIX = "families/"  # of the ids of generated problems
SHIPPED = ("classic_training", "classic_evaluation")
REPOSITORIES, REPOSITORY_TAG = "repositories", "repository"
REPOSITORY_SETS = (REPOSITORIES, f"{REPOSITORIES}:train", f"{REPOSITORIES}:test")
# Before the name of a source: the repair of its programs.
BUGS, PLANTED = "bugs:", "planted:"
GIVEN = "python:"  # before the hash of problems that a Python program has given
MUTANT_TAG = "mutant"
KIND_TAG = "bug:"  # before the kind of the bug
