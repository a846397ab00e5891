"""What released reports say of the values behind them: ``dpkernels estimate``."""
