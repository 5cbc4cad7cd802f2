"""Shows the recorded messages of one call of each runtime, side by side in the width of the terminal."""

import json
import re
from collections.abc import Collection, Sequence
from math import ceil

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gateway.testing.demo.folded import HEADING
from gateway.testing.demo.layout import cut, cut_id, lay_out
from gateway.testing.demo.one_call import DIALECTS, OneCall
from gateway.testing.wire import Passed

NARROWEST, GAP, MARGIN = 36, 3, 2
"""The minimum width of a JSON column, the gap between two columns, and the margin before the first."""
FRAME_LINES, MIDDLE_LINES = 10, 16
# Colors of the terminal's palette that are readable on dark and on light backgrounds.
KEY, WORD = "dim", "bold magenta"
_NUMBERS = ("no dialect", "one dialect", *(f"{n} dialects" for n in ("two", "three", "four", "five", "six")))
_KEY = re.compile(r'"[^"]*"(?=:)')
_SIGNED = ("webhook-id", "webhook-timestamp", "webhook-signature")


def show_calls(calls: Sequence[OneCall], width: int) -> list[RenderableType]:
    """Show the frames of the runtimes, and between them the common record and webhook."""
    view = _View(calls, width - MARGIN)
    first = calls[0]
    title = f"One call in {_NUMBERS[len(calls)]}, on the wire"
    record = view.block("2  The record, one envelope", [json.dumps(first.envelope)], MIDDLE_LINES)
    return [
        Rule(Text(title, HEADING), align="left", style="dim"),
        view.heading("1  The agent calls, in its own protocol"),
        view.frames([(call, call.asked) for call in calls]),
        view.columns([record, view.webhook(first)], at_most=2),
        view.heading("   All calls, each with its own ids") if len(calls) > 1 else Text(),
        view.ids(),
        view.heading("4  The agent receives the result, in its own protocol"),
        view.frames([(call, call.told) for call in calls]),
    ]


class _View:
    """Blocks for calls, at a width."""

    def __init__(self, calls: Sequence[OneCall], width: int) -> None:
        self._calls = calls
        self._width = width
        event = calls[0].envelope["event"]
        words = [event["tool"], *(value for value in event["arguments"].values() if isinstance(value, str))]
        self._keep = {*words, *(each for call in calls for each in (call.mark, call.envelope["event"]["call_id"]))}
        self._words = re.compile("|".join(re.escape(json.dumps(word, ensure_ascii=False)) for word in words))

    def heading(self, text: str) -> RenderableType:
        return Padding(Text(text, HEADING), (1, 0, 0, MARGIN))

    def frames(self, frames: Sequence[tuple[OneCall, Passed]]) -> RenderableType:
        """Show a message of each runtime."""
        each = self._column(len(frames))[1]
        shown: list[Text] = []
        for call, passed in frames:
            head = Text.assemble((DIALECTS[call.runtime], HEADING), (f"  {cut(_transport(passed), each - 12)}", "dim"))
            shown.append(Text("\n").join([head, self._json(passed.text, each, FRAME_LINES)]))
        return self.columns(shown)

    def webhook(self, call: OneCall) -> Text:
        """Show the webhook and the backend's response."""
        each = self._column(2)[1]
        signed = [f"{name}: {cut(call.webhook.headers[name], 22)}" for name in _SIGNED]
        head = Text("\n".join(["3  Your backend receives a signed webhook", call.webhook.head, *signed]))
        head.stylize(HEADING, 0, head.plain.index("\n"))
        answer = Text.assemble("it responds with ", (call.answered.head, WORD))
        body = self._json(call.webhook.text, each, MIDDLE_LINES - 8)
        return Text("\n").join([head, body, answer, self._json(call.answered.text, each, 6, keep=())])

    def block(self, heading: str, messages: Sequence[str], most: int) -> Text:
        """Show messages below a heading."""
        each = self._column(2)[1]
        return Text("\n").join([Text(heading, HEADING), *(self._json(message, each, most) for message in messages)])

    def ids(self) -> RenderableType:
        """Show the differences between the calls."""
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*(Text(name, "dim") for name in ("", "session", "event", "native call", "call", "signature")))
        for call in self._calls:
            envelope = call.envelope
            event = envelope["event"]
            grid.add_row(
                Text(DIALECTS[call.runtime], HEADING),
                cut_id(envelope["session_id"]),
                str(envelope["sequence"]),
                cut(event["native_call_id"], 12),
                cut_id(event["call_id"]),
                cut(call.webhook.headers["webhook-signature"], 12),
            )
        return Padding(grid, (0, 0, 0, MARGIN + 3))

    def columns(self, shown: Sequence[Text], at_most: int = 99) -> RenderableType:
        """Put as many blocks side by side as fit."""
        count, each = self._column(min(len(shown), at_most))
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for _ in range(count):
            grid.add_column(width=each, no_wrap=True, overflow="ellipsis")
        for start in range(0, len(shown), count):
            if start:
                grid.add_row()
            grid.add_row(*shown[start : start + count])
        return Padding(grid, (1, 0, 0, MARGIN))

    def _column(self, blocks: int) -> tuple[int, int]:
        """Return the number of columns for some blocks, and their width."""
        most = max(1, (self._width + GAP) // (NARROWEST + GAP))
        count = ceil(blocks / ceil(blocks / most))
        return count, (self._width + GAP) // count - GAP

    def _json(self, message: str, width: int, most: int, *, keep: Collection[str] | None = None) -> Text:
        text = Text("\n".join(lay_out(message, width, most, self._keep if keep is None else keep)))
        text.highlight_regex(_KEY, KEY)
        text.highlight_regex(self._words, WORD)
        return text


def _transport(passed: Passed) -> str:
    if passed.head.isdigit():
        return "SSE" if passed.text.startswith(("event:", "id:")) else f"HTTP {passed.head}"
    return passed.head or "Socket.IO"
