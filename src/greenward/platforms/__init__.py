"""Machines: what they have, the presets that suit them, and what a training needs of them."""
