"""This process or worker processes, whichever is faster as a run goes on."""
