"""Accounting for other libraries: dp_accounting events, OpenDP measurements, and training runs with optax."""
