"""Simulated runtimes, conformance suites and the demo: for local work and for tests, never for production.

May import nothing of the gateway.
"""
