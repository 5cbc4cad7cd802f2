"""A backend of its own process: it writes down what it runs, and may die at a point of a call."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel

from dragoman.kit import Callback, CallStore, MemoryCallStore, SqliteCallStore, ToolCall, ToolFailed, Tools, Update
from dragoman.kit.calls import Answer
from dragoman.kit.postgres import PostgresCallStore
from tests.kit.sender import DIE, RUNS, SECRET, STORE


def _passes(point: str) -> None:
    """Die here, without a last word, where that is wanted: once, so that whoever comes next lives on."""
    mark = Path(os.environ[RUNS] + ".died")
    if os.environ.get(DIE) == point and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A store whose process may not live through a call."""

    def __init__(self, inner: CallStore) -> None:
        self._inner = inner
        self.accept, self.settle = inner.accept, inner.settle
        self.take_owed, self.forget = inner.take_owed, inner.forget

    async def __aenter__(self) -> object:
        return await self._inner.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)

    async def claim(self, key: str, digest: str) -> Any:
        _passes("before-claim")
        claim = await self._inner.claim(key, digest)
        _passes("after-claim")
        return claim

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        _passes("before-finish")
        owed = await self._inner.finish(key, answer)
        _passes("after-finish")
        return owed


def _store() -> CallStore:
    kind, _, place = os.environ.get(STORE, "memory").partition(":")
    if kind == "sqlite":
        return Mortal(SqliteCallStore(place))
    if kind == "postgres":
        return Mortal(PostgresCallStore(os.environ["KIT_DSN"]))
    return MemoryCallStore()


def _check(rank: str) -> str:
    if rank == "model":
        raise LookupError(rank)
    return rank


class Wanted(BaseModel):
    """Which cards."""

    rank: Annotated[str, AfterValidator(_check)]
    player: str | None = None
    wait: float = 0.0


tools = Tools(
    secret=SECRET,
    store=_store(),
    drain=float(os.environ.get("KIT_DRAIN", "3")),
    at_once=float(os.environ.get("KIT_AT_ONCE", "2")),
)
app = FastAPI()
app.include_router(tools.router)


def _write(word: str, call: ToolCall) -> None:
    with Path(os.environ[RUNS]).open("a", encoding="utf-8") as runs:
        runs.write(f"{word} {call.key}\n")


async def _run(name: str, wanted: Wanted, call: ToolCall) -> str:
    _write(name, call)
    _passes("while-running")
    try:
        # How long it takes is what the test wants to see.
        await asyncio.sleep(wanted.wait)
    except asyncio.CancelledError:
        _write("canceled", call)
        raise
    return f"Nobody has a {wanted.rank}."


@tools.tool("ask_for_cards")
async def ask_for_cards(wanted: Wanted, call: ToolCall) -> str:
    """Ask another player for all cards of a rank."""
    return await _run("ask_for_cards", wanted, call)


@tools.tool("look", idempotent=True, read_only=True)
async def look(wanted: Wanted, call: ToolCall) -> str:
    """Look at the table."""
    return await _run("look", wanted, call)


@tools.tool("report")
async def report(wanted: Wanted, call: ToolCall) -> Answer:
    """Say how far it is, and what is new."""
    await call.progress({"asked": wanted.rank})
    return Answer("done", updates=[Update(name="table", context={"cards": 3})], wakes_agent=False)


@tools.tool("strange", timeout=0.2)
async def strange(wanted: Wanted) -> object:
    """Do what no tool should."""
    match wanted.rank:
        case "raises":
            raise RuntimeError("a password is in here")
        case "fails":
            raise ToolFailed("the deck is empty")
        case "exits":
            raise SystemExit(3)
        case "never":
            return await asyncio.Event().wait()
        case "times out":
            raise TimeoutError
        case "nan":
            return {"share": float("nan")}
        case "object":
            return object()
        case "canceled":
            other = asyncio.get_running_loop().create_future()
            other.cancel()
            return await other
        case "unsayable":
            raise ToolFailed(f"no file {os.fsdecode(b'%s.txt' % bytes([255]))}")
        case "large":
            return "x" * 2_000_000
        case _:
            return None
