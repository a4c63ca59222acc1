"""Everything that knows Flower: apps, processes, keys, folders."""
