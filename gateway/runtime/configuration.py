"""The configuration in force: what it means for the parts of a gateway, and how another one takes its place."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from gateway.adapter.port import Adapter
from gateway.errors import InvalidConfiguration, Problem
from gateway.guard import FAULTS, Tasks, guard
from gateway.json_members import MEMBERS
from gateway.runtime.bounds import breaker_rules, executor_limits, session_limit
from gateway.runtime.calls.breaker import Breakers
from gateway.runtime.calls.callbacks import Callbacks
from gateway.runtime.calls.quotes import Quotes
from gateway.runtime.calls.slots import Slots
from gateway.runtime.calls.tickets import Tickets
from gateway.runtime.cluster.takeover import Takeover
from gateway.runtime.delivery.backends import Backends
from gateway.runtime.log import configure
from gateway.runtime.metrics import Metrics
from gateway.runtime.policy import changed_paths, declared_tools, policy_of
from gateway.runtime.session.carried import Runtime
from gateway.runtime.session.runtimes import AdapterFailed, Runtimes
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.views import Reloaded
from gateway.settings.model import Limits, Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Configured:
    """The parts of a gateway that another configuration changes while it runs."""

    adapters: Mapping[str, Adapter]
    metrics: Metrics
    backends: Backends
    quotes: Quotes
    breakers: Breakers
    slots: Slots
    callbacks: Callbacks
    tickets: Tickets
    sessions: Sessions
    runtimes: Runtimes
    takeover: Takeover
    tasks: Tasks


class Configuration:
    """What is in force; `reload` is all or nothing, and what it could not finish is finished by the next one."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings], parts: Configured) -> None:
        """Begin with settings; `reread` reads the file again and raises InvalidConfiguration."""
        self.settings = settings
        self.policy = policy_of(settings)
        self._reread = reread
        self._parts = parts
        self._reloading = asyncio.Lock()
        self._reloaded: Callable[[Limits], None] = lambda _: None
        self._unfinished: tuple[str, ...] = ()
        """What a reload was to change that it could not finish."""

    def call_when_reloaded(self, call: Callable[[Limits], None]) -> None:
        """Have something called with the limits of each configuration that comes into force from now on."""
        self._reloaded = call

    def use(self, settings: Settings) -> None:
        """Take over what is the process's: names of metrics, limits, its address, logging."""
        parts = self._parts
        parts.metrics.learn(
            runtimes=tuple(settings.runtimes),
            tools=tuple(settings.tools),
            executors=tuple(settings.executors),
            adapters=tuple({options.adapter for options in settings.runtimes.values()}),
            destinations=tuple(settings.destinations),
        )
        MEMBERS.most = settings.limits.members
        parts.sessions.configure(settings.limits)
        self._reloaded(settings.limits)
        public_url = None if settings.public_url is None else str(settings.public_url)
        parts.callbacks.public_url = parts.tickets.public_url = public_url
        configure(level=settings.logging.level, format=settings.logging.format)
        self.settings = settings

    async def start_runtime(self, name: str) -> None:
        """Begin with a runtime of the YAML; one whose adapter fails is begun with later, beside the others."""
        is_known = name in self._parts.sessions.unconnected
        try:
            await self._start_runtime(name)
        except AdapterFailed as exc:
            FAULTS.note("runtime", exc, text="a runtime cannot be connected, and is tried again", runtime=name)
            if not is_known:
                guard("runtime", partial(self._start_again, name), self._parts.tasks, runtime=name)

    async def _start_again(self, name: str) -> None:
        """Begin with a runtime whose adapter has failed, and with what is on record of it, if it is still wanted."""
        async with self._reloading:
            if name in self._parts.sessions.unconnected and not self._parts.sessions.leaving:
                await self._start_runtime(name)
                await self._parts.takeover.take_all()

    async def _start_runtime(self, name: str) -> None:
        options = self.settings.runtimes[name]
        adapter, tools = self._parts.adapters[options.adapter], declared_tools(self.settings)
        await self._parts.runtimes.start(name, adapter, options, tools=tools, policy=self.policy)

    async def reload(self) -> Reloaded:
        """Read the configuration file again; a bad one changes nothing and raises InvalidConfiguration."""
        async with self._reloading:
            old, new = self.settings, self._reread()
            _refuse_what_stays(old, new)
            # What an earlier reload has begun and could not finish is finished by this one.
            changed = tuple(dict.fromkeys((*self._unfinished, *changed_paths(old, new))))
            self._unfinished = changed
            await self._change(new)
            carried = self._parts.sessions.runtimes
            self._parts.sessions.unconnected.intersection_update(new.runtimes)
            for name, runtime in list(carried.items()):
                await self._change_runtime(name, runtime)
            for name in new.runtimes:
                if name not in carried:
                    await self.start_runtime(name)
            await self._parts.takeover.take_all()
            self._unfinished = ()
            log.info("configuration reloaded", changed=list(changed))
            return Reloaded(changed)

    async def _change(self, settings: Settings) -> None:
        """Take over what may change while running: executors, destinations, routes, tools, limits, logging.

        Raises:
            InvalidConfiguration: something of it can never work; nothing was changed.
        """
        parts = self._parts
        policy, rules, limits = policy_of(settings), breaker_rules(settings), executor_limits(settings)
        await parts.backends.configure(settings)
        parts.quotes.configure(settings.executors)
        parts.breakers.configure(rules, settings.executors)
        parts.slots.configure(limits, session=session_limit(settings))
        self.policy = policy
        parts.runtimes.change_policy(policy)
        self.use(settings)

    async def _change_runtime(self, name: str, carried: Runtime) -> None:
        """Change what is carried, whatever configuration it was made of, into what is wanted now."""
        runtimes, new, old = self._parts.runtimes, self.settings.runtimes.get(name), carried.options
        if new is None or new.adapter != old.adapter:
            await runtimes.stop(name)
            return
        tools = declared_tools(self.settings)
        retooled = old.creates and carried.tools != tools
        if new != old or retooled or runtimes.gave_up(name) or runtimes.is_unfinished(name):
            adapter = self._parts.adapters[new.adapter]
            await runtimes.renew(name, adapter, new, tools=tools, policy=self.policy)


def _refuse_what_stays(old: Settings, new: Settings) -> None:
    """Refuse what cannot change while the gateway runs.

    Raises:
        InvalidConfiguration: it wants that.
    """
    for fixed in ("engine", "instance"):
        if getattr(new, fixed) != getattr(old, fixed):
            fault = Problem(path=fixed, message="cannot change while the gateway runs; restart it")
            raise InvalidConfiguration("reload", (fault,))
    if old.api.keys and not new.api.keys:
        # The address was bound for an API behind keys; without them it would be open to whoever reaches it.
        fault = Problem(path="api.keys", message="cannot all be taken away while the gateway runs; restart it")
        raise InvalidConfiguration("reload", (fault,))
