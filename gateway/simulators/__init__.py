"""Scripted runtimes and a sample backend, on raw native JSON: for the demo, for local work, for tests."""
