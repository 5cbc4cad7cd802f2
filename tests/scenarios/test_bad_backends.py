"""What a backend may answer that it should not: the agent gets a clear failure, and the next call is fine."""

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.testing.runtimes.huma.rules import RESULT_LIMIT
from tests.executors.peers import Peer, Seen, hang, http, http_json, listen, send, serve
from tests.scenarios.environment import GOOD, Running, Scene, ended, plain_http
from tests.scenarios.hooks import SECRET, Asked, Gate, Said, success, update

ANSWERS: list[tuple[bytes, str]] = [
    (http(200, '{"outcome": "success"}'.encode("utf-16"), content_type="application/json"), "not JSON"),
    (http(200, gzip.compress(b'{"outcome": "success"}') + b"garbage", content_encoding="gzip"), "cannot be read"),
    (http(200, b'{"outcome": "success", "res', content_type="application/json"), "not JSON"),
    (http(200, b"\x00\xff\xfe garbage", content_type="application/json"), "executor answered 200 OK with"),
    (http(200, b"{", content_type="application/json"), "JSON"),
    (http(200, b"<html>welcome</html>", content_type="text/html"), "HTML"),
    (http_json(200, {"result": 1}), "outcome"),
    (http_json(200, {"outcome": "maybe"}), "outcome"),
    (http_json(200, {"outcome": "success", "updates": [{"name": 5}]}), "/updates/0"),
    (http(200, b'{"outcome":"success","result":NaN}', content_type="application/json"), "JSON"),
    (http_json(201, {"outcome": "success"}), "201"),
    (http(302, location="http://169.254.169.254/latest"), "redirects are not followed"),
    (http(404), "404"),
    (http_json(422, {"detail": "The deck is empty."}, content_type="application/problem+json"), "The deck is empty."),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 52428800\r\n\r\n" + b" " * 2_000_000, "over the size limit"),
    (b"not even HTTP\r\n\r\n", "unknown"),
    (b"", "unknown"),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", "unknown"),
]  # fmt: skip


@asynccontextmanager
async def hostile(scene: Scene, peer: Peer, **executor: Any) -> AsyncGenerator[Running]:
    """Send `free` to a hostile peer and everything else to the good backend."""
    bad = {"type": "webhook", "url": peer.url, "secret": SECRET, "timeout": "10s", "attempts": 1, **executor}
    routes = [{"match": {"tool": "free"}, "to": "bad"}, {"match": {"tool": "*"}, "to": "cards"}]
    scene.configure({"executors": {"bad": bad}, "routes": routes})
    async with scene.running() as gateway:
        yield gateway
        reading = await ended(await scene.agent.call("ask", GOOD))
        assert (reading.outcome, reading.result) == ("success", GOOD)


@pytest.mark.requirement("L50")
@pytest.mark.parametrize(("answer", "words"), ANSWERS, ids=[repr(answer[9:50]) for answer, _ in ANSWERS])
async def test_a_bad_answer_is_a_failure_whose_text_says_what_was_wrong(
    newer: Scene, answer: bytes, words: str
) -> None:
    async def script(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, answer, close=True)

    async with serve(script) as peer, hostile(newer, peer):
        call = await newer.agent.call("free", {})
        reading = await ended(call)
        assert reading.outcome == "failure"
        assert words in (reading.error or ""), reading.error
        assert ("outcome unknown: " in (reading.error or "")) == (not answer.startswith((b"HTTP/1.1 3", b"HTTP/1.1 4")))
        assert len(reading.error or "") < 1_000
        assert len(peer.seen) == 1
    assert len(call.results) == 1


async def test_an_executor_that_is_set_up_wrongly_is_in_the_log_with_the_reason(newer: Scene) -> None:
    elsewhere = b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"

    async def script(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, elsewhere, close=True)

    async with serve(script) as peer, hostile(newer, peer):
        with capture_logs() as lines:
            for _ in range(2):
                assert (await ended(await newer.agent.call("free", {}))).outcome == "failure"
    reason = "executor answered 302 Found; redirects are not followed"
    for event in ("attempt refused", "call failed"):
        found = [(line["log_level"], line["reason"]) for line in lines if line["event"] == event]
        assert found == [("warning", reason)] * 2


async def test_an_endless_answer_is_cut_off(newer: Scene) -> None:
    async def flood(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        for _ in range(50):
            await send(writer, b" " * 1024**2)

    async with serve(flood) as peer, hostile(newer, peer):
        reading = await ended(await newer.agent.call("free", {}))
        assert "over the size limit" in (reading.error or ""), reading.error


async def test_no_answer_is_a_failure_when_time_is_up_and_says_that_the_outcome_is_unknown(both: Scene) -> None:
    async with serve(hang) as peer, hostile(both, peer, timeout="300ms") as gateway:
        call = await both.agent.call("free", {})
        reading = await ended(call)
        assert reading.outcome == "failure"
        assert "unknown" in (reading.error or "")
        assert (await gateway.call_of(call.call_id))["unknown"] is True
        assert (await gateway.metrics())["dragoman_unknown_outcomes_total"] == 1


async def test_a_backend_that_hangs_up_after_reading_is_not_asked_again_unless_it_may_be(both: Scene) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with listen(hang_up) as peer, hostile(both, peer, attempts=3, idempotent=False):
        assert "unknown" in ((await ended(await both.agent.call("free", {}))).error or "")
        assert peer.connections == 1
    async with (
        listen(hang_up) as peer,
        hostile(both, peer, attempts=3, idempotent=True, backoff={"initial": "5ms"}),
    ):
        assert "after 3 attempts" in ((await ended(await both.agent.call("free", {}))).error or "")
        assert peer.connections == 3


async def test_a_backend_that_is_not_there_is_tried_again_until_it_is(both: Scene) -> None:
    # Long enough, over all attempts and whatever the jitter says, for a server to start.
    patient = {"attempts": 20, "backoff": {"initial": "500ms", "maximum": "500ms"}, "breaker": "off"}
    both.configure({"executors": {"cards": patient}})
    async with both.running() as gateway:
        await both.hooks.__aexit__()
        call = await both.agent.call("ask", GOOD)
        await gateway.wait_events("tool.requested")
        await both.hooks.__aenter__()
        assert (await ended(call)).outcome == "success"
    assert len(both.hooks.asked) == 1


async def test_an_answer_by_callback_and_by_body_is_one_answer(both: Scene) -> None:
    statuses: list[int] = []

    async def twice(asked: Asked) -> Said:
        async with plain_http() as http:
            statuses.append((await http.post(asked.data["callback_url"], json=success("by callback"))).status_code)
        return success("by body")

    both.hooks.scripts["ask"] = twice
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        assert (await ended(call)).result == "by callback"
        await ended(await both.agent.call("free", {}))
        row = await gateway.call_of(call.call_id)
        assert row["state"] == "succeeded"
    assert statuses == [200]
    assert len(call.results) == 1


async def test_an_answer_after_the_deadline_changes_nothing(both: Scene) -> None:
    both.configure({"executors": {"cards": {"timeout": "3s", "deadline": "300ms"}}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        assert (await ended(call)).outcome == "failure"
        gate.open()
        await ended(await both.agent.call("free", {}))
        assert (await gateway.call_of(call.call_id))["state"] in {"failed", "expired"}
    assert len(call.results) == 1


@pytest.mark.parametrize(
    "result",
    ["x" * (RESULT_LIMIT + 1), ["😀" * 40_000]],
    ids=["too long", "too long in UTF-16"],
)
async def test_a_result_the_protocol_cannot_carry_is_told_in_a_form_it_can(newer: Scene, result: Any) -> None:
    newer.hooks.scripts["ask"] = success(result)
    async with newer.running() as gateway:
        reading = await ended(await newer.agent.call("ask", GOOD))
        assert reading.outcome in {"success", "failure"}
        [finished] = await gateway.events(kind="tool.finished")
        assert finished["losses"]
        newer.hooks.scripts["ask"] = success("fine")
        assert (await ended(await newer.agent.call("ask", GOOD))).result == "fine"


async def test_an_update_the_protocol_cannot_carry_is_left_out_with_a_note_and_the_rest_is_told(newer: Scene) -> None:
    bad = [update("n" * 129), update("fine", turn=1), {"name": "bad", "context": {"prototype": 1}}]
    newer.hooks.scripts["ask"] = success("done", updates=bad)
    async with newer.running() as gateway:
        assert (await ended(await newer.agent.call("ask", GOOD))).result == "done"
        [finished] = await gateway.events(kind="tool.finished")
        assert [loss["path"] for loss in finished["losses"]] == ["/updates/0/name", "/updates/2/context/prototype"]
    assert [name for name, _ in newer.updates()] == ["fine"]
