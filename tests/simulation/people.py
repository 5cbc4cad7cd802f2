"""The people of a world: they look at what waits, and allow, change, deny, or answer something that nobody asked."""

import asyncio
import json
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.approvals import PROMISE, binding_of
from tests.simulation.instance import Exchange
from tests.simulation.policy import APPROVERS

if TYPE_CHECKING:
    from tests.simulation.world import World

CLERK = "clerk"
"""An API key that may answer what runtimes ask, and no held call."""
_MANNERS = {"allow": 40, "edit": 25, "deny": 10, "stale": 6, "other": 6, "without": 1, "rival": 8, "again": 4}
"""The ways to answer, with their weights."""
_AGAIN, _MOST = 0.5, 40
"""Seconds after which a request without a response is repeated, and how often."""
_WAITING = "SELECT interaction_id, call_id FROM interactions WHERE state = 'waiting' AND call_id IS NOT NULL"
_BINDINGS = """
    SELECT i.call_id, e.body FROM interactions i JOIN events e ON e.session_id = i.session_id AND e.seq = i.request_seq
    WHERE i.call_id IS NOT NULL AND i.interaction_id <> ? ORDER BY i.id DESC LIMIT 5
"""


@dataclass(slots=True)
class Answer:
    """What a person has answered, once or again after no response."""

    name: str
    interaction: str
    call_id: str
    body: dict[str, Any]
    status: int | None = None


@dataclass(slots=True)
class People:
    """Everybody who answers."""

    answers: list[Answer] = field(default_factory=list[Answer])
    asked: dict[str, None] = field(default_factory=dict[str, None])
    """The interactions that somebody looks at who allows everything."""


def key_of(name: str) -> str:
    """Return the API key of a person."""
    return f"dk_{name}-of-the-world"


def keys() -> list[dict[str, Any]]:
    """Return the configuration of the people's API keys."""
    scopes = {name: ["read", "drive", "approve"] for name in APPROVERS} | {CLERK: ["read", "answer"]}
    return [{"name": name, "key": key_of(name), "scopes": found} for name, found in scopes.items()]


async def decide(world: "World") -> None:
    """People answer for held calls, or for those that are held no more."""
    waiting = world.read(_WAITING)
    if world.random.random() < 0.1:
        waiting = world.read(_WAITING.replace("state = 'waiting'", "state <> 'waiting'"))
    if not waiting:
        return
    # Several are allowed at once, so that some wait for a slot.
    for interaction, call_id in world.random.sample(waiting, min(len(waiting), world.random.choice((1, 2, 4)))):
        name = world.random.choice((*APPROVERS, *APPROVERS, *APPROVERS, CLERK))
        manner = world.random.choices([*_MANNERS], [*_MANNERS.values()])[0]
        world.tell(f"{name} looks at {call_id[:8]}: {manner}")
        random = Random(world.random.random())
        world.loop.create_task(_treat(world, random, Answer(name, interaction, call_id, {"decision": "allow"}), manner))


async def allow_all(world: "World") -> None:
    """Allow everything that waits, from now on."""
    while True:
        allow_waiting(world)
        await asyncio.sleep(1)


def allow_waiting(world: "World", manner: str = "allow") -> None:
    """Allow at once everything that waits, unless somebody does it already; with `edit`, change the arguments."""
    for interaction, call_id in world.read(_WAITING):
        if interaction not in world.people.asked:
            world.people.asked[interaction] = None
            for name in APPROVERS:
                answer = Answer(name, interaction, call_id, {"decision": "allow"})
                random = Random(interaction)
                world.loop.create_task(_treat(world, random, answer, manner, hesitates=False))


async def _treat(world: "World", random: Random, answer: Answer, manner: str, *, hesitates: bool = True) -> None:
    """Look at the question, think, and answer."""
    shown = await _look(world, answer)
    if shown is None:
        return
    event, body = shown["event"], answer.body
    if hesitates:
        await asyncio.sleep(random.choice((0, 0.1, 5)) * random.random())
    body["binding"] = shown["binding"]
    match manner:
        case "edit":
            body["arguments"] = _edited(random, event["arguments"])
        case "deny":
            answer.body = {"decision": "deny", "reason": f"not {answer.interaction}"}
        case "stale" | "other":
            found = [
                asked["binding"]
                for call_id, asked in (
                    (one, json.loads(text)) for one, text in world.read(_BINDINGS, answer.interaction)
                )
                if (call_id == answer.call_id) == (manner == "stale")
            ]
            body["binding"] = found[0] if found else shown["binding"][::-1]
        case "without":
            del body["binding"]
        case "rival":
            rival = Answer(random.choice(APPROVERS), answer.interaction, answer.call_id, {"decision": "deny"})
            world.loop.create_task(_post(world, rival))
        case "again":
            world.loop.create_task(_post(world, Answer(answer.name, answer.interaction, answer.call_id, dict(body))))
        case _:
            pass
    await _post(world, answer)


def _edited(random: Random, arguments: dict[str, Any]) -> dict[str, Any]:
    return random.choice(
        (
            {**arguments, "n": random.randint(1, 150)},
            {"n": random.randint(1, 150), "big": "y" * random.choice((1, 1_000))},
            {"note": {"é": [1.5, None, 2**60]}},
            {},
        )
    )


async def _look(world: "World", answer: Answer) -> dict[str, Any] | None:
    """Get the interaction, as it is shown; its binding is that of what is shown."""
    exchange = await _ask(world, answer.name, "GET", f"/v1/interactions/{answer.interaction}")
    if exchange is None or exchange.status != 200:
        return None
    shown = json.loads(exchange.body)
    event = shown["event"]
    bound = binding_of(shown["session_id"], event["call_id"], event["tool"], event["arguments"], shown["rule_sha"])
    if {shown["binding"], event["binding"]} != {bound}:
        world.fail(PROMISE, f"what is shown of {answer.call_id} has the binding {bound}, and not {shown['binding']}")
    return shown


async def _post(world: "World", answer: Answer) -> None:
    """Answer until there is a response."""
    world.people.answers.append(answer)
    path, body = f"/v1/interactions/{answer.interaction}/answer", json.dumps(answer.body).encode()
    for _ in range(_MOST):
        exchange = await _ask(world, answer.name, "POST", path, body)
        if exchange is not None and exchange.status is not None and exchange.status < 500 and exchange.status != 429:
            answer.status = exchange.status
            problem = "" if exchange.status == 200 else json.loads(exchange.body).get("type", "")
            said = f"{answer.body['decision']}s{' otherwise' if 'arguments' in answer.body else ''}"
            world.tell(f"{answer.name} {said} {answer.call_id[:8]}: {exchange.status} {problem}")
            return
        await asyncio.sleep(_AGAIN)


async def _ask(world: "World", name: str, method: str, path: str, body: bytes = b"") -> Exchange | None:
    exchange = world.ask(method, path, body, {"authorization": f"Bearer {key_of(name)}"})
    if exchange is None:
        return None
    await exchange.whole()
    return None if exchange.broken else exchange
