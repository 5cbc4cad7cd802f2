"""What ends a command early: wrong usage, and a gateway that says no."""

from gateway.errors import OperatorError


class Misused(Exception):
    """The words of a command do not go together; a usage error."""


class Refusal(OperatorError):
    """The gateway said no, or did not answer; `mend` says what to do about it."""

    def __init__(self, text: str, mend: str = "", *, passing: bool = False, problem: str = "") -> None:
        super().__init__(text)
        self.mend = mend
        self.problem = problem
        """The problem's name, where a gateway told it."""
        self.passing = passing
        """Whether trying again may help."""
