"""Rows and how they mix: columns, layout, slots, the federation's state, the exchange. No client code, no methods."""
