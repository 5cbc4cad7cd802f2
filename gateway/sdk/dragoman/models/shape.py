"""The base of all models of responses. Pure."""

from pydantic import ConfigDict

from dragoman.models.described import Described


class Shape(Described):
    """The base of all response models; it forbids extra members, so tests detect a member that is not described."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")
