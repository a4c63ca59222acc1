"""Several methods on the same partitions, over several seeds, one after the other or side by side."""
