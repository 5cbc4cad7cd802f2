"""The state of a conversation as its socket has shown it, for the decisions before a send (OV34 to OV36)."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, cast

from adapters.openhands.v1 import wire

_NEVER = "NeverConfirm"
_ACP = "ACPAgent"
_ACTIVE = frozenset({wire.RUNNING, wire.WAITING})
_ECHOES = 1_000


class Echo:
    """The expected echo of one message."""

    def __init__(self, content: str, *, runs: bool) -> None:
        self.content = content
        self.runs = runs
        self.seen = False
        self.status: str | None = None
        """The execution status when the message was stored."""


class ConversationState:
    """Follows the events of one link in their order."""

    def __init__(self, *, is_unrun: bool = False, unseen: Sequence[str] = ()) -> None:
        """`is_unrun` is the state at the cursor; `unseen` are messages that the replay may contain."""
        self.is_unrun = is_unrun
        """Whether a message of ours is stored for a run that has not begun since."""
        self.status: str | None = None
        self.is_settled = False
        """Whether a snapshot followed the last status: only then the server acts on what it accepts (OV34)."""
        self.may_hold = True
        """Whether actions may wait for an approval; unknown before the first snapshot."""
        self.is_acp = False
        self.statuses = 0
        """The number of stored statuses."""
        self.updates = 0
        """The number of statuses and snapshots."""
        self._echoes = deque((Echo(content, runs=True) for content in unseen), maxlen=_ECHOES)
        """The sent messages that have not been seen."""
        self._waiting: dict[asyncio.Future[None], None] = {}

    def observe(self, event: Any) -> None:
        """Take note of one event."""
        match event:
            case {"kind": wire.STATE_UPDATE}:
                self._observe_update(event)
            case {"kind": wire.MESSAGE, "source": "user", "llm_message": {"content": list()}}:
                self._observe_message(content_of(event["llm_message"]["content"]))
            case _:
                return
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _observe_update(self, event: Any) -> None:
        status = wire.status_in(event)
        match event:
            case {"key": wire.FULL_STATE, "value": dict()}:
                value = cast("dict[str, Any]", event["value"])
                self.is_settled = True
                self._observe_policy(value.get("confirmation_policy"))
                match value.get("agent"):
                    case {"kind": str(kind)}:
                        self.is_acp = kind == _ACP
                    case _:
                        pass
            case {"key": "confirmation_policy"}:
                self._observe_policy(event.get("value"))
            case _ if status is not None:
                # A run has begun, or the user has stopped the agent.
                self.is_settled = self.is_unrun = False
                self.statuses += 1
            case _:
                pass
        if status is not None:
            self.status = status
            self.updates += 1
            # A run that is active reads the message.
            self.is_unrun = self.is_unrun and status not in _ACTIVE

    def _observe_policy(self, policy: object) -> None:
        match policy:
            case {"kind": str(kind)}:
                self.may_hold = kind != _NEVER
            case _:
                pass

    def _observe_message(self, content: str) -> None:
        for echo in self._echoes:
            if echo.content == content:
                echo.seen, echo.status = True, self.status
                self.is_unrun = self.is_unrun or (echo.runs and self.status not in _ACTIVE)
                self._echoes.remove(echo)
                return

    def expect(self, content: str, *, runs: bool) -> Echo:
        """Expect the echo of a message that is about to be sent; `runs` if the agent must work on it."""
        echo = Echo(content, runs=runs)
        self._echoes.append(echo)
        return echo

    def count_before(self, echo: Echo) -> int:
        """Count the earlier equal messages whose echo has not arrived."""
        earlier = 0
        for one in self._echoes:
            if one is echo:
                break
            earlier += one.content == echo.content
        return earlier

    def forget(self, echo: Echo) -> None:
        """Expect the echo of a message no longer, because it was not stored."""
        if echo in self._echoes:
            self._echoes.remove(echo)

    def forget_unseen(self) -> None:
        """Expect no echo any longer; called between the replay and the first send."""
        self._echoes.clear()

    @property
    def unseen(self) -> tuple[str, ...]:
        """The contents of the messages that may be stored, to be run, and have not been seen."""
        return tuple(echo.content for echo in self._echoes if echo.runs)

    async def wait_until(self, holds: Callable[[], bool], within: float | None) -> bool:
        """Wait until a condition holds; return whether it does."""
        try:
            async with asyncio.timeout(within):
                while not holds():
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting[waiting] = None
                    try:
                        await waiting
                    finally:
                        del self._waiting[waiting]
        except TimeoutError:
            return holds()
        return True

    @property
    def is_held(self) -> bool:
        """Whether actions wait for an approval, so that whatever runs would accept them (OV35)."""
        return self.status == wire.WAITING


def content_of(blocks: list[Any]) -> str:
    """Return a hash of the texts and images of a message, by which it is recognized (OV29)."""
    found: list[Any] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                found.append(text)
            case {"type": "image", "image_urls": list()}:
                found.append(block["image_urls"])
            case _:
                pass
    return sha256(json.dumps(found).encode()).hexdigest()
