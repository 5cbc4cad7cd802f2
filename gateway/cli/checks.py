"""One line of what `doctor` says."""

from dataclasses import dataclass

from gateway.cli.terminal import State


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    state: State
    text: str
    mend: str = ""
