"""The webhook executor and destination: signed requests, strictly parsed responses."""
