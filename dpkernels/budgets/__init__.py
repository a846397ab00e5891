"""Privacy budgets, and the charges of queries. No accountant is imported here, so reading a ledger needs no JAX."""
