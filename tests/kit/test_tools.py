"""What a backend made with the kit answers: at once, later, again, and to whom it should not."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from dragoman.kit import Callback, CallStore, MemoryCallStore, SqliteCallStore, StoreUnavailable, ToolCall, Tools
from tests.kit import backend
from tests.kit.sender import Gateway, Sender, request_of, serving
from tests.pace import PATIENCE

OTHER = "whsec_" + "b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXI="


class Rank(BaseModel):
    """The arguments of most tools here."""

    rank: str


async def written(runs: Path, count: int = 1) -> None:
    """Wait until so many functions have begun."""

    def look() -> bool:
        return runs.exists() and len(runs.read_text().splitlines()) >= count

    async with asyncio.timeout(PATIENCE):
        while not look():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def sending(tools: Tools, **more: Any) -> AsyncGenerator[Sender]:
    app = FastAPI()
    app.include_router(tools.router)
    async with serving(app) as url, httpx.AsyncClient(timeout=PATIENCE) as http:
        yield Sender(url, http, **more)


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let functions of the backend note that they began."""
    monkeypatch.setenv(backend.RUNS, str(tmp_path / "runs"))


def impatient(*, at_once: float, store: CallStore | None = None) -> Tools:
    """Declare a tool whose outcome is the answer to its request only if it comes at once."""
    tools = Tools(secret=backend.SECRET, store=store, at_once=at_once)
    tools.tool("ask_for_cards")(backend.ask_for_cards)
    return tools


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with serving(backend.app) as url, httpx.AsyncClient(timeout=PATIENCE) as http:
        yield Sender(url, http)


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    one = Gateway()
    async with serving(one.app) as url:
        yield one, url


async def test_a_call_is_answered_and_a_repeat_is_the_same_call(sender: Sender, tmp_path: Path) -> None:
    first = await sender.call("ask_for_cards", {"rank": "7"}, "k1")
    assert (first.status_code, first.json()) == (200, {"outcome": "success", "result": "Nobody has a 7."})
    again = await asyncio.gather(*(sender.call("ask_for_cards", {"rank": "7"}, "k1") for _ in range(5)))
    assert {one.content for one in again} == {first.content}
    assert (tmp_path / "runs").read_text().splitlines() == ["ask_for_cards k1"]


async def test_equal_calls_at_once_under_one_key_are_run_once(sender: Sender, tmp_path: Path) -> None:
    asked = [sender.call("ask_for_cards", {"rank": "7", "wait": 0.2}, "k2") for _ in range(8)]
    assert {one.json()["result"] for one in await asyncio.gather(*asked)} == {"Nobody has a 7."}
    assert len((tmp_path / "runs").read_text().splitlines()) == 1


async def test_a_key_with_other_arguments_is_refused_while_it_runs_and_after(sender: Sender, tmp_path: Path) -> None:
    running = asyncio.create_task(sender.call("ask_for_cards", {"rank": "7", "wait": 0.3}, "k3"))
    await written(tmp_path / "runs")
    for _ in range(2):
        refused = await sender.call("ask_for_cards", {"rank": "8"}, "k3")
        assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
        assert "key came before" in refused.json()["detail"]
        assert (await running).status_code == 200
        refused = await sender.call("look", {"rank": "7", "wait": 0.3}, "k3")
        assert (refused.status_code, "key came before" in refused.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        ("raises", "the tool failed inside the backend"),
        ("exits", "the tool failed inside the backend"),
        ("fails", "the deck is empty"),
        ("never", "the tool did not respond within 0.2 seconds"),
        ("canceled", "the tool failed inside the backend"),
        ("times out", "the tool failed inside the backend"),
        ("unsayable", "no file ?.txt"),
        ("model", "the tool failed inside the backend"),
    ],
)
async def test_what_a_function_does_wrong_is_the_failure_of_its_call(sender: Sender, rank: str, error: str) -> None:
    answer = await sender.call("strange", {"rank": rank}, f"strange-{rank}")
    assert (answer.status_code, answer.json()) == (200, {"outcome": "failure", "error": error})
    assert (await sender.call("strange", {"rank": ""}, f"next-{rank}")).json()["outcome"] == "success"


@pytest.mark.parametrize(
    ("rank", "error"),
    [
        ("nan", "the tool ran; its result is not JSON"),
        ("object", "the tool ran; its result is not JSON"),
        ("large", "the tool ran; its result has 2000033 bytes, more than 1048576"),
    ],
)
async def test_a_result_that_cannot_be_sent_is_unknown_because_the_tool_ran(
    sender: Sender, rank: str, error: str
) -> None:
    answer = await sender.call("strange", {"rank": rank}, f"strange-{rank}")
    assert (answer.status_code, answer.json()) == (200, {"outcome": "failure", "error": error, "unknown": True})


async def test_arguments_that_do_not_fit_and_tools_nobody_has_are_told(sender: Sender) -> None:
    wrong = (await sender.call("ask_for_cards", {"rank": 7}, "w")).json()
    assert wrong == {"outcome": "failure", "error": "invalid arguments: rank: Input should be a valid string"}
    missing = await sender.call("fly", {}, "m")
    assert (missing.status_code, missing.json()["detail"]) == (422, "this backend has no tool 'fly'")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"webhook-timestamp": str(int(time.time()) - 4_000)}, "timestamp"),
        ({"webhook-timestamp": "soon"}, "timestamp"),
        ({"webhook-signature": "v1,AAAA"}, "the signature does not match"),
        ({"webhook-signature": ""}, "not signed"),
        ({"webhook-id": "another"}, "the signature does not match"),
    ],
)
async def test_what_is_not_signed_by_the_gateway_is_refused(sender: Sender, change: dict[str, str], why: str) -> None:
    answer = await sender.post(request_of("look", {"rank": "1"}, "sig"), "sig", headers=change)
    assert answer.status_code == 401
    assert why in answer.json()["detail"]


async def test_either_secret_is_good_while_one_is_rotated() -> None:
    tools = Tools(secret=[OTHER, backend.SECRET])

    @tools.tool("echo")
    async def echo(arguments: Rank) -> str:
        return arguments.rank

    async with sending(tools) as old, httpx.AsyncClient() as http:
        assert (await old.call("echo", {"rank": "7"}, "a")).json()["result"] == "7"
        new = Sender(old.url, http, secret=OTHER)
        assert (await new.call("echo", {"rank": "8"}, "b")).json()["result"] == "8"
        stranger = Sender(old.url, http, secret="whsec_" + "c3RyYW5nZXItc3RyYW5nZXItc3RyYW5nZXI=")
        assert (await stranger.call("echo", {"rank": "9"}, "c")).status_code == 401


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!", []])
def test_a_secret_that_is_none_is_refused_at_once(secret: Any) -> None:
    with pytest.raises(ValueError, match="secret"):
        Tools(secret=secret)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"type": "tool.requested", "data": {}}', 400), (b"x" * 3_000_000, 413),
     (b'{"type": "message.posted", "data": {}}', 422), (b"[" * 100_000, 400)],
)  # fmt: skip
async def test_a_body_that_is_no_request_is_refused(sender: Sender, body: bytes, status: int) -> None:
    answer = await sender.post(body, "bad")
    assert answer.status_code == status
    assert (await sender.call("look", {"rank": "1"}, "good")).status_code == 200


async def test_a_long_call_is_answered_later_until_somebody_has_heard(gateway: tuple[Gateway, str]) -> None:
    there, url = gateway
    there.statuses = [503, 500]
    async with sending(impatient(at_once=0.2)) as sender:
        asked = [sender.call("ask_for_cards", {"rank": "7", "wait": 0.5}, "late", callback=url) for _ in range(3)]
        assert {one.status_code for one in await asyncio.gather(*asked)} == {202}
        heard = await there.hears(3)
        assert [body for _, body in heard] == [{"outcome": "success", "result": "Nobody has a 7."}] * 3
        assert (await sender.call("ask_for_cards", {"rank": "7", "wait": 0.5}, "late", callback=url)).status_code == 200
    # Stopping waits for whatever would still be told.
    assert len(there.heard) == 3


async def test_a_function_that_ends_in_a_cancel_of_its_own_is_answered_later_too(
    gateway: tuple[Gateway, str],
) -> None:
    there, url = gateway
    tools, other = Tools(secret=backend.SECRET, at_once=0.05), asyncio.get_running_loop().create_future()

    @tools.tool("waits")
    async def waits(arguments: Rank) -> None:
        del arguments
        await other

    async with sending(tools) as sender:
        assert (await sender.call("waits", {"rank": "7"}, "k", callback=url)).status_code == 202
        other.cancel()
        ((_, told),) = await there.hears(1)
        assert told == {"outcome": "failure", "error": "the tool failed inside the backend"}


async def test_without_anybody_to_call_back_the_request_waits() -> None:
    async with sending(impatient(at_once=0.1)) as sender:
        answer = await sender.call("ask_for_cards", {"rank": "7", "wait": 0.5}, "waits")
    assert answer.json()["result"] == "Nobody has a 7."


async def test_progress_is_told_and_an_answer_may_carry_updates(sender: Sender, gateway: tuple[Gateway, str]) -> None:
    there, url = gateway
    answer = await sender.call("report", {"rank": "7"}, "told", callback=url)
    assert answer.json() == {
        "outcome": "success",
        "result": "done",
        "updates": [{"name": "table", "context": {"cards": 3}, "description": ""}],
        "wakes_agent": False,
    }
    assert there.heard == [("progress", {"asked": "7"})]


async def test_progress_that_nobody_takes_costs_the_call_nothing(sender: Sender) -> None:
    answer = await sender.call("report", {"rank": "7"}, "untold", callback="http://127.0.0.1:9")
    assert answer.json()["outcome"] == "success"


async def test_a_cancel_ends_the_function_and_is_the_answer_of_a_repeat(sender: Sender, tmp_path: Path) -> None:
    running = asyncio.create_task(sender.call("ask_for_cards", {"rank": "7", "wait": 60}, "key", call_id="call"))
    runs = tmp_path / "runs"
    await written(runs)
    assert (await sender.cancel("nobody")).status_code == 204
    assert (await sender.cancel("call")).status_code == 204
    assert (await running).json()["outcome"] == "canceled"
    again = await sender.call("ask_for_cards", {"rank": "7", "wait": 60}, "key", call_id="call")
    assert again.json()["outcome"] == "canceled"
    assert runs.read_text().splitlines() == ["ask_for_cards key", "canceled key"]


class Away(MemoryCallStore):
    """A store that is away for some time."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, int] = {}
        self.slow = 0.0

    def _fail(self, method: str) -> None:
        if self.fails.get(method, 0):
            self.fails[method] -= 1
            raise StoreUnavailable("away")

    async def claim(self, key: str, digest: str) -> Any:
        # A store that takes its time is the fault.
        await asyncio.sleep(self.slow)
        self._fail("claim")
        return await super().claim(key, digest)

    async def accept(self, key: str, callback: Callback) -> None:
        self._fail("accept")
        await super().accept(key, callback)

    async def finish(self, key: str, answer: bytes) -> Callback | None:
        self._fail("finish")
        return await super().finish(key, answer)


async def test_a_store_that_is_away_lets_calls_come_again_and_loses_no_outcome() -> None:
    store = Away()
    tools, count = Tools(secret=backend.SECRET, store=store), 0

    @tools.tool("count")
    async def counted(arguments: Rank) -> int:
        nonlocal count
        count += 1
        return count

    async with sending(tools) as sender:
        store.fails = {"claim": 1}
        away = await sender.call("count", {"rank": "1"}, "k")
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        store.fails = {"finish": 2}
        assert (await sender.call("count", {"rank": "1"}, "k")).json()["result"] == 1
        assert (await sender.call("count", {"rank": "1"}, "k")).json()["result"] == 1


async def test_nobody_is_told_later_before_the_store_has_said_so() -> None:
    store = Away()
    async with sending(impatient(at_once=0.1, store=store)) as sender:
        store.slow, store.fails = 0.5, {"claim": 1}
        answer = await sender.call("ask_for_cards", {"rank": "1"}, "k", callback="http://127.0.0.1:9")
        assert answer.status_code == 503


async def test_a_callback_on_record_is_not_stored_again(gateway: tuple[Gateway, str]) -> None:
    there, url = gateway
    store, gate = Away(), asyncio.Event()
    tools = Tools(secret=backend.SECRET, store=store, at_once=0.05)

    @tools.tool("wait")
    async def wait(arguments: Rank) -> str:
        await gate.wait()
        return arguments.rank

    async with sending(tools) as sender:
        assert (await sender.call("wait", {"rank": "7"}, "k", callback=url)).status_code == 202
        store.fails = {"accept": 1}
        assert (await sender.call("wait", {"rank": "7"}, "k", callback=url)).status_code == 202
        assert store.fails == {"accept": 1}
        gate.set()
        await there.hears(1)


async def test_too_many_at_once_come_again_and_those_that_run_are_not_asked_to() -> None:
    tools, gate, begun = Tools(secret=backend.SECRET, most_running=2), asyncio.Event(), asyncio.Semaphore(0)

    @tools.tool("wait")
    async def wait(arguments: Rank) -> str:
        begun.release()
        await gate.wait()
        return arguments.rank

    async with sending(tools) as sender:
        running = [asyncio.create_task(sender.call("wait", {"rank": key}, key)) for key in ("a", "b")]
        async with asyncio.timeout(PATIENCE):
            await begun.acquire()
            await begun.acquire()
        assert (await sender.call("wait", {"rank": "c"}, "c")).status_code == 503
        running.append(asyncio.create_task(sender.call("wait", {"rank": "a"}, "a")))
        assert (await sender.call("wait", {"rank": "c"}, "c")).status_code == 503
        gate.set()
        assert [(await one).json()["result"] for one in running] == ["a", "b", "a"]


async def test_an_application_that_stops_lets_calls_end(tmp_path: Path) -> None:
    store, started = SqliteCallStore(tmp_path / "kit.db"), asyncio.Event()
    tools = Tools(secret=backend.SECRET, store=store, at_once=0.1)

    @tools.tool("slow")
    async def slow(arguments: Rank) -> str:
        started.set()
        # How long it takes is what the test wants to see.
        await asyncio.sleep(0.5)
        return arguments.rank

    there = Gateway()
    async with serving(there.app) as url:
        async with sending(tools) as sender:
            assert (await sender.call("slow", {"rank": "7"}, "k", callback=url)).status_code == 202
        assert await there.hears(1) == [("", {"outcome": "success", "result": "7"})]
        async with sending(tools) as sender:
            assert (await sender.call("slow", {"rank": "7"}, "k")).json()["result"] == "7"


def test_functions_that_are_no_tools_are_refused_with_the_mend() -> None:
    tools = Tools(secret=backend.SECRET)

    def plain(arguments: Rank) -> str:
        return arguments.rank

    async def bare(arguments: dict[str, str]) -> None: ...

    async def many(arguments: Rank, call: ToolCall, more: int) -> None: ...

    async def injected(arguments: Rank, database: dict[str, str]) -> None: ...

    async def other(arguments: Rank, database: Annotated[Path, "of a framework"]) -> None: ...

    async def may_be(arguments: Rank, call: ToolCall | None = None) -> None: ...

    async def fine(arguments: Rank) -> None: ...

    wrong = (
        (plain, "async def"),
        (bare, "pydantic model"),
        (many, "one model"),
        (injected, "not dict"),
        (other, "not Path"),
    )
    for function, words in wrong:
        with pytest.raises(TypeError, match=words):
            tools.tool("t")(function)  # pyright: ignore[reportArgumentType]
    tools.tool("may_be")(may_be)
    tools.tool("t")(fine)
    with pytest.raises(ValueError, match="two functions"):
        tools.tool("t")(fine)


def test_only_the_annotations_of_the_parameters_must_exist_when_a_tool_is_declared() -> None:
    tools = Tools(secret=backend.SECRET)

    def ask(**annotations: str) -> Any:
        async def tool(arguments: Rank, call: ToolCall) -> None: ...

        # As under `from __future__ import annotations`, with a name that is imported for type checkers only.
        tool.__annotations__ = {"arguments": "Rank", **annotations}
        return tool

    tools.tool("result", description="x")(ask(**{"return": "OnlyForTypeCheckers"}))
    tools.tool("call", description="x")(ask(call="OnlyForTypeCheckers"))
    tools.tool("partial", description="x")(partial(ask(call="ToolCall")))
    assert tools.declarations()["call"]["parameters"]["required"] == ["rank"]
    with pytest.raises(TypeError, match="import the model of tool 'model' outside of `if TYPE_CHECKING`"):
        tools.tool("model")(ask(arguments="OnlyForTypeCheckers"))


@pytest.mark.parametrize("name", ["", "a b", "größe", "slash/tool", "ask\n", "x" * 65])
def test_a_name_that_model_apis_refuse_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 ASCII letters, digits, _ and -"):
        Tools(secret=backend.SECRET).tool(name)


def test_a_decorator_without_a_name_is_refused_with_the_line_to_write() -> None:
    tools: Any = Tools(secret=backend.SECRET)

    async def ask(arguments: Rank) -> None: ...

    with pytest.raises(TypeError, match=r'write @tools\.tool\("ask"\)'):
        tools.tool(ask)
    tools.tool("x" * 64)(ask)
    assert list(tools.declarations()) == ["x" * 64]


def test_a_tool_without_a_description_is_logged_once_when_it_is_declared(caplog: pytest.LogCaptureFixture) -> None:
    tools = Tools(secret=backend.SECRET)

    async def silent(arguments: Rank) -> None: ...

    async def described(arguments: Rank) -> None:
        """Ask another player for all cards of a rank."""

    tools.tool("silent")(silent)
    tools.tool("blank", description=" ")(described)
    tools.tool("described")(described)
    told = [record.getMessage() for record in caplog.records if record.name == "dragoman.kit"]
    assert [text.partition(" for agents")[0] for text in told] == [
        "tool 'silent' has no description",
        "tool 'blank' has no description",
    ]


async def test_an_application_that_declared_no_tool_is_told_when_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    async with sending(Tools(secret=backend.SECRET)):
        pass
    assert [one.getMessage() for one in caplog.records if "no tool is declared" in one.getMessage()] != []
