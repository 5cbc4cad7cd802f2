"""The requests that a simulated Herm agent makes on demand: an approval, a question, a password."""

from collections.abc import Callable
from typing import Protocol

from gateway.testing.runtimes.asking import PATIENCE, Asking, Busy, Way
from gateway.testing.runtimes.herm.asked import Asked, Interrupted
from gateway.testing.runtimes.herm.rules import Frame, texts_of
from gateway.testing.runtimes.herm.session import SimSession


class Sessions(Protocol):
    """A server with sessions."""

    @property
    def sessions(self) -> dict[str, SimSession]: ...


def questions(server: Sessions) -> Asking:
    """Let the newest session with an open stream ask."""

    def newest() -> SimSession:
        found = next((one for one in reversed(server.sessions.values()) if one.streams), None)
        if found is None:
            raise Busy("no gateway streams a session yet")
        return found

    async def approval(command: str) -> str:
        session = newest()
        try:
            used = await session.agent_uses("terminal", {"command": command}, "done", gated=True, within=PATIENCE)
        except Interrupted as exc:
            raise Busy(str(exc)) from exc
        _end(session)
        return f"{'denied' if used['is_error'] else 'approved'}; the tool's output: {texts_of(used['content'])}"

    async def question(text: str) -> str:
        session = newest()
        return await _answer(session, session.clarify(text), lambda event: f"answer: {event['answer']}")

    async def sudo(_text: str) -> str:
        session = newest()
        # The password itself is not printed.
        return await _answer(
            session, session.ask_sudo(), lambda event: f"password of {len(event['password'])} characters"
        )

    ways = {
        "approval": Way("rm deck.txt", approval),
        "question": Way("Whom shall I ask for a card?", question),
        "sudo": Way("", sudo),
    }
    return Asking(ways, check=newest)


async def _answer(session: SimSession, asked: Asked, describe: Callable[[Frame], str]) -> str:
    try:
        event = await asked.answered(PATIENCE)
    except Interrupted as exc:
        raise Busy(str(exc)) from exc
    _end(session)
    return describe(event)


def _end(session: SimSession) -> None:
    """End the turn, unless the agent has other open requests."""
    if session.turn and not session.open:
        session.end_turn()
