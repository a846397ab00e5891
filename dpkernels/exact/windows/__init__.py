"""Windowed and two-point mechanisms in integers: tables, certificates, and how they are made."""
