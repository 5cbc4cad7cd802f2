"""What one rule of a protocol's documents is, and the ways to write one down."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["R", "G", "I", "A"]
"""R: stated. G: guidance. I: implied by text or examples. A: ambiguous, settled by us."""
Room = Literal["codec", "core", "runtime", "executor", "connector", "config", "nobody"]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One rule of a source document."""

    source: str
    """Document and section."""
    level: Level
    behaviour: str
    held_by: Room
    deferred: str | None = None
    not_ours: str | None = None

    @property
    def live(self) -> bool:
        return self.deferred is None and self.not_ours is None


SERVER = "binds the HUMA server"
AUTHOR = "binds the author of the application, whose words the gateway passes on"
STATE = "only the application knows its state and its players"
SERVED = "concerns a server of the protocol, which this release is not"


def rule(source: str, level: Level, room: Room, behaviour: str) -> Requirement:
    return Requirement(source=source, level=level, behaviour=behaviour, held_by=room)


def not_ours(source: str, level: Level, behaviour: str, reason: str) -> Requirement:
    return Requirement(source=source, level=level, behaviour=behaviour, held_by="nobody", not_ours=reason)


def later(source: str, level: Level, room: Room, behaviour: str, *, reason: str) -> Requirement:
    return Requirement(source=source, level=level, behaviour=behaviour, held_by=room, deferred=reason)
