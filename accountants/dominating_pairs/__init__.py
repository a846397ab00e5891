"""Dominating pairs, one kind a file; ``registry`` finds the pairs of a mechanism."""
