"""Closes sessions without an owner, because their runtime is not in the configuration."""

import structlog

from gateway.adapter.port import Capabilities, Draft, Encoded, Frame, RuntimeOptions
from gateway.core import lifecycle
from gateway.core.effects import Release
from gateway.core.session import Policy, RuntimeContext, SlotAccess, StepBuilder
from gateway.core.snapshots import to_snapshot
from gateway.errors import Elsewhere
from gateway.events import Envelope
from gateway.runtime.observe import label_session, note
from gateway.runtime.session.effects import trace_step
from gateway.runtime.session.load import load_view
from gateway.runtime.session.sessions import Sessions
from gateway.runtime.session.shared import Shared
from gateway.store.rows import SessionRow

log = structlog.get_logger(__name__)

_NOTHING = Capabilities(accepts=frozenset(), emits=frozenset(), turns="signalled", delivery="response")


class _NullCodec:
    """The codec of an unconfigured runtime: decodes nothing and encodes to no frames."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:  # noqa: ARG002 - the port names it
        return ()

    def encode(self, item: Draft | Envelope) -> Encoded:  # noqa: ARG002 - the port names it
        return Encoded(())


class Closing:
    """Owns each session only until it is closed."""

    def __init__(self, shared: Shared, sessions: Sessions) -> None:
        self._shared = shared
        self._sessions = sessions

    async def close(self, row: SessionRow, policy: Policy, *, reason: str) -> None:
        """Close a session as its actor would: cancel its open calls and notify their executors.

        Raises:
            Elsewhere: another instance owns it, or this one is starting it.
            Stale: another writer changed it meanwhile.
            EngineUnavailable: the store is unavailable.
        """
        session_id, shared = row.session_id, self._shared
        # A new fence excludes writes of the previous owner.
        taken = await shared.keeper.take(session_id)
        if taken is None:
            raise Elsewhere(session_id, "another instance owns the session, or none yet")
        try:
            if row.runtime in self._sessions.runtimes:
                raise Elsewhere(session_id, "the session is starting")
            await self._close(taken, policy, reason)
        except BaseException:
            # Starts the session if its runtime is configured by now, and otherwise releases it.
            await self._sessions.take_up([taken])
            raise

    async def _close(self, taken: SessionRow, policy: Policy, reason: str) -> None:
        shared, view = self._shared, await load_view(self._shared.engine, taken.session_id)
        if view.memory.closed:
            return
        runtime = RuntimeContext(
            adapter="",
            protocol=taken.protocol,
            name=taken.runtime,
            capabilities=_NOTHING,
            codec=_NullCodec(),
            options=RuntimeOptions(adapter="", url=""),
            policy=policy,
        )
        builder = StepBuilder(
            view,
            now=shared.clock.now(),
            mint=shared.ids.event_id,
            slots=SlotAccess(take=lambda _: False, refusal=lambda _: None),
            runtime=runtime,
        )
        lifecycle.close(builder, reason=reason)
        snapshot = to_snapshot(builder.last_sequence, builder.memory)
        committed = await shared.engine.commit(builder.step(fence=taken.fence, snapshot=snapshot))
        for effect in builder.effects:
            if isinstance(effect, Release):
                shared.dispatcher.tell(effect)
        if policy.routes.copying:
            shared.backends.wake()
        about = log.bind(session=label_session(taken))
        if shared.traces is not None:
            trace_step(shared.traces, builder, committed.envelopes)
        note(committed.envelopes, view, adapter="", metrics=shared.metrics, log=about)
        about.info("session closed without its runtime", calls=len(view.calls))
