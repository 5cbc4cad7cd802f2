"""Dead letters: calls that ended without an answer, and deliveries that the gateway no longer retries.

The id of a call is its call_id; the id of a delivery is `SESSION:SEQUENCE:TARGET`. Redriving or dismissing a dead
letter removes it from the list. If the redrive fails, the new call or the delivery becomes a dead letter again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from gateway.errors import DragomanError, Elsewhere, EngineUnavailable, InvalidRequest, NotFound
from gateway.events import CallId, SessionId
from gateway.runtime.clients.history import load_history
from gateway.runtime.views import CallHistory
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, DeadFilter, Page, Send

Kind = Literal["call", "delivery"]
DEAD_SENDS = frozenset({"refused", "unknown", "dead"})
_MOST_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Which:
    """Filters of dead letters; empty members match everything."""

    kind: Kind | None = None
    runtime: str | None = None
    executor: str | None = None
    """Matches calls only."""
    target: str | None = None
    """Matches deliveries only: `runtime`, `destination:NAME` or `notice:NAME`."""
    since: datetime | None = None
    unknown: bool | None = None
    """True: only calls with an unknown outcome; False: only calls that certainly did not run."""
    tool: str | None = None
    """Matches calls only."""
    cause: str | None = None
    """The error of a call, or the reason of a delivery, without details."""

    @property
    def calls(self) -> bool:
        """Whether the filters can match a call."""
        return self.kind != "delivery" and self.target is None

    @property
    def sends(self) -> bool:
        """Whether the filters can match a delivery."""
        return self.kind != "call" and self.executor is None and self.unknown is None and self.tool is None


@dataclass(frozen=True, slots=True)
class Failed:
    """A dead letter that could not be redriven or dismissed, with the reason."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The result of redriving or dismissing several dead letters."""

    found: tuple[str, ...]
    """The matching ids, up to the limit."""
    done: int
    failed: tuple[Failed, ...]
    more: bool
    """Whether the filters match more than `found`."""


def id_of(row: Call | Send) -> str:
    """Return the id of a dead letter."""
    return row.call_id if isinstance(row, Call) else f"{row.session_id}:{row.sequence}:{row.target}"


def advise(row: Call | Send) -> str:
    """Describe the state of a dead letter and the operator's next step."""
    match row:
        case Call(unknown=True):
            return (
                f"It is unknown whether executor {row.executor!r} ran this call. Look there for webhook-id "
                f"{row.key or row.call_id}: redrive the call if it did not run or if a repeat is harmless; otherwise "
                "dismiss it."
            )
        case Call():
            return f"The call did not run. Redrive it when executor {row.executor!r} responds again."
        case Send(target="runtime", state="unknown"):
            return (
                "It is unknown whether the runtime received this. Check the agent's next actions: redrive it if it is "
                "missing; otherwise dismiss it."
            )
        case Send(state="refused"):
            return "The receiver refused it. Fix the cause given in the reason before you redrive it."
        case Send():
            return "All attempts failed. Redrive it when the receiver accepts events again."


def dismissed(row: Send, *, by: str, at: datetime) -> str:
    """Write the reason that is stored with a dismissed delivery."""
    was = f"{row.state}: {row.reason}" if row.reason else row.state
    return f"dismissed by {by} at {at.isoformat(timespec='seconds')}; it was {was}"


class DeadLetters:
    """Lists, shows, redrives and dismisses dead letters."""

    def __init__(
        self,
        engine: Engine,
        *,
        redrive: Callable[..., Awaitable[Call]],
        redeliver: Callable[[SessionId, int, str], Awaitable[None]],
        dismiss: Callable[[Call | Send, str], Awaitable[Call | Send]],
    ) -> None:
        self._engine = engine
        self._redrive = redrive
        self._redeliver = redeliver
        self._dismiss = dismiss

    async def list(self, which: Which, page: Page) -> tuple[Sequence[Call | Send], str | None]:
        """List calls, newest first, then deliveries, newest first.

        Raises:
            InvalidRequest: the cursor is from another list.
        """
        kind, _, cursor = (page.after or ("c:" if which.calls else "s:")).partition(":")
        if kind not in {"c", "s"}:
            raise InvalidRequest("this cursor is not from a list of dead letters", pointer="after")
        sends = DeadFilter(which.runtime, which.target, which.since, which.cause)
        if kind == "s":
            rows, following = await self._engine.dead_sends(Page(page.limit, cursor or None), sends)
            return rows if which.sends else (), None if following is None else f"s:{following}"
        call_filter = CallFilter(
            runtime=which.runtime,
            tool=which.tool,
            executor=which.executor,
            since=which.since,
            unknown=which.unknown,
            dead=True,
            cause=which.cause,
        )
        calls, following = await self._engine.calls(call_filter, Page(page.limit, cursor or None))
        if following is not None:
            return calls, f"c:{following}"
        if not which.sends:
            return calls, None
        if len(calls) >= page.limit:
            return calls, "s:"
        rows, following = await self._engine.dead_sends(Page(page.limit - len(calls)), sends)
        return [*calls, *rows], None if following is None else f"s:{following}"

    async def show(self, dead_letter_id: str) -> CallHistory | Send:
        """Load one dead letter; a call includes its whole history.

        Raises:
            NotFound: the id is unknown, or the dead letter was redriven or dismissed.
        """
        row = await self._find(dead_letter_id)
        return await load_history(self._engine, row) if isinstance(row, Call) else row

    async def redrive(self, dead_letter_id: str, *, new_key: bool, deliver: bool) -> Call | Send:
        """Redrive one dead letter; return the new call, or the delivery, which is pending again.

        Raises:
            NotFound, Conflict, Gone: it cannot be redriven.
        """
        row = await self._find(dead_letter_id)
        if isinstance(row, Call):
            return await self._redrive(row.call_id, new_key=new_key, deliver=deliver)
        await self._redeliver(row.session_id, row.sequence, row.target)
        return replace(row, state="pending", reason=None)

    async def dismiss(self, dead_letter_id: str, *, by: str) -> Call | Send:
        """Dismiss one dead letter; return its call or delivery.

        Raises:
            NotFound, Conflict: it cannot be dismissed.
        """
        return await self._dismiss(await self._find(dead_letter_id), by)

    async def each(
        self,
        which: Which,
        *,
        limit: int,
        dry_run: bool,
        deal_with: Callable[[str], Awaitable[object]],
        pass_on: Callable[[str, Elsewhere], Awaitable[None]],
    ) -> Done:
        """Apply `deal_with` to each dead letter that the filters match, up to `limit`; report failures with reasons.

        Dead letters of sessions that another instance owns go to `pass_on`.

        Raises:
            EngineUnavailable: the store rejects writes; completed changes are kept.
        """
        found, following = await self._ids(which, limit)
        done, failed = 0, list[Failed]()
        for letter in () if dry_run else found:
            try:
                try:
                    await deal_with(letter)
                except Elsewhere as exc:
                    await pass_on(letter, exc)
                done += 1
            except EngineUnavailable:
                raise
            except DragomanError as exc:
                failed.append(Failed(letter, str(exc)))
        return Done(tuple(found), done, tuple(failed[:_MOST_FAILURES]), following is not None)

    async def _ids(self, which: Which, limit: int) -> tuple[Sequence[str], str | None]:
        """List the first ids that the filters match; large events make short pages."""
        found, after = list[str](), None
        while True:
            rows, after = await self.list(which, Page(limit - len(found), after))
            found += map(id_of, rows)
            if after is None or len(found) >= limit:
                return found, after

    async def _find(self, dead_letter_id: str) -> Call | Send:
        session_id, colon, rest = dead_letter_id.partition(":")
        if not colon:
            row = await self._engine.call(CallId(dead_letter_id))
            if row is not None and row.dead:
                return row
            raise NotFound(
                f"no dead letter {dead_letter_id!r}: the call is unknown, was answered, redriven or dismissed"
            )
        number, _, target = rest.partition(":")
        if number.isascii() and number.isdigit() and len(number) < 19:
            for send in await self._engine.sends_of(SessionId(session_id), int(number)):
                if send.target == target and send.state in DEAD_SENDS:
                    return send
        raise NotFound(
            f"no dead letter {dead_letter_id!r}: the delivery is unknown, succeeded, is being retried or was dismissed"
        )
