"""Dragoman's SDK for backends.

The public API is `dragoman.client` (an API client), `dragoman.kit` (a webhook endpoint) and `dragoman.models` (the wire
format). It imports nothing of the gateway, which is another distribution.

May import nothing of the gateway.
"""
