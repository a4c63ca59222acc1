"""What can go wrong, simulated: hostile and broken clients, and clients that come and go."""
