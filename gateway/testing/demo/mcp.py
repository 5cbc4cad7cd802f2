"""The demo's MCP client: the official client, which connects to the gateway and calls the same tools."""

import asyncio
import json
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import mcp_types as types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from gateway.testing.demo.environment import MCP_CLIENT, Environment
from gateway.testing.demo.player import WAIT, Ask, Player, Told
from gateway.testing.demo.report import Report, Unmet, expect
from gateway.testing.demo.tools import Game, check_journal
from gateway.testing.http_wire import NotingTransport

KEY = "dragoman/key"


class McpAsk:
    """A call of an MCP client, with an idempotency key."""

    def __init__(self, side: "McpSide", tool: str, arguments: dict[str, Any]) -> None:
        self.tool = tool
        self.mark = uuid4().hex
        self.native_id = f"caller:mcp client:{self.mark}"
        self.latency: timedelta | None = None
        self.answers: list[Any] = []
        self.progress: list[str | None] = []
        self._side = side
        self._arguments = arguments
        self._began = time.monotonic()
        self.waiting = asyncio.create_task(self._call())

    async def outcome(self, within: float = WAIT) -> Told:
        async with asyncio.timeout(within):
            result = await self.waiting
        texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
        # The updates come first, the result is last.
        return Told("failure" if result.is_error else "success", texts[-1])

    async def fails(self) -> bool:
        """Wait for the end of the request; return whether it failed without a response."""
        async with asyncio.timeout(WAIT):
            await asyncio.wait({self.waiting})
        return self.waiting.cancelled() or self.waiting.exception() is not None

    def repeat(self) -> None:
        """Repeat the call with the same key."""
        self.waiting = asyncio.create_task(self._call())

    async def _call(self) -> types.CallToolResult:
        result = await self._side.client.call_tool(
            self.tool, self._arguments, meta={KEY: self.mark}, progress_callback=self._note_progress
        )
        if self.latency is None:
            self.latency = timedelta(seconds=time.monotonic() - self._began)
        self.answers.append(result.model_dump(mode="json"))
        return result

    async def _note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        self.progress.append(message)


class McpSide:
    """A client with its own token; its first request opens its session."""

    def __init__(self, environment: Environment, report: Report) -> None:
        self.player = Player(environment, report, "mcp")
        self.game = Game(self.player, self._ask)
        self._client: Client | None = None
        self._connected = asyncio.Event()
        self._leaving = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._open: list[McpAsk] = []

    @property
    def client(self) -> Client:
        """The client.

        Raises:
            Unmet: it is not connected.
        """
        if self._client is None:
            raise Unmet("the client is not connected")
        return self._client

    async def connect(self) -> None:
        async with self.player.step("an MCP client connects, lists tools") as note:
            await self._begin()
            session = await self.player.find_session()
            expect(session["native_id"] == MCP_CLIENT, f"the session is {session['native_id']}'s")
            tools = {tool.name for tool in (await self.client.list_tools()).tools}
            expect({"ask_for_cards", "deal_later"} <= tools, f"the tools are {sorted(tools)}")
            note.say(f"{len(tools)} tools, protocol mcp/{self.client.protocol_version}")

    async def ask_for_cards(self) -> None:
        async with self.player.step("a call, updates first") as note:
            ask, result = await self.game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(result.outcome == "success", f"failed: {result.text}")
            blocks = [block["text"] for block in ask.answers[0]["content"]]
            expect(len(blocks) == 2 and "cards-asked" in blocks[0], f"expected the update first, got {blocks}")
            hand = self.player.environment.backend.games[self.player.session_id].view()["yourHand"]
            expect(json.dumps(hand, separators=(",", ":")) in blocks[0], "the update contains an outdated hand")
            note.say(result.text, ask.latency)

    async def play(self) -> None:
        """Play the steps before the crash."""
        await self.game.make_illegal_move()
        await self.game.make_two_calls()
        await self.send_invalid_arguments()
        await self.call_unknown_tool()
        await self.game.retry_after_503()
        await self.receive_progress()
        await self.repeat_call()

    async def send_invalid_arguments(self) -> None:
        async with self.player.step("invalid arguments") as note:
            before = await self._calls()
            result = await self.client.call_tool("ask_for_cards", {"targetPlayer": 7, "rank": "7"})
            block = result.content[0]
            expect(result.is_error is True and isinstance(block, types.TextContent), "it was not refused")
            assert isinstance(block, types.TextContent)
            expect("/targetPlayer" in block.text, f"the error does not contain the path: {block.text}")
            expect(await self._calls() == before, "a call was recorded")
            note.say(block.text)

    async def call_unknown_tool(self) -> None:
        async with self.player.step("an unknown tool") as note:
            before = await self._calls()
            try:
                await self.client.call_tool("juggle", {"balls": 3})
            except MCPError as exc:
                expect("juggle" in exc.message, f"the error does not contain the tool's name: {exc.message}")
                note.say(f"error {exc.code}: {exc.message}")
            else:
                raise Unmet("it was not refused")
            expect(await self._calls() == before, "a call was recorded")

    async def receive_progress(self) -> None:
        async with self.player.step("202, progress, callback") as note:
            ask = McpAsk(self, "deal_later", {})
            self.player.asked.append(ask)
            result = await ask.outcome()
            expect(result.outcome == "success", f"failed: {result.text}")
            expect(any("50" in (message or "") for message in ask.progress), f"the progress is missing: {ask.progress}")
            note.say(f"{result.text}; the client received the progress", ask.latency)

    async def repeat_call(self) -> None:
        async with self.player.step("a repeat with the same key") as note:
            ask = McpAsk(self, "send_message", {"message": "Got any 7s?"})
            self.player.asked.append(ask)
            await ask.outcome()
            ask.repeat()
            result = await ask.outcome()
            expect(ask.answers[0] == ask.answers[1], "the repeat has another outcome")
            executed = self.player.environment.backend.records.executions[await self.player.key_of(ask)]
            expect(executed == 1, f"it was executed {executed} times")
            note.say(f"{result.text}: executed once, delivered twice", ask.latency)

    # Around the crash

    async def start_calls(self) -> int:
        first, second = await self.game.start_calls()
        self._open = [each for each in (first, second) if isinstance(each, McpAsk)]
        return 2

    async def work_offline(self) -> None:
        """Check that the open requests failed, and disconnect."""
        for ask in self._open:
            expect(await ask.fails(), f"{ask.tool} got a result from a dead gateway")
        await self.end()

    async def wait_reconnected(self) -> None:
        await self._begin()

    async def check_calls_after_crash(self) -> None:
        """Repeat the calls with the same keys; they have continued without their caller."""
        for ask in self._open:
            ask.repeat()
        if len(self._open) == 2:
            await self.game.check_calls_after_crash(self._open[0], self._open[1])

    async def check_game(self) -> None:
        await self.game.check_game()
        await check_journal(self.player)

    async def end(self) -> None:
        """Disconnect."""
        self._leaving.set()
        if self._living is not None:
            # A connection error has already failed the steps that used it.
            waiting = [ask.waiting for ask in self.player.asked if isinstance(ask, McpAsk)]
            await asyncio.gather(self._living, *waiting, return_exceptions=True)

    # Helpers

    async def _begin(self) -> None:
        """Open a new connection in its own task."""
        self._connected.clear()
        self._leaving.clear()
        self._living = asyncio.create_task(self._live())
        connected = asyncio.create_task(self._connected.wait())
        await asyncio.wait({self._living, connected}, return_when=asyncio.FIRST_COMPLETED)
        connected.cancel()
        if self._living.done():
            raise Unmet(f"no connection: {self._living.exception()!r}")

    async def _live(self) -> None:
        environment = self.player.environment
        transport = NotingTransport(environment.wires["mcp"])
        headers = {"Authorization": f"Bearer {environment.mcp_token}"}
        http = httpx2.AsyncClient(headers=headers, timeout=60, transport=transport, trust_env=False)
        async with http, Client(streamable_http_client(environment.mcp_url, http_client=http)) as client:
            self._client = client
            self._connected.set()
            await self._leaving.wait()

    async def _calls(self) -> int:
        listed = await self.player.environment.get("/v1/calls", session_id=self.player.session_id, limit=100)
        return len(listed["data"])

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return McpAsk(self, tool, arguments)
