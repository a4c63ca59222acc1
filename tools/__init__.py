"""Tools for those who work on Coterie itself."""
