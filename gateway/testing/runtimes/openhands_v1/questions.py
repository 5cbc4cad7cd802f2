"""The request that a simulated agent makes on demand: approval of a command."""

from typing import Protocol

from gateway.testing.runtimes.asking import PATIENCE, Asking, Busy as CannotAsk, Way
from gateway.testing.runtimes.openhands_v1.agent import SimConversation
from gateway.testing.runtimes.openhands_v1.conversation import Busy, Conversation


class Conversations(Protocol):
    """A server with conversations."""

    @property
    def conversations(self) -> dict[str, Conversation]: ...


def questions(server: Conversations) -> Asking:
    """Let the newest conversation with a connected client ask; an ACP agent never asks."""

    def newest() -> SimConversation:
        for one in reversed(server.conversations.values()):
            if one.sockets and isinstance(one, SimConversation):
                if one.held:
                    raise CannotAsk("the agent is already waiting for a decision")
                return one
        raise CannotAsk("no gateway is connected to a conversation with the built-in agent yet")

    async def approval(command: str) -> str:
        try:
            seen = await newest().agent_runs(command, "done", gated=True, within=PATIENCE)
        except (Busy, RuntimeError) as exc:
            raise CannotAsk(str(exc)) from exc
        match seen:
            case {"kind": "ObservationEvent", "observation": {"content": [{"text": said}, *_]}}:
                return f"the command ran: {said}"
            case {"rejection_reason": reason}:
                return f"rejected: {reason}"
            case _:
                return f"the action ended: {seen['kind']}"

    return Asking({"approval": Way("rm deck.txt", approval)}, check=newest)
