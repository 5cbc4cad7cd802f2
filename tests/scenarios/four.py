"""One gateway in front of a simulated runtime of each protocol."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.testing.runtimes.herm.server import HermServer
from gateway.testing.runtimes.huma.server import HumaServer
from gateway.testing.runtimes.openhands.server import OpenHandsServer
from tests.scenarios.environment import AGENT_KEY, Running
from tests.scenarios.fleet import (
    ADA,
    HERM_KEY,
    OPENHANDS_KEY,
    WORK,
    Environment,
    base,
    herm_options,
    openhands_options,
)
from tests.scenarios.hooks import Hooks

RUNTIMES = ("lena", "finn", "ada", "work")


@dataclass
class Four(Environment):
    """An environment with one runtime of each kind."""

    older: HumaServer = field(kw_only=True)
    newer: HumaServer = field(kw_only=True)
    herm: HermServer = field(kw_only=True)
    openhands: OpenHandsServer = field(kw_only=True)

    def heard(self, runtime: str) -> list[Any]:
        """All that a runtime was told, as it came over the wire."""
        match runtime:
            case "lena":
                return [one.payload for one in self.older.agent("lena").received]
            case "finn":
                return [one.payload for one in self.newer.agent("finn").received]
            case "ada":
                return [one.payload for one in self.herm.session(ADA).received]
            case _:
                return [one.payload for one in self.openhands.conversation(WORK).received]

    def violations(self) -> list[str]:
        """All rules of protocols that were broken."""
        sessions = (
            self.older.agent("lena"),
            self.newer.agent("finn"),
            self.herm.session(ADA),
            self.openhands.conversation(WORK),
        )
        return [line for session in sessions for line in session.violations]


@asynccontextmanager
async def four(folder: Path) -> AsyncGenerator[Four]:
    async with (
        HumaServer("0.1", api_key=AGENT_KEY) as older,
        HumaServer("0.2", api_key=AGENT_KEY) as newer,
        HermServer(api_key=HERM_KEY) as herm,
        OpenHandsServer(session_api_key=OPENHANDS_KEY) as openhands,
        Hooks() as hooks,
    ):
        made = Four(
            folder, hooks, "finn", base(folder, hooks), older=older, newer=newer, herm=herm, openhands=openhands
        )
        huma = {"api_key": AGENT_KEY, "delivery_window": "50ms", "refusal_grace": "20ms"}
        for peer, name in ((older, "lena"), (newer, "finn")):
            peer.agent(name)
        herm.session(ADA)
        made.configure({"runtimes": {
            "lena": {"adapter": "huma-0.1", "url": older.url, "agent_id": "lena", **huma},
            "finn": {"adapter": "huma-0.2", "url": newer.url, "agent_id": "finn", **huma},
            "ada": herm_options(herm),
            # What is not confirmed in time counts as unknown, and a busy machine takes its time.
            "work": {**openhands_options(openhands), "ack_timeout": "10s"},
        }})  # fmt: skip
        yield made


async def all_up(gateway: Running) -> dict[str, Running]:
    each = {name: replace(gateway, runtime=name) for name in RUNTIMES}
    for one in each.values():
        await one.wait_link("up")
    return each
