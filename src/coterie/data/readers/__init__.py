"""Readers of the published layouts: each turns files into decoded images, none writes anything."""
