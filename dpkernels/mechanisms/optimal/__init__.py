"""Mechanisms of least worst-case variance, by linear programs."""
