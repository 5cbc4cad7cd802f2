"""An asyncio client of the gateway's API; see `README.md` in this folder.

May import `dragoman.hidden`, `dragoman.models`, `dragoman.sse`.
"""

from dragoman.client.client import Client as Client
from dragoman.client.errors import (
    ClientError as ClientError,
    GatewayUnreachable as GatewayUnreachable,
    RequestRefused as RequestRefused,
    UnexpectedAnswer as UnexpectedAnswer,
)
from dragoman.models import Gap as Gap, Live as Live, Missed as Missed
from dragoman.models.responses import (
    Activity as Activity,
    AnsweredInteraction as AnsweredInteraction,
    Attempt as Attempt,
    Call as Call,
    CallWithOutcome as CallWithOutcome,
    CallWithStory as CallWithStory,
    DeadCall as DeadCall,
    DeadCallWithStory as DeadCallWithStory,
    DeadDelivery as DeadDelivery,
    Interaction as Interaction,
    RedrivenCall as RedrivenCall,
    RedrivenDelivery as RedrivenDelivery,
    Runtime as Runtime,
    RuntimeCapabilities as RuntimeCapabilities,
    Session as Session,
)
from dragoman.models.webhooks import Envelope as Envelope

__all__ = [
    "Activity",
    "AnsweredInteraction",
    "Attempt",
    "Call",
    "CallWithOutcome",
    "CallWithStory",
    "Client",
    "ClientError",
    "DeadCall",
    "DeadCallWithStory",
    "DeadDelivery",
    "Envelope",
    "Gap",
    "GatewayUnreachable",
    "Interaction",
    "Live",
    "Missed",
    "RedrivenCall",
    "RedrivenDelivery",
    "RequestRefused",
    "Runtime",
    "RuntimeCapabilities",
    "Session",
    "UnexpectedAnswer",
]
