"""Makes the files of `dragoman init`, and the commands that start them."""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from gateway.cli.choices import BackendChoice, RuntimeChoice

_FIRST_CALL: dict[str, Any] = {"rank": "7"}
_TEMPLATES = files("gateway.cli") / "templates"


@dataclass(frozen=True, slots=True)
class _Agent:
    title: str
    variable: str
    """The name of its key in `.env`."""
    explained: str
    simulator: str
    """The module of its simulator, with options."""


@dataclass(frozen=True, slots=True)
class StarterFile:
    """One file: its text and its purpose."""

    text: str
    purpose: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class StartCommand:
    """One command and its purpose."""

    purpose: str
    lines: tuple[str, ...]


_KNOWS_REPEATS = """\
    # The kit detects repeats by their key, so a request that may have arrived may be repeated.
    idempotent: true
"""
_SIMULATED = "the simulator's; replace it with your runtime's"
_AGENTS = {
    RuntimeChoice.HUMA_0_2: _Agent("HUMA 0.2.0", "HUMA_API_KEY", _SIMULATED, "huma --dialect 0.2 --port 9002"),
    RuntimeChoice.HUMA_0_1: _Agent("HUMA 0.1", "HUMA_API_KEY", _SIMULATED, "huma --dialect 0.1 --port 9002"),
    RuntimeChoice.OPENHANDS: _Agent("OpenHands", "OPENHANDS_KEY", _SIMULATED, "openhands --port 9002"),
    RuntimeChoice.OPENHANDS_V1: _Agent("OpenHands V1", "OPENHANDS_KEY", _SIMULATED, "openhands_v1 --port 9002"),
    RuntimeChoice.HERM: _Agent("Herm", "HERM_API_KEY", _SIMULATED, "herm --port 9002"),
    RuntimeChoice.MCP: _Agent("MCP", "MCP_TOKEN", "identifies your MCP client", "mcp"),
}


def files_of(runtime: RuntimeChoice, backend: BackendChoice) -> Mapping[str, StarterFile]:
    """Make the files, with new secrets."""
    title = "an MCP client" if runtime is RuntimeChoice.MCP else f"a {_AGENTS[runtime].title} agent"
    made = {
        "gateway.yaml": StarterFile(_configuration(runtime, backend), f"the gateway between {title} and your backend")
    }
    match backend:
        case BackendChoice.FASTAPI:
            made["backend.py"] = StarterFile(_template("backend.py"), "your backend: one tool, in FastAPI")
        case BackendChoice.EXPRESS:
            made["backend.mjs"] = StarterFile(_template("backend.mjs"), "your backend: one tool, in express")
            made["package.json"] = StarterFile(_template("package.json"), "the libraries of the backend")
    made[".env"] = StarterFile(_environment(_AGENTS[runtime]), "new secrets; readable only by you", secret=True)
    return made


def gitignore() -> StarterFile:
    """Make the file that keeps secrets and databases out of git."""
    return StarterFile(_template("gitignore"), "keeps secrets and databases out of git")


def commands_of(runtime: RuntimeChoice, backend: BackendChoice) -> tuple[StartCommand, StartCommand, StartCommand]:
    """List the commands that start backend, gateway and agent, in this order; the agent calls the first tool."""
    call = f"--call ask_for_cards '{json.dumps(_FIRST_CALL)}'"
    simulator = f"python -m gateway.testing.runtimes.{_AGENTS[runtime].simulator}"
    caller = "an MCP client" if runtime is RuntimeChoice.MCP else "a simulated agent"
    return (
        StartCommand(
            "the backend",
            ("uvicorn backend:app --port 9000 --env-file .env",)
            if backend is BackendChoice.FASTAPI
            else ("npm install --no-fund --no-audit && node --env-file=.env backend.mjs",),
        ),
        StartCommand("the gateway", ("dragoman serve",)),
        StartCommand(f"{caller}, which calls the backend", (f"{simulator} \\", f"  --env-file .env {call}")),
    )


def _configuration(runtime: RuntimeChoice, backend: BackendChoice) -> str:
    text = _template("gateway.yaml").replace("#RUNTIME#\n", _template(f"runtimes/{runtime}.yaml"))
    match backend:
        case BackendChoice.FASTAPI:
            return text.replace("#IDEMPOTENT#\n", _KNOWS_REPEATS)
        case BackendChoice.EXPRESS:
            return text.replace("#IDEMPOTENT#\n", "")


def _environment(agent: _Agent) -> str:
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    return (
        "# Secrets: keep this file out of git. Variables that are already set win over this file.\n\n"
        "# API key of the gateway, for `dragoman send` and your own clients.\n"
        f"DRAGOMAN_KEY={secrets.token_urlsafe(32)}\n"
        "# Signs the gateway's requests to the backend.\n"
        f"CARDS_SECRET=whsec_{secret}\n"
        f"# The key of {agent.title}: {agent.explained}.\n"
        f"{agent.variable}={secrets.token_urlsafe(32)}\n"
    )


def _template(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")
