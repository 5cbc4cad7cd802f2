"""The items of an event stream other than recorded events. Pure."""

from dataclasses import dataclass

from dragoman.models.events import Event


@dataclass(frozen=True, slots=True)
class Live:
    """An event that is shown to followers but not stored."""

    event: Event
    after_sequence: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The history between the reader's position and `first_sequence` was deleted."""

    first_sequence: int


@dataclass(frozen=True, slots=True)
class Passed:
    """No further event up to this `id` of a stream over sessions matches; the stream can resume from it."""

    id: str


@dataclass(frozen=True, slots=True)
class Missed:
    """The reader missed some: changes of interactions, which continue with all pending ones, or events of sessions."""


def sequence_of(position: str) -> int:
    """Return the sequence in a position of a session; 0 if this release cannot read it."""
    number = position.partition(".")[0]
    return int(number) if number.isdecimal() else 0
