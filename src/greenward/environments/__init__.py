"""Environments. Importing this package registers `greenward/TokenMDP-v0` where gymnasium is installed."""

from __future__ import annotations

from importlib.util import find_spec

TOKEN_MDP = "greenward/TokenMDP-v0"

if find_spec("gymnasium") is not None:
    from gymnasium.envs import registration

    _MODULE = "greenward.environments.token_mdp.environment"
    if TOKEN_MDP not in registration.registry:
        registration.register(
            TOKEN_MDP, entry_point=f"{_MODULE}:TokenMDPEnv", vector_entry_point=f"{_MODULE}:TokenMDPVectorEnv"
        )
