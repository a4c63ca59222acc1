"""A site's finished model: its file, its predictions."""
