"""Windowed and two-point mechanisms in integers: tables, their construction, certificates and samplers."""
