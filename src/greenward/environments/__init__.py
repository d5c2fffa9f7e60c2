"""Environments. Importing this package registers `greenward/TokenMDP-v0` where gymnasium is installed."""

from __future__ import annotations

from importlib.util import find_spec

TOKEN_MDP = "greenward/TokenMDP-v0"


def register() -> None:
    """Make the ids of our environments known to gymnasium."""
    from gymnasium.envs import registration

    module = "greenward.environments.token_mdp.environment"
    if TOKEN_MDP not in registration.registry:
        registration.register(
            TOKEN_MDP, entry_point=f"{module}:TokenMDPEnv", vector_entry_point=f"{module}:TokenMDPVectorEnv"
        )


if find_spec("gymnasium") is not None:
    register()
