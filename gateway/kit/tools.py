"""Tool functions behind one signed endpoint: each call is run once, and answered at once, later or again."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from inspect import Parameter, get_annotations, getdoc, iscoroutinefunction, signature
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_origin

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from gateway.kit.calls import Answer, RequestedCall, ToolCall, ToolFailed
from gateway.kit.memory import MemoryCallStore
from gateway.kit.schema import parameters_of
from gateway.kit.signature import BadSignature, read_secrets, verify
from gateway.kit.store import CallStore, Claimed, KeyReused, StoreUnavailable

if TYPE_CHECKING:
    from gateway.kit.callbacks import CallbackClient

_IDLE = 1.0
"""Seconds that an idle connection to the gateway, or to the proxy in front of it, may be reused."""
_LOOK = 0.25
"""Seconds until the first look again at a call that another worker runs; each later one waits twice as long."""
_LONGEST_LOOK = 2.0
_REUSED = "this key came before, with another tool or other arguments"
_UNKNOWN = "the outcome is unknown: the worker that ran this call is gone"

log = logging.getLogger("dragoman.kit")

Model = TypeVar("Model", bound=BaseModel)
ToolFunction = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class _Tool:
    """One tool: its function and what agents are told of it."""

    name: str
    description: str
    arguments: type[BaseModel]
    function: ToolFunction = field(repr=False)
    takes_call: bool
    idempotent: bool
    read_only: bool
    timeout: float


@dataclass(frozen=True)
class _Refused(Exception):
    """A call that is not taken on."""

    response: Callable[[], Response]


@dataclass
class _Running:
    """A call that this worker has taken on, or waits for while another one runs it."""

    call_id: str
    digest: str
    task: "asyncio.Task[bytes]"
    taken: bool = False
    """Whether it is on record that somebody runs it, so that it may be answered later."""
    canceled: bool = False


class Tools:
    """The tools of one backend: decorate functions with `tool`, and include `router` into the application."""

    def __init__(
        self,
        *,
        secret: str | Sequence[str],
        store: CallStore | None = None,
        path: str = "/tools",
        most_running: int = 1_000,
        largest_request: int = 2 * 1024 * 1024,
        largest_answer: int = 1024 * 1024,
        drain: float = 10.0,
        at_once: float = 2.0,
    ) -> None:
        """Prepare an endpoint at `path` for requests signed with a secret, or with any of several.

        `store` keeps which calls were taken on, in memory unless it is given. More than `most_running` at once are
        told to come again, larger requests are refused, larger answers are failures (the executor's `max_response`).
        When the application stops, what runs has `drain` seconds to end. An outcome within `at_once` seconds is the
        answer to the request; later it goes to `callback_url`.

        Raises:
            ValueError: a secret is none.
        """
        self._keys = read_secrets(secret)
        self._store: CallStore = store or MemoryCallStore()
        self._most_running = most_running
        self._largest_request, self._largest_answer = largest_request, largest_answer
        self._drain, self._at_once = drain, at_once
        self._tools: dict[str, _Tool] = {}
        self._running: dict[str, _Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._callbacks: CallbackClient | None = None
        self._leaving = False
        self.router = APIRouter(lifespan=self._serving)
        self.router.add_api_route(path, self._take, methods=["POST"], name="tools", include_in_schema=False)

    def tool(
        self,
        name: str,
        *,
        description: str | None = None,
        idempotent: bool = False,
        read_only: bool = False,
        timeout: float = 600.0,
    ) -> Callable[[ToolFunction], ToolFunction]:
        """Declare `async def f(arguments: Model)` or `async def f(arguments: Model, call: ToolCall)` as a tool.

        The description is the function's docstring unless it is given. `idempotent` says that running a call again
        does no harm: one that was cut off by a crash is, else the agent is told that the outcome is unknown. A
        function that runs for longer than `timeout` seconds is canceled.
        """

        def declare(function: ToolFunction) -> ToolFunction:
            model, takes_call = _read_signature(name, function)
            if name in self._tools:
                raise ValueError(f"two functions are called {name!r}")
            text = description if description is not None else getdoc(function) or ""
            parameters_of(model)
            self._tools[name] = _Tool(name, text, model, function, takes_call, idempotent, read_only, timeout)
            return function

        return declare

    def declarations(self) -> dict[str, dict[str, Any]]:
        """Write the section `tools` of the gateway's YAML, as `dragoman tools --from` prints it."""
        return {
            tool.name: {
                "description": tool.description,
                "parameters": parameters_of(tool.arguments),
                **({"read_only": True} if tool.read_only else {}),
            }
            for tool in self._tools.values()
        }

    # Life ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _serving(self, app: object) -> AsyncGenerator[None]:
        import httpx

        from gateway.kit.callbacks import CallbackClient

        del app
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store)
            limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=_IDLE)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=10.0, trust_env=False, limits=limits))
            self._callbacks, self._leaving = CallbackClient(client), False
            try:
                yield
            finally:
                self._leaving = True
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=self._drain)
                left = set(self._tasks)
                for task in left:
                    task.cancel()
                if left:
                    log.warning("%d calls or callbacks were cut off when the application stopped", len(left))
                    await asyncio.wait(left, timeout=1.0)

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Requests --------------------------------------------------------------------------------------------

    async def _take(self, request: Request) -> Response:
        """Answer one request of the gateway."""
        body = await _read(request, self._largest_request)
        if body is None:
            return _refusal(413, f"the request is larger than {self._largest_request} bytes")
        try:
            verify(self._keys, request.headers, body, now=time.time())
        except BadSignature as exc:
            return _refusal(401, str(exc))
        try:
            asked = json.loads(body)
            kind, data = asked["type"], asked["data"]
            if kind == "tool.canceled":
                self._cancel(str(data["call_id"]))
                return Response(status_code=204)
            if kind != "tool.requested":
                return _refusal(422, f"this endpoint answers tool calls, no {str(kind)[:60]!r}; mend the route")
            requested = RequestedCall.model_validate(data)
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            return _refusal(400, f"the body is no request of the webhook contract ({type(exc).__name__})")
        return await self._call(request.headers["webhook-id"], requested)

    async def _call(self, key: str, requested: RequestedCall) -> Response:
        tool = self._tools.get(requested.tool)
        if tool is None:
            return _refusal(422, f"this backend has no tool {requested.tool!r}")
        digest, running = _digest(requested), self._running.get(key)
        if running is not None and running.digest != digest:
            return _refusal(422, _REUSED)
        if running is None:
            if self._leaving or len(self._running) >= self._most_running:
                return _later("the backend stops" if self._leaving else "too many calls run at once")
            task = self._start(self._take_on(key, digest, tool, requested), f"tool {tool.name} {key}")
            running = self._running[key] = _Running(requested.call_id, digest, task)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        # Where nobody can be called back, the request waits as long as the call may take.
        await asyncio.wait({running.task}, timeout=None if requested.callback_url is None else self._at_once)
        while not (running.taken or running.task.done()):
            await asyncio.wait({running.task}, timeout=_LOOK)
        if running.task.done():
            return _response(running)
        if requested.callback_url is not None and self._callbacks is not None:
            calling = self._callbacks.tell(key, requested.callback_url, running.task)
            if calling is not None:
                self._start(calling, f"callback {key}")
        return Response(status_code=202)

    def _cancel(self, call_id: str) -> None:
        for running in self._running.values():
            if running.call_id == call_id:
                running.canceled = True
                running.task.cancel()

    # Running ---------------------------------------------------------------------------------------------

    async def _take_on(self, key: str, digest: str, tool: _Tool, requested: RequestedCall) -> bytes:
        """Claimed a call and run it, or wait for whoever does; the answer is kept before anybody hears it."""
        claim, pause = await self._claim(key, digest), _LOOK
        self._running[key].taken = True
        while claim.state == "running":
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
            try:
                claim = await self._claim(key, digest)
            except _Refused:
                # It was answered that it is under way, and somebody waits for the outcome.
                continue
        if claim.answer is not None:
            return claim.answer
        if self._leaving and claim.state == "new":
            await self._forget(key)
            raise _Refused(lambda: _later("the backend stops"))
        if claim.state == "abandoned" and not tool.idempotent:
            answer = _failure(_UNKNOWN)
        else:
            try:
                answer = await self._answer(key, tool, requested)
            except asyncio.CancelledError:
                if not self._running[key].canceled:
                    raise
                answer = _CANCELED
        await self._finish(key, answer)
        return answer

    async def _claim(self, key: str, digest: str) -> Claimed:
        try:
            return await self._store.claim(key, digest)
        except KeyReused:
            raise _Refused(lambda: _refusal(422, _REUSED)) from None
        except StoreUnavailable as exc:
            log.warning("%s: nothing is known of it, the store is away: %s", key, exc)
            raise _Refused(lambda: _later("the backend's store is away")) from exc

    async def _answer(self, key: str, tool: _Tool, requested: RequestedCall) -> bytes:
        """Run a function; whatever it, its model or its result raises ends the call, and nothing else."""
        try:
            return await self._run(key, tool, requested)
        except asyncio.CancelledError as exc:
            running = asyncio.current_task()
            if running is not None and running.cancelling():
                raise
            # Nobody has asked for it: the function awaited something that was canceled.
            fault: BaseException = exc
        except BaseException as exc:  # noqa: BLE001 - what is the user's own may raise anything
            fault = exc
        log.error("tool %s failed (%s)", tool.name, key, exc_info=fault)
        return _failure("the tool failed inside the backend")

    async def _run(self, key: str, tool: _Tool, requested: RequestedCall) -> bytes:
        async def report(data: dict[str, Any]) -> None:
            if self._callbacks is not None and requested.progress_url is not None:
                await self._callbacks.report(key, requested.progress_url, data)

        try:
            arguments = tool.arguments.model_validate(requested.arguments)
        except ValidationError as exc:
            return _failure(_describe(exc))
        given = (arguments, ToolCall(key, requested, report)) if tool.takes_call else (arguments,)
        clock = asyncio.timeout(tool.timeout)
        try:
            async with clock:
                came = await tool.function(*given)
        except ToolFailed as exc:
            return _failure(str(exc) or "the tool failed")
        except TimeoutError:
            if not clock.expired():
                raise
            return _failure(f"the tool did not answer within {tool.timeout:g} seconds")
        return self._say(came)

    def _say(self, came: object) -> bytes:
        answer = came if isinstance(came, Answer) else Answer(came)
        said: dict[str, Any] = {"outcome": "success", "result": answer.result}
        if answer.updates:
            said["updates"] = answer.updates
        if answer.wakes_agent is not None:
            said["wakes_agent"] = answer.wakes_agent
        written = _dump(said)
        if len(written) > self._largest_answer:
            return _failure(f"the result has {len(written)} bytes, more than {self._largest_answer}")
        return written

    async def _finish(self, key: str, answer: bytes) -> None:
        """Keep an answer; where the store is away the answer counts all the same, and a repeat may not find it."""
        for pause in (0.1, 0.5, 2.0, None):
            try:
                await self._store.finish(key, answer)
            except StoreUnavailable:
                if pause is None:
                    log.exception("the outcome of %s could not be kept", key)
                    return
                await asyncio.sleep(pause)
            else:
                return

    async def _forget(self, key: str) -> None:
        try:
            await self._store.forget(key)
        except StoreUnavailable as exc:
            log.warning("%s could not be given back: %s", key, exc)


def _read_signature(name: str, function: ToolFunction) -> tuple[type[BaseModel], bool]:
    if not iscoroutinefunction(function):
        raise TypeError(f"the function of tool {name!r} must be `async def`; let it call blocking code in a thread")
    parameters = list(signature(function).parameters.values())
    plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(one.kind not in plain for one in parameters):
        raise TypeError(f"the function of tool {name!r} takes its arguments as one model, and may take the ToolCall")
    hints = get_annotations(function, eval_str=True)
    model = hints.get(parameters[0].name)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise TypeError(f"the first parameter of tool {name!r} must be annotated with a pydantic model")
    second: object = hints.get(parameters[-1].name) if len(parameters) == 2 else None
    if get_origin(second) not in {Union, UnionType}:
        # Of `Annotated[Session, Depends(…)]`, as of `dict[str, int]`, the class.
        second = getattr(second, "__origin__", second)
    if isinstance(second, type) and not issubclass(ToolCall, second):
        raise TypeError(f"the second parameter of tool {name!r} gets the ToolCall, and no {second.__name__}")
    return model, len(parameters) == 2


async def _read(request: Request, largest: int) -> bytes | None:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            return None
    return bytes(body)


def _digest(requested: RequestedCall) -> str:
    said = json.dumps([requested.tool, requested.arguments], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(said.encode()).hexdigest()


def _describe(exc: ValidationError) -> str:
    faults = [f"{'/'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in exc.errors()[:5]]
    return "invalid arguments: " + "; ".join(faults)


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _failure(text: str) -> bytes:
    # Names of files may have bytes in them that no text has.
    sayable = text[:10_000].encode(errors="replace").decode()
    return _dump({"outcome": "failure", "error": sayable})


_CANCELED = _dump({"outcome": "canceled", "error": "canceled by the caller"})


def _response(running: _Running) -> Response:
    """Answer with what came of a task that has ended."""
    if running.task.cancelled():
        return _outcome(_CANCELED) if running.canceled else _later("the backend stops")
    refused = running.task.exception()
    return _outcome(running.task.result()) if refused is None else _refused(refused)


def _refused(exc: BaseException) -> Response:
    if isinstance(exc, _Refused):
        return exc.response()
    raise exc


def _outcome(answer: bytes) -> Response:
    return Response(answer, media_type="application/json")


def _refusal(status: Literal[400, 401, 413, 422], detail: str) -> Response:
    return Response(
        _dump({"status": status, "detail": detail}), status_code=status, media_type="application/problem+json"
    )


def _later(detail: str) -> Response:
    answer = Response(_dump({"status": 503, "detail": detail}), 503, media_type="application/problem+json")
    answer.headers["retry-after"] = "1"
    return answer
