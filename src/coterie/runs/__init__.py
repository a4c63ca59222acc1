"""Rounds run and recorded: a run while it goes on, on disk, and opened again."""
