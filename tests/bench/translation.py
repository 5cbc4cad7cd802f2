"""T11: translation alone. One event of 0.5 KB is read from each protocol, and one of 0.5 KB is said in it."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Adapter, Frame
from gateway.events import Draft, MessagePosted, Text, ToolFinished
from gateway.links import json

_ROUND = 200
_ID = "550e8400-e29b-41d4-a716-446655440000"
_LONG = "The quick brown fox jumps over the lazy dog. " * 7


@dataclass(frozen=True, slots=True)
class Sample:
    """One protocol's work: a frame that comes in, an event that goes out."""

    adapter: Adapter
    frame: Frame
    answer: Draft


def _huma(adapter: Adapter) -> Sample:
    asked = {
        "type": "tool-call",
        "toolCallId": _ID,
        "toolName": "ask_for_cards",
        "arguments": {"targetPlayer": "Victoria", "rank": "7", "note": _LONG},
    }
    return Sample(adapter, Frame("event", asked), _finished())


def _finished() -> Draft:
    result = {"cards": ["7♠", "7♥"], "said": _LONG}
    return Draft(ToolFinished(native_call_id=_ID, tool="ask_for_cards", outcome="success", result=result))


def _openhands() -> Sample:
    seen = {
        "id": 42,
        "timestamp": "2026-11-20T12:00:00.000000",
        "source": "agent",
        "message": "I run a command.",
        "action": "run",
        "args": {"command": "ls -la", "thought": _LONG, "blocking": False, "confirmation_state": "confirmed"},
    }
    return Sample(OPENHANDS, Frame("oh_event", seen), Draft(MessagePosted(content=(Text(text=_LONG),))))


def _herm() -> Sample:
    asked = {
        "type": "agent.custom_tool_use",
        "id": "custom_toolu_123",
        "tool": "ask_for_cards",
        "input": {"targetPlayer": "Victoria", "rank": "7", "note": _LONG},
    }
    wrapped = {
        "id": "evt_7",
        "type": "agent.custom_tool_use",
        "sequence": 7,
        "status": "complete",
        "payload": asked,
        "createdAt": "2026-11-20T12:00:00.000Z",
    }
    return Sample(HERM, Frame("stream", wrapped), _finished())


def samples() -> tuple[Sample, ...]:
    """List the work of all protocols."""
    return (_huma(HUMA_0_1), _huma(HUMA_0_2), _openhands(), _herm())


def measure(sample: Sample, *, seconds: float) -> dict[str, float]:
    """Count how many events a second are read and said by the codec alone, and with the JSON around it."""
    codec = sample.adapter.codec()
    text = orjson.dumps(sample.frame.payload).decode()
    channel = sample.frame.channel
    heard = [draft.event.kind for draft in codec.decode(sample.frame)]
    assert heard == ["tool.requested"], heard
    assert codec.encode(sample.answer).frames

    def alone() -> None:
        codec.decode(sample.frame)
        codec.encode(sample.answer)

    def with_json() -> None:
        codec.decode(Frame(channel, json.loads(text)))
        for frame in codec.encode(sample.answer).frames:
            json.dumps(frame.payload)

    return {"alone": _per_second(alone, seconds), "with_json": _per_second(with_json, seconds), "bytes": len(text)}


def _per_second(work: Callable[[], None], seconds: float) -> float:
    for _ in range(_ROUND):
        work()
    done, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds:
        for _ in range(_ROUND):
            work()
        done += _ROUND
    return done / took


def main(seconds: float) -> None:
    """Print one JSON object."""
    found: dict[str, Any] = {sample.adapter.name: measure(sample, seconds=seconds) for sample in samples()}
    sys.stdout.write(orjson.dumps(found).decode() + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
