"""Counts and the largest of them: noise for histograms, and top-k over known and unknown domains."""
