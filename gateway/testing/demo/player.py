"""One runtime as a player of the demo: its session in the gateway, and helpers for all steps."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from gateway.testing.demo.environment import Environment
from gateway.testing.demo.one_call import OneCall, find_call
from gateway.testing.demo.report import STEP_LIMIT, Note, Report, Unmet, expect

WAIT = 10.0
LOOK_AGAIN = 0.03
PAGE = 500

Envelope = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a call that the agent received, in the same form for every protocol."""

    outcome: str
    text: str


class Ask(Protocol):
    """A call of an agent; `mark` is the text that identifies its frames on the wire."""

    @property
    def native_id(self) -> str: ...
    @property
    def mark(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def latency(self) -> timedelta | None: ...
    @property
    def answers(self) -> list[Any]: ...
    async def outcome(self, within: float = WAIT) -> Told: ...


class Player:
    """The common part of all agents in the demo."""

    def __init__(self, environment: Environment, report: Report, label: str) -> None:
        self.environment = environment
        self.report = report
        self.label = label
        self.runtime = environment.runtimes[label]
        self.session_id = ""
        self.asked: list[Ask] = []

    def step(self, name: str, *, within: float = STEP_LIMIT) -> AbstractAsyncContextManager[Note]:
        """Play one step of this runtime."""
        return self.report.step(self.label, name, within=within)

    async def find_session(self) -> dict[str, Any]:
        """Wait for the runtime's only session in the gateway, and store its id."""

        async def look() -> dict[str, Any] | None:
            sessions = (await self.environment.get("/v1/sessions"))["data"]
            found = [session for session in sessions if session["runtime"] == self.runtime]
            expect(len(found) <= 1, f"expected one session of {self.runtime}, found {len(found)}")
            return found[0] if found else None

        session = await self.until(look, f"there is no session of {self.runtime}")
        self.session_id = session["session_id"]
        return session

    async def drive(self, **event: Any) -> Envelope:
        """Post one event to the session over the HTTP API; return its envelope."""
        written = await self.environment.post(f"/v1/sessions/{self.session_id}/events", event)
        return written["data"][0]

    async def journal(self, after: int = 0) -> list[Envelope]:
        """Read all events of the session."""
        envelopes: list[Envelope] = []
        while True:
            path = f"/v1/sessions/{self.session_id}/events"
            page = (await self.environment.get(path, after=after, limit=PAGE))["data"]
            if not page:
                return envelopes
            envelopes.extend(page)
            after = page[-1]["sequence"]

    async def event(
        self, kind: str, fits: Callable[[Envelope], bool] = lambda _: True, *, after: int = 0, times: int = 1
    ) -> Envelope:
        """Wait for events of a kind in the journal; return the last one.

        Raises:
            Unmet: too few arrived in time, or too many.
        """

        async def look() -> Envelope | None:
            found = [each for each in await self.journal(after) if each["event"]["kind"] == kind and fits(each)]
            expect(len(found) <= times, f"{len(found)} {kind} instead of {times}")
            return found[-1] if len(found) == times else None

        return await self.until(look, f"no {kind} in the journal")

    async def until(self, look: Callable[[], Awaitable[Any]], otherwise: str, *, within: float = WAIT) -> Any:
        """Poll until `look` returns a value other than None.

        Raises:
            Unmet: with the text `otherwise`, after `within` seconds.
        """
        try:
            async with asyncio.timeout(within):
                while True:
                    found = await look()
                    if found is not None:
                        return found
                    await asyncio.sleep(LOOK_AGAIN)
        except TimeoutError as exc:
            raise Unmet(otherwise) from exc

    async def backend_has(self, held: Callable[[], bool], otherwise: str) -> None:
        """Wait for a condition of the backend.

        Raises:
            Unmet: with the text `otherwise`, after a timeout.
        """
        try:
            await self.environment.backend.changed.until(lambda: held() or None, WAIT, what=lambda: otherwise)
        except TimeoutError as exc:
            raise Unmet(otherwise) from exc

    async def on_the_wire(self, ask: Ask) -> OneCall:
        """Find the recorded messages of a call.

        Raises:
            Unmet: one of them is missing.
        """
        call_id = await self.key_of(ask)
        wire, backend = self.environment.wires[self.label], self.environment.backend_wire

        def look() -> OneCall | None:
            return find_call(self.label, ask.mark, call_id, wire=wire, backend=backend)

        await self.backend_has(lambda: look() is not None, f"a message of {self.label}'s call is missing")
        found = look()
        assert found is not None
        return found

    async def key_of(self, ask: Ask) -> str:
        """Return the gateway's id of a call, which is also its webhook-id."""
        calls = (await self.environment.get("/v1/calls", session_id=self.session_id, limit=100))["data"]
        found = [row["call_id"] for row in calls if row["native_call_id"] == ask.native_id]
        expect(len(found) == 1, f"the gateway has {len(found)} records of {ask.tool}")
        return str(found[0])


def text_of(envelope: Envelope) -> str:
    """Join the texts of a message."""
    return "".join(block["text"] for block in envelope["event"]["content"] if block["type"] == "text")
