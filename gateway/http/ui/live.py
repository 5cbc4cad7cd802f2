"""The stream behind live pages: the API's stream of events, opened with the cookie of a signed-in operator."""

from typing import cast

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Unauthorized
from gateway.http.route import ApiState
from gateway.http.ui.guard import check_enabled
from gateway.http.ui.sign_in import signed_in

_STREAM = "/v1/events/stream"
_CREDENTIALS = frozenset({b"cookie", b"authorization", b"x-api-key"})


class LiveStream:
    """Passes a request to the API's stream, with the operator's key in place of the cookie; an ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        state = cast(ApiState, request.app.state.api_state)
        check_enabled(state.gateway.settings)
        clock = state.gateway.clock
        operator, checked = await signed_in(request, state.gateway, now=clock.now()), clock.monotonic()
        if operator is None:
            raise Unauthorized("sign in at /ui first")

        async def send_to_operator(message: Message) -> None:
            nonlocal checked
            # A sign-out, which may happen at another replica, is not announced.
            if clock.monotonic() - checked > state.gateway.settings.api.heartbeat.total_seconds():
                checked = clock.monotonic()
                if await signed_in(request, state.gateway, now=clock.now()) is None:
                    await send({"type": "http.response.body", "body": b""})
                    raise ClientDisconnect
            await send(message)

        headers = [(name, value) for name, value in scope["headers"] if name not in _CREDENTIALS]
        passed = {**scope, "path": _STREAM, "raw_path": _STREAM.encode(), "headers": headers + operator.credentials}
        await cast(ASGIApp, request.app.router)(passed, receive, send_to_operator)
