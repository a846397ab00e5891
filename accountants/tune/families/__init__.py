"""Families of mechanisms with free parameters."""
