"""What a simulated Herm agent asks people where somebody tells it to: an approval, a question, a password."""

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
    """Let the newest session that is streamed ask."""

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
        return f"{'a denial' if used['is_error'] else 'a permission'}, and its tool says: {texts_of(used['content'])}"

    async def question(text: str) -> str:
        session = newest()
        return await _answer(session, session.clarify(text), lambda event: f"an answer: {event['answer']}")

    async def sudo(_text: str) -> str:
        session = newest()
        # What it is stays between the two.
        return await _answer(
            session, session.ask_sudo(), lambda event: f"a password of {len(event['password'])} letters"
        )

    ways = {
        "approval": Way("rm deck.txt", approval),
        "question": Way("Whom shall I ask for a card?", question),
        "sudo": Way("", sudo),
    }
    return Asking(ways, check=newest)


async def _answer(session: SimSession, asked: Asked, say: Callable[[Frame], str]) -> str:
    try:
        event = await asked.answered(PATIENCE)
    except Interrupted as exc:
        raise Busy(str(exc)) from exc
    _end(session)
    return say(event)


def _end(session: SimSession) -> None:
    """End the turn, unless the agent waits for something else."""
    if session.turn and not session.open:
        session.end_turn()
