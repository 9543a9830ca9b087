"""Training with EADT by each framework: the same small GPT, on text that Python brings along."""
