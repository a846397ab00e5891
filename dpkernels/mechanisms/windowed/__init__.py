"""Windowed mechanisms: a window that moves with the input on a fixed base (piecewise and composite mechanisms)."""
