"""A package, so that no other of this name that something installed brings along is taken for it."""
