"""Profiles and privacy losses of a density and the same density shifted, by the form of the density."""
