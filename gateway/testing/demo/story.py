"""The timeline of one call during which the gateway is killed."""

from operator import attrgetter

from gateway.testing.demo.one_call import DIALECTS
from gateway.testing.demo.player import Ask, Player
from gateway.testing.demo.report import Moment, Story


async def tell_story(player: Player, ask: Ask) -> Story | None:
    """Build the timeline of a call from the recorded connections; None if a part of it is missing."""
    environment = player.environment
    call_id = await player.key_of(ask)
    agent, backend = environment.wires[player.label], environment.backend_wire
    asked = agent.find(ask.mark, by_gateway=False)
    results = [each for each in agent.passed if each.by_gateway and ask.mark in each.text]
    webhooks = [each for each in backend.passed if each.headers.get("webhook-id") == call_id]
    response = backend.answer_to(webhooks[-1]) if webhooks else None
    if asked is None or not results or len(webhooks) < 2 or response is None:
        return None
    runs = environment.backend.records.executions[call_id]
    short = call_id[:8]
    found = [
        (asked.at, "agent", f"calls {ask.tool}"),
        (webhooks[0].at, "backend", f"receives the signed webhook {short} and starts to work"),
        (environment.killed_at, "gateway", "is killed with SIGKILL"),
        (environment.started_at, "gateway", "is started again, and finds the open call on disk"),
        (webhooks[1].at, "backend", f"receives {short} again, with the same webhook-id"),
        (response.at, "backend", f"responds; it ran the tool {'once' if runs == 1 else f'{runs} times'}"),
        (results[0].at, "agent", "receives the result"),
    ]
    moments = sorted((Moment(at - asked.at, part, text) for at, part, text in found), key=attrgetter("seconds"))
    return Story(f"One call that survives kill -9 ({DIALECTS[player.label]})", moments)
