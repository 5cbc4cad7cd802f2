"""Takes a stream of server-sent events apart, within a bound. Pure.

By hand: the events of httpx-sse may grow without end, and repeat the last id where they have none of their own.
"""

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Block:
    """One event of a stream."""

    event: str
    data: bytes
    id: str | None
    """Its own; None where it has none."""


class BlockReader:
    """Makes blocks of the bytes of one stream; lines end with LF or CRLF."""

    def __init__(self, most: int) -> None:
        """Make one that keeps no more than so many bytes of a block that has not ended."""
        self.retry: float | None = None
        """Seconds to wait before a reconnect, once the stream has said so."""
        self._most = most
        self._pieces: list[bytes] = []
        """Of a line that has not ended."""
        self._kept = 0
        """How many bytes they have."""
        self._told = 0
        """How many bytes the lines of data had that came before, in a block that has not ended."""
        self._begun = False
        self._event, self._id = "", None
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[Block]:
        """Take what came next, and return the blocks that end in it; those without data are left out.

        Raises:
            ValueError: a block is larger than the bound.
        """
        found: list[Block] = []
        self._kept += len(piece)
        if b"\n" in piece:
            *lines, rest = b"".join((*self._pieces, piece)).split(b"\n")
            self._pieces = [rest]
            if not self._begun:
                # Of the first line and not of the first piece, which may end in the middle of it.
                self._begun, lines[0] = True, lines[0].removeprefix(_BOM)
            for line in lines:
                found += self._take(line.removesuffix(b"\r"))
            self._kept = len(rest)
        else:
            self._pieces.append(piece)
        if self._kept + self._told > self._most:
            raise ValueError(f"an event of the stream is over {self._most} bytes")
        return found

    def _take(self, line: bytes) -> list[Block]:
        if not line:
            ended = [Block(self._event or "message", b"\n".join(self._data), self._id)] if self._data else []
            self._event, self._id, self._data, self._told = "", None, [], 0
            return ended
        # A comment, such as a heartbeat, is a line whose field has no name.
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
                self._told += len(line)
            case b"event":
                self._event = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) < 10:
                self.retry = int(value) / 1000
            case _:
                pass
        return []
