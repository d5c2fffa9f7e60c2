"""Learning: advantages, losses, trainers, the training loop, processes, planted faults."""
