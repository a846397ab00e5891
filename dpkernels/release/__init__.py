"""Release of values: input checks, exact engines and containers."""
