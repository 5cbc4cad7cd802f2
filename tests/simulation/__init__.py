"""The gateway in a simulated world: one thread, simulated time, and a seed that chooses everything."""
