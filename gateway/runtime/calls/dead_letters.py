"""Dead letters: calls that ended without an answer, and sends that will not be tried again by themselves.

Each has an id for good: a call's is its call_id, a send's is `SESSION:SEQUENCE:TARGET`. Redriven, it leaves the
list; should that fail as well, the new call, or the send, is a dead letter again. Dismissed, it leaves the list for
good.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from gateway.errors import DragomanError, Elsewhere, EngineUnavailable, InvalidRequest, NotFound
from gateway.events import CallId, SessionId
from gateway.runtime.calls.history import load_history
from gateway.runtime.views import CallHistory
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, DeadFilter, Page, Send

Kind = Literal["call", "delivery"]
DEAD_SENDS = frozenset({"refused", "unknown", "dead"})
_MOST_FAILURES = 100


@dataclass(frozen=True, slots=True)
class Which:
    """Which dead letters are meant; empty members match everything."""

    kind: Kind | None = None
    runtime: str | None = None
    executor: str | None = None
    """Only calls have one."""
    target: str | None = None
    """Only deliveries have one: `runtime`, or `destination:NAME`."""
    since: datetime | None = None
    unknown: bool | None = None
    """Only calls whose outcome is unknown, or only those that were surely not done."""

    @property
    def calls(self) -> bool:
        """Whether a call can be meant."""
        return self.kind != "delivery" and self.target is None

    @property
    def sends(self) -> bool:
        """Whether a delivery can be meant."""
        return self.kind != "call" and self.executor is None and self.unknown is None


@dataclass(frozen=True, slots=True)
class Failed:
    """A dead letter that could not be redriven or dismissed, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of redriving or dismissing many."""

    found: tuple[str, ...]
    """The ids that were meant, at most as many as were allowed."""
    done: int
    failed: tuple[Failed, ...]
    more: bool
    """Whether the filters match more than that."""


def id_of(row: Call | Send) -> str:
    """Name a dead letter."""
    return row.call_id if isinstance(row, Call) else f"{row.session_id}:{row.sequence}:{row.target}"


def advise(row: Call | Send) -> str:
    """Say what is known of a dead letter and what an operator should do."""
    match row:
        case Call(unknown=True):
            return (
                f"Nobody knows whether executor {row.executor!r} has done this. Look there for the webhook-id "
                f"{row.key or row.call_id}: if it was not done, or if a repeat does no harm, redrive it; else dismiss "
                "it."
            )
        case Call():
            return f"It was not done. Redrive it once executor {row.executor!r} answers again."
        case Send(target="runtime", state="unknown"):
            return (
                "Nobody knows whether the runtime has got this. Look at what the agent did next: redrive it if it is "
                "missing, else dismiss it."
            )
        case Send(state="refused"):
            return "The receiver refused it. Mend what the reason says, then redrive it; as it is, it is refused again."
        case Send():
            return "It was given up after all attempts. Redrive it once the receiver takes events again."


def dismissed(row: Send, *, by: str, at: datetime) -> str:
    """Say of a delivery that an operator has left it as it is."""
    was = f"{row.state}: {row.reason}" if row.reason else row.state
    return f"dismissed by {by} at {at.isoformat(timespec='seconds')}; it was {was}"


class DeadLetters:
    """Lists, shows, redrives and dismisses them."""

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
            InvalidRequest: the cursor is not of this list.
        """
        kind, _, cursor = (page.after or ("c:" if which.calls else "s:")).partition(":")
        if kind not in {"c", "s"}:
            raise InvalidRequest("this cursor is not from a list of dead letters", pointer="after")
        sends = DeadFilter(which.runtime, which.target, which.since)
        if kind == "s":
            rows, following = await self._engine.dead_sends(Page(page.limit, cursor or None), sends)
            return rows if which.sends else (), None if following is None else f"s:{following}"
        wanted = CallFilter(
            runtime=which.runtime, executor=which.executor, since=which.since, unknown=which.unknown, dead=True
        )
        calls, following = await self._engine.calls(wanted, Page(page.limit, cursor or None))
        if following is not None:
            return calls, f"c:{following}"
        if not which.sends:
            return calls, None
        if len(calls) >= page.limit:
            return calls, "s:"
        rows, following = await self._engine.dead_sends(Page(page.limit - len(calls)), sends)
        return [*calls, *rows], None if following is None else f"s:{following}"

    async def show(self, letter: str) -> CallHistory | Send:
        """Tell all about one; a call with its whole history.

        Raises:
            NotFound: there is none of this id, or it was redriven or dismissed.
        """
        row = await self._find(letter)
        return await load_history(self._engine, row) if isinstance(row, Call) else row

    async def redrive(self, letter: str, *, new_key: bool, deliver: bool) -> Call | Send:
        """Try one again; returns the new call, or the delivery that is pending again.

        Raises:
            NotFound, Conflict, Gone: it cannot be.
        """
        row = await self._find(letter)
        if isinstance(row, Call):
            return await self._redrive(row.call_id, new_key=new_key, deliver=deliver)
        await self._redeliver(row.session_id, row.sequence, row.target)
        return replace(row, state="pending", reason=None)

    async def dismiss(self, letter: str, *, by: str) -> Call | Send:
        """Leave one as it is, for good; returns the call or delivery, which is no dead letter any more.

        Raises:
            NotFound, Conflict: it cannot be.
        """
        return await self._dismiss(await self._find(letter), by)

    async def each(
        self,
        which: Which,
        *,
        limit: int,
        dry_run: bool,
        deal_with: Callable[[str], Awaitable[object]],
        pass_on: Callable[[str, Elsewhere], Awaitable[None]],
    ) -> Done:
        """Redrive or dismiss what the filters match, at most `limit`; whatever cannot be is told with its reason.

        Those of sessions that are not carried here are passed on.

        Raises:
            EngineUnavailable: the store takes no writes; what was done before that stays so.
        """
        rows, following = await self.list(which, Page(limit))
        done, failed = 0, list[Failed]()
        for row in () if dry_run else rows:
            try:
                try:
                    await deal_with(id_of(row))
                except Elsewhere as exc:
                    await pass_on(id_of(row), exc)
                done += 1
            except EngineUnavailable:
                raise
            except DragomanError as exc:
                failed.append(Failed(id_of(row), str(exc)))
        found = tuple(id_of(row) for row in rows)
        return Done(found, done, tuple(failed[:_MOST_FAILURES]), following is not None)

    async def _find(self, letter: str) -> Call | Send:
        session_id, colon, rest = letter.partition(":")
        if not colon:
            row = await self._engine.call(CallId(letter))
            if row is not None and row.dead:
                return row
            raise NotFound(
                f"no dead letter {letter!r}: no such call, or it has its answer, or it was redriven or dismissed"
            )
        number, _, target = rest.partition(":")
        if number.isascii() and number.isdigit() and len(number) < 19:
            for send in await self._engine.sends_of(SessionId(session_id), int(number)):
                if send.target == target and send.state in DEAD_SENDS:
                    return send
        raise NotFound(
            f"no dead letter {letter!r}: no such delivery, or it got through, or it is tried again or dismissed"
        )
