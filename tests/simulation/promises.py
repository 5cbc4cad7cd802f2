"""The promises of gateway/README.md as code: what must hold of a world, seen from outside.

The judges ask the database file, the backend and the agents, never the memory of the gateway.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from gateway.store.attempts import CallAttempt, read as read_attempts
from gateway.testing.runtimes.huma.rules import ResultFrame, Violation, read_frame
from tests.simulation.approvals import as_sent, judge as judge_approvals
from tests.simulation.backend import UNSURE, failed_in
from tests.simulation.clients import GAP
from tests.simulation.clock import EPOCH
from tests.simulation.people import allow_all
from tests.simulation.policy import TOOLS, ungated

if TYPE_CHECKING:
    from tests.simulation.backend import Work
    from tests.simulation.huma import HumaServer
    from tests.simulation.world import World

_HEALING = 900.0
"""Simulated seconds after the last fault in which everything comes to rest."""
_LATE = "arrived too late; success was assumed"
"""A violation that no gateway can avoid: the confirmation of a message took longer than its server waits."""

_QUIET = 4
"""Looks, five seconds apart, that find nothing unfinished."""

_ARRIVING = 10
"""Seconds in which the last events reach their followers."""
_PROBES, _PROBED = 4, 40
"""Times that a call is made in a healthy world, and seconds in which it ends."""
_IDLE = 6
"""Looks that find a queued call which may be sent, while no call holds a slot."""
_QUICK = 3.0
"""Seconds in which an answer is certainly in time."""
_AROUND = 5.0
"""Seconds around a fault that may have kept the gateway from an answer."""

_SAME = 0.2
"""Seconds between two events that may be seen in either order."""

Broken = tuple[int, str]
"""The number of a promise, and how it is broken."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the journal."""

    runtime: str
    session: int
    sequence: int
    event_id: str
    kind: str
    body: Mapping[str, Any]
    recorded_at: int


async def check_end(world: "World") -> None:
    """Heal everything, wait until it rests, and judge."""
    world.heal()
    until, quiet, idle = world.loop.now + _HEALING, 0, dict[str, int]()
    while world.loop.now < until and quiet < _QUIET:
        await asyncio.sleep(5)
        if world.fault is not None:
            return
        world.start()
        up = all(instance.up for instance in world.instances)
        quiet = quiet + 1 if up and not any(unfinished(world)) else 0
        idle = {call_id: idle.get(call_id, 0) + 1 for call_id in _waits_for_nothing(world)}
        for call_id in [call_id for call_id, looks in idle.items() if looks > _IDLE]:
            world.fail(2, f"call {call_id} waits, and no other call runs")
            return
    for instance in world.instances:
        if not instance.up:
            world.fail(10, f"{instance.name} does not start: {instance.failure!r}")
            return
    await _probe(world)
    for _ in range(_ARRIVING):
        # What is recorded at this moment reaches its followers a little later.
        if any(followers(world)):
            await asyncio.sleep(1)
    for judge in (
        unfinished,
        outcomes,
        attempts,
        callbacks,
        replays,
        cancels,
        agents,
        messages,
        deliveries,
        order,
        followers,
        writers,
        approvals,
        surprises,
    ):
        try:
            found = [*judge(world)]
        except Exception as exc:  # noqa: BLE001 - a check that fails is a fault of the world
            world.fault = exc
            return
        for number, text in found:
            world.fail(number, text)


async def _probe(world: "World") -> None:
    """2: a healthy gateway runs new calls, as its newest configuration says; a breaker may still refuse the first."""
    world.target = "spare" if world.target == "again" else "again"
    world.routes = ungated(world.target)
    if world.is_gated:
        world.routes = tuple({**one, "approve": True} for one in world.routes)
        if not world.allows_all:
            world.loop.create_task(allow_all(world))
    loaded = [(await exchange.whole()).status for exchange in world.reload()]
    if any(status != HTTPStatus.OK for status in loaded):
        world.fail(11, f"a reload in a healthy world is answered with {loaded}")
    began, left = world.loop.now, [(server, tool) for server in world.servers.values() for tool in TOOLS]
    for number in range(_PROBES):
        made = [await server.agent.call(tool, {"n": number}, f"probe-{number}-{tool}") for server, tool in left]
        for _ in range(_PROBED):
            # What has ended is on record a little later.
            if all(call.reading is not None for call in made) and not any(unfinished(world)):
                break
            await asyncio.sleep(1)
        results = zip(left, made, strict=True)
        left = [one for one, call in results if call.reading is None or call.reading.outcome != "success"]
        if not left:
            break
    for server, tool in left:
        world.fail(2, f"no new call of {tool} by {server.agent.agent_id} succeeds in a healthy world")
    for request in (request for work in world.backend.work.values() for request in work.requests):
        to = world.target if request.data["tool"] == "again" else "once"
        if request.at > began and request.path != f"/{to}":
            world.fail(11, f"{request.data['native_call_id']} goes to {request.path} after a reload, not to /{to}")


def _waits_for_nothing(world: "World") -> list[str]:
    """List the queued calls whose time has come, if no other call can hold their slot."""
    query = """
        SELECT call_id FROM calls WHERE state = 'queued' AND coalesce(due_at, 0) < ?
        AND NOT EXISTS (SELECT 1 FROM calls WHERE state IN ('dispatched', 'accepted'))
    """
    return [call_id for (call_id,) in world.read(query, int((EPOCH + world.loop.now) * 1_000_000))]


def unfinished(world: "World") -> Iterator[Broken]:
    """2, 10: no recorded call stays open, each outcome is delivered, refused, moot or listed, and each link is up."""
    for name, server in world.servers.items():
        if not server.agent.connected:
            yield 10, f"the link of {name} stays down, though its server works"
    rows = world.read("SELECT call_id, state FROM calls WHERE state IN ('held', 'queued', 'dispatched', 'accepted')")
    for call_id, state in rows:
        yield 2, f"call {call_id} stays {state}"
    asked = world.read("SELECT call_id FROM interactions WHERE state = 'waiting' AND call_id IS NOT NULL")
    for (call_id,) in asked:
        yield 2, f"the question about {call_id} stays open"
    for sequence, target in world.read("SELECT seq, target FROM outbound WHERE state = 'pending'"):
        yield 2, f"the delivery of event {sequence} to {target} stays pending"
    for writer in world.writers:
        if not writer.answers and not writer.refused:
            yield 2, f"the request with {writer.key} gets no answer, but {writer.last}"


def journal(world: "World") -> list[Event]:
    """Read all events in their order."""
    if world.events is None or world.events[0] != world.loop.now:
        rows = world.read(
            "SELECT s.runtime, s.id, e.seq, e.event_id, e.kind, e.body, e.recorded_at"
            " FROM events e JOIN sessions s ON s.id = e.session_id"
            " ORDER BY s.id, e.seq"
        )
        found = [
            Event(name, session, place, event_id, kind, json.loads(body or b"{}"), at)
            for name, session, place, event_id, kind, body, at in rows
        ]
        world.events = world.loop.now, found
    return world.events[1]


def outcomes(world: "World") -> Iterator[Broken]:
    """2, 3, 5: each call has one outcome, which is what the backend did."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    asked: dict[str, int] = defaultdict(int)
    for event in journal(world):
        if event.kind == "tool.finished":
            found[event.body["call_id"]].append(as_sent(event.body))
        elif event.kind == "tool.requested" and event.body.get("runs_in", "host") == "host":
            asked[event.body["call_id"]] += 1
    rows = world.read("SELECT call_id, native_call_id, tool, state, deadline_at FROM calls")
    recorded = {row[0]: row[1:] for row in rows}
    for call_id in asked.keys() - recorded.keys():
        yield 2, f"the request {call_id} has no call"
    for call_id, (native, tool, state, deadline) in recorded.items():
        if len(found[call_id]) != 1:
            yield 2, f"{native} has {len(found[call_id])} outcomes and is {state}"
            continue
        if call_id in world.forgotten:
            continue
        work = world.backend.work.get(call_id)
        yield from _outcome(native, tool, found[call_id][0], work, attempts=world.most_attempts)
        # Its route may ask a person before it leaves.
        if call_id in world.due and state == "expired" and not _was_held(found[call_id][0]):
            yield 2, f"{native} waited while everything worked, and expired"
        last = work.requests[-1] if work is not None else None
        if last is not None and last.manner == "refuse" and _was_accepted(work):
            # A refused repeat leaves its accepted call as it is.
            last = None
        if found[call_id][0].get("unknown") and last is not None and last.answered_at is not None:
            # An attempt shortly before the deadline has only the time until then.
            had_time = _seconds(deadline) - last.at > _QUICK
            quick = had_time and last.answered_at - last.at < min(_QUICK, world.attempt_limit - 1)
            if quick and not world.was_disturbed(last.at - _AROUND, last.answered_at + _AROUND):
                error = found[call_id][0].get("error")
                yield 5, f"{native} is unknown ({error}), and the backend answered {last.manner} to {last.attempt}"


def _was_accepted(work: "Work | None") -> bool:
    return work is not None and any(one.manner in {"accept", "early"} for one in work.requests)


def _was_held(outcome: Mapping[str, Any]) -> bool:
    return str(outcome.get("error")).startswith("The call was not made: nobody allowed")


def replays(world: "World") -> Iterator[Broken]:
    """8: a call that its agent or client sends again is one call, whether it has ended or not."""
    rows = world.read(
        "SELECT native_call_id, count(*) FROM calls WHERE redrive_of IS NULL"
        " GROUP BY session_id, native_call_id, args_sha HAVING count(*) > 1"
    )
    for native, times in rows:
        if native not in world.forgotten:
            yield 8, f"{native} is {times} calls with the same arguments"


def _outcome(
    native: str, tool: str, outcome: Mapping[str, Any], work: "Work | None", *, attempts: int
) -> Iterator[Broken]:
    sent = [] if work is None else [one.get("result") for one in work.sent]
    if outcome["outcome"] == "success" and outcome.get("result") not in sent:
        yield 3, f"{native} succeeded with a result that the backend never sent: {outcome.get('result')}"
    if work is None:
        return
    if tool == "once" and len([one for one in work.requests if one.manner != "busy"]) > 1:
        yield 3, f"{native} was sent twice: {[one.manner for one in work.requests]}"
    if len([one for one in work.requests if one.manner != "busy"]) > attempts:
        yield 10, f"{native} was sent {len(work.requests)} times, and {attempts} attempts are allowed"
    error = outcome.get("error")
    ended = outcome["outcome"] in {"failure", "expired"} and not outcome.get("unknown")
    said = error in [one.get("error") for one in work.sent] or any(one.manner == "refuse" for one in work.requests)
    if ended and work.nonces and not said:
        yield 5, f"{native} ran, and its failure is not marked unknown: {error}"
    for one in work.requests:
        if one.manner == "fail" and one.answered_at is not None and error == failed_in(one.attempt):
            newer = [other.attempt for other in work.requests if other.attempt > one.attempt]
            if any(other.at < one.answered_at - _SAME for other in work.requests if other.attempt in newer):
                yield 3, f"{native} ended with the failure of attempt {one.attempt}, while {newer} ran"


def attempts(world: "World") -> Iterator[Broken]:
    """5, 10: the attempts on record are those that arrived, and say of each whether it may have done the work."""
    rows = world.read(
        "SELECT call_id, native_call_id, state, attempt, created_at, finished_at, attempts FROM calls"
        " WHERE finished_at IS NOT NULL AND redrive_of IS NULL"
    )
    called_back = {one.call_id for one in world.callbacks if one.status == 200}
    for call_id, native, state, attempt, created, finished, written in rows:
        work, began, ended = world.backend.work.get(call_id), _seconds(created), _seconds(finished)
        if call_id in world.forgotten:
            continue
        arrived = 0 if work is None else len(work.requests)
        # Another outcome stops the request that is on its way.
        usual = {attempt, attempt - 1} if _was_accepted(work) or call_id in called_back else {attempt}
        # A request that is given up at once, because the call has hardly any time left, may never arrive.
        given_up = 0 if written is None else sum(one.unsure and _is_short(one) for one in read_attempts(written))
        usual |= {attempt - given_up}
        if state in {"succeeded", "failed"} and arrived not in usual and not world.may_lose(began, ended):
            yield 10, f"{native} has {attempt} attempts on record, and {arrived} requests arrived"
        requests = {} if work is None else {one.attempt: one for one in work.requests}
        for one in () if written is None else read_attempts(written):
            request, over = requests.get(one.n), one.ended_at
            if request is None or over is None or not one.sent or over.timestamp() - EPOCH > ended - _SAME:
                continue
            if request.manner in UNSURE and not one.unsure:
                yield 5, f"attempt {one.n} of {native} may have run ({request.manner}), and counts as one that has not"
            paused = request.pause is not None and request.pause[0] < request.at + world.attempt_limit - 1
            if paused and one.unsure and not world.was_disturbed(request.at - _AROUND, ended):
                yield 5, f"attempt {one.n} of {native} was refused, and counts as one that may have run"


def _is_short(attempt: CallAttempt) -> bool:
    return attempt.ended_at is not None and (attempt.ended_at - attempt.started_at).total_seconds() < _SAME


def callbacks(world: "World") -> Iterator[Broken]:
    """2, 3: a callback that was taken is the outcome; one that came too late is on record as ignored."""
    events = journal(world)
    ended = {event.body["call_id"]: as_sent(event.body) for event in events if event.kind == "tool.finished"}
    ignored = {event.body["call_id"] for event in events if event.kind == "outcome.ignored"}
    for sent in world.callbacks:
        if sent.call_id in world.forgotten or sent.status is None:
            continue
        found, given = ended.get(sent.call_id, {}), sent.outcome
        equal = all(found.get(name) == given.get(name) for name in ("outcome", "result", "error"))
        match sent.status:
            case 200 if not equal:
                yield 3, f"the callback {given} of {sent.call_id} was taken, and {found} is recorded"
            case 409 if equal:
                yield 3, f"the callback {given} of {sent.call_id} was refused, and is what is recorded"
            case 409 if sent.call_id not in ignored:
                yield 2, f"the late callback {given} of {sent.call_id} is not on record as ignored"
            case 200 | 409 | 410:
                pass
            case status:
                yield 2, f"the callback {given} of {sent.call_id} was answered with {status}"


def cancels(world: "World") -> Iterator[Broken]:
    """2: an executor that works on a call is told of its cancel, if the network works then."""
    rows = world.read(
        "SELECT call_id, native_call_id, finished_at, canceling_until FROM calls WHERE state = 'canceled'"
    )
    for call_id, native, finished, until in rows:
        work = world.backend.work.get(call_id)
        at = _seconds(finished) if until is None else _seconds(until) - world.grace
        if work is None or call_id in world.forgotten or world.was_disturbed(at - _AROUND, at + _AROUND):
            continue
        if any(one.at < at - _SAME for one in work.requests) and call_id not in world.backend.canceled:
            yield 2, f"{native} was canceled, and its executor was not told"


def _seconds(stored: int) -> float:
    """Return the time of the loop that the database has."""
    return stored / 1_000_000 - EPOCH


def agents(world: "World") -> Iterator[Broken]:
    """3: an agent gets the recorded outcome, and all repeats are equal; delivered means that it arrived."""
    natives = dict(world.read("SELECT call_id, native_call_id FROM calls WHERE redrive_of IS NULL"))
    finished = {
        (event.session, event.sequence): event
        for event in journal(world)
        if event.kind == "tool.finished" and event.body["call_id"] in natives
    }
    delivered = {
        (session, sequence): state
        for session, sequence, state in world.read(
            "SELECT session_id, seq, state FROM outbound WHERE target = 'runtime'"
        )
    }
    for place, event in finished.items():
        server = world.servers[event.runtime]
        call = server.agent.calls.get(natives[event.body["call_id"]])
        if call is None or call.call_id in world.forgotten:
            continue
        if delivered.get(place) == "delivered" and not call.results:
            yield 2, f"the outcome of {call.call_id} counts as delivered and has not arrived"
        outcome = {"expired": "failure"}.get(event.body["outcome"], event.body["outcome"])
        if call.reading is not None and call.reading.outcome != outcome:
            yield 3, f"{call.call_id} is {outcome}, and its agent got {call.reading.outcome}"
    for name, server in world.servers.items():
        for violation in server.agent.violations:
            # After a restore, an agent gets the outcomes of calls again, and others than before.
            if _LATE not in violation and not world.forgotten:
                yield 4, f"{name}: {violation}"


def messages(world: "World") -> Iterator[Broken]:
    """2, 3: a message of a client arrives if it counts as delivered; repeats after a lost link are equal."""
    states = {
        (session, sequence): state
        for session, sequence, state in world.read(
            "SELECT session_id, seq, state FROM outbound WHERE target = 'runtime'"
        )
    }
    for event in journal(world):
        if event.kind != "message.posted":
            continue
        text, server = _text_of(event), world.servers[event.runtime]
        if not text.startswith("said ") or text in world.forgotten:
            continue
        quoted = f'"{text}"'
        found = [(process, frame) for process, frame in server.received if quoted in json.dumps(frame)]
        if not found and states.get((event.session, event.sequence)) == "delivered":
            yield 2, f"{event.runtime}: the message {text!r} counts as delivered and has not arrived"
        # A 0.2.0 agent gets a message again in the next context.
        if server.agent.dialect == "0.1" and any(one != found[0] for one in found):
            yield 3, f"{event.runtime}: the message {text!r} arrived again, of another process or with other bytes"


def deliveries(world: "World") -> Iterator[Broken]:
    """3: an executor gets a message of an agent under one key, and once if it may not be repeated."""
    if world.forgotten:
        return  # A restored database may have forgotten a message, or that it was delivered.
    recorded = {event.event_id for event in journal(world) if event.kind == "message.posted"}
    for (key, executor), times in Counter(world.backend.messages).items():
        if key not in recorded:
            yield 3, f"{executor} got a message under the key {key}, which no message has"
        if executor == "once" and times > 1:
            yield 3, f"{executor} got the message {key} {times} times"


def _text_of(event: Event) -> str:
    """Return the text of a message."""
    return "".join(part.get("text", "") for part in event.body["content"])


def order(world: "World") -> Iterator[Broken]:
    """4: outcomes arrive in the order of the journal, repeats aside."""
    natives = dict(world.read("SELECT call_id, native_call_id FROM calls WHERE redrive_of IS NULL"))
    for name, server in world.servers.items():
        places = {
            natives[event.body["call_id"]]: event.sequence
            for event in journal(world)
            if event.runtime == name and event.kind == "tool.finished" and event.body["call_id"] in natives
        }
        last, seen = 0, set[str]()
        for call_id in _results(server):
            place = places.get(call_id, 0)
            if call_id in world.forgotten:
                continue
            if call_id not in seen and place < last:
                yield 4, f"{name} got the outcome of {call_id} (event {place}) after event {last}"
            seen.add(call_id)
            last = max(last, place)


def _results(server: "HumaServer") -> Iterator[str]:
    for frame in server.agent.received:
        try:
            read = read_frame(frame.payload, server.agent.dialect)
        except Violation:
            continue
        if isinstance(read, ResultFrame):
            yield read.call_id


def followers(world: "World") -> Iterator[Broken]:
    """A follower with a position sees each event once, in order, or a gap."""
    events = journal(world)
    for runtime, follower in world.followers:
        if follower.refused:
            where = f"{runtime or 'all sessions'} {follower.filters or ''}"
            yield 1, f"a follower of {where} is refused at {follower.position}: {follower.refused}"
        seen, has_gap = follower.seen, GAP in follower.seen
        if has_gap:
            seen = seen[len(seen) - seen[::-1].index(GAP) :]
        if runtime is None:
            yield from _follower_of_all(
                seen, [event for event in events if follower.matches(event.runtime, event.kind)]
            )
            continue
        first = follower.after + 1 if not has_gap else seen[0][0] if seen else 0
        expected = [(one.sequence, one.event_id) for one in events if one.runtime == runtime and one.sequence >= first]
        if seen != expected and (seen or not has_gap):
            others = len({*seen} - {*expected})
            what = f"{_shorten(seen)}, {others} of them not on record, instead of {_shorten(expected)}"
            yield 1, f"a follower of {runtime} after {follower.after} saw {what}"


def _follower_of_all(seen: list[tuple[int, str]], events: list[Event]) -> Iterator[Broken]:
    """A follower of all sessions sees, of each session, all events from its first one on."""
    of = {event.event_id: event for event in events}
    by_runtime: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for sequence, event_id in seen:
        if event_id not in of:
            yield 1, f"a follower of all sessions saw event {sequence}, which is not on record, or of other filters"
            return
        by_runtime[of[event_id].runtime].append((sequence, event_id))
    for runtime, some in by_runtime.items():
        expected = [(one.sequence, one.event_id) for one in events if one.runtime == runtime]
        expected = expected[expected.index(some[0]) :]
        if some != expected:
            yield 1, f"a follower of all sessions saw {_shorten(some)} of {runtime}, instead of {_shorten(expected)}"


def writers(world: "World") -> Iterator[Broken]:
    """3: a request with a key is recorded once, and all its answers are equal."""
    events = journal(world)
    ended = {event.body["call_id"]: event.body for event in events if event.kind == "tool.finished"}
    written = Counter(
        event.body["context"].get("n") if event.kind == "context.updated" else _text_of(event)
        for event in events
        if event.kind == "message.posted" or event.body.get("name") == "board"
    )
    for writer in world.writers:
        if writer.key in world.forgotten or not writer.answers:
            continue
        if "events" in writer.body:
            posted = writer.body["events"][0]
            times = written[posted["context"]["n"] if "context" in posted else posted["content"]]
            if times != 1:
                yield 3, f"the event of {writer.key} is recorded {times} times"
            continue
        for answer in writer.answers:
            got: dict[str, Any] = answer["outcome"] or {}
            body = ended.get(answer["call_id"], {})
            if any(got.get(name) != body.get(name) for name in ("outcome", "result")):
                yield 3, f"the caller with {writer.key} got {got}, and {body} is recorded"


def approvals(world: "World") -> Iterator[Broken]:
    """12: a held call is sent only as a person has allowed it."""
    if world.is_gated:
        yield from judge_approvals(world, journal(world))


def surprises(world: "World") -> Iterator[Broken]:
    """11: every fault of the world is one that the gateway expects, so its log has no traceback."""
    before, found, _ = world.log.getvalue().partition("Traceback")
    if found:
        yield 11, f"the gateway did not expect: {before.splitlines()[-1]}"


def _shorten(events: list[tuple[int, str]]) -> str:
    runs: list[str] = []
    for number, _ in events:
        first, _, last = runs[-1].partition("-") if runs else ("", "", "")
        if runs and number == int(last or first) + 1:
            runs[-1] = f"{first}-{number}"
        else:
            runs.append(str(number))
    return " ".join(runs[-20:])
