"""Whole gateways in front of simulated Herm and OpenHands servers, and what their scenarios have in common."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from gateway.runtime.tuning import Tuning
from gateway.store.port import Engine
from gateway.testing.runtimes.herm.server import HermServer, Manners as HermManners, SimSession
from gateway.testing.runtimes.openhands.progress import Manners as OpenHandsManners
from gateway.testing.runtimes.openhands.server import OpenHandsServer, SimConversation
from tests.pace import PATIENCE
from tests.ports import listen_on
from tests.scenarios.environment import API_KEY, QUICK, Found, Running, merge, running, until
from tests.scenarios.hooks import SECRET, Hooks

HERM_KEY = "key_herm-canary-7RtZ"
OPENHANDS_KEY = "oh_session-canary-2WsX"
ADA, WORK = "session_ada", "c0ffee"

TOOLS: dict[str, Any] = {
    "ask": {
        "description": "Ask for cards.",
        "parameters": {
            "type": "object",
            "properties": {"player": {"type": "string"}, "rank": {"type": "string", "enum": ["7", "8", "9"]}},
            "required": ["player", "rank"],
        },
    },
    "free": {"description": "Takes anything."},
}


@dataclass
class Environment:
    """A backend, a configuration, and a gateway that can be started again; `runtime` is the one that is meant."""

    folder: Path
    hooks: Hooks
    runtime: str
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    port: int = 0
    tuning: Tuning = QUICK
    engine: Engine | None = None
    """Instead of the one that is configured."""

    @property
    def config(self) -> Path:
        return self.folder / "gateway.yaml"

    def configure(self, over: Mapping[str, Any]) -> None:
        """Lay something over the configuration, and write the file."""
        self.settings = merge(self.settings, over)
        self.config.write_text(yaml.safe_dump(self.settings, sort_keys=False))

    def options(self, **over: Any) -> None:
        """Lay something over the options of the runtime."""
        self.configure({"runtimes": {self.runtime: over}})

    @asynccontextmanager
    async def running(self, *, linked: bool = True) -> AsyncGenerator[Running]:
        """Run the gateway; on the same port each time."""
        listener = listen_on(self.port)
        self.port = listener.getsockname()[1]
        self.configure({"public_url": f"http://127.0.0.1:{self.port}"})
        with listener:
            async with running(self.config, listener, self.tuning, engine=self.engine) as made:
                gateway = replace(made, runtime=self.runtime)
                if linked:
                    await gateway.wait_link("up")
                yield gateway


@dataclass
class HermEnvironment(Environment):
    """An environment with one Herm session, `ada`."""

    server: HermServer = field(default_factory=HermServer)

    @property
    def agent(self) -> SimSession:
        return self.server.session(ADA)


@dataclass
class OpenHandsEnvironment(Environment):
    """An environment with one OpenHands conversation, `work`."""

    server: OpenHandsServer = field(default_factory=OpenHandsServer)

    @property
    def agent(self) -> SimConversation:
        return self.server.conversation(WORK)


def base(folder: Path, hooks: Hooks) -> dict[str, Any]:
    """Write a configuration without a runtime."""
    return {
        "api": {"keys": [{"name": "backend", "key": API_KEY}]},
        "engine": {"type": "sqlite", "path": str(folder / "dragoman.db")},
        "tools": TOOLS,
        "executors": {
            "cards": {
                "type": "webhook",
                "url": f"{hooks.url}/tools",
                "secret": SECRET,
                "timeout": "3s",
                "idempotent": True,
                "backoff": {"initial": "10ms", "maximum": "20ms"},
            },
        },
        "routes": [{"match": {"tool": "*"}, "to": "cards"}],
        "limits": {"drain": "2s"},
    }


def herm_options(server: HermServer) -> dict[str, Any]:
    """Write the options of a Herm runtime that attaches to `ada`."""
    return {"adapter": "herm", "url": server.url, "api_key": HERM_KEY, "session_id": ADA, "turn_timeout": "200ms"}


def openhands_options(server: OpenHandsServer) -> dict[str, Any]:
    """Write the options of an OpenHands runtime that attaches to `work`."""
    return {
        "adapter": "openhands",
        "url": server.url,
        "session_api_key": OPENHANDS_KEY,
        "conversation_id": WORK,
        "ack_timeout": "500ms",
    }


@asynccontextmanager
async def herm_environment(
    folder: Path, *, manners: HermManners | None = None, server: HermServer | None = None
) -> AsyncGenerator[HermEnvironment]:
    """Set an environment with a Herm server; the gateway itself is started by the test."""
    async with server or HermServer(api_key=HERM_KEY, manners=manners) as herm, Hooks() as hooks:
        made = HermEnvironment(folder, hooks, "ada", base(folder, hooks), server=herm)
        made.configure({"runtimes": {"ada": herm_options(herm)}})
        herm.session(ADA)
        yield made


@asynccontextmanager
async def openhands_environment(
    folder: Path, *, manners: OpenHandsManners | None = None, server: OpenHandsServer | None = None
) -> AsyncGenerator[OpenHandsEnvironment]:
    """Set an environment with an OpenHands server; the gateway itself is started by the test."""
    made_server = server or OpenHandsServer(session_api_key=OPENHANDS_KEY, manners=manners)
    async with made_server as openhands, Hooks() as hooks:
        made = OpenHandsEnvironment(folder, hooks, "work", base(folder, hooks), server=openhands)
        made.configure({"runtimes": {"work": openhands_options(openhands)}})
        yield made


# What tests ask of a running gateway ----------------------------------------------------------------------


async def send(gateway: Running, *events: Mapping[str, Any], status: int = 202) -> list[dict[str, Any]]:
    """Post events to the session; returns what is on record."""
    path = f"/v1/sessions/{await gateway.session()}/events"
    body = dict(events[0]) if len(events) == 1 else {"events": [dict(one) for one in events]}
    answer = await gateway.post(path, body, status=status)
    return answer["data"] if status == 202 else [answer]


def message(text: str) -> dict[str, Any]:
    return {"kind": "message.posted", "content": text}


async def questions(gateway: Running, count: int = 1, *, state: str = "waiting") -> list[dict[str, Any]]:
    """Wait until this many questions are in a state, and list them."""

    async def look() -> list[dict[str, Any]] | None:
        found = (await gateway.get("/v1/interactions", state=state))["data"]
        return found if len(found) >= count else None

    return await until(look)


async def answer(gateway: Running, question: Mapping[str, Any], body: Any, *, status: int = 200) -> Any:
    """Answer a question as a person does."""
    return await gateway.post(f"/v1/interactions/{question['interaction_id']}/answer", body, status=status)


async def fate(gateway: Running, sequence: int, *states: str) -> dict[str, Any]:
    """Wait until what became of a send is on record; plain success is so only where it comes back as an echo."""

    async def look() -> dict[str, Any] | None:
        found = await gateway.events(kind="delivery.settled")
        return next((one["event"] for one in found if one["event"]["sequence"] == sequence), None)

    settled = await until(look)
    assert not states or settled["state"] in states, settled
    return settled


async def delivery(gateway: Running, call_id: str) -> dict[str, Any]:
    """Wait until what became of an outcome is known."""

    async def look() -> dict[str, Any] | None:
        found = (await gateway.get(f"/v1/calls/{call_id}"))["deliveries"]
        return found[0] if found and found[0]["state"] != "pending" else None

    return await until(look)


async def condition(look: Callable[[], Found | None], *, within: float = PATIENCE) -> Found:
    """Wait until something in this process is so."""

    async def asked() -> Found | None:
        return look()

    return await until(asked, within=within)
