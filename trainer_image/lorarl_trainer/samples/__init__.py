"""What travels between driver and workers: completions, samples, updates. NumPy only."""
