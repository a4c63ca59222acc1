"""The server's optimiser: a row that all share takes a step towards the clients' mean instead of becoming it."""
