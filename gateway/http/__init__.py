"""The HTTP API for backends, operators and probes."""
