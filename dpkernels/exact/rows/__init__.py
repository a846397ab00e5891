"""Mechanisms given row by row in integers: their tables, certificates, and how they are made."""
