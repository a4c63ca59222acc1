"""Real federations: sites that keep their data, a server that mixes rows, messages between them."""
