"""What `dragoman init` can be asked for; read by `--help`, so it loads nothing."""

from enum import StrEnum


class RuntimeChoice(StrEnum):
    """Whose agents the project serves."""

    HUMA_0_2 = "huma-0.2"
    HUMA_0_1 = "huma-0.1"
    OPENHANDS = "openhands"
    HERM = "herm"
    MCP = "mcp"


class BackendChoice(StrEnum):
    """What the backend is written in."""

    FASTAPI = "fastapi"
    EXPRESS = "express"
