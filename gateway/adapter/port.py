"""The socket that a protocol plugs into: adapter, codec, connector, link. Pure.

One adapter is one protocol version. Its codec translates, its connector connects; everything
that needs memory or a decision lives in the core, everything that retries in the supervisor.
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
"""Bytes of a message beyond which a link ends the connection; `limits.frame` is at most this."""

PORTS_VERSION = 3


@frozen
class Frame:
    """One native message: the channel it travels on and its JSON."""

    channel: str
    payload: Any
    size: int = field(default=0, compare=False)
    """Bytes of the text that it came in; 0 where the link does not tell."""
    written: bytes | None = field(default=None, compare=False, repr=False)
    """The payload as compact JSON if the link has read it strictly; it needs no further check."""
    live: bool = field(default=False, compare=False)
    """Whether the link takes it for something to show and not to keep; what it is, the codec says."""


@frozen
class Encoded:
    """What a codec makes of one event: the frames to send, in order, and what they cannot carry."""

    frames: tuple[Frame, ...]
    losses: tuple[Loss, ...] = ()


class Codec(Protocol):
    """Translate one protocol, both ways; symmetrical, stateless, total and pure.

    It maps only kinds the protocol has natively and covers every message in both directions, as
    either side of the protocol says it.
    """

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words: one primary draft, seldom more.

        A type the protocol does not have becomes `opaque`; an unknown field becomes a
        `Loss(dropped)`; wrong insides of a known type raise.

        Raises:
            MalformedFrame: and nothing else, whatever the payload is.
        """
        ...

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words; the same item always gives equal frames.

        An event is said first as a draft, and again, after a crash, as its envelope: in the same words, so that no id
        or time of an envelope belongs into them.

        Raises:
            CannotExpress: the protocol has no words for it, or a value breaks its limits.
        """
        ...


@frozen
class McpAction:
    """The action by which a runtime calls a tool of an MCP server, and the arguments that say which and with what."""

    action: str
    tool: str
    arguments: str


@frozen
class Capabilities:
    """What a protocol can do, as data; the core branches on this and never on a name."""

    accepts: frozenset[str]
    """Kinds that `encode` can say towards the runtime."""
    emits: frozenset[str]
    """Kinds that a runtime may say; apart from `opaque` and `fault.reported`, which all may."""
    turns: Literal["signalled", "inferred"]
    delivery: Literal["silence", "ack", "response"]
    """How delivery is known: no error within a window, an acknowledgement, or the answer to a request."""
    rejects_with: frozenset[str] = frozenset()
    """Fault codes that mean: what you just sent was not taken."""
    replaces_context: bool = False
    """A context update replaces the whole context, so each one is sent complete, and all in the journal's order."""
    hydrates: bool = False
    """The last context is sent, without waking the agent, on each (re)connect."""
    confirms_messages: timedelta | None = None
    """Agent messages of a burst must be confirmed one by one, within this time."""
    answers_cancel: bool = False
    """The runtime wants a canceled outcome as the answer to its cancel."""
    one_message_per_turn: bool = False
    """New work waits until the turn has ended."""
    resumes: bool = False
    """A reconnect replays what was missed, followed by a `caught_up`."""
    echoes: bool = False
    """Our own messages come back with a native id."""
    names_awaited: bool = False
    """States name the calls that the runtime waits for, so that a replay shows which outcomes it still wants."""
    delegates: bool = False
    """Between `thread.sent` and `thread.received`, states are a delegate's and end nothing."""
    approvals: Literal["none", "by_id", "by_state"] = "none"
    silent_gates: frozenset[str] = frozenset()
    """Where approvals go by state: tools that may wait for one although their request does not say so."""
    mcp_action: McpAction | None = None
    """Where its agents call tools of MCP servers: ours may be among them, and then the action is linked to the call."""
    starts_deaf: bool = False
    """While its state is `starting` the runtime takes new work and never does it, so it is held back until then.

    Needs `resumes` and `echoes`: what was held when a process ended is sent by the next one, unless an echo is there.
    """
    creates_sessions: bool = False
    takes_tools: Literal["none", "create", "agent", "mcp"] = "none"
    """How the runtime comes to know tools: never, by `create`, on the agent that a session belongs to, which is its
    owner's to do, or from the MCP server that `create` tells it of."""
    mcp_hold: timedelta | None = None
    """How long its MCP client surely waits for one answer, where it takes tools so; None: as long as it was told."""
    mcp_session_header: str | None = None
    """The header in which its MCP client may name the native session that asks."""
    linked: bool = True
    """We connect to it; the clients of one that is not linked come to us, and its connector is never asked for."""
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Documented numbers of the protocol, for `GET /v1/capabilities`."""


class RuntimeOptions(BaseModel):
    """The options that every runtime in the YAML has; an adapter adds its own in a subclass."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    adapter: str = Field(description="Which protocol the runtime speaks; `dragoman doctor` lists the names.")
    url: str = Field(description="Base URL of the runtime.", examples=["https://runtime.example.com"])
    labels: dict[str, str] = Field(default={}, description="Labels given to sessions of this runtime.")
    autostart: bool = Field(
        default=False, description="Create one native session at start and keep it across restarts."
    )
    hydrate: bool | None = Field(
        default=None, description="Send the last context on each connect; by default as the protocol does."
    )
    turn_quiet: Duration = Field(
        default=timedelta(seconds=2), description="Quiet time after a confirmed message that ends a turn."
    )
    turn_timeout: Duration = Field(
        default=timedelta(seconds=15), description="Time without any activity that ends a turn."
    )
    delivery_window: Duration = Field(
        default=timedelta(seconds=5), description="Silence after a send that counts as delivered."
    )
    confirm_timeout: Duration = Field(
        default=timedelta(seconds=20),
        description="How long the backend may take to deliver an agent's message.",
    )
    connect_timeout: Duration = Field(
        default=timedelta(seconds=10), description="How long one connection attempt may take."
    )
    start_wait: Duration = Field(
        default=timedelta(seconds=60),
        description="How long messages and orders wait for a runtime that is starting, where it would not hear them"
        " (OpenHands); then they are sent all the same.",
    )

    @property
    def native_id(self) -> str | None:
        """The native session to attach to at start, where the options name one."""
        return None

    @property
    def creates(self) -> bool:
        """Whether the options say how to create a native session."""
        return False

    @property
    def history_key(self) -> str | None:
        """The key under which the conversation is added to a context that replaces the last one; None adds none."""
        return None

    @property
    def takes_mcp(self) -> bool:
        """Whether native sessions are told an MCP server of ours: those that are created, or all of them."""
        return False

    @property
    def shares_tools(self) -> bool:
        """Whether one MCP address in the runtime's own settings serves all of its sessions."""
        return False

    @property
    def calls_unasked(self) -> bool:
        """Whether its agents call our tools without the approval that they ask for other actions."""
        return False

    @property
    def own_tools(self) -> frozenset[str]:
        """Names of tools that the runtime's agents have themselves, and call rather than one that they are told of."""
        return frozenset()

    @property
    def mcp_base(self) -> str | None:
        """Where the runtime reaches this gateway, if it is not the `public_url`."""
        return None

    @property
    def mcp_clients(self) -> "tuple[McpClient, ...] | None":
        """Who comes to us with a token of its own, where the protocol is not linked."""
        return None


@frozen
class Tool:
    """A tool that the YAML declares; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@frozen
class McpEndpoint:
    """Where a runtime finds the tools as an MCP server."""

    url: str
    ticket: SecretStr
    """The bearer token that opens it: for one native session, or for all of a runtime where it is `shared`."""
    timeout: timedelta
    """The longest that a call of its tools may take."""
    shared: bool = False
    """Whether it stands in the runtime's own settings, so that each native session finds it there."""


@frozen
class Order:
    """What a native session is to be made with, beside what the options say."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[Tool, ...] = ()
    """The tools of the YAML."""
    name: str | None = None
    """What to call it, in place of what the options say."""
    instructions: str | None = None
    """What the agent is to do, in place of what the options say."""
    mcp: McpEndpoint | None = None
    """Where the tools are, for a runtime that takes them so; None where there is no address that it could reach."""


@frozen
class Created:
    """A native session that was made.

    Each tool of the order is `told`, or `dropped` by a loss at `/tools` or `/tools/<name>`; what else was given and
    could not be told is a loss at its member.
    """

    native_id: str
    losses: tuple[Loss, ...] = ()
    told: tuple[str, ...] = ()
    """Names of the tools that the runtime knows by this."""

    def unaccounted(self, order: Order) -> tuple[str, ...]:
        """Name the tools of the order of which it says neither."""
        dropped = {loss.path for loss in self.losses if loss.how == "dropped"}
        if "/tools" in dropped:
            return ()
        names = [tool.name for tool in order.tools if tool.name not in self.told]
        return tuple(name for name in names if pointer("/tools", name) not in dropped)


ReceiptState = Literal["sent", "delivered", "refused", "moot", "busy"]


@frozen
class Receipt:
    """What a link knows right after a send.

    `sent` leaves delivery to the capability's rule. `busy` means not now: keep it and offer it again
    when the turn ends. The others are final. Whoever awaits one that is there already has it at once.
    """

    state: ReceiptState
    reason: str | None = None

    def __await__(self) -> Generator[None, None, "Receipt"]:
        yield from ()
        return self


class Receiver(Protocol):
    """Where a link puts what arrives. Both calls return at once and never raise."""

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Take one frame, in the order of the wire; `cursor` is where to resume after it."""
        ...

    def caught_up(self, *, starting: bool | None = None) -> None:
        """The replay after a connect is over; only protocols that resume say so, and they must.

        Until then what arrives goes on record and nothing is acted on, however long it takes.
        `starting` is what the link has found out by asking: True where states told before are from before the start.
        """
        ...


class Link(Protocol):
    """One live connection to one native session, from connect to loss."""

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        """Send the frames of one event in their order; events leave in the order of the calls.

        The receipt is that of the first frame that the runtime does not accept, behind which none is sent. A link that
        need not wait may return the receipt itself. It has a time limit of its own; the gateway drops it after ten
        minutes.

        Raises:
            LinkLost: frames may have left; none has if the error says `unsent`.
        """
        ...

    def prove(self) -> Awaitable[None]:
        """Answer once the peer has surely been reached by everything sent before; it need not have understood it.

        Asked where silence means delivery, before the silence is believed: a connection that is broken without a
        word is silent too. Where each send is answered there is nothing to add.

        Raises:
            LinkLost: no sign of the peer came in time; the link is closed then.
        """
        ...

    def wait_closed(self) -> Awaitable[str]:
        """Wait until the connection has ended and say why.

        Raises:
            LinkCrowded: the runtime has ended the session to make room for another one.
        """
        ...


class Connector(Protocol):
    """All connections to one runtime."""

    async def create(self, order: Order) -> Created:
        """Make a native session as the options and the order say.

        Raises:
            LinkRefused: the runtime said no, `terminal` if it would again.
            LinkLost: no answer; a session may exist.
        """
        ...

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        """Ask the runtime which tools it believes a session to have; None where it cannot be asked.

        Raises:
            LinkLost, LinkRefused: it did not say.
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
    """A connector that can name our MCP server in the runtime's own settings, for every native session."""

    @property
    def tools_problem(self) -> str | None:
        """Why our server does not stand in the settings; None while it does."""
        ...

    async def register_tools(self, endpoint: McpEndpoint) -> None:
        """Write the server into the settings unless it is there, and check that again before each link.

        Whatever else is in the settings stays. A failure is kept as the `tools_problem` and not raised.
        """
        ...


@frozen
class RestTimes:
    """How long a session is left alone that its runtime has ended."""

    look_again: timedelta = timedelta(seconds=60)
    """How often a stopped one is looked at again."""
    crowded: timedelta = timedelta(seconds=60)
    """How long one that had to make room stays away, work waiting or not; doubles each time."""
    crowded_most: timedelta = timedelta(seconds=600)


@runtime_checkable
class Resting(Protocol):
    """What a connector is as well, whose runtime ends sessions by itself, and begins them again for whoever connects.

    Such a session is connected while it runs, or while a client or a person has something to say to it.
    """

    @property
    def rest_times(self) -> RestTimes: ...
    async def is_stopped(self, native_id: str) -> bool:
        """Ask the runtime whether it has ended a session, without beginning it again; False where it does not say.

        Raises:
            LinkLost, LinkRefused: it cannot be asked.
        """
        ...


class Adapter(Protocol):
    """One protocol version; an instance is what the entry point loads, by custom one named `ADAPTER`."""

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
        """Make a codec; options may be left out where the protocol's own defaults will do."""
        ...

    def connector(self, options: Any) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime; entering opens shared resources, leaving closes all links."""
        ...
