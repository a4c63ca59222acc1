"""Ray actors, on this machine or on a cluster."""
