"""FaultBench: runs with planted faults, real and synthetic, and what diagnoses say of them."""
