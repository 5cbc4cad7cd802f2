"""A core that decides without a store: steps are applied at once, time is a number."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Adapter, Frame, Tool
from gateway.core import calls, inbound, lifecycle, outbound
from gateway.core.arguments import ArgumentValidator
from gateway.core.effects import Dispatch, Effect, Release, Transmit
from gateway.core.routing import Route, Routes
from gateway.core.session import Policy, Recorded, RetryPolicy, RuntimeContext, SlotAccess, StepBuilder
from gateway.core.state import Remembered, SessionView, first_state
from gateway.events import Draft, Event, EventId, SessionId, call_id as name_call
from gateway.store.call import Call, Settle
from gateway.store.step import Step

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ASK = Tool(
    "ask_for_cards",
    "Ask another player for cards.",
    {
        "type": "object",
        "properties": {"targetPlayer": {"type": "string"}, "rank": {"type": "string", "enum": ["7", "K"]}},
        "required": ["targetPlayer", "rank"],
    },
)
GOOD = {"targetPlayer": "Victoria", "rank": "7"}
_OPTIONS = {
    "huma-0.1": {"api_key": "k", "agent_id": "finn"},
    "huma-0.2": {"api_key": "k", "agent_id": "finn"},
    "openhands": {"conversation_id": "c"},
    "openhands-v1": {"conversation_id": "c70b4d45-e97b-43d6-84f7-8ff27032d0d5"},
    "herm": {"api_key": "k", "session_id": "s"},
}
ROUTES = (Route(tool="ask_*", to="cards"), Route(tool="slow_*", to="once"))


class Harness:
    """One session and its runtime context; `steps` and `effects` are those of the last decision."""

    def __init__(
        self,
        adapter: Adapter = HUMA_0_2,
        *,
        routes: tuple[Route, ...] = ROUTES,
        executors: Mapping[str, RetryPolicy] | None = None,
        unrouted: str = "fail",
        slots: int = 100,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        options = adapter.options.model_validate(
            {"adapter": adapter.name, "url": "http://127.0.0.1:1", **_OPTIONS[adapter.name], **(given or {})}
        )
        known = executors or {"cards": RetryPolicy(idempotent=True), "once": RetryPolicy(), "chat": RetryPolicy()}
        self.runtime = RuntimeContext(
            adapter=adapter.name,
            protocol=adapter.protocol,
            name="finn",
            capabilities=adapter.capabilities,
            codec=adapter.codec(options),
            options=options,
            policy=Policy(
                routes=Routes(routes, "ignore" if unrouted == "ignore" else "fail"),
                executors=known,
                fit_arguments=ArgumentValidator({ASK.name: ASK}).fit,
                declared=frozenset({ASK.name, "lonely"}),
            ),
        )
        capabilities = adapter.capabilities
        remembered = Remembered(echoes=capabilities.echoes, delegates=options.delegates)
        begin = first_state(capabilities)
        self.view = SessionView(SessionId("s"), "finn", "agent-1", memory=remembered, first_state=begin, listed=begin)
        self.now = START
        self.slots = slots
        self.known: dict[str, Call] = {}
        self.step = Step(SessionId("s"))
        self.effects: tuple[Effect, ...] = ()
        self.journal: list[tuple[Any, int]] = []
        self.listed = begin
        """The state that lists show."""
        self.missing: str | None = None
        """The refusal of a call while its executor is unreachable."""
        self._minted = 0

    # Moves -----------------------------------------------------------------------------------------------

    def decide(self, move: Callable[[StepBuilder], Any]) -> Any:
        """Carry out one decision; return its answer."""
        builder = StepBuilder(
            self.view,
            now=self.now,
            mint=self._mint,
            slots=SlotAccess(self._take, refusal=lambda _: self.missing),
            runtime=self.runtime,
            recorded=Recorded(self.known),
        )
        assert builder.open_bytes == sum(call.size for call in self.view.calls.values())
        answer = move(builder)
        assert builder.open_bytes == sum(call.size for call in builder.calls.values())
        self.step, self.effects = builder.step(fence=0), tuple(builder.effects)
        self.listed = self.step.state or self.listed
        self.journal += [(event, self.view.last_sequence + place) for place, event in enumerate(builder.events, 1)]
        self.view = builder.view
        return answer

    def receive(self, payload: Any, *, channel: str = "event", overloaded: bool = False) -> None:
        """Take a frame of the runtime."""
        self.decide(lambda builder: inbound.take(builder, Frame(channel, payload), overloaded=overloaded))

    def call(self, native: str = "tc-1", tool: str = ASK.name, arguments: Any = None) -> None:
        """Let the agent ask for a tool."""
        given = GOOD if arguments is None else arguments
        self.receive({"type": "tool-call", "toolCallId": native, "toolName": tool, "arguments": given})

    def cancel(self, native: str = "tc-1", **more: Any) -> None:
        """Let the agent withdraw a call."""
        self.receive({"type": "cancel-tool-call", "toolCallId": native, **more})

    def send(self, text: str = "Hello", *, index: int = 0, count: int = 1, call: str = "burst-1") -> None:
        """Let the agent send a message of a burst."""
        self.receive(
            {
                "type": "messaging",
                "event": "message_sent",
                "toolCallId": call,
                "message": text,
                "messageIndex": index,
                "messageCount": count,
            }
        )

    def answer(self, answer: Any, *, native: str = "tc-1", attempt: int = 1, n: int = 0) -> None:
        """Let an attempt end."""
        self.decide(lambda builder: calls.answered(builder, self.id_of(native, n), attempt, answer, jitter=0.5))

    def post(self, event: Event) -> int:
        """Let a client post an event."""
        return self.decide(lambda builder: outbound.post(builder, event, by="backend"))

    def wait(self, seconds: float) -> None:
        """Let time pass, then tick."""
        self.now += timedelta(seconds=seconds)
        self.decide(lifecycle.tick)

    def catch_up(self, *, is_starting: bool | None = None) -> None:
        """Let a link catch up, and open the recorded calls that waited for it, all in one step."""

        def move(builder: StepBuilder) -> None:
            inbound.caught_up(builder, is_starting=is_starting)
            waiting = {wanted.sequence for wanted in builder.memory.wanted.values()}
            inbound.open_wanted(builder, [(n, new.event) for new, n in self.journal if n in waiting])

        self.decide(move)

    def recover(self) -> None:
        """Let a new process take the session up."""
        self.decide(lifecycle.recover)

    # Looks -----------------------------------------------------------------------------------------------

    def id_of(self, native: str, n: int = 0) -> Any:
        """Name the call of a native id."""
        return name_call(runtime="finn", native_session_id="agent-1", native_call_id=native, n=n)

    @property
    def kinds(self) -> list[str]:
        """The kinds the last step records."""
        return [event.event.kind for event in self.step.events]

    @property
    def events(self) -> list[Event]:
        """The events the last step records."""
        return [event.event for event in self.step.events]

    @property
    def sent(self) -> list[Any]:
        """The native payloads the last step sends, in order."""
        return [frame.payload for effect in self.effects if isinstance(effect, Transmit) for frame in effect.frames]

    @property
    def dispatched(self) -> list[Any]:
        """The calls the last step sends to executors."""
        return [effect.call for effect in self.effects if isinstance(effect, Dispatch)]

    @property
    def released(self) -> list[Release]:
        """The calls the last step lets go of."""
        return [effect for effect in self.effects if isinstance(effect, Release)]

    @property
    def settled(self) -> list[Settle]:
        """The calls the last step settles."""
        return [change for change in self.step.calls if isinstance(change, Settle)]

    def expressible(self, event: Event) -> Any:
        """Say an event in the native tongue."""
        return self.runtime.codec.encode(Draft(event)).frames[0].payload

    def with_options(self, **options: Any) -> "Harness":
        """Change options of the runtime."""
        self.runtime = replace(self.runtime, options=self.runtime.options.model_copy(update=options))
        return self

    def _mint(self) -> EventId:
        self._minted += 1
        return EventId(f"e{self._minted:05}")

    def _take(self, _executor: str) -> bool:
        self.slots -= 1
        return self.slots >= 0


__all__ = ["ASK", "GOOD", "HERM", "HUMA_0_1", "HUMA_0_2", "OPENHANDS", "START", "Harness"]
