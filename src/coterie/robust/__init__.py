"""What keeps a few clients from taking over: mixes that they cannot bend at will, and quarantine for their uploads."""
