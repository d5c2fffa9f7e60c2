"""Isolated execution: jobs in, plain data out, by worker processes behind layers of isolation."""
