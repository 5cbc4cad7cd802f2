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
class Missed:
    """The reader missed changes of interactions; the stream continues with all pending ones."""
