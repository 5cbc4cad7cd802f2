"""What a client raises; no text of it holds the API key."""

from gateway.models.responses import Problem


class ClientError(Exception):
    """A request that did not get what it asked for."""

    passing = False
    """Whether the same request may succeed in a while."""
    retry_after: float | None = None
    """Seconds after which to ask again, where the answer said so."""


class GatewayUnreachable(ClientError):
    """No answer: nobody listens, the connection broke, or nothing came in time."""

    passing = True

    def __init__(self, text: str, *, arrived: bool) -> None:
        super().__init__(text)
        self.may_have_arrived = arrived
        """False where the request was surely not carried out."""


class UnexpectedAnswer(ClientError):
    """An answer that no gateway gives that this client knows: another server's, a proxy's, or a newer release's."""

    def __init__(self, text: str, *, status: int, passing: bool = False, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.passing = passing
        self.retry_after = retry_after


class RequestRefused(ClientError):
    """The gateway said no, and why (gateway/http/README.md#problems)."""

    def __init__(self, problem: Problem, *, status: int, retry_after: float | None = None) -> None:
        where = f" (at {problem.pointer})" if problem.pointer and problem.pointer not in problem.detail else ""
        super().__init__(f"{problem.detail or problem.title}{where} [{status} {problem.type}]"[:_LONGEST])
        self.problem = problem
        self.status = status
        self.retry_after = retry_after
        # What helps when repeated says when.
        self.passing = retry_after is not None

    @property
    def type(self) -> str:
        """The name of the problem, such as `not-found`."""
        return self.problem.type.rpartition("/")[2]


_LONGEST = 1_000
