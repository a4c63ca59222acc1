"""Side-by-side timings: every figure is a ratio of things measured in the same run, in turns."""
