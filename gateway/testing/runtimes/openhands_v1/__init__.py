"""A simulated OpenHands agent-server of the V1 protocol: REST and WebSockets.

May import nothing of the gateway.
"""
