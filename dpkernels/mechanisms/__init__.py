"""Randomised maps from a value to a report."""
