"""What reports say of the values behind them: moments, distributions, relations, each with its intervals."""
