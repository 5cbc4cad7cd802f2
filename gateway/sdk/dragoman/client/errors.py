"""Errors of the client; none of their texts contains the API key."""

from dragoman.models.responses import Problem


class ClientError(Exception):
    """A failed request; the base of all errors of the client."""

    passing = False
    """Whether the same request may succeed later."""
    retry_after: float | None = None
    """Seconds to wait before a retry, from `Retry-After`."""


class GatewayUnreachable(ClientError):
    """No response: the connection failed, broke or timed out."""

    passing = True

    def __init__(self, text: str, *, arrived: bool) -> None:
        super().__init__(text)
        self.may_have_arrived = arrived
        """False if the request certainly was not executed."""


class UnexpectedAnswer(ClientError):
    """A response that this client does not know: from another server, a proxy or a newer release."""

    def __init__(self, text: str, *, status: int, passing: bool = False, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.passing = passing
        self.retry_after = retry_after


class RequestRefused(ClientError):
    """The gateway refused the request (gateway/http/README.md#problems)."""

    def __init__(self, problem: Problem, *, status: int, retry_after: float | None = None) -> None:
        where = f" (at {problem.pointer})" if problem.pointer and problem.pointer not in problem.detail else ""
        super().__init__(f"{problem.detail or problem.title}{where} [{status} {problem.type}]"[:_LONGEST])
        self.problem = problem
        self.status = status
        self.retry_after = retry_after
        # Only problems that a retry can fix have `Retry-After`.
        self.passing = retry_after is not None

    @property
    def type(self) -> str:
        """The name of the problem, such as `not-found`."""
        return self.problem.type.rpartition("/")[2]


_LONGEST = 1_000
