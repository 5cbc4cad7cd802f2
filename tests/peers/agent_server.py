"""A real agent-server in a process of its own, with its local workspace and without Docker."""

import asyncio
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.pace import PATIENCE
from tests.ports import free_port
from tests.reaper import MARK
from tests.scenarios.environment import plain_http, until

KEY = "session-canary-7Kd2"
_STARTING = 3 * PATIENCE


@dataclass
class AgentServer:
    """A server of one version; after `kill`, `start` serves the same conversations on the same port."""

    python: Path
    packages: Path
    folder: Path
    version: str
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """Further variables of its environment."""
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "agent-server.log"

    @property
    def sequenced(self) -> bool:
        """Whether it has the session socket (OV1)."""
        return tuple(map(int, self.version.split(".")[:2])) >= (1, 45)

    def start(self) -> None:
        """Start it; `ready` waits until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ("-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(self.port))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.python, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env=self._environment(),
            )

    async def ready(self) -> None:
        await until(self._answers, within=_STARTING)

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def client(self) -> httpx.AsyncClient:
        headers = {"X-Session-API-Key": KEY}
        # A server may close the connection of its last answer at any time.
        transport = httpx.AsyncHTTPTransport(retries=1)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, transport=transport)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            MARK: os.environ.get(MARK, ""),
            "HOME": str(self.folder),
            "PYTHONPATH": str(self.packages),
            # Its terminals are sessions of tmux, which are apart from those of another server and end with this one.
            "TMUX_TMPDIR": str(self.folder),
            "OH_SESSION_API_KEYS_0": KEY,
            "OH_SECRET_KEY": "secret-of-the-server",
            "OH_CONVERSATIONS_PATH": str(self.folder / "conversations"),
            "OH_WORKSPACE_PATH": str(self.folder / "project"),
            "OH_BASH_EVENTS_DIR": str(self.folder / "bash_events"),
            "OH_ENABLE_VSCODE": "false",
            "OH_PRELOAD_TOOLS": "false",
            "OPENHANDS_AGENT_SERVER_CONFIG_PATH": str(self.folder / "none.json"),
            "OPENHANDS_SUPPRESS_BANNER": "1",
            # Otherwise it fetches prices from outside.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            **self.settings,
        }

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]
        try:
            async with plain_http() as http:
                if (await http.get(f"{self.url}/ready")).status_code != 200:
                    return False
                # Another process may have taken the port meanwhile.
                answer = await http.get(f"{self.url}/server_info")
                return answer.status_code == 200 and answer.json().get("version") == self.version
        except httpx.TransportError:
            # Not every process listens at once.
            await asyncio.sleep(0.2)
            return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(PATIENCE)
        tmux = shutil.which("tmux") or "tmux"
        # Newer servers name the socket of their terminals by themselves.
        for terminals in self.folder.glob("tmux-*/*"):
            command = [tmux, "-S", terminals, "kill-server"]
            subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)
