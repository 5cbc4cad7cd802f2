"""Run the simulated server alone."""

import argparse

from gateway.testing.runtimes.alone import (
    WAIT,
    FirstCall,
    Options,
    play,
    show_line,
    show_questions,
    stay,
    tell,
    tell_asked,
    told,
)
from gateway.testing.runtimes.herm.rules import texts_of
from gateway.testing.runtimes.herm.server import CALL_LIMIT, HermServer, Interrupted, SimSession


async def _call(session: SimSession, first: FirstCall) -> str:
    await session.wait_streams(within=WAIT)
    tell_asked(first)
    asked = session.call(first.tool, first.arguments)
    try:
        answer = await asked.answered(CALL_LIMIT)
    except Interrupted as exc:
        return f"no result: {exc}"
    if not session.open:
        session.end_turn()
    return told("failure" if answer.get("is_error") else "success", texts_of(answer["content"]), asked.latency)


async def _run(given: argparse.Namespace) -> None:
    key = given.api_key or given.env.get("HERM_API_KEY") or "key_simulated"
    async with HermServer(api_key=key, host=given.host, port=given.port) as server:
        session = server.session(given.session)
        tell(f"Herm at {server.url}, session {given.session}, agent {', '.join(server.agents)}")
        order = {"tool": "ask_for_cards", "arguments": {"rank": "7"}}
        url = f"{server.url}/simulator/sessions/{given.session}/call"
        show_line("Let the agent call a tool:", url, order, f"Authorization: Bearer {key}")
        show_questions(server.url, server.asking)
        await stay(given.call, lambda first: _call(session, first))


def main() -> None:
    """Serve one session and created ones until Ctrl-C."""
    options = Options("herm", "A simulated Herm server, speaking raw JSON over REST and SSE.")
    options.add_address()
    options.parser.add_argument(
        "--api-key", metavar="KEY", help="the API key; default: HERM_API_KEY, else key_simulated"
    )
    options.parser.add_argument(
        "--session", metavar="ID", default="session_1", help="the ID of an existing session (%(default)s)"
    )
    play(_run(options.read()))


if __name__ == "__main__":
    main()
