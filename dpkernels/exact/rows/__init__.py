"""Mechanisms given row by row in integers: tables, their construction, certificates and samplers."""
