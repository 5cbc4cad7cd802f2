"""The port of a protocol: adapter, codec, connector, link. Pure.

One adapter is one protocol version. Its codec translates and its connector connects. The core remembers and decides;
the supervisor retries.
"""

from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from gateway.adapter.duration import Duration
from gateway.adapter.options import McpClient
from gateway.events import Draft, Envelope, Loss
from gateway.events.frozen import frozen
from gateway.strict_json import pointer

LARGEST_FRAME = 32 * 1024 * 1024
"""The maximum of `limits.frame` in bytes; a link ends the connection on a larger message."""

PORTS_VERSION = 3


@frozen
class Frame:
    """One native message: its channel and its JSON."""

    channel: str
    payload: Any
    size: int = field(default=0, compare=False)
    """Bytes of the received text; 0 if the link does not report it."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The payload as compact JSON if the link has parsed it strictly; no further check is necessary."""
    live: bool = field(default=False, compare=False)
    """Whether the link considers it live (shown, not stored); the codec decides."""


@frozen
class Encoded:
    """One encoded event: the frames to send, in order, and the losses."""

    frames: tuple[Frame, ...]
    losses: tuple[Loss, ...] = ()


class Codec(Protocol):
    """Translate one protocol in both directions; symmetrical, stateless, total and pure.

    A codec maps only kinds that the protocol has. It covers every message of both sides of the protocol, in both
    directions.
    """

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame into drafts, usually one.

        An unknown type becomes `opaque`, an unknown field a `Loss(dropped)`; invalid content of a known type raises.

        Raises:
            MalformedFrame: the only exception, for any payload.
        """
        ...

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event; equal items give equal frames.

        An event is encoded first as a draft and, after a crash, as its envelope. Both must give equal frames, so use
        no id or time of the envelope.

        Raises:
            CannotExpress: the protocol has no equivalent, or a value exceeds its limits.
        """
        ...


@frozen
class McpCall:
    """The call of an MCP tool that an action of a runtime makes; the runtime may prefix the tool's name."""

    tool: str
    arguments: dict[str, Any]


class McpCallCodec(Codec, Protocol):
    """The codec of a runtime with the capability `reports_mcp_calls`."""

    def mcp_call(self, tool: str, arguments: Mapping[str, Any]) -> McpCall | None:
        """Return the MCP call that a `tool.requested` with these members makes; None if it makes none."""
        ...


@frozen
class Capabilities:
    """The abilities of a protocol, as data; the core branches on these and never on a name."""

    accepts: frozenset[str]
    """Kinds that `encode` can send to the runtime."""
    emits: frozenset[str]
    """Kinds that a runtime may send, besides `opaque` and `fault.reported`, which all may send."""
    turns: Literal["signalled", "inferred"]
    delivery: Literal["silence", "ack", "response"]
    """The confirmation of a delivery: no error within a window, an acknowledgement, or the response to a request."""
    rejects_with: frozenset[str] = frozenset()
    """Fault codes that reject the last sent event."""
    replaces_context: bool = False
    """A context update replaces the whole context, so each one is sent complete, in journal order."""
    answers_cancel: bool = False
    """The runtime expects a canceled outcome in response to its cancel."""
    one_message_per_turn: bool = False
    """New work waits until the turn has ended. The core orders the work of all clients by it, which no codec sees."""
    resumes: bool = False
    """A reconnect replays the missed messages, followed by a `caught_up`."""
    echoes: bool = False
    """The runtime sends our own messages back with a native id."""
    approvals: Literal["none", "by_id", "by_state", "by_group"] = "none"
    """The subject of an approval: the question with its id, the newest action that follows the runtime's state by its
    `native_sequence` or has `needs_approval`, or all open actions before that state. A group is allowed or denied as
    one; new work waits until then."""
    reports_mcp_calls: bool = False
    """Calls of MCP tools appear as the runtime's actions; one that calls a tool of ours is linked to the call.

    Requires an `McpCallCodec`.
    """
    creates_sessions: bool = False
    takes_tools: Literal["none", "create", "agent", "mcp"] = "none"
    """The source of tools: none, the order of `create`, the agent's own settings (its owner declares them), or the MCP
    server that `create` names."""
    mcp_hold: timedelta | None = None
    """Minimum time that its MCP client waits for a response; None if it honors the timeout of `McpEndpoint`."""
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Documented numbers of the protocol, for `GET /v1/capabilities`."""


Confirmer = Literal["recorded", "client", "executor", "copied"]
"""What confirms an agent's message: its record, a client's `message.confirmed`, the reply of an executor, or the
delivery of a copy to a destination."""


@frozen
class ConfirmationRule:
    """How the messages of an agent are confirmed, one by one."""

    within: timedelta
    """Time that the runtime waits for a confirmation; then it assumes the delivery."""
    by: Confirmer | None = None
    """The configured confirmer; None: the one that the routes imply."""
    destination: str | None = None
    """The destination whose copy counts, with `copied`; None: the only one that a route for messages names."""
    expected: bool = True
    """Whether the agent can send messages, as far as the options show."""


class RuntimeOptions(BaseModel):
    """The options that every runtime in the YAML has; an adapter adds its own in a subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    adapter: str = Field(description="Protocol of the runtime; `dragoman doctor` lists the names.")
    url: str = Field(description="Base URL of the runtime.", examples=["https://runtime.example.com"])
    labels: dict[str, str] = Field(default={}, description="Labels given to sessions of this runtime.")
    autostart: bool = Field(
        default=False, description="Create one native session at start and keep it across restarts."
    )
    hydrate: bool = Field(default=False, description="Send the last context on each connect, without waking the agent.")
    turn_quiet: Duration = Field(
        default=timedelta(seconds=2), description="Silence after a confirmed message that ends a turn."
    )
    turn_timeout: Duration = Field(default=timedelta(seconds=15), description="Inactivity that ends a turn.")
    delivery_window: Duration = Field(
        default=timedelta(seconds=5), description="Silence after a send that counts as delivered."
    )
    confirm_timeout: Duration = Field(
        default=timedelta(seconds=20),
        description="Time limit for the delivery of an agent's message; then it counts as not delivered.",
    )
    connect_timeout: Duration = Field(default=timedelta(seconds=10), description="Time limit for a connection attempt.")
    start_wait: Duration = Field(
        default=timedelta(seconds=60),
        description="Time that messages and orders wait for a runtime that is starting and might ignore them;"
        " afterwards they are sent anyway.",
    )

    while_held: Literal["deliver", "queue"] | None = Field(
        default=None, description="The same as `approvals.while_held`, for this runtime."
    )
    keep_native: bool = Field(
        default=False,
        description="Keep each received native frame of at most 64 KiB with its event, secrets masked, for"
        " `GET /v1/sessions/{session_id}/events?native=true`.",
    )

    @property
    def native_id(self) -> str | None:
        """The native session to attach to at start, if any."""
        return None

    @property
    def creates(self) -> bool:
        """Whether the options describe a native session to create."""
        return False

    @property
    def confirmation(self) -> ConfirmationRule | None:
        """How an agent's messages are confirmed; None if the runtime waits for no confirmations."""
        return None

    @property
    def history_key(self) -> str | None:
        """The context key for the conversation, which is added to replacing contexts; None adds none."""
        return None

    @property
    def takes_mcp(self) -> bool:
        """Whether native sessions get the address of our MCP server."""
        return False

    @property
    def shares_tools(self) -> bool:
        """Whether one MCP address in the runtime's settings serves all of its sessions."""
        return False

    @property
    def calls_unasked(self) -> bool:
        """Whether its agents call our tools without the approval that other actions require."""
        return False

    @property
    def passes_declared_only(self) -> bool:
        """Whether its agents reject calls with arguments that the tool's schema does not declare."""
        return False

    @property
    def delegates(self) -> bool:
        """Whether states between `thread.sent` and `thread.received` are a delegate's and end no turn.

        `session.opened` records it.
        """
        return False

    @property
    def own_tools(self) -> frozenset[str]:
        """Names of the agents' own tools, which take precedence over ours."""
        return frozenset()

    @property
    def mcp_base(self) -> str | None:
        """The gateway's address for the runtime, if it differs from `public_url`."""
        return None

    @property
    def mcp_session_header(self) -> str | None:
        """The header in which the MCP client of its agents may name the native session."""
        return None

    @property
    def mcp_clients(self) -> "tuple[McpClient, ...] | None":
        """The clients that connect to us with a token; None if the gateway connects to the runtime.

        Unless it is None, `connector` is never called.
        """
        return None


@frozen
class Tool:
    """A tool that the YAML declares; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@frozen
class McpEndpoint:
    """The address of our MCP server for a runtime."""

    url: str
    ticket: SecretStr
    """The bearer token, for one native session or, if `shared`, for all sessions of a runtime."""
    timeout: timedelta
    """The longest deadline of a call of its tools."""
    shared: bool = False
    """Whether the runtime's settings contain it, for all native sessions."""


@frozen
class Order:
    """The parameters of a new native session, in addition to the options."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[Tool, ...] = ()
    """The tools of the YAML."""
    name: str | None = None
    """The name; overrides the options."""
    instructions: str | None = None
    """The instructions of the agent; override the options."""
    mcp: McpEndpoint | None = None
    """The MCP server for a runtime that gets tools from one; None if it cannot reach this gateway."""
    key: str | None = field(default=None, compare=False)
    """An id that no other order has, with which a runtime may recognize a repeated request."""


@frozen
class Created:
    """A new native session.

    Each tool of the order is in `tools`, or `dropped` by a loss at `/tools` or `/tools/<name>`. Any other member of the
    order that was not sent has a loss.
    """

    native_id: str
    losses: tuple[Loss, ...] = ()
    tools: tuple[str, ...] = ()
    """Names of the tools that the runtime received."""

    def unaccounted(self, order: Order) -> tuple[str, ...]:
        """Return the tools of the order that are neither in `tools` nor a loss."""
        dropped = {loss.path for loss in self.losses if loss.how == "dropped"}
        if "/tools" in dropped:
            return ()
        names = [tool.name for tool in order.tools if tool.name not in self.tools]
        return tuple(name for name in names if pointer("/tools", name) not in dropped)


ReceiptState = Literal["sent", "delivered", "refused", "moot", "busy"]


@frozen
class Receipt:
    """The result of a send.

    `sent` leaves delivery to the rule of the capability `delivery`. `busy` means that the event is sent again when the
    turn ends. All other states are final. Awaiting a receipt returns it at once.
    """

    state: ReceiptState
    reason: str | None = None

    def __await__(self) -> Generator[None, None, "Receipt"]:
        yield from ()
        return self


class Receiver(Protocol):
    """The receiver of a link's messages. Both methods return at once and never raise."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Receive one frame, in wire order; `cursor` is the place to resume after it."""
        ...

    def caught_up(self, *, starting: bool | None = False) -> None:
        """Mark the end of the replay after a connect; required for protocols that resume.

        Until then frames are recorded and not acted on, without a time limit. `starting` is True if the runtime
        is starting and the replayed states are older, and None if that is unknown and its next state tells. A starting
        runtime gets no new work before it has started.
        """
        ...


class Link(Protocol):
    """One live connection to one native session, from connect to loss."""

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        """Send the frames of one event in order; events leave in the order of the calls.

        The interrupt of a running turn may come while an earlier call waits; the link may send it first.

        Return the receipt of the first frame that the runtime does not accept, and send no frame after it. A link that
        does not wait may return the receipt itself. Use a time limit; the gateway drops the link after ten minutes.

        Raises:
            LinkLost: frames may have been sent; none with `unsent`.
        """
        ...

    def prove(self) -> Awaitable[None]:
        """Return once the peer has received everything sent before; it need not have processed it.

        Called if silence means delivery, before silence counts as delivery: a broken connection is silent, too. A
        link with a response to each send may return at once.

        Raises:
            LinkLost: the peer did not respond in time; the link is closed.
        """
        ...

    def wait_closed(self) -> Awaitable[str]:
        """Wait until the connection has ended and return the reason.

        Raises:
            LinkCrowded: the runtime has evicted the session for another one.
        """
        ...


class Connector(Protocol):
    """All connections to one runtime."""

    async def create(self, order: Order) -> Created:
        """Create a native session from the options and the order.

        Raises:
            LinkRefused: the runtime refused; `terminal` if a retry would fail, too.
            LinkLost: no response; a session may exist.
        """
        ...

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Query the runtime for a session's tools; None if the protocol has no such query.

        Raises:
            LinkLost, LinkRefused: the query failed.
        """
        ...

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        """Open a link; entering connects (within `connect_timeout`), leaving closes.

        Raises:
            LinkLost, LinkRefused, LinkCrowded: on entering.
        """
        ...


@runtime_checkable
class ToolRegistry(Protocol):
    """A connector that can add our MCP server to the runtime's settings, for all native sessions."""

    @property
    def tools_problem(self) -> str | None:
        """The reason why the settings lack our server; None if they contain it."""
        ...

    async def register_tools(self, endpoint: McpEndpoint) -> None:
        """Add the server to the settings unless present, and check again before each link.

        All other settings remain. A failure sets `tools_problem` and is not raised.
        """
        ...


@frozen
class RestTimes:
    """The pauses before the gateway reconnects a session that its runtime has ended."""

    look_again: timedelta = timedelta(seconds=60)
    """Interval of status queries of a stopped session."""
    crowded: timedelta = timedelta(seconds=60)
    """Pause of an evicted session, even with pending work; doubles each time."""
    crowded_most: timedelta = timedelta(seconds=600)


@runtime_checkable
class Resting(Protocol):
    """A connector whose runtime stops sessions and starts them again for any client that connects.

    The gateway connects a session while it runs, or while it has pending work from a client or a person.
    """

    @property
    def rest_times(self) -> RestTimes: ...
    async def is_stopped(self, native_id: str) -> bool:
        """Query whether the runtime has stopped a session, without starting it; False if unknown.

        Raises:
            LinkLost, LinkRefused: the query failed.
        """
        ...


class Adapter(Protocol):
    """One protocol version; the entry point names an instance, usually `ADAPTER`."""

    @property
    def name(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def ports(self) -> int: ...
    @property
    def options(self) -> type[RuntimeOptions]: ...
    @property
    def capabilities(self) -> Capabilities: ...

    def codec(self, options: Any = None) -> Codec:
        """Make a codec; without options it uses the protocol's defaults."""
        ...

    def connector(self, options: Any) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime; entering it opens shared resources, leaving it closes all links."""
        ...
