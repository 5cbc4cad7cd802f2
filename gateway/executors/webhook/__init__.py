"""The webhook executor and destination: signed requests, strictly read answers."""
