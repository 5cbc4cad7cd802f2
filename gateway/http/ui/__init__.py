"""The web UI: pages for operators, rendered from the responses of the API.

May import dragoman, gateway.addresses, gateway.errors, gateway.guard, gateway.http, gateway.runtime and
gateway.settings.
"""
