"""Accounting for other libraries: dp_accounting events and OpenDP measurements."""
