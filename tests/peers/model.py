"""A scripted model: an OpenAI-compatible server that answers with the next step of a story."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.testing.serving import Served
from tests.pace import PATIENCE

_PIECE = 8
"""Characters of one streamed chunk."""


@dataclass(frozen=True)
class Call:
    """One tool call of an answer."""

    tool: str
    arguments: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] = field(default_factory=dict[str, Any])
    """Or what makes them from the result of the last tool."""


@dataclass(frozen=True)
class Answer:
    """One answer of the model: a text, calls, or both; `fault` is an HTTP status in its place."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    fault: int | None = None
    when: asyncio.Event | None = None
    """Set once the answer may start."""


def finish(text: str) -> Answer:
    """Return the answer that ends a turn."""
    return Answer(calls=(Call("finish", {"message": text}),))


class Model:
    """The answers to each user message, by its text; every other message gets `else_` alone.

    The number of answers since the message is the step, so nothing is remembered and a repeat gets the same answer.
    """

    def __init__(self) -> None:
        self.stories: dict[str, list[Answer]] = {}
        self.requests: list[dict[str, Any]] = []
        self.else_ = Answer("All right.")
        self._served = Served(Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])]))

    @property
    def url(self) -> str:
        return f"{self._served.url}/v1"

    async def __aenter__(self) -> "Model":
        await self._served.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._served.stop()

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        said, step = _last_user(body["messages"])
        story = [answer for text, story in self.stories.items() if text in said for answer in story]
        answer = story[step] if step < len(story) else self.else_
        if answer.fault is not None:
            return JSONResponse({"error": {"message": "as scripted", "type": "scripted"}}, status_code=answer.fault)
        message = _message(answer, len(self.requests), _last_result(body["messages"]))
        if answer.when is not None:
            async with asyncio.timeout(PATIENCE):
                await answer.when.wait()
        if body.get("stream"):
            return StreamingResponse(_stream(answer, message), media_type="text/event-stream")
        choice = {"index": 0, "message": message, "finish_reason": _reason(answer)}
        return JSONResponse({**_head("chat.completion"), "choices": [choice], "usage": _USAGE})


_USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


def _last_user(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """Return the text of the last user message and the number of answers since it."""
    since = 0
    for message in reversed(messages):
        if message["role"] == "user":
            return _text(message["content"]), since
        since += message["role"] == "assistant"
    return "", since


def _last_result(messages: list[dict[str, Any]]) -> str:
    results = [_text(message["content"]) for message in messages if message["role"] == "tool"]
    return results[-1] if results else ""


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted"}


def _reason(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _message(answer: Answer, number: int, result: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.tool, "arguments": json.dumps(_arguments(call, result))},
            }
            for index, call in enumerate(answer.calls)
        ]
    return message


def _arguments(call: Call, result: str) -> dict[str, Any]:
    return dict(call.arguments(result) if callable(call.arguments) else call.arguments)


async def _stream(answer: Answer, message: dict[str, Any]) -> AsyncIterator[str]:
    text = answer.text
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text[at : at + _PIECE]} for at in range(0, len(text), _PIECE)]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(message.get("tool_calls", []))]
    for delta in deltas:
        yield _chunk({"index": 0, "delta": delta, "finish_reason": None})
    yield _chunk({"index": 0, "delta": {}, "finish_reason": _reason(answer)}, usage=_USAGE)
    yield "data: [DONE]\n\n"


def _chunk(choice: dict[str, Any], **more: Any) -> str:
    return f"data: {json.dumps({**_head('chat.completion.chunk'), 'choices': [choice], **more})}\n\n"
