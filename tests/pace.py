"""Bounds in seconds: measured on a quiet machine by `make faults`, ten times as wide everywhere else."""

import os

QUIET = "DRAGOMAN_TEST_QUIET"
"""Set in the environment where nothing else runs on the machine."""


def within(seconds: float) -> float:
    """How long something may take here that takes so long at most on a quiet machine."""
    return seconds if os.environ.get(QUIET) else 10 * seconds
