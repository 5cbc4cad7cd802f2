"""The request that a simulated OpenHands agent makes on demand: approval of a command."""

from typing import Protocol

from gateway.testing.runtimes.asking import PATIENCE, Asking, Busy, Way
from gateway.testing.runtimes.openhands.conversation import SimConversation


class Conversations(Protocol):
    """A server with conversations."""

    @property
    def conversations(self) -> dict[str, SimConversation]: ...


def questions(server: Conversations) -> Asking:
    """Let the newest conversation with a joined client ask."""

    def newest() -> SimConversation:
        found = next((one for one in reversed(server.conversations.values()) if one.sockets), None)
        if found is None:
            raise Busy("no gateway has joined a conversation yet")
        if found.waits:
            raise Busy("the agent is already waiting for a decision")
        return found

    async def approval(command: str) -> str:
        try:
            seen = await newest().agent_runs(command, "done", gated=True, within=PATIENCE)
        except RuntimeError as exc:
            raise Busy(str(exc)) from exc
        return f"the action ended: {seen['observation']}: {seen['content']}"

    return Asking({"approval": Way("rm deck.txt", approval)}, check=newest)
