"""Reports the state of the gateway: its runtimes, their links, its calls per minute, and its readiness."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.adapter.port import Adapter, ToolRegistry
from gateway.core.holding import question_of
from gateway.errors import EngineUnavailable
from gateway.events import InteractionId, SessionId
from gateway.guard import FAULTS
from gateway.runtime.calls.offered import OfferedTool
from gateway.runtime.observe import label_session
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.registry import Sessions
from gateway.runtime.session.runtimes import Runtimes
from gateway.runtime.session.shared import Shared
from gateway.runtime.views import ActivityStatus, Condition, LinkStatus, Readiness, RuntimeStatus, UnconnectedRuntime
from gateway.settings.model import Settings

_MOST_LINKS = 20
"""Links of one runtime that are listed as conditions."""
_MOST_SESSIONS = 20
"""Sessions that are listed as conditions."""
TROUBLED = frozenset({"down", "refused"})
"""The states of a link that need an operator."""
_LOGGED = "keeps failing after restarts; the log has the reason"
_UNCONNECTED = "not connected yet; connecting is retried, and the log has the reason"


def _is_unstarted(one: Actor) -> bool:
    """Return whether the agent of a session gets tools and has not started, perhaps because it had no message yet."""
    return one.runtime.options.takes_mcp and not one.view.memory.has_worked


def _blocking(one: Actor) -> tuple[InteractionId, ...]:
    """Return the approvals before whose end no message is sent to an agent; none if no message waits."""
    view, runtime = one.view, one.runtime
    turn_waits = runtime.capabilities.one_message_per_turn and view.memory.running
    if not one.sender.outbox.new_work or not (turn_waits or runtime.while_held == "queue"):
        return ()
    return tuple(question_of(call) for call in view.calls.values() if call.state == "held" and call.is_the_runtimes)


class Status:
    """The state of one gateway; `settings` returns the current settings."""

    def __init__(
        self,
        shared: Shared,
        sessions: Sessions,
        runtimes: Runtimes,
        *,
        offer: Callable[[str, Mapping[str, str]], Sequence[OfferedTool]],
        adapters: Mapping[str, Adapter],
        settings: Callable[[], Settings],
    ) -> None:
        self._engine = shared.engine
        self._clock = shared.clock
        self._activity = shared.metrics.activity
        self._since = shared.clock.now()
        self._sessions = sessions
        self._runtimes = runtimes
        self._keeper = shared.keeper
        self._tool_watch = shared.tool_watch
        self._offer = offer
        self._adapters = adapters
        self._settings = settings
        self._slots = shared.slots
        self._drain = shared.drain

    async def sessions_without_tools(self, only: Collection[SessionId] = ()) -> Mapping[str, Mapping[SessionId, str]]:
        """Return the owned sessions whose agents have not listed the tools in time, by runtime, with the reasons.

        An agent that has not started is not late. `only` are the sessions to consider, by default all.
        """
        found: dict[str, dict[SessionId, str]] = {}
        for name, runtime in list(self._sessions.runtimes.items()):
            if not runtime.options.takes_mcp:
                continue
            found[name] = {}
            registry: object = runtime.connector
            problem = registry.tools_problem if isinstance(registry, ToolRegistry) else None
            for one in self._owned(name, only):
                view = one.view
                if _is_unstarted(one):
                    continue
                shares = runtime.options.shares_tools and bool(self._offer(name, view.memory.labels))
                why = await self._tool_watch.why_lacking(
                    view.session_id, runtime=name, shared=shares, problem=problem if shares else None
                )
                if why is not None:
                    found[name][view.session_id] = why
        return found

    def _owned(self, runtime: str, only: Collection[SessionId]) -> Sequence[Actor]:
        if not only:
            return list(self._sessions.of_runtime(runtime))
        found = map(self._sessions.owned, only)
        return [one for one in found if one is not None and one.view.runtime == runtime]

    def runtimes(self, only: Collection[SessionId] = (), *, troubled: bool = False) -> Sequence[RuntimeStatus]:
        """Return the connected runtimes; `unconnected` returns the others.

        `only` are the sessions whose links are included, by default all; with `troubled`, only those in trouble.
        """
        shown: list[RuntimeStatus] = []
        for name, runtime in self._sessions.runtimes.items():
            links = tuple(
                LinkStatus(
                    session_id=c.view.session_id,
                    native_id=c.view.native_id,
                    state=c.link.state,
                    since=c.link.since,
                    reason=c.link.reason,
                    is_unstarted=_is_unstarted(c),
                    waits_for=_blocking(c),
                )
                for c in self._owned(name, only)
                if c.link is not None and (not troubled or c.link.state in TROUBLED)
            )
            adapter = runtime.adapter
            failing = self._runtimes.failing_autostarts.get(name)
            shown.append(RuntimeStatus(name, adapter.name, adapter.protocol, adapter.capabilities, links, failing))
        return shown

    def unconnected(self) -> Sequence[UnconnectedRuntime]:
        """Return the configured runtimes that are not connected, usually because their adapters failed."""
        adapters, connected = self._adapters, self._sessions.runtimes
        return [
            UnconnectedRuntime(name, adapter.name, adapter.protocol, _UNCONNECTED)
            for name, options in self._settings().runtimes.items()
            if name not in connected
            for adapter in [adapters[options.adapter]]
        ]

    def activity(self) -> ActivityStatus:
        """Return the calls per minute of this instance since its start, for at most an hour, and its executors."""
        now = self._clock.now()
        minutes, (p50, p95) = self._activity.last(since=self._since, now=now), self._activity.percentiles(now)
        return ActivityStatus(self._since, minutes, p50, p95, self._slots.executors(), self.conditions())

    async def count_waiting(self, most: int) -> tuple[int, int]:
        """Count the interactions and the dead letters that wait for a person, each at most `most`.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        return await self._engine.count_waiting(most), min(most, await self._engine.count_dead(most))

    def conditions(self) -> Sequence[Condition]:
        """Return all conditions that need an operator, of links those of the first sessions of each runtime."""
        found = [Condition("part", name, _LOGGED) for name in FAULTS.get().failing(asyncio.get_running_loop().time())]
        found += [Condition("runtime", one.name, one.reason) for one in self.unconnected()]
        for name, failing in sorted(self._runtimes.failing_autostarts.items()):
            reason = f"has failed {failing.attempts} times: {failing.reason}"
            found.append(Condition("autostart", name, reason, failing.since))
        for runtime in self.runtimes(troubled=True):
            for link in runtime.links[:_MOST_LINKS]:
                name = f"{runtime.name}/{link.native_id}"
                reason = f"is {link.state}: {link.reason}" if link.reason else f"is {link.state}"
                found.append(Condition("link", name, reason, link.since, link.session_id))
            if (more := len(runtime.links) - _MOST_LINKS) > 0:
                found.append(Condition("link", f"{runtime.name}/…", f"{more} more are down or refused"))
        found += self._delayed_sessions()
        for one in self._slots.executors():
            if one.breaker != "closed" or one.refuses:
                what = "refuses requests" if one.refuses else "does not respond"
                found.append(Condition("executor", one.name, f"{what}: {one.reason}", one.since or one.failed_at))
        return found

    def _delayed_sessions(self) -> Sequence[Condition]:
        now = self._clock.monotonic()
        found: list[Condition] = []
        for one in self._sessions.all():
            if (reason := one.find_delay(now)) is not None:
                view = one.view
                found.append(Condition("session", label_session(view), reason, session_id=view.session_id))
        more = len(found) - _MOST_SESSIONS
        if more > 0:
            found[_MOST_SESSIONS:] = [Condition("session", "…", f"{more} more wait")]
        return found

    async def ready(self) -> Readiness:
        """Query the store and check whether this instance can accept work."""
        try:
            health = await self._engine.health()
            engine = "ok" if health.writable else health.detail or "takes no writes"
        except EngineUnavailable as exc:
            engine = str(exc)
        process = "draining" if self._drain.begun.happened else "ok"
        checks = {"engine": engine, "configuration": "ok", "process": process}
        if self._keeper.shared:
            checks["lease"] = "ok" if self._keeper.lease is not None else "no valid lease, so all sessions are paused"
        lease = self._keeper.lease if self._keeper.shared else None
        return Readiness(
            ready=all(value == "ok" for value in checks.values()),
            checks=checks,
            sessions=self._sessions.count,
            instance_id=None if lease is None else lease.instance,
            failing=tuple(str(condition) for condition in self.conditions()),
        )
