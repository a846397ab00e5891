"""Accounting in other libraries' terms: ``dp_accounting`` events, and training runs with optax."""
