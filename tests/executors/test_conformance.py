"""The executors in front of the suite, with peers of every temper."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from pydantic import TypeAdapter

from gateway.executors.port import Answer, Executor
from gateway.executors.python import PythonExecutor
from gateway.executors.static import StaticExecutor
from gateway.settings.model import PythonSpec, StaticSpec
from gateway.testing.conformance.executor import BOUND, ExecutorSuite, HangingExecutorSuite
from tests.executors.peers import Peer, Seen, hang, http, http_json, send, serve, serve_bytes
from tests.executors.test_webhook import make_executor

SECRET = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LWNhbmFyeQ=="


@asynccontextmanager
async def webhook(serving: AbstractAsyncContextManager[Peer]) -> AsyncGenerator[Executor]:
    async with serving as peer, make_executor(peer.url, secret=SECRET) as executor:
        yield executor


async def answer_properly(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, http_json(200, {"outcome": "success", "result": {"cards": ["7"]}}))


class TestWebhookWithAProperBackend(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve(answer_properly))


class TestWebhookWithABackendThatAccepts(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(http(202)))


class TestWebhookWithABackendThatSaysNothing(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(http(200)))


class TestWebhookWithABackendThatFails(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(http(500, b"Traceback")))


class TestWebhookWithABusyBackend(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(http(503, retry_after="1")))


class TestWebhookWithABackendThatHangsUp(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(b""))


class TestWebhookWithABackendThatTalksGarbage(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(b"\x00garbage\x1b[31m\r\n\r\n" * 1_000))


class TestWebhookWithABackendThatFloods(ExecutorSuite):
    answer_limit = 4_096

    def make(self) -> AbstractAsyncContextManager[Executor]:
        return webhook(serve_bytes(http(200, b'"' + b"x" * 2 * 1024**2 + b'"')))


class TestWebhookWithNobodyThere(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return make_executor("http://no-such-host.invalid/", secret=SECRET)


class TestWebhookWithABackendThatHangs(HangingExecutorSuite):
    _peer: Peer

    @asynccontextmanager
    async def make(self) -> AsyncGenerator[Executor]:
        async with serve(hang) as self._peer, make_executor(self._peer.url, secret=SECRET) as executor:
            yield executor

    async def wait_until_asked(self, attempt: "asyncio.Future[Answer]") -> None:
        async with asyncio.timeout(BOUND):
            await self._peer.asked.wait()
        assert not attempt.done()


class TestStatic(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return StaticExecutor(TypeAdapter(StaticSpec).validate_python({"type": "static", "result": {"a": 1}}))


class TestStaticThatFails(ExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return StaticExecutor(TypeAdapter(StaticSpec).validate_python({"type": "static", "error": "closed"}))


class TestStaticThatTakesLong(HangingExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return StaticExecutor(StaticSpec(type="static", delay=timedelta(hours=1)))


class TestPython(ExecutorSuite):
    function = "echo"

    def make(self) -> AbstractAsyncContextManager[Executor]:
        return PythonExecutor(PythonSpec(type="python", call=f"tests.executors.python_tools:{self.function}"))


class TestPythonThatReports(TestPython):
    reports = True
    function = "reports"


class TestPythonThatRaises(TestPython):
    function = "rambles"


class TestPythonThatFloods(TestPython):
    answer_limit = 4_096
    function = "flood"


class TestPythonThatAnswersNonsense(TestPython):
    function = "dates"


class TestPythonThatHangs(HangingExecutorSuite):
    def make(self) -> AbstractAsyncContextManager[Executor]:
        return PythonExecutor(PythonSpec(type="python", call="tests.executors.python_tools:sleeps"))


class TestPythonThatIgnoresItsCancel(ExecutorSuite):
    patience = timedelta(milliseconds=20)

    def make(self) -> AbstractAsyncContextManager[Executor]:
        return PythonExecutor(PythonSpec(type="python", call="tests.executors.python_tools:stubborn"))
