"""Budgets that queries are charged to: in a process (``filters``) or in a file (``ledger``); ``amounts`` are exact.

Apart from the accountants, which say what a query costs, so that a ledger is read without JAX.
"""
