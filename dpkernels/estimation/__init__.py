"""Estimates from reports: moments, distributions and relations of the inputs, with confidence intervals."""
