"""One JSON request to a runtime's REST interface, with every way it can end said as a link error."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import aiohttp

from gateway.errors import LinkLost, LinkRefused
from gateway.ports.values import Malformed
from gateway.transports import json
from gateway.transports.masking import Mask

MAX_ANSWER = 1024 * 1024
_AGAIN = frozenset({408, 425, 429})


async def post_json(
    session: aiohttp.ClientSession,
    url: str,
    *,
    body: object,
    headers: Mapping[str, str],
    within: timedelta,
    mask: Mask,
) -> dict[str, Any]:
    """POST once and return the JSON object that answers with 200 or 201.

    Raises:
        LinkRefused: the runtime said no; `terminal` where it would say so again.
        LinkLost: it cannot be reached, is overloaded, or gave no usable answer; it may have acted.
    """
    failure: str
    try:
        async with (
            asyncio.timeout(within.total_seconds()),
            session.post(
                url,
                data=json.dumps(body),
                headers={**headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response,
        ):
            text = await _read(response)
            status = response.status
    except TimeoutError:
        failure = f"no answer within {within.total_seconds():g} s"
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        failure = mask(f"{type(exc).__name__}: {exc}")[:300]
    else:
        return _judge(status, json.loads(text), mask)
    # Outside the handlers, so that no chained exception quotes the request and its key.
    raise LinkLost(failure)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > MAX_ANSWER:
            raise ValueError(f"the answer is over {MAX_ANSWER} bytes")
    return bytes(pieces)


def _judge(status: int, answer: object, mask: Mask) -> dict[str, Any]:
    if status in {200, 201}:
        if isinstance(answer, dict):
            return cast("dict[str, Any]", answer)
        raise LinkLost(f"HTTP {status} without a JSON object")
    detail = mask(_detail(answer))[:300]
    if status >= 500 or status in _AGAIN:
        raise LinkLost(f"HTTP {status}: {detail}")
    code = "UNAUTHORIZED" if status in {401, 403} else f"HTTP_{status}"
    raise LinkRefused(code, detail, terminal=True)


def _detail(answer: object) -> str:
    match answer:
        case {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case Malformed():
            return answer.reason
        case _:
            return "no reason given"
