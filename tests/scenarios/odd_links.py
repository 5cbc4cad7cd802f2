"""An adapter for HUMA 0.2.0 that misbehaves for the session `odd`, and a tool that takes ten minutes.

`install` lets a gateway process find them. A file tells how a send of a result misbehaves, also while the process runs.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from adapters.huma import HUMA_0_2
from gateway.adapter.port import Adapter, Codec, Connector, Encoded, Frame, Link, Receipt, Receiver
from gateway.events import Draft, Envelope, ToolRequested

ODD = "odd"
"""The session with strange calls and sends."""
_FOLDER = "ODD_LINKS"
How = Literal["as usual", "raises", "is None", "never ends"]


def install(folder: Path) -> dict[str, str]:
    """Install the adapter `odd-huma` in a folder; return the environment of a process that finds it."""
    information = folder / "dragoman_odd-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: dragoman-odd\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[dragoman.adapters]\nodd-huma = {__name__}:ADAPTER\n")
    send(folder, "as usual")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", _FOLDER: str(folder)}


def send(folder: Path, how: How) -> None:
    """Let the next sends of results end like this."""
    (folder / "how").write_text(how)


def started(folder: Path) -> list[str]:
    """Return the keys of the calls that the long tool has started with."""
    path = folder / "started"
    return path.read_text().split() if path.exists() else []


async def wait_ten_minutes(call: Mapping[str, Any]) -> None:
    """Write down the start, and work for ten minutes."""
    with (Path(os.environ[_FOLDER]) / "started").open("a") as file:
        file.write(f"{call['call_id']}\n")
    # This is the work of the tool.
    await asyncio.sleep(600)


@dataclass
class _OddCodec:
    """Puts a number into a poisoned call that no decision can handle."""

    inner: Codec

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        return tuple(map(_poison, self.inner.decode(frame)))

    def encode(self, item: Draft | Envelope) -> Encoded:
        return self.inner.encode(item)


def _poison(draft: Draft) -> Draft:
    event = draft.event
    if not isinstance(event, ToolRequested) or "poison" not in event.arguments:
        return draft
    return replace(draft, event=event.model_copy(update={"arguments": {"poison": 2**70}}))


@dataclass
class _OddLink:
    inner: Link

    def send_all(self, frames: Sequence[Frame]) -> Receipt | Awaitable[Receipt]:
        how = (Path(os.environ[_FOLDER]) / "how").read_text()
        if all(frame.payload.get("type") != "tool-result" for frame in frames):
            how = "as usual"
        if how == "raises":
            raise RuntimeError("the send of an odd link")
        if how == "is None":
            return cast("Receipt", None)
        return self._never() if how == "never ends" else self.inner.send_all(frames)

    async def _never(self) -> Receipt:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    def prove(self) -> Awaitable[None]:
        return self.inner.prove()

    def wait_closed(self) -> Awaitable[str]:
        return self.inner.wait_closed()


@dataclass
class _OddConnector:
    inner: Connector

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @asynccontextmanager
    async def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AsyncGenerator[Link]:
        async with self.inner.connect(native_id, receiver, resume_after=resume_after) as link:
            yield _OddLink(link) if native_id == ODD else link


@dataclass
class _OddAdapter:
    inner: Adapter
    name: str = "odd-huma"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def codec(self, options: Any = None) -> Codec:
        return _OddCodec(self.inner.codec(options))

    def connector(self, options: Any) -> AbstractAsyncContextManager[Connector]:
        return self._connect(options)

    @asynccontextmanager
    async def _connect(self, options: Any) -> AsyncGenerator[Connector]:
        async with self.inner.connector(options) as connector:
            yield cast("Connector", _OddConnector(connector))


ADAPTER = _OddAdapter(HUMA_0_2)
