"""Budgets that queries are charged to: in a process (``filters``) or in a file (``ledger``); ``amounts`` are exact.

This package does not import the accountants, which compute the costs of queries, so reading a ledger needs no JAX.
"""
