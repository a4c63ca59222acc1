"""A client's finished model: its file, its predictions."""
