"""The behavior of a simulated agent-server in the points in which real ones differ, or are too slow for tests."""

from dataclasses import dataclass
from datetime import timedelta

NEWEST = "1.58.2"


@dataclass(frozen=True, slots=True)
class Manners:
    """The version of the server, its times and its limits; the defaults are measured."""

    version: str = NEWEST
    ending: timedelta = timedelta(milliseconds=60)
    """The time from the status at the end of a run to its `full_state`; accepts in it are lost."""
    before_replay: timedelta = timedelta(milliseconds=20)
    """The time from a subscription at the events socket to its replay; live events come before it, and again in it."""
    first_frame: timedelta = timedelta(seconds=10)
    """The time limit of the frame that authenticates."""
    mcp_limit: timedelta = timedelta(seconds=300)
    """The time limit of an MCP call; a cut event stream hangs until then."""
    mcp_listing: timedelta = timedelta(seconds=30)
    """The time limit of the list of an MCP server's tools."""
    runs: int = 10
    """The number of conversations that may run at once; another run gets 429."""
    subscribers: int = 50
    """The number of sockets of one conversation."""
    biggest_event: int = 4 * 1024**2
    """The size in bytes above which an event closes the session socket."""
    waiting_bytes: int = 16 * 1024**2
    """The size of unsent events that closes the session socket."""
    acp_cancel: timedelta = timedelta(seconds=2.1)
    """The time that the end of a canceled turn of an ACP agent takes."""
    acp_end: timedelta = timedelta(seconds=2)
    """The time from the last words of an ACP agent to the end of its turn."""
    acp_http: bool = True
    """Whether the custom ACP agent can reach MCP servers over HTTP; without it they are dropped silently."""
    proxied: bool = False
    """Whether conversations run in containers: inner close codes become 1000, and an unknown conversation 1008."""

    @property
    def minor(self) -> tuple[int, int]:
        """The first two numbers of the version."""
        first, second = self.version.split(".")[:2]
        return int(first), int(second)

    @property
    def wraps_mcp(self) -> bool:
        """Whether `mcp_config` has the servers in `mcpServers`."""
        return tuple(int(part) for part in self.version.split(".")[:3]) < (1, 31, 2)

    @property
    def has_session_socket(self) -> bool:
        """Whether the server numbers its events."""
        return self.minor >= (1, 45)

    @property
    def has_interrupt(self) -> bool:
        """Whether the server has `/interrupt`."""
        return self.minor >= (1, 23)

    @property
    def capabilities(self) -> list[str]:
        """The list of `/server_info`; empty before 1.44."""
        return ["idempotent_conversation_create_v1"] if self.minor >= (1, 45) else []
