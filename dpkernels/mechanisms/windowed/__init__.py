"""Windowed mechanisms: a window that follows the input on a fixed base (piecewise and composite mechanisms)."""
