"""The judges that look while the world runs: what must hold at a request, an answer, a frame, a cancel or a time."""

import json
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from tests.simulation.approvals import PROMISE, check_request
from tests.simulation.clock import EPOCH

if TYPE_CHECKING:
    from tests.simulation.backend import Request
    from tests.simulation.loop import Process
    from tests.simulation.network import Wire
    from tests.simulation.world import World

LATE = 3.0
"""Seconds until the end of an attempt or a call is on record."""
_MARGIN = 1.0
"""Seconds before the end of an attempt in which its answer may come too late."""
_SAME = 0.1
"""Seconds that clocks and timers may differ."""
_AROUND = 5.0
"""Seconds before a request in which a fault may still have an effect."""
_RESUMED = 2.0
"""Seconds after a pause in which a process may finish what it had begun."""
_BEGUN = 1.0
"""Seconds in which an attempt that has begun arrives."""
_RESTARTED = 12.0
"""Seconds in which a killed replica starts again."""
_SILENT = 25 + 20
"""Seconds after which a client notices that its server is silent, as the server has told it."""
_RECONNECTED = 75
"""Seconds in which a link is certainly up again."""
OPEN = "('queued', 'dispatched', 'accepted')"


class Watch:
    """Judges one world; each method is told what has just happened."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._canceled: dict[str, int] = {}
        """The attempt of each call at its cancel by an operator."""
        self._not_before: dict[str, float] = {}
        """Until when an accepted call is certainly not sent again, since its executor has reported progress."""

    def request(self, request: "Request", owner: "Process | None", holders: "dict[str, Process] | None") -> None:
        """The backend gets a request that a process has written, while some processes held the sessions."""
        world, call_id = self._world, request.data["call_id"]
        world.tell(f"backend gets {request.key[:8]} {request.data['tool']} attempt {request.attempt}: {request.manner}")
        found = world.read("SELECT attempt, created_at FROM calls WHERE call_id = ?", call_id)
        if call_id not in world.forgotten:
            if not found or found[0][0] < request.attempt:
                world.fail(1, f"attempt {request.attempt} of {request.key} left before its commit: {found}")
                return
            arrived, began = len(world.backend.work[call_id].requests), found[0][1] / 1_000_000 - EPOCH
            if request.attempt != arrived and not world.may_lose(began, world.loop.now):
                world.fail(10, f"request {arrived} of {request.key} says that it is attempt {request.attempt}")
            self._check_pause(request)
        self._check_drain(request, owner)
        made = world.call_of(request)
        is_changed = world.is_gated and "edited" in request.data
        if made is not None and not is_changed and request.data["arguments"] != (made.arguments or {}):
            world.fail(3, f"{made.call_id} runs with {request.data['arguments']}, and its agent said {made.arguments}")
        if world.is_gated:
            for text in check_request(world, request):
                world.fail(PROMISE, text)
        if request.attempt > self._canceled.get(call_id, request.attempt) and call_id not in world.forgotten:
            world.fail(10, f"attempt {request.attempt} of {request.key} leaves after its cancel")
        self._check_holder(request.data["runtime"], owner, holders, f"attempt {request.attempt} of {request.key}")
        world.net.call_at(world.loop.now + world.attempt_limit + LATE, partial(self._check_attempt, request))
        self._check_deadline(call_id)

    def _check_drain(self, request: "Request", owner: "Process | None") -> None:
        """A process that drains begins no attempt; one that has begun arrives a little later."""
        world, now = self._world, self._world.loop.now
        since = inf if owner is None else owner.drains_since
        if now > since + _BEGUN and not self._excused(since + _BEGUN):
            world.fail(10, f"attempt {request.attempt} of {request.key} leaves {now - since:.2f} s after a drain began")

    def _check_pause(self, request: "Request") -> None:
        """A call is not sent again before the time for which the backend has asked."""
        world, now = self._world, self._world.loop.now
        before = [one for one in world.backend.work[request.data["call_id"]].requests if one.attempt < request.attempt]
        # A pause that came too late for its attempt counts for nothing.
        pauses = [(last.pause, last.at + world.attempt_limit - _MARGIN) for last in before[-1:]]
        until = [pause[1] for pause, end in pauses if pause is not None and pause[0] < end]
        until.append(self._not_before.get(request.data["call_id"], 0.0))
        if before and now < max(until) - _SAME and not self._excused(before[-1].at):
            world.fail(10, f"attempt {request.attempt} of {request.key} comes {max(until) - now:.2f} s too early")

    def progressed(self, call_id: str, posted_at: float) -> None:
        """A report of progress was taken, which restarts the silence of an accepted call."""
        world, work = self._world, self._world.backend.work.get(call_id)
        if work is None:
            return
        # One that is due already waits for a slot, perhaps, and is sent again whatever it reports.
        due_at = self._not_before.get(call_id, work.requests[-1].at + world.silence)
        for (state,) in world.read("SELECT state FROM calls WHERE call_id = ?", call_id):
            is_early = state == "accepted" and posted_at < due_at
            self._not_before[call_id] = posted_at + world.silence if is_early else 0.0

    def frame(self, runtime: str, payload: Any, wire: "Wire") -> None:
        """An agent gets a message."""
        self._check_holder(runtime, wire.owner, wire.to_server.stamp, "a message")
        match payload:
            case {"type": "addon-tool-event", "toolCallId": str(call), "data": {"messageIndex": int(index)}}:
                self._check_confirmation(call, index, wire)
            case _:
                pass

    def _check_confirmation(self, call: str, index: int, wire: "Wire") -> None:
        """A confirmation leaves only as long as the agent waits for it."""
        world, owner = self._world, wire.owner
        rows: list[Any] = world.read(
            "SELECT recorded_at, body FROM events WHERE kind = 'message.posted' AND instr(CAST(body AS TEXT), ?)", call
        )
        burst = {"call": call, "index": index}
        posted = [at / 1_000_000 - EPOCH for at, body in rows if json.loads(body).get("burst") == burst]
        late = wire.to_server.written_at - max(posted, default=inf) - world.confirms_within
        if late > _MARGIN and (owner is None or owner.resumed_at + _RESUMED < wire.to_server.written_at):
            world.fail(4, f"the confirmation of message {index} of {call} leaves {late:.1f} s too late")

    def _check_holder(
        self, runtime: str, owner: "Process | None", holders: "dict[str, Process] | None", what: str
    ) -> None:
        """Only the process that holds a session acts for it, at the moment at which it writes."""
        world = self._world
        holder = None if holders is None else holders.get(runtime)
        if owner is None or holder is None or holder is owner or holder.dead:
            return
        if owner.resumed_at + _RESUMED < world.loop.now and not world.net.was_held(world.loop.now - _AROUND):
            world.fail(3, f"{what} of {runtime} leaves {owner.name}, while {holder.name} holds the session")

    def answer(self, request: "Request", kind: str) -> None:
        """The backend writes an outcome: while its call is open a success counts, a failure of its last attempt too."""
        world, now = self._world, self._world.loop.now
        rows = world.read(
            f"SELECT attempt, deadline_at FROM calls WHERE call_id = ? AND state IN {OPEN}",  # noqa: S608
            request.data["call_id"],
        )
        until = request.at + world.attempt_limit - _MARGIN
        for attempt, deadline in rows:
            counts = kind == "success" or attempt == request.attempt
            if counts and now < min(until, deadline / 1_000_000 - EPOCH - _MARGIN):
                world.net.call_at(now + _MARGIN, partial(self._check_answer, request, kind))

    def _check_answer(self, request: "Request", kind: str) -> None:
        world, call_id = self._world, request.data["call_id"]
        if self._excused(request.at - _AROUND):
            return
        for (state,) in world.read(f"SELECT state FROM calls WHERE call_id = ? AND state IN {OPEN}", call_id):  # noqa: S608
            world.fail(
                3, f"the {kind} that answered attempt {request.attempt} of {call_id} does not count: it is {state}"
            )

    def accepted(self, request: "Request") -> None:
        """The backend accepts a call; if it says nothing more, the call is sent again."""
        world = self._world
        world.net.call_at(world.loop.now + world.silence + 2 * LATE, partial(self._check_repeat, request))

    def _check_repeat(self, request: "Request") -> None:
        """An accepted call is not due for long; one that waits for a slot is due later, again and again."""
        world = self._world
        late = int((EPOCH + world.loop.now - LATE) * 1_000_000)
        query = "SELECT 1 FROM calls WHERE call_id = ? AND state = 'accepted' AND due_at < ?"
        if not self._excused(request.at) and world.read(query, request.data["call_id"], late):
            world.fail(10, f"call {request.data['call_id']} was accepted, is silent and is not sent again")

    def canceled(self, call_id: str) -> None:
        """An operator's cancel is on record."""
        world = self._world
        rows = world.read(
            f"SELECT attempt FROM calls WHERE call_id = ? AND canceling_until IS NOT NULL AND state IN {OPEN}",  # noqa: S608
            call_id,
        )
        for (attempt,) in rows:
            self._canceled[call_id] = attempt
            self.ends_by(call_id, world.loop.now + world.grace, "was canceled by an operator")

    def silenced(self, runtime: str) -> None:
        """The link of a runtime carries nothing more: the gateway notices, and connects again."""
        world, asked = self._world, self._world.loop.now
        connections = world.servers[runtime].agent.connections

        def check() -> None:
            agent = world.servers[runtime].agent
            if not world.was_disturbed(asked, world.loop.now) and agent.connections == connections:
                world.fail(10, f"the link of {runtime} is silent for {world.loop.now - asked:.0f} s, and stays up")

        world.net.call_at(asked + _SILENT + _RECONNECTED, check)

    def ends_by(self, call_id: str, when: float, why: str) -> None:
        """Expect the end of a call by a time, unless the gateway does not run or cannot write."""
        world, asked = self._world, self._world.loop.now
        # The sessions of a process that was killed before have no owner until its lease ends and another one starts.
        since = asked if world.store is None else asked - world.lease - _RESTARTED

        def check() -> None:
            query = f"SELECT state FROM calls WHERE call_id = ? AND state IN {OPEN}"  # noqa: S608
            for (state,) in () if self._excused(since) else world.read(query, call_id):
                world.fail(10, f"call {call_id} {why}, and is still {state} after {world.loop.now - asked:.0f} s")

        world.net.call_at(when + LATE, check)

    def _check_deadline(self, call_id: str) -> None:
        """Expect the end of a call by its deadline, which moves when the backend accepts it."""
        world = self._world
        for (deadline,) in world.read("SELECT deadline_at FROM calls WHERE call_id = ?", call_id):
            until = deadline / 1_000_000 - EPOCH
            if until < world.loop.now:
                self.ends_by(call_id, world.loop.now, "has passed its deadline")
            else:
                world.net.call_at(until + 0.1, partial(self._check_deadline, call_id))

    def _check_attempt(self, request: "Request") -> None:
        """An attempt ends by its time limit."""
        world = self._world
        if self._excused(request.at):
            return
        query = "SELECT 1 FROM calls WHERE call_id = ? AND state = 'dispatched' AND attempt = ?"
        if world.read(query, request.data["call_id"], request.attempt):
            world.fail(10, f"attempt {request.attempt} of {request.key} runs beyond its {world.attempt_limit} s")

    def _excused(self, since: float) -> bool:
        """Whether the gateway may not have run, or could not write."""
        world = self._world
        return world.may_lose(since, world.loop.now) or world.disk_refuses_until > since


def holders(world: "World") -> "dict[str, Process]":
    """Return the process that holds the session of each runtime now, as the store has it."""
    server = world.store
    if server is None:
        return {}
    rows: list[Any] = world.read("SELECT runtime, owner FROM sessions WHERE owner IS NOT NULL")
    return {runtime: server.instances[owner] for runtime, owner in rows if owner in server.instances}
