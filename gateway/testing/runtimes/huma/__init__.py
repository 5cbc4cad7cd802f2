"""A simulated HUMA server of either dialect."""
