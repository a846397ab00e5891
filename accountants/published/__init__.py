"""The sources' own formulas and searches, for comparison only; the first line of each says whether it is sound."""
