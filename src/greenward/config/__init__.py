"""Settings: typed models of recipes, one for each task and algorithm."""
