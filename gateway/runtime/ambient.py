"""The state of one gateway that code far below it needs: codecs, links, callbacks of the loop, lines of the log."""

from dataclasses import dataclass, field

from gateway.guard import FAULTS, Faults
from gateway.links.frame_memory import FRAMES, FrameMemory
from gateway.links.names import LOOKUPS, Lookups
from gateway.log_limit import LIMIT, LogLimit
from gateway.strict_json import MEMBERS, Members


@dataclass(frozen=True, slots=True)
class Ambient:
    """Code finds it in its context, as a line of the log finds its session; tasks, timers and threads inherit it."""

    faults: Faults
    log_limit: LogLimit = field(default_factory=LogLimit)
    frames: FrameMemory = field(default_factory=FrameMemory)
    members: Members = field(default_factory=Members)
    lookups: Lookups = field(default_factory=Lookups)

    @classmethod
    def here(cls) -> "Ambient":
        """Return what this context has now."""
        return cls(FAULTS.get(), LIMIT.get(), FRAMES.get(), MEMBERS.get(), LOOKUPS.get())

    def bind(self) -> None:
        """Put this state into the running context and into all that are copied from it later."""
        FAULTS.set(self.faults)
        LIMIT.set(self.log_limit)
        FRAMES.set(self.frames)
        MEMBERS.set(self.members)
        LOOKUPS.set(self.lookups)
