"""Budgets that queries are charged to. No accountant is imported here, so reading a ledger needs no JAX."""
