"""Composition of many releases: precise values in closed form, by enumeration and by FFT, and rigorous brackets."""
