"""The papers' result tables, rebuilt: what they say, the runs behind them, and how ours compare."""
