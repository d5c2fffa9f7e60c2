"""Overrides that replace the model of a recipe by one that trains a step in milliseconds."""

TINY_MODEL = (
    "model.shape.layers=1",
    "model.shape.hidden_size=32",
    "model.shape.heads=2",
    "model.shape.kv_heads=2",
    "model.shape.intermediate_size=64",
)
