"""Certified noise in other libraries: private gradient aggregation for optax."""
