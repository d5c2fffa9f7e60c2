"""Programs written one lexeme at a time, as a Markov decision process."""
