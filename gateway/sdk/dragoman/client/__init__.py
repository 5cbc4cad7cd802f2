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
from dragoman.client.following import Followed as Followed
from dragoman.models import Gap as Gap, Live as Live, Missed as Missed, Passed as Passed
from dragoman.models.responses import (
    Activity as Activity,
    AnsweredInteraction as AnsweredInteraction,
    ApprovalRecord as ApprovalRecord,
    Attempt as Attempt,
    Call as Call,
    CallWithOutcome as CallWithOutcome,
    CallWithStory as CallWithStory,
    DeadCall as DeadCall,
    DeadCallWithStory as DeadCallWithStory,
    DeadDelivery as DeadDelivery,
    Envelope as Envelope,
    Interaction as Interaction,
    LastContext as LastContext,
    RedrivenCall as RedrivenCall,
    RedrivenDelivery as RedrivenDelivery,
    Runtime as Runtime,
    RuntimeCapabilities as RuntimeCapabilities,
    Session as Session,
    SessionName as SessionName,
)

__all__ = [
    "Activity",
    "AnsweredInteraction",
    "ApprovalRecord",
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
    "Followed",
    "Gap",
    "GatewayUnreachable",
    "Interaction",
    "LastContext",
    "Live",
    "Missed",
    "Passed",
    "RedrivenCall",
    "RedrivenDelivery",
    "RequestRefused",
    "Runtime",
    "RuntimeCapabilities",
    "Session",
    "SessionName",
    "UnexpectedAnswer",
]
