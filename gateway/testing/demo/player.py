"""One runtime as a player of the demo: its session in the gateway, and what every step needs."""

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
    """What an agent was told about a call, whatever its protocol calls it."""

    outcome: str
    text: str


class Ask(Protocol):
    """A call that an agent has made; `mark` is the text by which its frames are known on the wire."""

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
    async def told(self, within: float = WAIT) -> Told: ...


class Player:
    """What all agents of the demo have in common."""

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
        """Wait until the gateway has the runtime's one session, and remember it."""

        async def look() -> dict[str, Any] | None:
            sessions = (await self.environment.get("/v1/sessions"))["data"]
            found = [session for session in sessions if session["runtime"] == self.runtime]
            expect(len(found) <= 1, f"expected one session of {self.runtime}, found {len(found)}")
            return found[0] if found else None

        session = await self.until(look, f"there is no session of {self.runtime}")
        self.session_id = session["session_id"]
        return session

    async def drive(self, **event: Any) -> Envelope:
        """Write one event to the session by the HTTP API; returns its envelope."""
        written = await self.environment.post(f"/v1/sessions/{self.session_id}/events", event)
        return written["data"][0]

    async def journal(self, after: int = 0) -> list[Envelope]:
        """Read the session's events, page by page."""
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
        """Wait for events of a kind in the journal; returns the last of them.

        Raises:
            Unmet: they did not come in time, or more of them came.
        """

        async def look() -> Envelope | None:
            found = [each for each in await self.journal(after) if each["event"]["kind"] == kind and fits(each)]
            expect(len(found) <= times, f"{len(found)} {kind} instead of {times}")
            return found[-1] if len(found) == times else None

        return await self.until(look, f"no {kind} in the journal")

    async def until(self, look: Callable[[], Awaitable[Any]], otherwise: str, *, within: float = WAIT) -> Any:
        """Ask the gateway again and again.

        Raises:
            Unmet: with the text, when nothing was found in time.
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
        """Wait until something is true of the backend.

        Raises:
            Unmet: with the text, when it does not come true.
        """
        try:
            await self.environment.backend.changed.until(lambda: held() or None, WAIT, what=lambda: otherwise)
        except TimeoutError as exc:
            raise Unmet(otherwise) from exc

    async def on_the_wire(self, ask: Ask) -> OneCall:
        """Find a call as it went over the connections of the agent and of the backend.

        Raises:
            Unmet: not all of it was seen.
        """
        call_id = await self.key_of(ask)
        wire, backend = self.environment.wires[self.label], self.environment.backend_wire

        def look() -> OneCall | None:
            return find_call(self.label, ask.mark, call_id, wire=wire, backend=backend)

        await self.backend_has(lambda: look() is not None, f"not all of {self.label}'s call was seen on the wire")
        found = look()
        assert found is not None
        return found

    async def key_of(self, ask: Ask) -> str:
        """Return the gateway's own id of a call, which is also its webhook-id."""
        calls = (await self.environment.get("/v1/calls", session_id=self.session_id, limit=100))["data"]
        found = [row["call_id"] for row in calls if row["native_call_id"] == ask.native_id]
        expect(len(found) == 1, f"the gateway has {len(found)} records of {ask.tool}")
        return str(found[0])


def text_of(envelope: Envelope) -> str:
    """Join the texts of a message."""
    return "".join(block["text"] for block in envelope["event"]["content"] if block["type"] == "text")
