"""What the answers to posts mean, and that nobody but the server ever sees a secret."""

import json
import logging
from typing import Any, cast

import pytest
from pydantic import SecretStr

from adapters.herm import ADAPTER
from gateway.adapter.port import Frame
from gateway.errors import LinkLost, LinkRefused, MalformedFrame
from gateway.events import Draft, SecretSupplied, dump_event
from gateway.testing.conformance.collector import Collector, enter, within
from tests.adapters.herm.links import RecordingBackend, call, idle, linked, options_for, result, text, user
from tests.adapters.herm.raw_herm import KEY, SESSION, RawHerm, RestAnswer

CANARY = "canary-horse-battery-staple"

STEER = {"type": "user.steer", "message": "Left."}
INTERRUPT = {"type": "user.interrupt"}
CONFIRMATION = {"type": "user.tool_confirmation", "tool_use_id": "t1", "result": "allow"}
CLARIFY = {"type": "user.clarify_result", "request_id": "q1", "answer": ""}
SUDO = {"type": "user.sudo_result", "request_id": "s1", "password": CANARY}
SECRET = {"type": "user.secret_result", "request_id": "s2", "value": CANARY}
ANSWERS = [CONFIRMATION, result(1), CLARIFY, SUDO, SECRET]
EVERYTHING = [user("Hi"), STEER, INTERRUPT, *ANSWERS]


def code(status: int, error: str = "some_code") -> RestAnswer:
    return RestAnswer(status, {"error": error, "message": "Some words."})


def kind_of(event: dict[str, Any]) -> str:
    return event["type"]


@pytest.mark.requirement("H-b")
@pytest.mark.parametrize(
    "answer", [RestAnswer(200), RestAnswer(201, b""), RestAnswer(202, {"data": []}), RestAnswer(204, b"")]
)
async def test_any_answer_of_success_is_a_delivery_whatever_its_body(answer: RestAnswer) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(answer)
        assert (await within(link.send_all([Frame("events", user("Hi"))]))).state == "delivered"


@pytest.mark.requirement("H-d", "H-e", "H21")
@pytest.mark.parametrize(
    "answer",
    [
        code(409),
        code(423),
        code(409, "turn_in_progress"),
        code(400, "turn_in_progress"),
        code(422, "session_busy"),
        RestAnswer(400, {"error": {"type": "turn_already_running", "message": "Wait."}}),
        code(400, "our_word"),
    ],
)
async def test_a_message_while_a_turn_runs_is_busy_and_the_link_lives_on(answer: RestAnswer) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend(), busy_codes=["our_word"]) as link:
        server.posts.append(answer)
        receipt = await link.send_all([Frame("events", user("Hi"))])
        assert receipt.state == "busy"
        assert f"HTTP {answer.status}" in receipt.reason
        assert (await link.send_all([Frame("events", user("Hi"))])).state == "delivered"


@pytest.mark.requirement("H20", "H21", "H-d")
async def test_a_message_during_a_turn_is_sent_once_and_never_again_by_itself() -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.running = True
        assert (await link.send_all([Frame("events", user("Hi"))])).state == "busy"
        assert (await link.send_all([Frame("events", STEER)])).state == "delivered"
        assert await within(server.hear()) == Frame("events", STEER)
        assert len([request for request in server.requests if request.method == "POST"]) == 2


@pytest.mark.requirement("H-jj")
@pytest.mark.parametrize("answer", [code(400), code(404), code(410), code(409, "session_archived"), code(413)])
async def test_a_message_that_will_never_be_taken_is_refused(answer: RestAnswer) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(answer)
        receipt = await link.send_all([Frame("events", user("Hi"))])
        assert receipt.state == "refused"
        assert "Some words." in receipt.reason


@pytest.mark.requirement("H-t", "H-hh")
@pytest.mark.parametrize("status", [404, 409, 410])
@pytest.mark.parametrize("event", ANSWERS, ids=kind_of)
async def test_an_answer_that_nobody_waits_for_any_more_is_moot(event: dict[str, Any], status: int) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(code(status))
        assert (await link.send_all([Frame("events", event)])).state == "moot"


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("event", ANSWERS, ids=kind_of)
async def test_an_answer_that_the_server_finds_wrong_is_refused(event: dict[str, Any], status: int) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(code(status, "busy"))
        assert (await link.send_all([Frame("events", event)])).state == "refused"


@pytest.mark.requirement("H-y")
@pytest.mark.parametrize("status", [400, 404, 409, 422])
@pytest.mark.parametrize("event", [STEER, INTERRUPT], ids=kind_of)
async def test_a_hint_without_a_turn_has_no_effect_and_is_no_fault(event: dict[str, Any], status: int) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(code(status))
        assert (await link.send_all([Frame("events", event)])).state == "moot"


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize("status", [401, 402, 403, 408, 425, 429, 500, 502, 503, 302])
@pytest.mark.parametrize("event", EVERYTHING, ids=kind_of)
async def test_what_may_still_be_taken_ends_the_link_so_that_the_next_one_looks_first(
    event: dict[str, Any], status: int
) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        server.posts.append(RestAnswer(status, {"error": "x"}, {"Retry-After": "9"}))
        with pytest.raises(LinkLost, match=rf"HTTP {status} \(Retry-After: 9\)"):
            await link.send_all([Frame("events", event)])
        assert f"HTTP {status}" in await within(link.wait_closed())
        with pytest.raises(LinkLost):
            await link.send_all([Frame("events", event)])


async def test_a_post_that_is_never_answered_is_a_lost_link_in_time() -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend(), send_timeout="100ms") as link:
        # A body that never ends: the status was read, and counts.
        server.posts.append(RestAnswer(202, b"{", {"content-length": "10"}))
        assert (await within(link.send_all([Frame("events", user("Hi"))]))).state == "delivered"
        await server.stop()
        with pytest.raises(LinkLost):
            await within(link.send_all([Frame("events", user("Hi"))]))


@pytest.mark.parametrize(
    "frame", [Frame("stream", {"type": "agent.message"}), Frame("events", {}), Frame("x", user("Hi"))]
)
async def test_only_events_of_a_client_are_posted(frame: Frame) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        assert (await link.send_all([frame])).state == "refused"
        assert all(request.method == "GET" for request in server.requests)


@pytest.mark.requirement("H56", "H57", "H58", "H59", "H-o", "H-p")
async def test_two_calls_are_answered_one_by_one_in_any_order_and_the_turn_goes_on() -> None:
    record = RecordingBackend()
    codec = ADAPTER.codec()
    async with RawHerm().serve() as server, linked(server, record) as link:
        await server.happen(call(1))
        await server.happen(call(2))
        await server.happen(idle(type="requires_action", event_ids=["custom_1", "custom_2"]))
        frames = await record.wait_for(3)
        asked = [draft.event for frame in frames for draft in codec.decode(frame)]
        assert [event.kind for event in asked] == ["tool.requested", "tool.requested", "session.moved"]
        for number in (2, 1):
            assert (await link.send_all([Frame("events", result(number))])).state == "delivered"
        assert [(await within(server.hear())).payload["tool_use_id"] for _ in range(2)] == ["custom_2", "custom_1"]
        await server.happen(text("Thanks."))
        await record.wait_for(4)


@pytest.mark.requirement("H33", "H34")
async def test_a_secret_and_the_key_are_nowhere_but_on_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    codec = ADAPTER.codec()
    shown: list[str] = []
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        server.stored.append(server.wrap(SECRET))
        async with linked(server, record) as link:
            for event in (SUDO, SECRET):
                supplied = SecretSupplied(
                    id=event["request_id"], purpose="sudo" if event is SUDO else "secret", value=SecretStr(CANARY)
                )
                (frame,) = codec.encode(Draft(supplied)).frames
                assert (await link.send_all([frame])).state == "delivered"
                assert (await within(server.hear())).payload == event
                shown.append(repr((supplied, dump_event(supplied), frame)))
                for answer in (
                    RestAnswer(400, {"error": f"bad_{CANARY}", "message": f"{CANARY} is wrong, {KEY}"}),
                    RestAnswer(409, {"error": "x", "message": CANARY}, {"x-echo": CANARY}),
                ):
                    server.posts.append(answer)
                    shown.append(repr(await link.send_all([frame])))
                # What no server should do: repeat it to whoever listens, well formed or not.
                await server.happen(event)
                await server.happen({**event, "request_id": 7})
                await server.stream(
                    {"id": event["type"], "type": event["type"], "payload": {"value": CANARY, "l": [event]}}
                )
                await server.raw(b"data: {" + json.dumps(event).encode() + b"\n\n")
            await record.wait_for(9)
            (frame,) = codec.encode(Draft(SecretSupplied(id="s3", value=SecretStr(CANARY)))).frames
            server.posts.append(RestAnswer(500, {"error": CANARY, "message": CANARY}))
            with pytest.raises(LinkLost) as lost:
                await link.send_all([frame])
            shown += [repr(lost.value), await link.wait_closed(), repr(cast("object", vars(link)))]
        options = options_for(server)
        for answer in (
            RestAnswer(401, {"error": "x", "message": f"{KEY} is unknown"}),
            RestAnswer(500, {"error": KEY}),
        ):
            server.opens.append(answer)
            async with ADAPTER.connector(options) as connector:
                with pytest.raises((LinkLost, LinkRefused)) as refused:
                    await enter(connector.connect(SESSION, Collector()))
                shown += [repr(refused.value), repr(refused.value.__context__)]
        shown += [repr(options), options.model_dump_json()]
    for seen in record.frames:
        shown.append(repr(seen))
        try:
            shown.extend(repr((draft, dump_event(draft.event))) for draft in codec.decode(seen))
        except MalformedFrame as exc:
            shown += [repr(exc), repr(exc.__cause__)]
    everything = "\n".join([*shown, caplog.text])
    assert CANARY not in everything
    assert KEY not in everything
    assert "POST" in caplog.text


async def test_a_secret_that_came_back_can_not_be_sent_again() -> None:
    record = RecordingBackend()
    codec = ADAPTER.codec()
    async with RawHerm().serve() as server, linked(server, record):
        await server.happen(SUDO)
        (frame,) = await record.wait_for(1)
        (draft,) = codec.decode(frame)
        assert isinstance(draft.event, SecretSupplied)
        with pytest.raises(ValueError, match="not stored"):
            draft.event.reveal()
