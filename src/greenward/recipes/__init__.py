"""A recipe from its checks to a finished run; sweeps and the demo."""
