"""Composition in closed form: of (eps, delta) budgets, of pure and bounded-range mechanisms, adaptive orders, and zCDP."""
