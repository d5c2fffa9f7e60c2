"""The game of code: one player writes a program, the other one predicts what it prints."""
