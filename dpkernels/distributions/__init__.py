"""Laws of additive noise on the real line, in closed form."""
