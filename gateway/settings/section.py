"""The base of all sections of the YAML, and the types that they share. Pure."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, SecretStr

from dragoman.models.described import Documented
from gateway.adapter.duration import Duration


def one_or_more(given: object) -> object:
    """Turn a single text into a list."""
    return [given] if isinstance(given, str | SecretStr) else given


def _some_time(span: timedelta) -> timedelta:
    if not span:
        raise ValueError("must be longer than 0s")
    return span


Patience = Annotated[Duration, AfterValidator(_some_time)]
"""A duration longer than zero."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""The name of a runtime, executor, destination or key in logs, metrics and routes."""


class Section(Documented):
    """The base of all sections: frozen, unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        # Built at first use; most sections are only used inside a larger one.
        defer_build=True,
    )
