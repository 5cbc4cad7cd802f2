"""Applies the configuration to the parts of a gateway, at the start and on reload."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gateway.adapter.port import Adapter
from gateway.errors import Conflict, DragomanError, EngineUnavailable, InvalidConfiguration, Problem
from gateway.guard import FAULTS, Tasks, guard, guard_call, in_thread, is_fault, spawn
from gateway.log_limit import limited
from gateway.runtime.ambient import Ambient
from gateway.runtime.bounds import breaker_rules, executor_limits, session_limit
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.secret_scanner import SecretScanner
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tickets import Tickets
from gateway.runtime.cluster.takeover import Takeover
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.log import configure
from gateway.runtime.metrics import Metrics
from gateway.runtime.policy import changed_paths, declared_tools, policy_of
from gateway.runtime.session.registry import Sessions
from gateway.runtime.session.runtimes import AdapterFailed, Runtimes
from gateway.runtime.tuning import Tuning
from gateway.runtime.views import Reloaded
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place, report
from gateway.settings.section import Section
from gateway.settings.source import read_source
from gateway.store.port import Report

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Configured:
    """The parts of a gateway that a reload changes."""

    adapters: Mapping[str, Adapter]
    ambient: Ambient
    metrics: Metrics
    backends: Backends
    scanner: SecretScanner
    breakers: Breakers
    slots: Slots
    callbacks: Callbacks
    tickets: Tickets
    sessions: Sessions
    runtimes: Runtimes
    takeover: Takeover
    tasks: Tasks
    local_url: str | None
    """The base of callback URLs without a `public_url`."""
    file: Path | None
    """The configuration file, for errors; None if the configuration is not from a file."""
    tuning: Tuning


class Configuration:
    """The current configuration; `reload` applies a file completely or not at all, and retries parts that fail."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings], parts: Configured) -> None:
        """Prepare; `reread` reads the file again and raises InvalidConfiguration."""
        self.settings = settings
        self.policy = policy_of(settings, parts.tuning)
        self._reread = reread
        self._parts = parts
        self._reloading = asyncio.Lock()
        self._reloaded: list[Callable[[Settings], None]] = []
        self._unfinished: tuple[str, ...] = ()
        """The paths that a reload changed without completing it."""
        self._retrying: set[str | None] = set()
        """Runtimes whose configuration could not be applied yet; None stands for the takeover of sessions."""

    def call_when_reloaded(self, call: Callable[[Settings], None]) -> None:
        """Call a function with each configuration that takes effect from now on."""
        self._reloaded.append(call)

    def use(self, settings: Settings) -> None:
        """Apply the settings of the process: metric labels, limits, URLs, logging."""
        parts = self._parts
        parts.metrics.learn(
            runtimes=tuple(settings.runtimes),
            tools=tuple(settings.tools),
            executors=tuple(settings.executors),
            adapters=tuple({options.adapter for options in settings.runtimes.values()}),
            destinations=tuple(settings.destinations),
        )
        limits, frames = settings.limits, parts.ambient.frames
        parts.ambient.members.most = limits.members
        frames.largest, frames.most = limits.frame, limits.frame_memory
        parts.sessions.configure(limits)
        public_url = None if settings.public_url is None else str(settings.public_url)
        parts.callbacks.public_url = public_url or parts.local_url
        parts.tickets.public_url = public_url
        configure(level=settings.logging.level, format=settings.logging.format)
        self.settings = settings
        for call in self._reloaded:
            call(settings)

    async def start_runtime(self, name: str) -> None:
        """Connect a configured runtime; if its adapter or the store fails, retry in a task of its own."""
        try:
            await self._apply_runtime(name)
        except (AdapterFailed, EngineUnavailable) as exc:
            self._retry(name, exc)

    async def start_sessions(self, progress: Report) -> None:
        """Take over sessions without an owner before any link connects; if the store fails, retry in a task."""
        try:
            async with self._parts.sessions.without_links():
                await self._parts.takeover.take_all(report=progress)
        except EngineUnavailable as exc:
            self._retry(None, exc)

    async def reload(self, *, force: bool, dry_run: bool) -> Reloaded:
        """Read the configuration file again and apply it; the reload continues if its caller is canceled.

        Raises:
            InvalidConfiguration: the file has errors; nothing was changed.
            Conflict: a runtime that cannot replay would restart, and `force` is not set; nothing was changed.
            Exception: the configuration is in force, and a part of it failed; it is retried.
        """
        work = spawn("reload", self._reload(force=force, dry_run=dry_run), self._parts.tasks)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(guard_call("reload", _log_unreported))
            raise

    async def _reload(self, *, force: bool, dry_run: bool) -> Reloaded:
        async with self._reloading:
            old, new = self.settings, await self._read()
            restarted = self._restarted_by(new)
            if dry_run:
                return Reloaded(changed_paths(old, new), restarted)
            if not force:
                self._refuse_lossy_restarts(restarted)
            # Includes the changes that an earlier reload did not complete.
            changed = tuple(dict.fromkeys((*self._unfinished, *changed_paths(old, new))))
            await self._change(new)
            self._unfinished = changed
            sessions = self._parts.sessions
            sessions.unconnected.intersection_update(new.runtimes)
            failed = [
                exc
                for name in dict.fromkeys((*sessions.runtimes, *new.runtimes))
                if (exc := await self._attempt(name)) is not None
            ]
            if (exc := await self._attempt(None)) is not None:
                failed.append(exc)
            if failed:
                log.warning("configuration partially applied; retrying the rest", changed=list(changed))
                raise failed[0]
            self._unfinished = ()
            log.info("configuration reloaded", changed=list(changed), restarted=list(restarted))
            return Reloaded(changed, restarted)

    def _restarted_by(self, new: Settings) -> tuple[str, ...]:
        """List the connected runtimes whose block in the YAML changes."""
        connected = self._parts.sessions.runtimes
        return tuple(
            name for name, options in new.runtimes.items() if name in connected and connected[name].options != options
        )

    def _refuse_lossy_restarts(self, restarted: tuple[str, ...]) -> None:
        sessions = self._parts.sessions
        lossy = [
            name
            for name in restarted
            if not sessions.runtimes[name].adapter.capabilities.resumes
            and any(one.link is not None and one.link.state == "up" for one in sessions.of_runtime(name))
        ]
        if lossy:
            raise Conflict(
                f"the links of {', '.join(lossy)} would restart, and this protocol cannot replay: messages that the "
                "agents send meanwhile are lost. To accept this, reload with force (dragoman reload --force)"
            )

    async def _read(self) -> Settings:
        """Read the file in a thread: it may be long, and a disk may hang."""
        try:
            return await in_thread("reload", self._reread_checked, within=self._parts.tuning.reread, what="reading it")
        except TimeoutError as exc:
            fault = Problem(path="", message=f"{exc}; does a disk or a folder of secrets hang?")
            raise InvalidConfiguration(str(self._parts.file or "configuration"), (fault,)) from exc

    def _reread_checked(self) -> Settings:
        """Read the file, and refuse changes that need a restart, with their lines.

        Raises:
            InvalidConfiguration: the file has errors, or changes such a setting.
        """
        new, file = self._reread(), self._parts.file
        if found := [*_find_fixed_changes(self.settings, new)]:
            problems = report(found, read_source(file).lines if file is not None else dict[Place, int]())
            raise InvalidConfiguration(str(file or "configuration"), problems)
        return new

    async def _attempt(self, name: str | None) -> BaseException | None:
        """Apply a runtime's configuration, or take sessions over if `name` is None; return the error for the reload."""
        is_new = name is not None and name not in self._parts.sessions.runtimes
        try:
            await (self._apply_runtime(name) if name is not None else self._parts.takeover.take_all())
        except BaseException as exc:
            if not is_fault(exc):
                raise
            self._retry(name, exc)
            return None if is_new and isinstance(exc, AdapterFailed) else exc
        return None

    def _retry(self, name: str | None, exc: BaseException) -> None:
        """Log a failure and retry in a task until it succeeds."""
        about: dict[str, Any] = {} if name is None else {"runtime": name}
        if isinstance(exc, DragomanError):
            self._warn(name, exc)
        else:
            FAULTS.get().note("runtime", exc, text="runtime cannot be connected; retrying", **about)
        if name not in self._retrying:
            self._retrying.add(name)
            guard("runtime", partial(self._apply_again, name), self._parts.tasks, **about)

    async def _apply_again(self, name: str | None) -> None:
        """Apply the configuration of a runtime again and take over its sessions, until that succeeds."""
        times = 0
        while not await self._is_applied(name):
            await asyncio.sleep(FAULTS.get().pause_after(times))
            times += 1

    async def _is_applied(self, name: str | None) -> bool:
        async with self._reloading:
            try:
                if not self._parts.sessions.leaving:
                    if name is not None:
                        await self._apply_runtime(name)
                    await self._parts.takeover.take_all()
            except DragomanError as exc:
                self._warn(name, exc)
                return False
            self._retrying.discard(name)
            return True

    def _warn(self, name: str | None, exc: DragomanError) -> None:
        about = {} if name is None else {"runtime": name}
        limited(log.warning, "configuration cannot be applied yet; retrying", per=name, reason=str(exc), **about)

    async def _apply_runtime(self, name: str) -> None:
        """Connect, reconnect or stop a runtime as the configuration requires."""
        sessions, runtimes = self._parts.sessions, self._parts.runtimes
        new, current = self.settings.runtimes.get(name), sessions.runtimes.get(name)
        if current is not None and (new is None or new.adapter != current.options.adapter):
            await runtimes.stop(name, returns=new is not None)
            current = None
        if new is None:
            return
        adapter, tools = self._parts.adapters[new.adapter], declared_tools(self.settings)
        if current is None:
            await runtimes.start(name, adapter, new, tools=tools, policy=self.policy)
            return
        if new != current.options or runtimes.gave_up(name) or runtimes.is_unfinished(name):
            await runtimes.renew(name, adapter, new, tools=tools, policy=self.policy)
        elif runtimes.is_unopened(name):
            await runtimes.populate(name)

    async def _change(self, settings: Settings) -> None:
        """Apply changes that need no reconnection: executors, destinations, routes, tools, limits, logging.

        Raises:
            InvalidConfiguration: an executor or destination rejected its settings; nothing was changed.
        """
        parts = self._parts
        policy, rules, limits = policy_of(settings, parts.tuning), breaker_rules(settings), executor_limits(settings)
        await parts.backends.configure(settings)
        parts.scanner.configure(settings.executors)
        parts.breakers.configure(rules, settings.executors)
        parts.slots.configure(limits, session=session_limit(settings))
        self.policy = policy
        parts.runtimes.change_policy(policy, declared_tools(settings))
        self.use(settings)


def _find_fixed_changes(old: Settings, new: Settings) -> Iterator[Finding]:
    """Compare the settings that cannot change while the gateway runs."""
    for section in ("engine", "instance", "traces"):
        before: Section | None = getattr(old, section)
        after: Section | None = getattr(new, section)
        if before == after:
            continue
        places: list[Place] = []
        if after is not None and type(before) is type(after):
            for name, field in type(after).model_fields.items():
                if getattr(before, name) != getattr(after, name):
                    places.append((section, field.alias or name))
        for place in places or [(section,)]:
            yield Finding(place, "cannot change while the gateway runs; restart it to apply this")
    if old.api.keys and not new.api.keys:
        # The listener may be reachable from other machines, and an API without keys would be open to all of them.
        yield Finding(("api", "keys"), "cannot all be removed while the gateway runs; restart it to apply this")


def _log_unreported(work: "asyncio.Task[Reloaded]") -> None:
    """Log the failure of a reload whose client has left."""
    if not work.cancelled() and (exc := work.exception()) is not None:
        log.error("reload failed after its client left", reason=str(exc))
