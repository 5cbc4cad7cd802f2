"""Executors and destinations in use, copies of events, and periodic maintenance."""
