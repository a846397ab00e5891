"""Composition of many releases: estimates in closed form, by enumeration and by FFT, and rigorous brackets."""
