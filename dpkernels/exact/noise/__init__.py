"""Additive noise in integers: tables, certificates over every shift, and vectors."""
