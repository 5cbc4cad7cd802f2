"""The choices of `dragoman init` and `dragoman demo`; `--help` imports this module, so it loads nothing."""

from enum import StrEnum


class RuntimeChoice(StrEnum):
    """The runtime of the agents that the project serves."""

    HUMA_0_2 = "huma-0.2"
    HUMA_0_1 = "huma-0.1"
    OPENHANDS = "openhands"
    OPENHANDS_V1 = "openhands-v1"
    HERM = "herm"
    MCP = "mcp"


class ExtraChoice(StrEnum):
    """A further runtime of `dragoman demo`."""

    OPENHANDS_V1 = "openhands-v1"


class BackendChoice(StrEnum):
    """The framework of the backend."""

    FASTAPI = "fastapi"
    EXPRESS = "express"
