"""Privacy profiles and privacy losses of additive noise: one file for each form of density."""
