"""Describes why nothing came from a peer in time."""

import asyncio

from gateway.clock import describe_stall


def describe_silence(limit: asyncio.Timeout, otherwise: str) -> str:
    """Describe why a limit expired: `otherwise`, unless this process itself did not run."""
    return describe_stall(asyncio.get_running_loop().time() - (limit.when() or 0)) or otherwise
