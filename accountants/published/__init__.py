"""Published formulas and searches, for comparison only. The first line of each docstring says whether it is sound."""
