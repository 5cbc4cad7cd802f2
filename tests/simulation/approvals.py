"""The judges of held calls: none leaves without an approval or with other arguments, and each question ends once.

They match the routes themselves, compute the binding anew, and know what the people of the world have answered.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gateway.store.attempts import read as read_attempts
from tests.simulation.clock import EPOCH
from tests.simulation.policy import APPROVERS, Verdict, ruling

if TYPE_CHECKING:
    from tests.simulation.backend import Request
    from tests.simulation.people import Answer
    from tests.simulation.promises import Broken, Event
    from tests.simulation.world import World

NOTICE = "A person changed the arguments to "
PROMISE = 12
_LATE = 3.0
"""Seconds until the end of a call is on record."""
_LAG, _LONG_LAG = 0.5, 12.0
"""Seconds between a decision and its record; the second, while the store is slow or away."""
_CALL = """
    SELECT c.created_at, c.attempts, c.rule, c.key, c.redrive_of, e.kind, e.body, e.recorded_at
    FROM calls c LEFT JOIN events e ON e.session_id = c.session_id AND e.seq = c.arguments_seq WHERE c.call_id = ?
"""


def binding_of(session: str, call: str, tool: str, arguments: Any, rule: str) -> str:
    """Compute a binding as gateway/http/APPROVALS.md says."""
    named = {"v": 1, "session": session, "call": call, "tool": tool, "arguments": arguments, "rule": rule}
    return sha256(json.dumps(named, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def as_sent(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an outcome as its executor sent it, without the notice for the agent about changed arguments."""
    name = "result" if body["outcome"] == "success" else "error"
    text = body.get(name)
    if not isinstance(text, str) or not text.startswith(NOTICE):
        return body
    _, found, rest = text.partition("\n\n")
    sent: Any = rest if found else None
    if name == "result" and found:
        with suppress(ValueError):
            sent = json.loads(rest)
    return {**body, name: sent}


def check_request(world: "World", request: "Request") -> Iterator[str]:
    """Say what is wrong with a request: its call needs an approval, and its arguments are those that were allowed."""
    data, call_id = request.data, request.data["call_id"]
    for created, written, rule, key, redriven, kind, body, at in world.read(_CALL, call_id):
        what = f"attempt {request.attempt} of {call_id}"
        if request.key != (key or call_id) or (redriven is not None and request.key != redriven):
            yield f"{what} has the key {request.key}"
        asked: dict[str, Any] | None = None if body is None else json.loads(body)
        if asked is not None and (asked["arguments"] or {}) != data["arguments"]:
            yield f"{what} leaves with {data['arguments']}, and {kind} says {asked['arguments']}"
        if bool(data.get("edited")) != bool(asked and asked.get("edited")):
            yield f"{what} does not say whether its arguments were changed"
        allowed: tuple[float, list[Verdict]] | None = None
        if rule is not None:
            if asked is None or kind != "approval.given" or asked["decision"] != "allow":
                yield f"{what} leaves without an approval: {asked}"
                return
            bound = binding_of(data["session_id"], call_id, data["tool"], asked["arguments"], asked["rule_sha"])
            if asked["binding"] != bound:
                yield f"{what} was allowed with the binding {asked['binding']}, and is {bound}"
            allowed = _seconds(at), verdicts_at(world, at, data["tool"], data["arguments"])
            if request.path not in {f"/{one.route['to']}" for one in allowed[1] if one.route and "to" in one.route}:
                yield f"{what} goes to {request.path}, and was allowed for another executor"
        if request.attempt == 1:
            began = (
                next((one.started_at for one in reversed(read_attempts(written)) if one.n == 1), None)
                if written
                else None
            )
            left = created if began is None else int(began.timestamp() * 1_000_000)
            yield from _look(what, verdicts_at(world, left, data["tool"], data["arguments"]), allowed)


def _look(what: str, now: list[Verdict], allowed: tuple[float, list[Verdict]] | None) -> Iterator[str]:
    """Say what is wrong with a call that leaves for the first time under routes."""
    kinds = {one.kind for one in now}
    # A call that never needed an approval keeps its executor when its route is gone.
    may = {"run", "unrouted"} if allowed is None else {"run", "ask"}
    if not kinds & may:
        yield f"{what} leaves {'after an' if allowed else 'without an'} approval, and its routes say {kinds}"
    elif allowed is not None and "run" not in kinds:
        before = [one.route for one in allowed[1]]
        if not any(one.route in before for one in now):
            yield f"{what} was allowed under another route than that which asks when it leaves"


def verdicts_at(world: "World", recorded_at: int, tool: str, arguments: Mapping[str, Any]) -> list[Verdict]:
    """Say what the routes may have said about a call in a decision with this record."""
    at = _seconds(recorded_at)
    lag = _LONG_LAG if _is_slow(world, at) else _LAG
    return [ruling(one, tool, arguments) for one in world.policies.at(at - lag, at + _LAG, world.loop.now)]


def judge(world: "World", events: Iterable["Event"]) -> Iterator["Broken"]:
    """12: each answer on record is one that a person has given to what was asked last; no call is asked in vain."""
    of: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind in {"approval.asked", "approval.given"} and event.body.get("call_id"):
            of[event.body["call_id"]].append(event)
    ended = {event.body["call_id"]: event.body for event in events if event.kind == "tool.finished"}
    expiries = {
        (session, sequence): (expires, state, by)
        for session, sequence, expires, state, by in world.read(
            "SELECT session_id, request_seq, expires_at, state, answered_by FROM interactions WHERE call_id IS NOT NULL"
        )
    }
    for call_id, found in of.items():
        for one, other in pairwise([None, *found]):
            assert other is not None
            if other.kind == "approval.asked":
                yield from _question(world, other, one)
            elif one is None or one.kind != "approval.asked":
                yield (
                    PROMISE,
                    f"the answer {other.sequence} to {call_id} follows {one and one.sequence}, and no question",
                )
            else:
                yield from _answer(world, one, other, expiries[one.session, one.sequence])
        if call_id in ended:
            yield from _end(world, call_id, found[-1], ended[call_id], expiries)
    yield from _accepted(world)


def _question(world: "World", asked: "Event", before: "Event | None") -> Iterator["Broken"]:
    body = asked.body
    is_after = before is not None and world.restored.get(body["call_id"]) == before.sequence
    says = str(body.get("warning")).startswith("restored from a backup of 2026-01-01 ")
    # Another backup may have been restored before.
    if is_after != says and (is_after or body["call_id"] not in world.forgotten):
        yield PROMISE, f"the question {asked.sequence} about {body['call_id']} says {body.get('warning')}"
    if not body.get("warning") and not any(
        one.kind == "ask" for one in verdicts_at(world, asked.recorded_at, body["tool"], body["arguments"])
    ):
        yield PROMISE, f"a person is asked about {body['call_id']} ({asked.sequence}), and no route asks"


def _answer(world: "World", asked: "Event", given: "Event", row: tuple[int, str, str | None]) -> Iterator["Broken"]:
    body, call_id, by = given.body, given.body["call_id"], given.body.get("by")
    what = f"the answer {given.sequence} to {call_id} by {by}"
    if world.restored.get(call_id) == asked.sequence:
        yield PROMISE, f"{what} was asked for before the database was restored"
    expires, state, answered_by = row
    if (state, answered_by) != ("answered", by):
        yield PROMISE, f"{what} is on record, and its question is {state} by {answered_by}"
    if given.recorded_at > expires and not _is_slow(world, _seconds(given.recorded_at)):
        yield PROMISE, f"{what} counts {(given.recorded_at - expires) / 1_000_000:.2f} s after its time"
    native = world.read("SELECT native_call_id FROM calls WHERE call_id = ?", call_id)
    if by not in APPROVERS or any(one.startswith(f"caller:{by}:") for (one,) in native):
        yield PROMISE, f"{what} counts, and it may not answer"
    now = verdicts_at(world, given.recorded_at, asked.body["tool"], asked.body["arguments"])
    if all(one.kind == "ask" and by not in one.approve.get("by", APPROVERS) for one in now):
        yield PROMISE, f"{what} counts, and its route names others"
    then = verdicts_at(world, given.recorded_at, asked.body["tool"], body.get("arguments") or {})
    is_asked = body["decision"] == "allow" and all(one.kind == "ask" for one in then)
    if is_asked and body["rule_sha"] != asked.body["rule_sha"]:
        yield PROMISE, f"{what} allows it under another rule than that which asked"
    if call_id not in world.forgotten and not any(_said(one, asked, given) for one in world.people.answers):
        yield PROMISE, f"{what} is on record, and nobody has given it to what was asked"
    # It may have been sent before a restore.
    if body["decision"] == "deny" and call_id in world.backend.work and call_id not in world.forgotten:
        yield PROMISE, f"{call_id} was denied, and sent"


def _said(answer: "Answer", asked: "Event", given: "Event") -> bool:
    """Whether a person has given this answer to what was asked."""
    said, body = answer.body, given.body
    if (answer.name, answer.call_id, said["decision"]) != (body.get("by"), body["call_id"], body["decision"]):
        return False
    if said["decision"] == "deny":
        return said.get("reason") == body.get("reason")
    return (
        said.get("binding") == asked.body["binding"]
        and said.get("arguments", asked.body["arguments"]) == body["arguments"]
    )


def _end(
    world: "World",
    call_id: str,
    last: "Event",
    outcome: Mapping[str, Any],
    expiries: Mapping[tuple[int, int], tuple[int, str, str | None]],
) -> Iterator["Broken"]:
    """A call that was held ends as the last word about it says."""
    text = outcome.get("result") if outcome["outcome"] == "success" else outcome.get("error")
    is_told = isinstance(text, str) and text.startswith(NOTICE)
    if last.kind == "approval.given":
        if last.body["decision"] == "deny" and (
            outcome["outcome"] != "failure" or (last.body.get("reason") or "") not in str(text)
        ):
            yield PROMISE, f"{call_id} was denied, and is {outcome['outcome']}: {text}"
        if last.body["decision"] == "allow" and is_told != bool(last.body.get("edited")):
            yield PROMISE, f"{call_id} was allowed ({last.body.get('edited')}), and its agent is told {str(text)[:80]}"
        return
    if outcome["outcome"] == "success":
        yield PROMISE, f"{call_id} succeeds, and a person was asked last"
    expires, state, _ = expiries[last.session, last.sequence]
    for (finished,) in world.read("SELECT finished_at FROM calls WHERE call_id = ?", call_id):
        late = (finished - expires) / 1_000_000
        if outcome["outcome"] == "expired" and (late < 0 or state != "expired"):
            yield PROMISE, f"{call_id} expires {-late:.2f} s before its time, and its question is {state}"
        since, until = _seconds(expires) - _LONG_LAG, _seconds(finished)
        if late > _LATE and not (world.was_disturbed(since, until) or world.was_delayed(since, until)):
            yield 10, f"{call_id} is held for {late:.2f} s after its time"


def _accepted(world: "World") -> Iterator["Broken"]:
    """Nobody's answer is accepted twice, and an accepted one is on record."""
    times = Counter(one.interaction for one in world.people.answers if one.status == 200)
    rows = dict(world.read("SELECT interaction_id, answered_by FROM interactions WHERE call_id IS NOT NULL"))
    for answer in world.people.answers:
        if answer.status != 200 or answer.call_id in world.forgotten:
            continue
        if times[answer.interaction] > 1:
            yield PROMISE, f"{times[answer.interaction]} answers to {answer.interaction} were accepted"
        if rows.get(answer.interaction) != answer.name:
            yield PROMISE, f"{answer.name}'s answer to {answer.interaction} was accepted, and is not on record"


def _is_slow(world: "World", at: float) -> bool:
    """Whether a decision may have been recorded long after it was made."""
    return world.was_delayed(at - _LONG_LAG, at)


def _seconds(stored: int) -> float:
    return stored / 1_000_000 - EPOCH
