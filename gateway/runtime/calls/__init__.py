"""Calls under way: dispatching, slots, breakers, callbacks, history and dead letters."""
