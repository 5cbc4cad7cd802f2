"""Calls: dispatching, slots, breakers, callbacks, history and dead letters."""
