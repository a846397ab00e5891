"""Composition in closed form: (eps, delta) budgets, pure and bounded-range mechanisms, adaptive orders, and zCDP."""
