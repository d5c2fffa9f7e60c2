"""Rollouts: what a rollout engine is, episodes, the driver of dialogues, servers as engines."""
