"""Pairs of laws, one kind a file: what one report of a mechanism reveals; ``worst`` finds the pair of a mechanism."""
