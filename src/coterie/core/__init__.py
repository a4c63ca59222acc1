"""Rows and how they mix: columns, layout, slots, values, who knows what of them, the server step, tasks.

All state that there is, and no client code and no methods.
"""
