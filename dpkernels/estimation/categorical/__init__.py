"""Estimates of shares and counts of categories from reports of local mechanisms."""
