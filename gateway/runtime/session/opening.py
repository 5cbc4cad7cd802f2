"""Opens sessions for API clients, MCP clients and tickets, and finds the sessions whose tools they call."""

from collections.abc import Callable, Mapping, Sequence

from gateway.adapter.options import McpClient
from gateway.errors import Elsewhere, InvalidRequest, Overloaded
from gateway.events import SessionId, session_id as name_session
from gateway.runtime.calls.tickets import Ticket
from gateway.runtime.drain import Drain
from gateway.runtime.session.registry import Sessions
from gateway.runtime.session.runtimes import Runtimes
from gateway.runtime.views import CalledSession
from gateway.settings.model import Limits
from gateway.store.port import Engine
from gateway.store.rows import SessionRow


class Opening:
    """Opens and finds sessions; `limits` returns the current limits."""

    def __init__(
        self, engine: Engine, sessions: Sessions, runtimes: Runtimes, limits: Callable[[], Limits], drain: Drain
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._runtimes = runtimes
        self._limits = limits
        self._drain = drain

    async def open(
        self,
        runtime: str,
        *,
        native_id: str | None,
        labels: Mapping[str, str],
        name: str | None = None,
        instructions: str | None = None,
    ) -> tuple[SessionRow, bool, Sequence[str]]:
        """Attach to a native session, or create one if no id is given.

        Returns the session, whether it is new, and the tools that the runtime got at its creation.

        Raises:
            Draining: the gateway is stopping; InvalidRequest: the runtime does not create sessions; Overloaded.
        """
        self._drain.refuse_new()
        options = self._sessions.runtime(runtime).options
        if options.mcp_clients is not None:
            raise InvalidRequest(
                f"the sessions of runtime {runtime!r} are opened by its own clients", pointer="/runtime"
            )
        merged = {**options.labels, **labels}
        self._check_capacity(runtime, native_id)
        if native_id is not None:
            row, is_new = await self._runtimes.open(runtime, native_id, labels=merged)
            return row, is_new, ()
        if not options.creates:
            raise InvalidRequest(
                f"runtime {runtime!r} is not configured to create sessions; give a native_id", pointer="/native_id"
            )
        return await self._runtimes.create(runtime, labels=merged, name=name, instructions=instructions)

    async def find(self, session_id: SessionId) -> CalledSession:
        """Find the session whose tools a client calls; an owned session needs no query."""
        return self._find_owned(session_id) or _called(await self._sessions.session(session_id))

    def _find_owned(self, session_id: SessionId) -> CalledSession | None:
        owned = self._sessions.owned(session_id)
        if owned is None or owned.view.memory.closed:
            return None
        view = owned.view
        return CalledSession(session_id, view.runtime, view.native_id, view.memory.labels)

    async def of_client(self, runtime: str, client: McpClient) -> CalledSession:
        """Find the session of an MCP client, or open one if it is missing or closed.

        Raises:
            Elsewhere: the runtime is not connected here yet.
            Draining: the gateway is stopping.
        """
        session_id = name_session(runtime=runtime, native_session_id=client.name)
        if (here := self._find_owned(session_id)) is not None:
            return here
        row = await self._engine.session(session_id)
        if row is not None and row.state != "closed":
            return _called(row)
        self._drain.refuse_new()
        connected = self._sessions.runtimes.get(runtime)
        if connected is None or connected.connector is not None:
            raise Elsewhere(session_id, f"the runtime {runtime!r} is not connected yet")
        self._check_capacity(runtime, client.name)
        labels = {**connected.options.labels, **client.labels}
        row, _ = await self._runtimes.open(runtime, client.name, labels=labels)
        return _called(row)

    async def of_runtime(self, runtime: str, native_id: str) -> CalledSession | None:
        """Find the open session of a runtime by its native id; return None if there is none."""
        session_id = name_session(runtime=runtime, native_session_id=native_id)
        if (here := self._find_owned(session_id)) is not None:
            return here
        row = await self._engine.session(session_id)
        return None if row is None or row.state == "closed" else _called(row)

    def _check_capacity(self, runtime: str, native_id: str | None) -> None:
        known = native_id is not None and self._sessions.owns(runtime, native_id)
        if not known and self._sessions.count >= self._limits().sessions:
            raise Overloaded(f"this instance already runs {self._sessions.count} sessions; close some")

    async def of_ticket(self, ticket: Ticket, native_id: str | None) -> CalledSession | None:
        """Find the session that a ticket was issued for; return None if it is not recorded yet.

        If a gateway died between creating and recording the session, the first request with `native_id` opens it.
        """
        if ticket.session_id is not None:
            return await self.find(ticket.session_id)
        if native_id is None or self._drain.begun.happened:
            return None
        row, _ = await self._runtimes.open(ticket.runtime, native_id, labels=dict(ticket.labels), ticket=ticket)
        return _called(row)


def _called(row: SessionRow) -> CalledSession:
    return CalledSession(row.session_id, row.runtime, row.native_id, row.labels)
