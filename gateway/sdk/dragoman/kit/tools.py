"""Tool functions behind one signed endpoint: runs each call once and delivers its outcome to the gateway."""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from inspect import Parameter, get_annotations, getdoc, iscoroutinefunction, signature, unwrap
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from dragoman.kit.calls import Answer, RequestedCall, ToolCall, ToolFailed
from dragoman.kit.memory import MemoryCallStore
from dragoman.kit.schema import parameters_of
from dragoman.kit.signature import BadSignature, read_secrets, verify
from dragoman.kit.store import Callback, CallStore, Claimed, KeyReused, StoreUnavailable

try:
    from fastapi import APIRouter, Request, Response
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError("dragoman.kit requires FastAPI: pip install fastapi", name=exc.name) from exc

if TYPE_CHECKING:
    from dragoman.kit.callbacks import CallbackClient

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that the APIs of all models accept."""
_IDLE = 1.0
"""Seconds that an idle connection to the gateway, or to the proxy in front of it, may be reused."""
_LOOK, _LONGEST_LOOK = 0.25, 2.0
"""Seconds until the first poll of a call that another worker runs; each later pause doubles, up to the second."""
_REUSED = "this key came before, with another tool or other arguments"
_SWEEP = 10.0
"""Seconds between two polls for callbacks of dead workers."""
_BATCH, _MOST_OWED = 20, 1_000
"""The maximum number of callbacks per poll, and of outcomes in delivery before polls stop."""
_CLEANUP, _LAST_WORDS = 1.0, 5.0
"""Seconds that an interrupted function has to clean up, and that the reports of interrupted calls have to leave."""
_DEAD = "the worker that ran this call died; the tool may have run"
_NOT_STARTED = (
    "the tools are not started, because no lifespan runs for their router: the lifespan of a mounted application never"
    " runs. Include the router in the outermost application (`app.include_router(tools.router, prefix='/x')`), or give"
    " that application the lifespan of the tools (`FastAPI(lifespan=tools.lifespan)`)"
)

log = logging.getLogger("dragoman.kit")

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")
ToolFunction = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class _Tool:
    """One tool: its function and its description for agents."""

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
    """A call that is refused."""

    response: Callable[[], Response]


@dataclass
class _Running:
    """A call that this worker runs, or waits for while another worker runs it."""

    call_id: str
    digest: str
    task: "asyncio.Task[bytes]"
    work: "asyncio.Task[bytes] | None" = None
    """The function itself, once it runs."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the function has ended, or is no longer waited for."""
    taken: bool = False
    """Whether the store records that a worker runs it; it may be answered 202."""
    owed: bool = False
    """Whether the store records its callback."""
    canceled: bool = False

    def cancel(self) -> None:
        """Cancel the function, or the wait for another worker."""
        (self.work or self.task).cancel()


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

        `store` keeps the claims, by default in memory. More than `most_running` calls at once get 503, larger requests
        are refused, and larger answers are failures (the executor's `max_response`). When the application stops,
        running calls have `drain` seconds to end; the others are interrupted and reported as unknown, unless their tool
        is idempotent. An outcome within `at_once` seconds is the response to the request; a later one is posted to
        `callback_url`.

        Raises:
            ValueError: a secret is invalid.
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
        self._leaving = self._has_warned = False
        self._users, self._opening = 0, asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = AsyncExitStack()
        self.router = APIRouter(lifespan=self.lifespan)
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

        The default description is the function's docstring. `idempotent` means that a second run does no harm: a call
        that a crash interrupted runs again; otherwise the agent gets an unknown outcome. A function that runs longer
        than `timeout` seconds is canceled.

        Raises:
            TypeError: the name is missing, as in `@tools.tool`.
            ValueError: no model API accepts the name.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - without parentheses, a function
            raise TypeError(
                f'the name of the tool is missing: write @tools.tool("{getattr(name, "__name__", "name")}")'
            )
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not the name of a tool: use 1 to 64 ASCII letters, digits, _ and -")

        def declare(function: ToolFunction) -> ToolFunction:
            model, takes_call = _read_signature(name, function)
            if name in self._tools:
                raise ValueError(f"two functions have the name {name!r}")
            text = description if description is not None else getdoc(function) or ""
            parameters_of(model)
            if not text.strip():
                log.warning("tool %r has no description for agents: write a docstring, or pass `description`", name)
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
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Open the store, deliver what dead workers owe, and at the end wait for running calls and report the rest.

        An application that includes `router` runs it. Any other one needs it as its own lifespan, or inside of it.
        Several applications of one event loop may run it at the same time.
        """
        del app
        async with self._opening:
            if self._users and self._loop is not asyncio.get_running_loop():
                raise RuntimeError("these tools are already used in another event loop; make a Tools object for each")
            if not self._users:
                await self._start()
            self._users += 1
        try:
            yield
        finally:
            async with self._opening:
                self._users -= 1
                if not self._users:
                    await self._open.aclose()

    async def _start(self) -> None:
        import httpx

        from dragoman.kit.callbacks import CallbackClient

        if not self._tools:
            log.warning('no tool is declared: import the modules that have the functions, and use @tools.tool("name")')
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._store)
            limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=_IDLE)
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=10.0, trust_env=False, limits=limits))
            self._callbacks, self._leaving = CallbackClient(client, self._settle), False
            self._loop = asyncio.get_running_loop()
            stack.push_async_callback(self._stop, self._callbacks)
            sweeping = asyncio.create_task(self._sweep(self._callbacks), name="kit sweep")
            stack.callback(sweeping.cancel)
            self._open = stack.pop_all()

    async def _stop(self, callbacks: "CallbackClient") -> None:
        """Wait for running calls, then interrupt and report the rest."""
        self._leaving = True
        await self._wait_for_tasks(self._drain)
        cut = [one for one in self._running.values() if not (one.task if one.work is None else one.work).done()]
        if cut:
            log.warning("interrupted %d calls that did not end within %g s of the stop", len(cut), self._drain)
            for one in cut:
                one.cancel()
            await asyncio.wait({one.work or one.task for one in cut}, timeout=_CLEANUP)
            for one in cut:
                one.over.set()
            await self._wait_for_tasks(_LAST_WORDS)
        if callbacks.count:
            log.warning(
                "stopped with %d outcomes that are not delivered; the next start sends them if the store keeps them",
                callbacks.count,
            )
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CLEANUP)
        self._callbacks = None

    async def _wait_for_tasks(self, patience: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._tasks:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Callbacks -------------------------------------------------------------------------------------------

    async def _sweep(self, callbacks: "CallbackClient") -> None:
        """Deliver the callbacks that dead workers owe, now and whenever another one has died."""
        while True:
            try:
                while callbacks.count < _MOST_OWED and await self._recover():
                    pass
            except StoreUnavailable as exc:
                log.warning("could not look for callbacks of dead workers: %s", exc)
            except Exception:
                log.exception("could not look for callbacks of dead workers")
            await asyncio.sleep(_SWEEP)

    async def _recover(self) -> bool:
        """Take over some callbacks of dead workers; return whether there may be more."""
        idempotent = {tool.name for tool in self._tools.values() if tool.idempotent}
        owed = await self._store.take_owed(idempotent, _BATCH)
        for one in owed:
            answer, tool = one.answer, one.callback.tool
            if answer is None:
                gone = "" if tool in self._tools else f", and this backend no longer has the tool {tool!r}"
                log.warning("the outcome of %s (%s) is unknown: %s%s", one.key, tool, _DEAD, gone)
                answer = _unknown(_DEAD + gone)
                await self._finish(one.key, answer)
            self._deliver_answer(one.key, one.callback, answer)
        return bool(owed)

    def _deliver(self, key: str, callback: Callback, outcome: "asyncio.Future[bytes]") -> None:
        delivery = None if self._callbacks is None else self._callbacks.deliver(key, callback, outcome)
        if delivery is not None:
            self._spawn(delivery, f"callback {key}")

    def _deliver_answer(self, key: str, callback: Callback, answer: bytes) -> None:
        outcome = asyncio.get_running_loop().create_future()
        outcome.set_result(answer)
        self._deliver(key, callback, outcome)

    async def _settle(self, key: str) -> None:
        try:
            await self._store.settle(key)
        except StoreUnavailable as exc:
            log.warning("the callback of %s is done, but stays on record: %s", key, exc)

    # Requests --------------------------------------------------------------------------------------------

    async def _take(self, request: Request) -> Response:
        """Answer one request of the gateway."""
        if self._callbacks is None:
            if not self._has_warned:
                self._has_warned = True
                log.error("refused a request: %s", _NOT_STARTED)
            return _later(_NOT_STARTED)
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
                return _refusal(422, f"this endpoint serves tool calls, not {str(kind)[:60]!r}; fix the route")
            requested = RequestedCall.model_validate(data)
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            return _refusal(400, f"the body is not a request of the webhook contract ({type(exc).__name__})")
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
                return _later("the backend is stopping" if self._leaving else "too many calls run at once")
            task = self._spawn(self._take_on(key, digest, tool, requested), f"tool {tool.name} {key}")
            running = self._running[key] = _Running(requested.call_id, digest, task)
            task.add_done_callback(lambda _: self._running.pop(key, None))
        url, callback = requested.callback_url, None
        if url is not None:
            callback = Callback(url, tool.name, requested.deadline.timestamp())
        # Without a callback URL, the request waits until the call ends.
        await asyncio.wait({running.task}, timeout=None if callback is None else self._at_once)
        while not running.task.done():
            if running.taken and callback is not None and await self._accept(key, running, callback):
                self._deliver(key, callback, running.task)
                return Response(status_code=202)
            await asyncio.wait({running.task}, timeout=_LOOK)
        return _response(running)

    async def _accept(self, key: str, running: _Running, callback: Callback) -> bool:
        """Record the callback of a call before its request is answered 202; return whether it is on record."""
        try:
            if not running.owed:
                await self._store.accept(key, callback)
        except StoreUnavailable as exc:
            log.warning("the request for %s waits, because its callback cannot be stored: %s", key, exc)
        else:
            running.owed = True
        return running.owed

    def _cancel(self, call_id: str) -> None:
        for running in self._running.values():
            if running.call_id == call_id:
                running.canceled = True
                running.cancel()

    # Running ---------------------------------------------------------------------------------------------

    async def _take_on(self, key: str, digest: str, tool: _Tool, requested: RequestedCall) -> bytes:
        """Claim a call and run it, or wait for the worker that runs it; the answer is stored before it is sent."""
        claim, pause, running = await self._claim(key, digest), _LOOK, self._running[key]
        if self._leaving and claim.state == "new":
            await self._forget(key)
            raise _Refused(lambda: _later("the backend is stopping"))
        running.taken = True
        while claim.state == "running":
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)
            try:
                claim = await self._claim(key, digest)
            except _Refused:
                # The call was answered 202, so its outcome is still waited for.
                continue
        if claim.answer is not None:
            return claim.answer
        if claim.state == "abandoned" and not tool.idempotent:
            answer = _unknown(_DEAD)
        else:
            answer = await self._answer(key, running, tool, requested)
        await self._finish(key, answer)
        return answer

    async def _answer(self, key: str, running: _Running, tool: _Tool, requested: RequestedCall) -> bytes:
        """Run a function in a task of its own, which can be interrupted even if it ignores that."""
        work = running.work = asyncio.create_task(self._try(key, tool, requested), name=f"function {tool.name} {key}")
        work.add_done_callback(lambda _: running.over.set())
        try:
            await running.over.wait()
        finally:
            work.cancel()
        if work.done() and not work.cancelled():
            return work.result()
        if running.canceled:
            return _CANCELED
        if tool.idempotent:
            # The claim stays without an answer: the gateway requests the call again, and it runs again.
            raise _Refused(lambda: _later("the backend is stopping"))
        log.warning("the outcome of %s (%s) is unknown: the backend stopped while it ran", key, tool.name)
        return _unknown("the backend stopped while it ran this call; the tool may have run")

    async def _claim(self, key: str, digest: str) -> Claimed:
        try:
            return await self._store.claim(key, digest)
        except KeyReused:
            raise _Refused(lambda: _refusal(422, _REUSED)) from None
        except StoreUnavailable as exc:
            log.warning("cannot claim %s, the store is unavailable: %s", key, exc)
            raise _Refused(lambda: _later("the backend's store is unavailable")) from exc

    async def _try(self, key: str, tool: _Tool, requested: RequestedCall) -> bytes:
        """Run a function; whatever it, its model or its result raises ends the call, and nothing else."""
        try:
            return await self._run(key, tool, requested)
        except asyncio.CancelledError as exc:
            running = asyncio.current_task()
            if running is not None and running.cancelling():
                raise
            # Not canceled by the kit: the function awaited something that was canceled.
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
            return _failure(f"the tool did not respond within {tool.timeout:g} seconds")
        return self._say(came)

    def _say(self, came: object) -> bytes:
        answer = came if isinstance(came, Answer) else Answer(came)
        said: dict[str, Any] = {"outcome": "success", "result": answer.result}
        if answer.updates:
            said["updates"] = answer.updates
        if answer.wakes_agent is not None:
            said["wakes_agent"] = answer.wakes_agent
        try:
            written = _dump(said)
        except (TypeError, ValueError):
            log.exception("a tool returned something that is not JSON")
            return _unknown("the tool ran; its result is not JSON")
        if len(written) > self._largest_answer:
            return _unknown(f"the tool ran; its result has {len(written)} bytes, more than {self._largest_answer}")
        return written

    async def _finish(self, key: str, answer: bytes) -> None:
        """Store an answer, and deliver it if its callback is owed; without the store, the answer still counts."""
        for pause in (0.1, 0.5, 2.0, None):
            try:
                owed = await self._store.finish(key, answer)
            except StoreUnavailable:
                if pause is None:
                    log.exception("could not store the outcome of %s", key)
                    return
                await asyncio.sleep(pause)
            else:
                if owed is not None:
                    self._deliver_answer(key, owed, answer)
                return

    async def _forget(self, key: str) -> None:
        try:
            await self._store.forget(key)
        except StoreUnavailable as exc:
            log.warning("could not release %s: %s", key, exc)


def _read_signature(name: str, function: ToolFunction) -> tuple[type[BaseModel], bool]:
    if not iscoroutinefunction(function):
        raise TypeError(f"the function of tool {name!r} must be `async def`; run blocking code in a thread")
    parameters = list(signature(function).parameters.values())
    plain = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(one.kind not in plain for one in parameters):
        raise TypeError(f"the function of tool {name!r} must have one model as parameter, and optionally the ToolCall")
    try:
        model = _type_of(function, parameters[0])
    except NameError as exc:
        raise TypeError(f"{exc}: import the model of tool {name!r} outside of `if TYPE_CHECKING`") from exc
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise TypeError(f"the first parameter of tool {name!r} must be annotated with a pydantic model")
    try:
        second = _type_of(function, parameters[1]) if len(parameters) == 2 else None
    except NameError:
        # Imported for type checkers only.
        second = None
    if get_origin(second) not in {Union, UnionType}:
        # Of `Annotated[Session, Depends(…)]`, as of `dict[str, int]`, the class.
        second = getattr(second, "__origin__", second)
    if isinstance(second, type) and not issubclass(ToolCall, second):
        raise TypeError(f"the second parameter of tool {name!r} is the ToolCall, not {second.__name__}")
    return model, len(parameters) == 2


def _type_of(function: ToolFunction, parameter: Parameter) -> object:
    """Evaluate the annotation of one parameter only, because other names may not be imported.

    Raises:
        NameError: it names what is not imported.
    """
    alone = FunctionType(
        (lambda: None).__code__, getattr(unwrap(getattr(function, "func", function)), "__globals__", {})
    )
    alone.__annotations__ = {} if parameter.annotation is Parameter.empty else {"it": parameter.annotation}
    return get_annotations(alone, eval_str=True).get("it")


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


def _failure(text: str, **more: bool) -> bytes:
    # File names may contain bytes that are not text.
    sayable = text[:10_000].encode(errors="replace").decode()
    return _dump({"outcome": "failure", "error": sayable, **more})


def _unknown(why: str) -> bytes:
    # The gateway puts "outcome unknown" before it.
    return _failure(why, unknown=True)


_CANCELED = _dump({"outcome": "canceled", "error": "canceled by the caller"})


def _response(running: _Running) -> Response:
    """Return the response of a task that has ended."""
    if running.task.cancelled():
        return _outcome(_CANCELED) if running.canceled else _later("the backend is stopping")
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
