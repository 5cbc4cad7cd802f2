"""A simulated Herm server."""
