"""Coordination of the instances on one store: lease, takeover, handover, notifications and forwarding."""
