"""One JSON request to a runtime's REST interface, with every way it can end said as a link error."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, cast

import aiohttp

from gateway.errors import LinkLost, LinkRefused
from gateway.json_values import Malformed
from gateway.links import json
from gateway.links.http_session import refusal_of
from gateway.links.masking import Mask

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
    request = session.post(
        url, data=json.dumps(body), headers={**headers, "Content-Type": "application/json"}, allow_redirects=False
    )
    return await _ask(request, within=within, mask=mask, most=MAX_ANSWER)


async def get_json(
    session: aiohttp.ClientSession,
    url: str,
    *,
    params: Mapping[str, str],
    headers: Mapping[str, str],
    within: timedelta,
    mask: Mask,
    most: int = MAX_ANSWER,
    or_null: bool = False,
) -> dict[str, Any]:
    """GET once and return the JSON object that answers, of at most `most` bytes; `null` is empty where it may be.

    Raises:
        LinkRefused, LinkLost: as for `post_json`.
    """
    request = session.get(url, params=params, headers=headers, allow_redirects=False)
    return await _ask(request, within=within, mask=mask, most=most, or_null=or_null)


async def _ask(
    request: AbstractAsyncContextManager[aiohttp.ClientResponse],
    *,
    within: timedelta,
    mask: Mask,
    most: int,
    or_null: bool = False,
) -> dict[str, Any]:
    failure: LinkLost | LinkRefused
    try:
        async with asyncio.timeout(within.total_seconds()), request as response:
            answer = await json.read_answer(await _read(response, most))
            status = response.status
    except TimeoutError:
        failure = LinkLost(f"no answer within {within.total_seconds():g} s")
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        failure = refusal_of(exc) or LinkLost(mask(f"{type(exc).__name__}: {exc}")[:300])
    else:
        return _judge(status, {} if answer is None and or_null else answer, mask)
    # Outside the handlers, so that no chained exception quotes the request and its key.
    raise failure


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    pieces = bytearray()
    async for piece in response.content.iter_any():
        pieces += piece
        if len(pieces) > most:
            raise ValueError(f"the answer is over {most} bytes")
    return bytes(pieces)


def _judge(status: int, answer: object, mask: Mask) -> dict[str, Any]:
    if status in {200, 201}:
        if isinstance(answer, dict):
            return cast("dict[str, Any]", answer)
        reason = f": {answer.reason}" if isinstance(answer, Malformed) else ""
        raise LinkLost(f"HTTP {status} without a JSON object{reason}")
    detail = mask(json.excerpt(_detail(answer)))
    if status >= 500 or status in _AGAIN:
        raise LinkLost(f"HTTP {status}: {detail}", status=status)
    code = "UNAUTHORIZED" if status in {401, 403} else (_code(answer) or f"HTTP_{status}")
    raise LinkRefused(mask(json.excerpt(code)), detail, terminal=True)


def _code(answer: object) -> str | None:
    match answer:
        case {"msg_id": str(code)} if code:
            return code[:100]
        case _:
            return None


def _detail(answer: object) -> str:
    match answer:
        case {"message": str(text)} | {"error": str(text)} | {"detail": str(text)}:
            return text
        case Malformed():
            return answer.reason
        case _:
            return "no reason given"
