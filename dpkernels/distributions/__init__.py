"""Distributions of additive noise on the real line."""
