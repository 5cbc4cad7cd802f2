"""Sends the events of one conversation, each as one POST, and finds out what became of it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from datetime import timedelta
from http import HTTPStatus
from typing import Any, cast

from adapters.openhands.v1 import wire
from adapters.openhands.v1.history import CursorLost, StoredEvents
from adapters.openhands.v1.server import Conversation
from adapters.openhands.v1.state import ConversationState, Echo, content_of
from gateway.adapter.port import Frame, Receipt
from gateway.errors import LinkLost, LinkRefused
from gateway.links.rest import RestAnswer, refusal

_DELIVERED = Receipt("delivered")
_HELD = "actions wait for an approval, and the server would execute them with it; answer the approval first"
_NOTHING_HELD = "no action waits for an approval any more"
_STOPPED = "The user stopped the agent."
_LOOKUP_PAGES = 5
"""Pages in which the last message of an ACP agent is searched."""


class Posting:
    """The sends of one link, in their order; an interrupt does not wait for earlier ones."""

    def __init__(
        self,
        conversation: Conversation,
        history: StoredEvents,
        state: ConversationState,
        newest: Callable[[], str | None],
    ) -> None:
        """`newest` returns the id of the newest event that the link has passed on."""
        self._rest = conversation.rest
        self._native_id = conversation.native_id
        self._options = conversation.options
        self._tuning = conversation.tuning
        self._history = history
        self._state = state
        self._newest = newest
        self._command = timedelta(seconds=conversation.tuning.command)
        self._lane = asyncio.Lock()

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        """Post the frames one after the other; stop at the first that the server does not accept.

        Raises:
            LinkLost: a frame may have arrived; with `unsent` it has not.
        """
        receipt = _DELIVERED
        for frame in frames:
            if frame.channel == wire.POST_INTERRUPT:
                receipt = await self._interrupt()
            else:
                async with self._lane:
                    receipt = await self._send(frame)
            if receipt.state != "delivered":
                break
        return receipt

    async def _send(self, frame: Frame) -> Receipt:
        match frame.channel, frame.payload:
            case wire.POST_MESSAGE, {"content": list()}:
                return await self._send_message(frame.payload)
            case wire.POST_CONFIRMATION, {"accept": bool()}:
                return await self._answer(frame.payload, then_run=self._options.after_deny == "run")
            case wire.POST_RUN, _:
                return await self._run()
            case wire.POST_PAUSE, _:
                # Pausing waits for a running tool, and does nothing while actions are held (OV32).
                if self._state.is_held:
                    return Receipt("refused", _HELD)
                return self._receipt(await self._post(frame.channel, frame.payload, self._options.send_timeout))
            case str(channel), _ if channel in wire.POST_PATHS:
                return self._receipt(await self._post(channel, frame.payload, self._options.send_timeout))
            case _:
                return Receipt("refused", f"the server takes no {frame.channel[:64]!r}")

    # Messages --------------------------------------------------------------------------------------------

    async def _send_message(self, body: dict[str, Any]) -> Receipt:
        state = self._state
        if state.status in {wire.ERROR, wire.STUCK}:
            # A message before the snapshot is stored and never worked on (OV34).
            await state.wait_until(lambda: state.is_settled, self._tuning.settle)
        runs = body.get("run") is True
        if runs and state.is_held:
            return Receipt("busy", _HELD)
        if state.is_acp:
            runs_now = await self._prepare_acp(runs=runs)
        else:
            # While the message waits for a running tool, actions may come to wait for an approval; a message that
            # runs would execute them (OV35).
            runs_now = runs and not state.may_hold
        echo = state.expect(content_of(body["content"]), runs=runs)
        receipt = await self._store({**body, "run": runs_now}, echo)
        if receipt.state != "delivered" or not runs or runs_now:
            return receipt
        await state.wait_until(lambda: echo.seen, self._tuning.settle)
        status = echo.status if echo.seen else state.status
        # The present run reads the message.
        return receipt if status in {wire.RUNNING, wire.WAITING} else await self._run_stored()

    async def _store(self, body: dict[str, Any], echo: Echo) -> Receipt:
        """Post a message and find out whether the server has stored it."""
        before = self._newest()
        earlier = self._state.count_before(echo)
        try:
            answer = await self._post(wire.POST_MESSAGE, body, self._options.send_timeout)
            is_stored = answer.status == HTTPStatus.TOO_MANY_REQUESTS
            receipt = _DELIVERED if is_stored else self._receipt(answer)
        except LinkLost as exc:
            if not exc.unsent and await self._is_stored(echo, before, earlier):
                return await self._run_unless_begun(echo) if body["run"] else _DELIVERED
            if exc.unsent:
                self._state.forget(echo)
            raise
        if receipt.state != "delivered":
            self._state.forget(echo)
        # Only the run of the message was refused (OV25).
        return await self._run_stored() if is_stored and body["run"] else receipt

    async def _run_unless_begun(self, echo: Echo) -> Receipt:
        """Run a stored message unless it runs: the lost response may have refused only the run (OV25)."""
        state = self._state
        await state.wait_until(lambda: echo.seen, self._tuning.settle)
        await state.wait_until(lambda: not state.is_unrun, self._tuning.proof)
        return await self._run_stored() if state.is_unrun else _DELIVERED

    async def _is_stored(self, echo: Echo, before: str | None, earlier: int) -> bool:
        """Search the events since `before` for a message, after `earlier` equal ones (OV29)."""
        if echo.seen:
            return True
        try:
            async with aclosing(self._history.after(before)) as events:
                async for event in events:
                    match event:
                        case {"kind": wire.MESSAGE, "source": "user", "llm_message": {"content": list()}} if (
                            content_of(event["llm_message"]["content"]) == echo.content
                        ):
                            if earlier == 0:
                                return True
                            earlier -= 1
                        case _:
                            pass
        except (CursorLost, LinkLost, LinkRefused):
            return False
        return False

    async def _prepare_acp(self, *, runs: bool) -> bool:
        """Prepare an ACP agent for a message; return whether the message is to run at once.

        Raises:
            LinkLost: unsent; the agent would repeat its last message (OV60).
        """
        if self._state.status == wire.RUNNING:
            # A message that runs ends the turn; one that does not gets a turn of its own (OV59).
            return runs and self._options.steer == "replace"
        try:
            repeated = await self._find_unanswered()
            if repeated is not None:
                body = {"event_id": repeated.get("parent_id")}
                path = wire.navigate_path(self._native_id)
                answer = await self._rest.post(path, body, within=self._command)
                if answer.status != HTTPStatus.OK:
                    raise self._history.refusal(answer)
        except (LinkLost, LinkRefused) as exc:
            raise LinkLost(f"the agent would repeat its last message: {exc}", unsent=True) from exc
        return runs

    async def _find_unanswered(self) -> dict[str, Any] | None:
        """Return the last message if the agent has begun to work on it without an end."""
        has_begun = False
        async with aclosing(self._history.newest_first(pages=_LOOKUP_PAGES)) as events:
            async for event in events:
                match event:
                    case {"kind": wire.ACTION, "action": {"kind": "FinishAction"}}:
                        return None
                    case {"kind": wire.STATE_UPDATE, "key": wire.EXECUTION_STATUS, "value": wire.RUNNING}:
                        has_begun = True
                    case {"kind": wire.MESSAGE, "source": "user"}:
                        return cast("dict[str, Any]", event) if has_begun else None
                    case _:
                        pass
        return None

    # Runs ------------------------------------------------------------------------------------------------

    async def _run(self) -> Receipt:
        """Let the agent run; repeat while the server has no capacity, or while an earlier run is still ending."""
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._options.send_timeout.total_seconds(), self._tuning.again
        while not self._state.is_held:
            seen = self._state.updates
            answer = await self._post(wire.POST_RUN, {}, self._command)
            is_ending = answer.status == HTTPStatus.CONFLICT
            if not is_ending and answer.status != HTTPStatus.TOO_MANY_REQUESTS:
                return self._receipt(answer)
            # A 409 means a run, or its end until the snapshot (OV36). Only news from the socket tells which: a second
            # request to an agent that has come to hold actions meanwhile would execute them (OV35).
            within = self._tuning.settle if is_ending else pause
            has_news = await self._state.wait_until(lambda seen=seen: self._state.updates > seen, within)
            if self._state.status in {wire.RUNNING, wire.WAITING}:
                return _DELIVERED
            if loop.time() > end or (is_ending and not has_news):
                raise LinkLost(self._rest.mask(f"{answer.where}: the server has not begun to run in time"))
            pause = min(2 * pause, self._tuning.again_most)
        return Receipt("refused", _HELD)

    async def run_stored(self) -> None:
        """Let the agent work on a message that an earlier link has stored, unless it does.

        Raises:
            LinkLost: it may not run.
        """
        async with self._lane:
            if self._state.is_unrun:
                await self._run_stored()

    async def _run_stored(self) -> Receipt:
        """Let the agent work on what the server has stored.

        Raises:
            LinkLost: never with `unsent`, because nothing may be sent again.
        """
        try:
            ran = await self._run()
        except LinkLost as exc:
            raise LinkLost(f"stored, but the agent may not run: {exc}") from exc
        return _DELIVERED if ran.state == "delivered" or self._state.is_held else Receipt("delivered", ran.reason)

    async def _interrupt(self) -> Receipt:
        state = self._state
        if state.is_held:
            # An interrupt would do nothing (OV32).
            return await self._answer(wire.confirmation(accept=False, reason=_STOPPED), then_run=False)
        receipt = self._receipt(await self._post(wire.POST_INTERRUPT, {}, self._command))
        if receipt.state == "delivered":
            state.is_unrun = False
            await state.wait_until(lambda: state.status != wire.RUNNING, self._tuning.proof)
            if state.is_held:
                return await self._answer(wire.confirmation(accept=False, reason=_STOPPED), then_run=False)
        return receipt

    # Approvals -------------------------------------------------------------------------------------------

    async def _answer(self, body: dict[str, Any], *, then_run: bool) -> Receipt:
        """Answer the held actions, after the snapshot that shows them (OV34), and prove the effect."""
        state = self._state
        await state.wait_until(lambda: state.is_settled, self._tuning.settle)
        if not state.is_held:
            return Receipt("moot", _NOTHING_HELD)
        for _ in range(2):
            seen = state.statuses
            receipt = self._receipt(await self._post(wire.POST_CONFIRMATION, body, self._options.send_timeout))
            if receipt.state != "delivered":
                return receipt
            if await state.wait_until(lambda seen=seen: state.statuses > seen, self._tuning.proof):
                break
        else:
            raise LinkLost("the server accepted the answer to an approval twice without an effect")
        if body["accept"] is True or not then_run:
            return receipt
        # The agent sees the rejection at its next run (OV36).
        await state.wait_until(lambda: state.is_settled, self._tuning.proof)
        return await self._run_stored()

    # Requests --------------------------------------------------------------------------------------------

    async def _post(self, channel: str, body: object, within: timedelta) -> RestAnswer:
        path = f"{wire.conversation_path(self._native_id)}{wire.POST_PATHS[channel]}"
        try:
            return await self._rest.post(path, body, within=within)
        except LinkRefused as exc:
            raise LinkLost(str(exc), unsent=True) from exc

    def _receipt(self, answer: RestAnswer) -> Receipt:
        """Return the receipt for a response.

        Raises:
            LinkLost: the request must be sent again, or its result is unknown.
        """
        status = answer.status
        reason = self._rest.mask(str(refusal(answer, self._rest.mask)))[:300]
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            if answer.is_page:
                raise LinkLost(f"{self._rest.mask(answer.where)} with an HTML page instead of a response")
            return _DELIVERED
        if status in {401, 403, 404, 408, 425, 429} or 300 <= status < 400:
            raise LinkLost(reason, unsent=status != HTTPStatus.REQUEST_TIMEOUT)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise LinkLost(reason)
        return Receipt("refused", f"{reason}{places_of(answer.body)}")


def places_of(body: object) -> str:
    """Return the places of a validation error; its other members quote the request (OV6)."""
    match body:
        case {"detail": list()}:
            errors = cast("dict[str, list[Any]]", body)["detail"][:5]
            places = [_place_of(error) for error in errors]
            return f" ({', '.join(place for place in places if place)})" if any(places) else ""
        case _:
            return ""


def _place_of(error: object) -> str:
    match error:
        case {"loc": list(), "type": str(kind)}:
            steps = [str(step)[:40] for step in cast("dict[str, list[Any]]", error)["loc"][:8]]
            return f"{'.'.join(steps)}: {kind[:40]}"
        case _:
            return ""
