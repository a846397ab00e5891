"""Batch schemes: the dominating pair of steps on random batches, from that of one step. See ``Guarantee``."""
