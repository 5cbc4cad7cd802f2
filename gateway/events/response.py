"""The response to one attempt of a call, as far as it is recorded. Pure."""

from gateway.events.frozen import frozen


@frozen
class Response:
    """An HTTP response of an executor."""

    status: int
    content_type: str = ""
    body: str = ""
    """The first 2 KiB with secrets masked; empty if it brought the outcome."""
