"""A simulated OpenHands server of the V0 protocol."""
