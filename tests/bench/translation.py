"""T11: translation alone. One event of 0.5 KB is read from each protocol, and one of 0.5 KB is said in it.

What is read has passed the strict reader, as with every link, and a result carries its JSON, as a webhook's answer
does: what is known to be sayable is not looked through by a codec.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import orjson

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.openhands import ADAPTER as OPENHANDS
from adapters.openhands.v1 import ADAPTER as OPENHANDS_V1
from gateway.adapter.port import Adapter, Frame
from gateway.events import Draft, MessagePosted, Text, ToolFinished
from gateway.links import json
from tests.bench.load import make_arguments

_ROUND = 200
_ID = "550e8400-e29b-41d4-a716-446655440000"
_LONG = "The quick brown fox jumps over the lazy dog. " * 7
_ARGUMENTS: dict[str, Any] = orjson.loads(make_arguments(250))
_HANDS = _ARGUMENTS["hands"]


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
        "arguments": _ARGUMENTS,
    }
    return Sample(adapter, Frame("event", asked), _finished())


def _finished() -> Draft:
    result = {"cards": _HANDS, "said": "Go fish!"}
    event = ToolFinished(native_call_id=_ID, tool="ask_for_cards", outcome="success", result=result)
    return Draft(event, written=orjson.dumps(result))


def _openhands() -> Sample:
    seen = {
        "id": 42,
        "timestamp": "2026-11-20T12:00:00.000000",
        "source": "agent",
        "message": "I call a tool.",
        "action": "call_tool_mcp",
        "args": {"name": "ask_for_cards", "arguments": _ARGUMENTS, "thought": "", "confirmation_state": "confirmed"},
    }
    return Sample(OPENHANDS, Frame("oh_event", seen), Draft(MessagePosted(content=(Text(text=_LONG),))))


def _openhands_v1() -> Sample:
    seen: dict[str, Any] = {
        "kind": "ActionEvent",
        "id": _ID,
        "timestamp": "2026-11-20T12:00:00.000000",
        "source": "agent",
        "parent_id": _ID,
        "thought": [],
        "thinking_blocks": [],
        "action": {"data": orjson.loads(make_arguments(40)), "kind": "MCPToolAction"},
        "tool_name": "ask_for_cards",
        "tool_call_id": "call_1_0",
        "llm_response_id": "chatcmpl-1",
        "security_risk": "UNKNOWN",
        "summary": "I call a tool.",
    }
    frame = Frame("session", {"type": "durable", "seq": 42, "event": seen})
    return Sample(OPENHANDS_V1, frame, Draft(MessagePosted(content=(Text(text=_LONG),))))


def _herm() -> Sample:
    asked = {
        "type": "agent.custom_tool_use",
        "id": "custom_toolu_123",
        "tool": "ask_for_cards",
        "input": _ARGUMENTS,
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
    return (_huma(HUMA_0_1), _huma(HUMA_0_2), _openhands(), _openhands_v1(), _herm())


def measure(sample: Sample, *, seconds: float) -> dict[str, float]:
    """Time in µs what reading and saying an event take: its JSON alone, with the codec, and the codec alone.

    The three take turns, so that a busy machine slows all of them down.
    """
    codec = sample.adapter.codec()
    text = orjson.dumps(sample.frame.payload).decode()
    channel = sample.frame.channel

    def read() -> Frame:
        payload, written = json.read_frame(text)
        return Frame(channel, payload, len(text), written)

    frame = read()
    heard = [draft.event.kind for draft in codec.decode(frame)]
    assert heard == ["tool.requested"], heard
    payloads = [frame.payload for frame in codec.encode(sample.answer).frames]
    assert payloads

    def json_alone() -> None:
        orjson.loads(text)
        for payload in payloads:
            orjson.dumps(payload)

    def translation() -> None:
        codec.decode(read())
        for said in codec.encode(sample.answer).frames:
            _ = said.written or json.encode(said.payload)

    def codec_alone() -> None:
        codec.decode(frame)
        codec.encode(sample.answer)

    taken = {work.__name__: [_micros(work) for _ in range(3)] for work in (json_alone, translation, codec_alone)}
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        for work in (json_alone, translation, codec_alone):
            taken[work.__name__].append(_micros(work))
    return {name: median(values) for name, values in taken.items()} | {"bytes": len(text)}


def _micros(work: Callable[[], None]) -> float:
    begun = time.process_time()
    for _ in range(_ROUND):
        work()
    return (time.process_time() - begun) / _ROUND * 1e6


def main(seconds: float, turns: int) -> None:
    """Print one JSON object: what each turn has found, by adapter."""
    found: dict[str, list[dict[str, float]]] = {sample.adapter.name: [] for sample in samples()}
    for _ in range(turns):
        for sample in samples():
            found[sample.adapter.name].append(measure(sample, seconds=seconds))
    sys.stdout.write(orjson.dumps(found).decode() + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
