"""Asks a gateway over its API, from Python's asyncio: `README.md` beside this file tells how."""

from gateway.client.client import Client as Client
from gateway.client.errors import (
    ClientError as ClientError,
    GatewayUnreachable as GatewayUnreachable,
    RequestRefused as RequestRefused,
    UnexpectedAnswer as UnexpectedAnswer,
)
from gateway.events import Gap as Gap, Live as Live, Missed as Missed
from gateway.executors.webhook.models import Envelope as Envelope
from gateway.http.answers import (
    AnsweredInteraction as AnsweredInteraction,
    Call as Call,
    CallWithOutcome as CallWithOutcome,
    CallWithStory as CallWithStory,
    Interaction as Interaction,
    RuntimeCapabilities as RuntimeCapabilities,
    Session as Session,
)

__all__ = [
    "AnsweredInteraction",
    "Call",
    "CallWithOutcome",
    "CallWithStory",
    "Client",
    "ClientError",
    "Envelope",
    "Gap",
    "GatewayUnreachable",
    "Interaction",
    "Live",
    "Missed",
    "RequestRefused",
    "RuntimeCapabilities",
    "Session",
    "UnexpectedAnswer",
]
