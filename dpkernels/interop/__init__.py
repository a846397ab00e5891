"""Certified noise in other libraries: OpenDP measurements and optax transformations."""
