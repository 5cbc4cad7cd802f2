"""The API client: one method per operation."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack, cast
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import BaseModel, SecretStr

from dragoman.client.errors import ClientError, RequestRefused, UnexpectedAnswer
from dragoman.client.filters import CallFilters, EventFilters, GivenAnswer, LetterFilters, SessionFilters, to_query
from dragoman.client.following import Followed, follow_all, follow_interactions, follow_session
from dragoman.client.reading import read
from dragoman.client.transport import Retries, Transport, check_header
from dragoman.models import Event, Gap, Live, Missed, Passed, SecretSupplied, dump_event
from dragoman.models.responses import (
    Activity,
    AnsweredInteraction,
    ApprovalRecord,
    Call,
    CallWithOutcome,
    CallWithStory,
    DeadCall,
    DeadCallWithStory,
    DeadDelivery,
    Envelope,
    Interaction,
    LastContext,
    RedrivenCall,
    RedrivenDelivery,
    Runtime,
    RuntimeCapabilities,
    Session,
)
from dragoman.models.states import InteractionState
from dragoman.models.stream import sequence_of

Row = TypeVar("Row", bound=BaseModel)
Asked = TypeVar("Asked", bound=Call)

_HOLD = 30.0
"""Seconds per waiting request; most proxies allow a minute."""
_PAGE = 100


class Client:
    """A client of one gateway; use it with `async with`, or close it with `aclose`.

    Reads, and writes with a key, are retried `retries` times, after `pause` seconds and then longer. The client
    generates a key if you pass none. Each attempt has `timeout` seconds. Your own `http_client` keeps its proxies and
    certificates, and stays open.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: int = 3,
        pause: float = 0.5,
        largest_answer: int = 64 * 1024**2,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        if not (0 < timeout < math.inf and 0 < pause < math.inf) or retries < 0:
            raise ValueError("`timeout` and `pause` must be positive and finite, `retries` at least 0")
        self._transport = Transport(
            url,
            key,
            timeout=timeout,
            retrying=Retries(retries, pause),
            largest_answer=largest_answer,
            http_client=http_client,
        )

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r})"

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def request(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> dict[str, Any]:
        """Send a request that has no method here, such as `POST /v1/reload`; only GET is retried."""
        if not path.startswith("/"):
            # It would become a part of the host name, and the key would go to that host.
            raise ValueError(f"invalid path {path[:50]!r}: it must start with /")
        return await self._transport.ask(method, path, query=query or {}, body=body, repeatable=method == "GET")

    # Sessions --------------------------------------------------------------------------------------------

    async def open_session(
        self,
        runtime: str,
        *,
        native_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        name: str | None = None,
        instructions: str | None = None,
        key: str | None = None,
    ) -> Session:
        """Attach to a native session, or create one; return the existing session if it is already open."""
        body = {
            "runtime": runtime,
            "native_id": native_id,
            "labels": dict(labels or {}),
            "name": name,
            "instructions": instructions,
        }
        given = {member: value for member, value in body.items() if value is not None}
        return read(Session, await self._write("/v1/sessions", given, key))

    def sessions(self, *, newest_first: bool = False, **filters: Unpack[SessionFilters]) -> AsyncGenerator[Session]:
        """List sessions in the order of opening; `runtime` and `native_id` together identify one."""
        query = to_query(filters) | ({"order": "newest"} if newest_first else {})
        return self._pages(Session, "/v1/sessions", query)

    async def session(self, session: Session | str) -> Session:
        """Return a session in its current state."""
        return read(Session, await self._transport.ask("GET", _session_path(session), repeatable=True))

    async def context(self, session: Session | str) -> LastContext:
        """Return the last context of a session; `envelope` is None if none is recorded."""
        return read(LastContext, await self._transport.ask("GET", f"{_session_path(session)}/context", repeatable=True))

    async def close_session(self, session: Session | str, *, erase: bool = False) -> None:
        """Close a session; `erase` also removes the bodies of its events."""
        query = {"erase": True} if erase else {}
        await self._transport.ask("DELETE", _session_path(session), query=query, repeatable=True)

    # Events ----------------------------------------------------------------------------------------------

    async def post(
        self, session: Session | str, *events: str | Event | Mapping[str, Any], key: str | None = None
    ) -> list[Envelope]:
        """Record events, all or none, and send them to the runtime; a text is a message."""
        body = {"events": [_event_body(event) for event in events]}
        given = await self._write(f"{_session_path(session)}/events", body, key)
        return [read(Envelope, row) for row in _rows(given)]

    async def events(
        self, session: Session | str, *, after: int | str = 0, kind: Sequence[str] = ()
    ) -> AsyncGenerator[Envelope | Gap]:
        """Yield the recorded events after a `position` or sequence.

        A `Gap` means that retention removed some, or that the store was restored. `kind` are globs such as `tool.*`, of
        which one must match.
        """
        path, place, restored = f"{_session_path(session)}/events", str(after), False
        while True:
            try:
                query = {
                    "after": place,
                    "limit": _PAGE,
                    "kind": [kind] if isinstance(kind, str) else list(kind) or None,
                }
                page = await self._transport.ask("GET", path, query=query, repeatable=True)
            except RequestRefused as exc:
                first = exc.problem.first_sequence
                if exc.type != "gone" or first is None or (first <= sequence_of(place) + 1 and restored):
                    raise
                restored = restored or first <= sequence_of(place) + 1
                yield Gap(first)
                place = str(first - 1)
                continue
            for row in _rows(page):
                yield read(Envelope, row)
            onward = page.get("next")
            if onward is None:
                return
            if not isinstance(onward, int | str) or sequence_of(str(onward)) <= sequence_of(place):
                raise _repeated_page(path)
            place = str(onward)

    def follow(
        self,
        session: Session | str,
        *,
        after: int | str | None = None,
        silence: float = 15.0,
        patience: float = 300.0,
    ) -> AsyncGenerator[Envelope | Live | Gap]:
        """Yield the recorded events after a `position` or sequence, then new ones, until the session is closed.

        Without `after` it starts with new events. Each envelope is yielded once and in order, across lost connections
        and restarts. The stream reconnects after `silence` seconds without a byte; `api.heartbeat` must be shorter.
        After `patience` seconds without a connection it raises the last error.
        """
        path = _session_path(session)
        return follow_session(self._transport, path, after=after, silence=silence, patience=patience)

    def follow_all(
        self,
        *,
        after: str | None = None,
        silence: float = 15.0,
        patience: float = 300.0,
        **filters: Unpack[EventFilters],
    ) -> AsyncGenerator[Followed | Passed | Missed]:
        """Yield the matching events of all sessions after an `id`, then new ones, each with its session.

        Without `after` it starts with new events, with "0" at the oldest. Events of a session are in order. An `id`
        resumes a stream with the same filters. After a `Missed` some recorded events are missing.
        """
        query = to_query(filters)
        return follow_all(self._transport, query, after=after, silence=silence, patience=patience)

    # Calls -----------------------------------------------------------------------------------------------

    async def call(
        self,
        session: Session | str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        wait: float = 300.0,
    ) -> CallWithOutcome:
        """Call a tool and wait for its end; `outcome` is None if the call is still open after `wait` seconds.

        The same `key` returns the same call until retention removes it. Without a key each request is a new call.
        """
        path = f"{_session_path(session)}/calls"
        # All attempts share one key, so they are one call.
        body = {"tool": tool, "arguments": dict(arguments or {}), "key": _key(key, "a key")}

        async def ask(hold: float) -> CallWithOutcome:
            query = {"wait": f"{hold:.3f}"}
            given = await self._transport.ask("POST", path, query=query, body=body, hold=hold, retries=0)
            return read(CallWithOutcome, given)

        return await self._until_ended(ask, wait)

    async def call_history(self, call: Call | str, *, wait: float = 0) -> CallWithStory:
        """Return a call with its outcome, events and attempts; `wait` is for its end, in seconds."""

        async def ask(hold: float) -> CallWithStory:
            query = {"wait": f"{hold:.3f}"}
            given = await self._transport.ask("GET", _call_path(call), query=query, hold=hold, retries=0)
            return read(CallWithStory, given)

        return await self._until_ended(ask, wait)

    def calls(self, **filters: Unpack[CallFilters]) -> AsyncGenerator[Call]:
        """List calls, newest first."""
        return self._pages(Call, "/v1/calls", to_query(filters))

    async def cancel_call(self, call: Call | str, *, reason: str | None = None) -> Call:
        """Cancel a call; during a short grace period the executor's response still counts."""
        body = {} if reason is None else {"reason": reason}
        return read(Call, await self._transport.ask("POST", f"{_call_path(call)}/cancel", body=body))

    async def redrive_call(self, call: Call | str, *, new_key: bool = False, deliver: bool = False) -> Call:
        """Redrive a call: return a new call for an ended one, or resend the request of an accepted one.

        The call keeps its idempotency key unless `new_key`. The runtime receives the new outcome only with `deliver`.
        """
        body = {"new_key": new_key, "deliver": deliver}
        return read(Call, await self._transport.ask("POST", f"{_call_path(call)}/redrive", body=body))

    async def settle_call(
        self,
        call: Call | str,
        outcome: Literal["success", "failure", "canceled"],
        *,
        result: Any = None,
        error: str | None = None,
    ) -> Call:
        """Post the outcome of a call; repeating it has no effect, another outcome is a conflict."""
        body = {"outcome": outcome} | ({"result": result} if error is None else {"error": error})
        path = f"{_call_path(call)}/outcome"
        return read(Call, await self._transport.ask("POST", path, body=body, repeatable=True))

    async def report_progress(self, call: Call | str, data: Mapping[str, Any]) -> None:
        """Report the progress of a call to followers."""
        await self._transport.ask("POST", f"{_call_path(call)}/progress", body=dict(data))

    # People ----------------------------------------------------------------------------------------------

    def interactions(
        self, *, session: Session | str | None = None, state: InteractionState | None = None
    ) -> AsyncGenerator[Interaction]:
        """List requests for human input."""
        query = {"session_id": None if session is None else _id_of(session), "state": state}
        return self._pages(Interaction, "/v1/interactions", query)

    async def interaction(self, interaction: Interaction | str) -> Interaction:
        """Return a request for human input in its current state."""
        return read(Interaction, await self._transport.ask("GET", _interaction_path(interaction), repeatable=True))

    def follow_interactions(
        self, *, silence: float = 15.0, patience: float = 300.0
    ) -> AsyncGenerator[Interaction | Missed]:
        """Yield all waiting interactions, then each new or changed one in its new state.

        After a `Missed` all waiting ones are yielded again; missing ones were answered or expired.
        """
        return follow_interactions(self._transport, silence=silence, patience=patience)

    async def answer(self, interaction: Interaction | str, **given: Unpack[GivenAnswer]) -> AnsweredInteraction:
        """Answer an interaction: `decision` for an approval, `answer` for a question, `value` for a secret.

        `scope` and `reason` belong to a decision. To allow a held call, pass the `binding` of what the person saw, and
        `arguments` if the person has changed them. `losses` of the result lists the parts of the answer that the
        runtime's protocol cannot express.
        The request is not retried if it may have arrived, because a second answer is a conflict.
        """
        value = given.get("value")
        body = {member: said for member, said in given.items() if said is not None}
        if isinstance(value, SecretStr):
            body["value"] = value.get_secret_value()
        path = f"{_interaction_path(interaction)}/answer"
        return read(AnsweredInteraction, await self._transport.ask("POST", path, body=body))

    def approvals(
        self, *, since: datetime | None = None, session: Session | str | None = None
    ) -> AsyncGenerator[ApprovalRecord]:
        """List what was asked about held calls, and the answers, oldest first; `since` is a time of the question."""
        query = {
            "since": None if since is None else since.isoformat(),
            "session_id": None if session is None else _id_of(session),
        }
        return self._pages(ApprovalRecord, "/v1/approvals", query)

    # Dead letters ----------------------------------------------------------------------------------------

    def dead_letters(self, **filters: Unpack[LetterFilters]) -> AsyncGenerator[DeadCall | DeadDelivery]:
        """List dead letters: calls, newest first, then deliveries, newest first."""
        return self._rows_of(_read_letter, "/v1/dead-letters", to_query(filters))

    async def dead_letter(self, letter: str) -> DeadCallWithStory | DeadDelivery:
        """Return a dead letter; a call includes its complete history."""
        given = await self._transport.ask("GET", _letter_path(letter), repeatable=True)
        return read(DeadDelivery if _type_of(given) == "delivery" else DeadCallWithStory, given)

    async def redrive_dead_letter(
        self, letter: DeadCall | DeadDelivery | str, *, new_key: bool = False, deliver: bool = False
    ) -> RedrivenCall | RedrivenDelivery:
        """Redrive a dead letter: a call becomes a new call, a delivery is retried at once."""
        body = {"new_key": new_key, "deliver": deliver}
        return _read_redriven(await self._transport.ask("POST", f"{_letter_path(letter)}/redrive", body=body))

    async def dismiss_dead_letter(self, letter: DeadCall | DeadDelivery | str) -> RedrivenCall | RedrivenDelivery:
        """Remove a dead letter from the list, without a change to the call or delivery."""
        return _read_redriven(await self._transport.ask("POST", f"{_letter_path(letter)}/dismiss", body={}))

    # Runtimes --------------------------------------------------------------------------------------------

    async def runtimes(self) -> list[Runtime]:
        """List the runtimes, and the links of the sessions that the responding instance owns."""
        given = await self._transport.ask("GET", "/v1/runtimes", repeatable=True)
        return [read(Runtime, row) for row in _rows(given)]

    async def activity(self) -> Activity:
        """Return the calls per minute of the responding instance, for the last hour, and its executors."""
        return read(Activity, await self._transport.ask("GET", "/v1/activity", repeatable=True))

    async def capabilities(self) -> list[RuntimeCapabilities]:
        """List the event kinds that each runtime accepts and emits."""
        given = await self._transport.ask("GET", "/v1/capabilities", repeatable=True)
        return [read(RuntimeCapabilities, row) for row in _rows(given)]

    # Inside ----------------------------------------------------------------------------------------------

    async def _write(self, path: str, body: Any, key: str | None) -> dict[str, Any]:
        # All attempts share one key, so they are one request.
        return await self._transport.ask("POST", path, body=body, key=_key(key, "an Idempotency-Key"), repeatable=True)

    async def _until_ended(self, ask: Callable[[float], Awaitable[Asked]], wait: float) -> Asked:
        """Poll a call until it ends or the time is over, across restarts of the gateway."""
        until, failures = _now() + wait, 0
        while True:
            asked_at = _now()
            hold = min(_HOLD, max(until - asked_at, 0))
            try:
                call = await ask(hold)
            except ClientError as exc:
                pause = self._transport.pause_before(failures, exc)
                if pause is None or (failures >= self._transport.retries and _now() + pause >= until):
                    raise
                failures += 1
            else:
                failures = 0
                now = _now()
                if call.finished_at is not None or now >= until:
                    return call
                # A gateway at the end of its drain, or without its store, responds at once.
                pause = 2 * self._transport.pause if now - asked_at < hold / 2 else 0
            await asyncio.sleep(pause)

    def _pages(self, model: type[Row], path: str, query: Mapping[str, Any]) -> AsyncGenerator[Row]:
        return self._rows_of(lambda row: read(model, row), path, query)

    async def _rows_of(
        self, read_row: Callable[[Any], Row], path: str, query: Mapping[str, Any]
    ) -> AsyncGenerator[Row]:
        after: str | None = None
        while True:
            page = await self._transport.ask(
                "GET", path, query={"limit": _PAGE, **query, "after": after}, repeatable=True
            )
            for row in _rows(page):
                yield read_row(row)
            onward = page.get("next")
            if onward is None:
                return
            if not isinstance(onward, str) or onward == after:
                raise _repeated_page(path)
            after = onward


def _event_body(event: str | Event | Mapping[str, Any]) -> dict[str, Any]:
    match event:
        case str():
            return {"kind": "message.posted", "content": event}
        case Mapping():
            return dict(event)
        case SecretSupplied():
            # `dump_event` masks the value.
            return {**dump_event(event), "value": event.reveal()}
        case _:
            return dump_event(event)


def _key(given: str | None, what: str) -> str:
    return str(uuid4()) if given is None else check_header(given, what)


def _id_of(session: Session | str) -> str:
    return session if isinstance(session, str) else session.session_id


def _session_path(session: Session | str) -> str:
    return f"/v1/sessions/{_segment(_id_of(session))}"


def _call_path(call: Call | str) -> str:
    return f"/v1/calls/{_segment(call if isinstance(call, str) else call.call_id)}"


def _interaction_path(interaction: Interaction | str) -> str:
    one = interaction if isinstance(interaction, str) else interaction.interaction_id
    return f"/v1/interactions/{_segment(one)}"


def _letter_path(letter: DeadCall | DeadDelivery | str) -> str:
    return f"/v1/dead-letters/{_segment(letter if isinstance(letter, str) else letter.id)}"


def _read_letter(given: Any) -> DeadCall | DeadDelivery:
    return read(DeadDelivery if _type_of(given) == "delivery" else DeadCall, given)


def _read_redriven(given: Any) -> RedrivenCall | RedrivenDelivery:
    return read(RedrivenDelivery if _type_of(given) == "delivery" else RedrivenCall, given)


def _type_of(given: Any) -> Any:
    return cast("dict[str, Any]", given).get("type") if isinstance(given, dict) else None


def _segment(given: str) -> str:
    if given in {"", ".", ".."}:
        raise ValueError(f"invalid id {given!r}")
    return quote(given, safe="")


def _rows(page: Mapping[str, Any]) -> list[Any]:
    rows = page.get("data")
    if not isinstance(rows, list):
        raise UnexpectedAnswer("the response is not a list: `data` is missing", status=200)
    return cast("list[Any]", rows)


def _repeated_page(path: str) -> UnexpectedAnswer:
    return UnexpectedAnswer(f"the gateway returned the same page of {path} again", status=200)


def _now() -> float:
    return asyncio.get_running_loop().time()
