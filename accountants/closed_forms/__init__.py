"""Optimal composition of pure and bounded-range mechanisms, adaptive orders, concentrated bounds: in closed form."""
