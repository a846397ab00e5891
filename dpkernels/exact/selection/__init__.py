"""Exact choices among scores: the exponential mechanism, and permute-and-flip."""
