"""Batch schemes: from the dominating pair of one step to that of steps on batches; ``Guarantee`` has their methods."""
