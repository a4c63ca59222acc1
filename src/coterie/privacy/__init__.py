"""Differential privacy: what a run promises, noise, DP-SGD, and the account of what has been spent."""
