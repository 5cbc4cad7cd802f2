"""Bounds in seconds: how long a test waits for an event that must happen, and how long a measured one may take."""

import os

PATIENCE = 60.0
"""How long a test waits for an event that must happen. A slow machine must not fail a test, so this is generous."""
QUIET = "DRAGOMAN_TEST_QUIET"
"""Set in the environment where nothing else runs on the machine."""


def within(seconds: float) -> float:
    """Return the bound of a duration that `make faults` measures on a quiet machine: ten times as wide elsewhere."""
    return seconds if os.environ.get(QUIET) else 10 * seconds
