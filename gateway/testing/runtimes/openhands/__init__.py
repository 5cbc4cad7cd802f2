"""A simulated OpenHands server of the V0 protocol.

May import nothing of the gateway.
"""
