"""The demo's environment: simulated runtimes, the sample backend, and a real gateway process between them."""

import asyncio
import base64
import errno
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from gateway.testing.backend import Backend
from gateway.testing.demo.report import Unmet
from gateway.testing.runtimes.herm.server import HermServer
from gateway.testing.runtimes.huma.server import HumaServer, Manners
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from gateway.testing.runtimes.openhands_v1.server import AGENT, AgentServer
from gateway.testing.serving import LOOPBACK, Served
from gateway.testing.wire import Wire

STOP_LIMIT = 60.0
"""More than the gateway's own limit of a drain."""
WAIT_SHOWN = 2.0
"""Seconds between two lines about a gateway that is not ready."""
RUNTIMES = {
    "huma 0.1": "finn-0.1",
    "huma 0.2": "finn-0.2",
    "openhands": "coder",
    "herm": "ada",
    "mcp": "desk",
}
V1 = "openhands v1"
EXTRA = {"openhands-v1": {V1: "builder"}}
"""The further runtimes, by their choice: their names in the YAML, by their labels in the report."""
HERM_AGENT, MCP_CLIENT = "agent", "joan"
GREETING = "Hello! Whose turn is it?"
FAREWELL = "Thanks for the game."


PARTS = ("gateway", "backend", "huma 0.1", "huma 0.2", "openhands", "herm")
"""The listening parts, in the order of their ports if `--port` is given."""


def parts_with(extra: Collection[str]) -> tuple[str, ...]:
    """Return the listening parts, with those of further runtimes."""
    return (*PARTS, *(label for name in EXTRA if name in extra for label in EXTRA[name]))


def check_ports(host: str, port: int, parts: Sequence[str] = PARTS) -> None:
    """Check that all parts can listen, because another program on a port would be taken for a part of the demo.

    Raises:
        OSError: a port is in use, or the host is not an address of this machine; the text has a fix.
    """
    for number, part in enumerate(parts):
        own_port = port + number if port else 0
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, own_port))
            except OSError as exc:
                if exc.errno == errno.EADDRINUSE:
                    text = (
                        f"port {own_port} of {host} is in use, and the demo's {part} needs it; pass a --port that is "
                        f"free together with the next {len(parts) - 1}, or omit it to use free ports"
                    )
                else:
                    at = f"port {own_port} of {host}" if port else host
                    text = f"the demo cannot listen on {at} ({exc.strerror}); pass another --host or --port"
                raise OSError(exc.errno, text) from exc


class Environment:
    """All parts of the demo, by default on free loopback ports; the files are in a temporary folder."""

    def __init__(self, *, host: str = LOOPBACK, port: int = 0, extra: Collection[str] = ()) -> None:
        self.host = host
        ports = {part: port + number if port else 0 for number, part in enumerate(parts_with(extra))}
        self.runtimes = RUNTIMES | {
            label: name for each in EXTRA if each in extra for label, name in EXTRA[each].items()
        }
        """Names in the YAML, by their labels in the report."""
        self.folder = Path(tempfile.mkdtemp(prefix="dragoman-demo-"))
        self.config = self.folder / "gateway.yaml"
        self.log = self.folder / "gateway.log"
        self.api_key = secrets.token_urlsafe(24)
        self.wires = {label: Wire() for label in self.runtimes}
        """The recorded traffic of each runtime."""
        self.huma = {
            "0.1": HumaServer(
                "0.1",
                api_key=secrets.token_urlsafe(12),
                host=host,
                port=ports["huma 0.1"],
                wire=self.wires["huma 0.1"],
            ),
            # Like a real agent, it cancels open calls when an update wakes it.
            "0.2": HumaServer(
                "0.2",
                api_key=secrets.token_urlsafe(12),
                host=host,
                port=ports["huma 0.2"],
                manners=Manners(interrupts=True),
                wire=self.wires["huma 0.2"],
            ),
        }
        self.openhands = OpenHandsServer(
            session_api_key=secrets.token_urlsafe(12), host=host, port=ports["openhands"], wire=self.wires["openhands"]
        )
        self.agent_server = (
            AgentServer(session_api_key=secrets.token_urlsafe(12), host=host, port=ports[V1], wire=self.wires[V1])
            if V1 in ports
            else None
        )
        """The server of `--with openhands-v1`."""
        self.herm = HermServer(
            api_key=secrets.token_urlsafe(12), host=host, port=ports["herm"], wire=self.wires["herm"]
        )
        self.mcp_token = secrets.token_urlsafe(24)
        self.greeting = GREETING
        self.farewell = FAREWELL
        self._secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
        self.backend = Backend(self._secret)
        self.backend_wire = Wire()
        self.backend_served = Served(self.backend.app, host=host, port=ports["backend"], wire=self.backend_wire)
        self.port = ports["gateway"] or _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mcp_url = f"{self.url}/mcp/r/{RUNTIMES['mcp']}"
        self.http = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self.api_key}"}, timeout=10, trust_env=False
        )
        self.process: asyncio.subprocess.Process | None = None
        self.started_at = self.killed_at = 0.0
        """The times of the gateway's last start and kill, in seconds of the monotonic clock."""

    @property
    def runs(self) -> bool:
        """Whether the gateway's process is alive."""
        return self.process is not None and self.process.returncode is None

    async def start_gateway(self, show_waiting: Callable[[str], None]) -> None:
        """Start `dragoman serve` and wait until it is ready, as long as its process lives: a busy machine is slow.

        Raises:
            Unmet: it ended.
        """
        listening = ["--host", self.host, "--port", str(self.port)]
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self.config), *listening]
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            # In its own session, it does not receive Ctrl-C of the terminal, so the demo can stop it in order.
            self.process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        shown = self.started_at
        while not await self._is_ready():
            if self.process.returncode is not None:
                raise Unmet(f"the gateway ended with code {self.process.returncode}: {self.last_words()}")
            if (now := time.monotonic()) >= shown + WAIT_SHOWN:
                shown = now
                show_waiting(
                    f"not ready after {now - self.started_at:.0f} s; waiting while process {self.process.pid} runs"
                )
            await asyncio.sleep(0.05)

    async def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL."""
        assert self.process is not None
        self.killed_at = time.monotonic()
        self.process.kill()
        async with asyncio.timeout(STOP_LIMIT):
            await self.process.wait()

    async def stop_gateway(self) -> int:
        """Stop the gateway with SIGTERM, or with SIGKILL after a timeout; return its exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_LIMIT):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            return await self.process.wait()

    async def get(self, path: str, **query: str | int) -> Any:
        """Read from the gateway's API.

        Raises:
            Unmet: the response is a problem.
        """
        return _content_of(await self.http.get(path, params=query))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Write to the gateway's API.

        Raises:
            Unmet: the response is a problem.
        """
        return _content_of(await self.http.post(path, json=body))

    def addresses(self) -> dict[str, str]:
        """Return the addresses of all parts."""
        return {
            "gateway": self.url,
            "ui": f"{self.url}/ui",
            "backend": self.backend_served.url,
            **{f"huma {dialect}": server.url for dialect, server in self.huma.items()},
            "openhands": self.openhands.url,
            "herm": self.herm.url,
            **({} if self.agent_server is None else {V1: self.agent_server.url}),
            "mcp": self.mcp_url,
            "files": str(self.folder),
        }

    def last_words(self) -> str:
        """Return the end of the gateway's log."""
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return text[-600:] or "(it logged nothing)"

    async def __aenter__(self) -> Self:
        await self.backend_served.start()
        for dialect, server in self.huma.items():
            await server.start()
            server.agent(RUNTIMES[f"huma {dialect}"])
        await self.openhands.start()
        await self.herm.start()
        if self.agent_server is not None:
            await self.agent_server.start()
        # The file holds keys, and only this person's.
        self.config.touch(mode=0o600)
        self.config.write_text(yaml.safe_dump(self._settings(), sort_keys=False, width=120))
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.runs:
            # Shielded: a second Ctrl-C must not leave the process behind.
            await asyncio.shield(self.stop_gateway())
        await self.http.aclose()
        for server in (*self.huma.values(), self.openhands, self.herm, self.agent_server):
            if server is not None:
                await server.__aexit__()
        await self.backend_served.stop()

    def remove(self) -> None:
        """Remove the folder with the configuration, the database and the log."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _settings(self) -> dict[str, Any]:
        backend = self.backend_served.url
        webhook = {"type": "webhook", "secret": self._secret, "timeout": "5s", "backoff": {"initial": "100ms"}}
        cards = {**webhook, "url": f"{backend}/tools"}
        return {
            "public_url": self.url,
            "api": {"keys": [{"name": "demo", "key": self.api_key, "scopes": ["read", "drive", "operate", "answer"]}]},
            "engine": {"type": "sqlite", "path": str(self.folder / "dragoman.db")},
            "tools": TOOLS,
            "runtimes": self._runtime_settings(),
            "executors": {
                "cards": {**cards, "idempotent": True},
                "once": {**cards, "idempotent": False},
                "chat": {**webhook, "url": f"{backend}/messages", "idempotent": True},
                "policy": {**webhook, "url": f"{backend}/policy", "idempotent": True},
            },
            "destinations": {"log": {"url": f"{backend}/events", "secret": self._secret}},
            "routes": [
                {"match": {"tool": "pay_once"}, "to": "once"},
                *({"match": {"tool": tool}, "to": "cards"} for tool in TOOLS if tool != "pay_once"),
                {"match": {"event": "approval.asked"}, "to": "policy"},
                {"match": {"runtime": RUNTIMES["huma 0.2"], "event": "message.posted"}, "to": "chat", "copy_to": "log"},
                {"match": {"event": "tool.*"}, "copy_to": "log"},
            ],
        }

    def _runtime_settings(self) -> dict[str, Any]:
        agents = {dialect: RUNTIMES[f"huma {dialect}"] for dialect in self.huma}
        coder = {"adapter": "openhands", "url": self.openhands.url, "session_api_key": self.openhands.session_api_key}
        ada = {"adapter": "herm", "url": self.herm.url, "api_key": self.herm.api_key, "agent_id": HERM_AGENT}
        made: dict[str, dict[str, Any]] = {
            **{
                agents[dialect]: {
                    "adapter": f"huma-{dialect}",
                    "url": server.url,
                    "api_key": server.api_key,
                    "agent_id": agents[dialect],
                    # An unconfirmed message is sent again after a reconnect, which would interrupt the agent's calls;
                    # on loopback half a second without an error is enough to confirm it.
                    "delivery_window": "500ms",
                }
                for dialect, server in self.huma.items()
            },
            # These two have no session yet, so the gateway creates one each and keeps it.
            RUNTIMES["openhands"]: {**coder, "conversation": {}, "autostart": True},
            RUNTIMES["herm"]: {**ada, "autostart": True},
            # A client with this token has a session.
            RUNTIMES["mcp"]: {"adapter": "mcp", "clients": [{"name": MCP_CLIENT, "token": self.mcp_token}]},
        }
        if self.agent_server is not None:
            key = self.agent_server.session_api_key
            agent = {"kind": "openhands", "llm": {"model": AGENT["llm"]["model"]}}
            built = {"adapter": "openhands-v1", "url": self.agent_server.url, "session_api_key": key}
            made[self.runtimes[V1]] = {**built, "conversation": {"agent": agent}, "autostart": True}
        return {name: {**options, "keep_native": True} for name, options in made.items()}

    async def _is_ready(self) -> bool:
        try:
            return (await self.http.get("/readyz", timeout=2)).status_code == 200
        except httpx.TransportError:
            return False


def _tool(description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"description": description, "parameters": schema}


_SECONDS = {"type": "number", "minimum": 0, "maximum": 60, "description": "How long it takes."}
TOOLS = {
    "ask_for_cards": _tool(
        "Ask another player for all cards of a rank that you hold yourself.",
        targetPlayer={"type": "string", "description": "The player's name."},
        rank={"type": "string", "enum": [*"23456789", "10", *"JQKA"], "description": "The rank."},
    ),
    "send_message": _tool(
        "Say something to the whole table.", message={"type": "string", "minLength": 1, "description": "The message."}
    ),
    "slow_thing": _tool("Take some time; harmless to repeat.", seconds=_SECONDS),
    "pay_once": _tool("Pay a chip, which takes some time; must not be repeated.", seconds=_SECONDS),
    "flaky": _tool("Something that is busy at the first attempt."),
    "deal_later": _tool("Have a new round dealt, which takes some time."),
}


def _content_of(answer: httpx.Response) -> Any:
    if answer.is_error:
        raise Unmet(f"{answer.request.method} {answer.request.url.path} → {answer.status_code}: {answer.text[:300]}")
    return answer.json()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
