"""This process among others on one store: lease, takeover, notifications, forwarding."""
