"""Interaction: the environments of code and of agents, prompts."""
