"""Coterie: personalised federated learning. A client's model is a row; a round trains rows, then mixes them."""
