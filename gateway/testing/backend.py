"""A sample backend for Dragoman: it plays Go Fish and demonstrates each rule of the webhook contract. Copy from it.

Run it alone with `python -m gateway.testing.backend --port 9000 --secret whsec_…`.

- /tools    executes the agent's calls and receives cancellations
- /messages delivers and confirms the agent's messages
- /policy   decides about the agent's requests for approval
- /events   receives copies of events
- /         shows the tables
"""

import argparse
import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.background import BackgroundTask

from gateway.testing.cards import AGENT, Game, Refusal
from gateway.testing.change import Change

BODY_LIMIT = 2 * 1024**2
REMEMBERED = 10_000
LONGEST_WORK = 60.0


class Unacceptable(Exception):
    """A rejected request: unsigned, too large, or of a kind that this path does not accept."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A verified webhook."""

    key: str
    """The `webhook-id`, which is the idempotency key: each attempt has the same."""
    kind: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request and to its repeats."""

    body: dict[str, Any]
    status: int = 200


@dataclass(slots=True)
class Records:
    """Counts and lists of everything that the backend has received and done, for tests."""

    requests: Counter[str] = field(default_factory=Counter[str])
    """The number of requests by webhook-id."""
    executions: Counter[str] = field(default_factory=Counter[str])
    """The number of executions by webhook-id: never more than one."""
    canceled: list[str] = field(default_factory=list[str])
    """The ids of canceled calls."""
    judged: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The requests for approval, each once."""
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque[dict[str, Any]](maxlen=REMEMBERED))
    rejected: int = 0
    """The number of requests with an invalid signature."""


class Backend:
    """The sample backend; `app` is its ASGI application."""

    def __init__(self, secret: str) -> None:
        self.games: dict[str, Game] = {}
        """One table for each session."""
        self.records = Records()
        self.changed = Change()
        self._webhook = Webhook(secret)
        self._answers: dict[str, asyncio.Task[Answer]] = {}
        self._cancels: dict[str, asyncio.Event] = {}
        self._seen_events: dict[str, None] = {}
        self.app = FastAPI(title="Go Fish", docs_url=None, redoc_url=None)
        self.app.add_api_route("/tools", self.tools, methods=["POST"])
        self.app.add_api_route("/messages", self.messages, methods=["POST"])
        self.app.add_api_route("/policy", self.policy, methods=["POST"])
        self.app.add_api_route("/events", self.events, methods=["POST"])
        self.app.add_api_route("/", self.tables, methods=["GET"])
        self.app.add_exception_handler(Unacceptable, _to_problem)

    # Routes

    async def tools(self, request: Request) -> Response:
        """Execute or cancel a call of the agent."""
        webhook = await self._open(request)
        match webhook.kind:
            case "tool.requested" if webhook.content.get("tool") == "flaky" and self.records.requests[webhook.key] == 1:
                # The call did not run, so the gateway may retry it even if the executor is not idempotent.
                return JSONResponse({"title": "Busy"}, 503, headers={"Retry-After": "1"})
            case "tool.requested" if webhook.content.get("tool") == "deal_later":
                # The outcome is sent to the callback later; a repeat must not start the work again.
                first = webhook.key not in self._answers
                answer = await self._answer_once(webhook)
                later = BackgroundTask(self._deal_later, webhook.content) if first else None
                return JSONResponse(answer.body, answer.status, background=later)
            case "tool.requested":
                answer = await self._answer_once(webhook)
                return JSONResponse(answer.body, answer.status)
            case "tool.canceled":
                self.records.canceled.append(webhook.content["call_id"])
                self._cancel_of(webhook.content["call_id"]).set()
                self.changed.tell()
                return Response(status_code=204)
            case other:
                raise Unacceptable(400, "Bad Request", f"/tools does not accept {other!r}")

    async def messages(self, request: Request) -> Response:
        """Deliver a message of the agent; the response confirms it."""
        webhook = await self._open(request)
        if webhook.kind != "message.posted":
            raise Unacceptable(400, "Bad Request", f"/messages does not accept {webhook.kind!r}")
        answer = await self._answer_once(webhook)
        return JSONResponse(answer.body)

    async def policy(self, request: Request) -> Response:
        """Respond to a request for approval with a decision."""
        webhook = await self._open(request)
        if webhook.kind != "approval.asked":
            raise Unacceptable(400, "Bad Request", f"/policy does not accept {webhook.kind!r}")
        answer = await self._answer_once(webhook)
        return JSONResponse(answer.body)

    async def events(self, request: Request) -> Response:
        """Store the copy of an event; copies may arrive twice, so known ids are ignored."""
        webhook = await self._open(request)
        if webhook.key not in self._seen_events:
            self._seen_events[webhook.key] = None
            _trim(self._seen_events)
            self.records.events.append({"type": webhook.kind, "data": webhook.content})
            self.changed.tell()
        return Response(status_code=204)

    async def tables(self) -> dict[str, Any]:
        """Show the games and some counts."""
        return {
            "tables": {session: game.view() for session, game in self.games.items()},
            "executed": self.records.executions.total(),
            "canceled": len(self.records.canceled),
            "events": len(self.records.events),
        }

    # Signature and idempotency

    async def _open(self, request: Request) -> WebhookRequest:
        """Read a bounded body and verify its signature before parsing it."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT:
                raise Unacceptable(413, "Content Too Large", f"a body has at most {BODY_LIMIT} bytes")
        try:
            content = self._webhook.verify(bytes(body), dict(request.headers))
        except (WebhookVerificationError, ValueError) as exc:
            self.records.rejected += 1
            raise Unacceptable(401, "Unauthorized", f"the signature is invalid: {exc}") from exc
        match content:
            case {"type": str(kind), "data": {"session_id": str(), **rest}} if "call_id" in rest or "event" in rest:
                pass
            case {"type": str(kind), "data": dict()} if request.url.path == "/events":
                pass
            case _:
                raise Unacceptable(400, "Bad Request", "this is not a webhook of Dragoman")
        key = request.headers["webhook-id"]
        self.records.requests[key] += 1
        _trim(self.records.requests)
        self.changed.tell()
        return WebhookRequest(key=key, kind=kind, content=content["data"])

    async def _answer_once(self, webhook: WebhookRequest) -> Answer:
        """Process a request, or return the stored answer to a repeat; a repeat during the work waits for its end."""
        if webhook.key not in self._answers:
            self._answers[webhook.key] = asyncio.create_task(self._process(webhook))
            _trim(self._answers)
        # Shielded, so that the work continues if the gateway disconnects, and a repeat gets its answer.
        return await asyncio.shield(self._answers[webhook.key])

    async def _process(self, webhook: WebhookRequest) -> Answer:
        self.records.executions[webhook.key] += 1
        _trim(self.records.executions)
        self.changed.tell()
        if webhook.kind == "approval.asked":
            return self._judge(webhook.content["event"])
        game = self.games.setdefault(webhook.content["session_id"], Game())
        _trim(self.games)
        try:
            if webhook.kind == "message.posted":
                return _deliver(webhook.content["event"], game)
            return await self._execute(webhook.content, game)
        except Refusal as exc:
            refused = {"delivered": False} if webhook.kind == "message.posted" else {"outcome": "failure"}
            return Answer({**refused, "error": str(exc)})

    def _judge(self, event: dict[str, Any]) -> Answer:
        """Deny `rm -rf`; a real policy has more rules."""
        self.records.judged.append(event)
        del self.records.judged[:-REMEMBERED]
        return Answer({"decision": "deny" if "rm -rf" in str(event.get("arguments")) else "allow"})

    # The tools

    async def _execute(self, call: dict[str, Any], game: Game) -> Answer:
        match call:
            case {"tool": "ask_for_cards", "arguments": {"targetPlayer": str(target), "rank": str(rank)}}:
                happened = game.ask(target, rank)
                return _success(happened, game, name="cards-asked", description=happened)
            case {"tool": "send_message", "arguments": {"message": str(message)}}:
                game.post(AGENT, message)
                return _success("sent", game, name="message-sent", description="The whole table has seen your message.")
            case {"tool": "slow_thing" | "pay_once", "arguments": {"seconds": int(seconds) | float(seconds)}}:
                return await self._work_slowly(call["call_id"], seconds)
            case {"tool": "flaky"}:
                return Answer({"outcome": "success", "result": "it worked at the second attempt"})
            case {"tool": "deal_later"}:
                return Answer({}, status=202)
            case _:
                # Dragoman has checked the arguments against the YAML; a backend still validates its input.
                return Answer({"outcome": "failure", "error": f"Unknown tool or arguments: {call.get('tool')}"})

    async def _work_slowly(self, call_id: str, seconds: float) -> Answer:
        canceled = self._cancel_of(call_id)
        try:
            async with asyncio.timeout(min(max(seconds, 0), LONGEST_WORK)):
                await canceled.wait()
        except TimeoutError:
            return Answer({"outcome": "success", "result": f"done after {seconds:g} s"})
        return Answer({"outcome": "canceled", "error": "stopped half-way, as requested"})

    async def _deal_later(self, call: dict[str, Any]) -> None:
        """Report progress, then the outcome; both URLs contain their own token."""
        self.games[call["session_id"]].deal()
        outcome = {"outcome": "success", "result": "a new round has been dealt"}
        # Retried after a connection failure, because the gateway may be restarting.
        transport = httpx.AsyncHTTPTransport(retries=3)
        async with httpx.AsyncClient(transport=transport, timeout=10) as client:
            await client.post(call["progress_url"], json={"percent": 50})
            await client.post(call["callback_url"], json=outcome)

    def _cancel_of(self, call_id: str) -> asyncio.Event:
        event = self._cancels.setdefault(call_id, asyncio.Event())
        _trim(self._cancels)
        return event


def _success(result: str, game: Game, *, name: str, description: str) -> Answer:
    """Answer with the new state; the agent receives the update before the result."""
    update = {"name": name, "context": game.view(), "description": description}
    return Answer({"outcome": "success", "result": result, "updates": [update]})


def _deliver(event: dict[str, Any], game: Game) -> Answer:
    """Post a message of the agent, and answer with the new state."""
    game.post(AGENT, "\n".join(block["text"] for block in event["content"] if block["type"] == "text"))
    return Answer({"delivered": True, "context": game.view()})


def _trim(remembered: dict[Any, Any]) -> None:
    while len(remembered) > REMEMBERED:
        del remembered[next(iter(remembered))]


async def _to_problem(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, Unacceptable)
    problem = {"type": "about:blank", "title": exc.title, "status": exc.status, "detail": str(exc)}
    return JSONResponse(problem, exc.status, media_type="application/problem+json")


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--secret", required=True, help="the secret of the executors in the gateway's YAML, whsec_…")
    given = parser.parse_args()
    uvicorn.run(Backend(given.secret).app, host=given.host, port=given.port)


if __name__ == "__main__":
    main()
