"""The models of the wire format: responses of the API and bodies of webhooks. Pure; nothing is imported but events."""
