"""A window over a base, placed by the input: the piecewise and composite mechanisms."""
