"""Run the simulated server alone."""

import argparse

from gateway.testing.runtimes.alone import WAIT, FirstCall, Options, play, show_line, stay, tell, tell_asked, told
from gateway.testing.runtimes.huma.server import CALL_LIMIT, HumaServer, SimAgent


async def _call(agent: SimAgent, first: FirstCall) -> str:
    await agent.wait_connected(WAIT)
    tell_asked(first)
    call = await agent.call(first.tool, first.arguments)
    await call.result(CALL_LIMIT)
    assert call.reading is not None
    return told(call.reading.outcome, call.reading.error or call.reading.result, call.latency)


async def _run(given: argparse.Namespace) -> None:
    key = given.api_key or given.env.get("HUMA_API_KEY") or "ak_simulated"
    names = given.agent or ["finn"]
    async with HumaServer(given.dialect, api_key=key, host=given.host, port=given.port) as server:
        agents = [server.agent(name) for name in names]
        tell(f"HUMA {given.dialect} at {server.url}, agents: {', '.join(names)}")
        order = {"tool": "ask_for_cards", "arguments": {"rank": "7"}}
        url = f"{server.url}/simulator/agents/{names[0]}/call"
        show_line("Let the agent call a tool:", url, order, f"X-API-Key: {key}")
        await stay(given.call, lambda first: _call(agents[0], first))


def main() -> None:
    """Serve agents until Ctrl-C."""
    options = Options("huma", "A simulated HUMA server of either dialect, speaking raw JSON.")
    options.add_address()
    options.parser.add_argument(
        "--dialect", choices=["0.1", "0.2"], default="0.2", help="the protocol version (%(default)s)"
    )
    options.parser.add_argument(
        "--api-key", metavar="KEY", help="the API key; default: HUMA_API_KEY, else ak_simulated"
    )
    options.parser.add_argument(
        "--agent", action="append", metavar="ID", help="an agent's ID; may be repeated (default: finn)"
    )
    play(_run(options.read()))


if __name__ == "__main__":
    main()
