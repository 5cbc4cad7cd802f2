"""The simulated agent-server is as unkind as the real one, in what its sockets send and how they end."""

from datetime import datetime, timedelta
from uuid import uuid4

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from gateway.testing.runtimes.openhands_v1.events import Frame
from gateway.testing.runtimes.openhands_v1.server import AgentServer, Manners
from tests.simulators.raw_openhands_v1 import QUICK, RawRest, RawSocket, is_state, is_status, kinds, socket, world

KEY = "right"
ASK = {"kind": "AlwaysConfirm"}
EMPTY: list[Frame] = []


# OV5, OV6
@pytest.mark.parametrize("kind", ["events", "session"])
async def test_how_a_socket_authenticates(kind: str) -> None:
    manners = Manners(first_frame=timedelta(milliseconds=300))
    async with AgentServer(session_api_key=KEY, manners=manners) as server:
        name = server.add().conversation_id
        for query, key, more in (
            ("", KEY, {}),
            (f"?session_api_key={KEY}", None, {}),
            ("", None, {"additional_headers": {"X-Session-API-Key": KEY}}),
            (f"?session_api_key={KEY}", "wrong", {}),
        ):
            async with socket(server.url, kind, name, query, key=key, **more) as seen:
                await seen.until_event(is_state("idle"))
        for frame in ({"type": "auth", "session_api_key": "wrong"}, "not JSON", {"type": "auth"}, None):
            async with socket(server.url, kind, name) as seen:
                if frame is not None:
                    await seen.send(frame)
                assert await seen.until_closed() == (4001, "Authentication failed")
        async with socket(server.url, kind, str(uuid4()), key=KEY) as seen:
            assert await seen.until_closed() == (4004, "Conversation not found")


# OV6
@pytest.mark.parametrize(
    ("kind", "query"),
    [
        ("events", "?session_api_key=wrong"),
        ("session", "?session_api_key="),
        ("events", "?resend_mode=some"),
        ("events", "?resend_mode=since&after_timestamp=soon"),
        ("session", "?after_seq=abc"),
        ("nothing", ""),
    ],
)
async def test_a_handshake_is_refused_with_403(kind: str, query: str) -> None:
    async with AgentServer(session_api_key=KEY) as server:
        name = server.add().conversation_id
        with pytest.raises(InvalidStatus) as refused:
            async with socket(server.url, kind, name, f"{query or '?'}", key=KEY):
                pass
        assert refused.value.response.status_code == 403


# OV1, OV2
async def test_older_servers_have_no_session_socket() -> None:
    async with AgentServer(manners=Manners(version="1.44.0")) as server, httpx.AsyncClient() as http:
        name = server.add().conversation_id
        with pytest.raises(InvalidStatus) as refused:
            async with socket(server.url, "session", name):
                pass
        assert refused.value.response.status_code == 403
        async with socket(server.url, "events", name) as seen:
            await seen.until_event(is_state("idle"))
        info = (await http.get(f"{server.url}/server_info")).json()
        assert (info["version"], info["capabilities"]) == ("1.44.0", [])
    async with AgentServer(manners=Manners(version="1.20.0")) as server:
        work = server.add()
        async with RawRest(server.url, work.conversation_id) as rest:
            assert (await rest.post("interrupt")).status_code == 404


# OV15
@pytest.mark.parametrize("kind", ["events", "session"])
async def test_a_bad_frame_is_answered_and_closes_nothing(kind: str) -> None:
    async with AgentServer(manners=QUICK) as server:
        work = server.add()
        name = work.conversation_id
        async with socket(server.url, kind, name) as seen, socket(server.url, kind, name) as other:
            await seen.until_event(is_state("idle"))
            for number, frame in enumerate(
                (
                    "{",
                    {"content": 1},
                    {"role": "assistant", "content": EMPTY},
                    {"type": "auth", "session_api_key": "x", "more": 1, "content": 2},
                )
            ):
                await seen.send(frame)
                await seen.until(lambda _, number=number: len(errors(seen)) > number)
            await seen.send({"type": "auth", "session_api_key": "anything"})
            await seen.send({"role": "user", "content": "a text"})
            await work.wait_for(lambda _, text: text == "a text")
            assert errors(seen) == ["JSONDecodeError", "ValidationError", "AssertionError", "ValidationError"]
            assert errors(other) == []
            await work.agent_says("ok")


def errors(seen: RawSocket) -> list[str]:
    found = [frame for frame in seen.frames if frame.get("kind") == "ServerErrorEvent" or frame.get("type") == "error"]
    return [frame["code"] for frame in found]


# OV8, OV9
async def test_the_events_socket_repeats_and_interleaves() -> None:
    manners = Manners(before_replay=timedelta(milliseconds=300))
    async with AgentServer(manners=manners) as server:
        work = server.add()
        await work.agent_runs("ls", "")
        async with socket(server.url, "events", work.conversation_id, "?resend_mode=all") as seen:
            await seen.until_event(is_state("running"))
            await work.agent_runs("live", "")
            await seen.until(lambda _: len(seen.stored) >= len(work.events) + 3)
            assert seen.events[0]["key"] == "full_state"
            names = [event["id"] for event in seen.stored]
            assert set(names) == {event["id"] for event in work.events}
            assert names[-len(work.events) :] == [event["id"] for event in work.events]
            assert names[0] != work.events[0]["id"]
        async with socket(server.url, "events", work.conversation_id) as seen:
            await seen.until_event(is_state("running"))
            assert seen.stored == []


# OV8
async def test_since_is_inclusive_and_compares_texts() -> None:
    async with AgentServer(manners=Manners(before_replay=timedelta(0))) as server:
        work = server.add()
        await work.agent_runs("ls", "")
        third = work.events[2]
        for mark, first in (
            (third["timestamp"], 2),
            (datetime.fromisoformat(third["timestamp"]).astimezone().isoformat().replace("+", "%2B"), 2),
            ("", None),
        ):
            query = f"?resend_mode=since&after_timestamp={mark}" if mark else "?resend_mode=since"
            async with socket(server.url, "events", work.conversation_id, query) as seen:
                await seen.until_event(is_state("running"))
                if first is not None:
                    await seen.until(lambda _, seen=seen, first=first: len(seen.stored) >= len(work.events) - first)
                    assert seen.stored == work.events[first:]


# OV11
async def test_the_session_socket_resumes_exactly() -> None:
    async with AgentServer(manners=QUICK) as server:
        work = server.add()
        name = work.conversation_id
        async with socket(server.url, "session", name, "?after_seq=-1") as seen:
            await seen.until_event(is_state("idle"))
            assert seen.frames[0] == {"type": "sync", "from_seq": -1}
        await work.agent_runs("ls", "")
        last = len(work.events) - 1
        for after, first in ((-1, 0), (-7, 0), (2, 3), (last, None), (99, None)):
            async with socket(server.url, "session", name, f"?after_seq={after}") as seen:
                await seen.until_event(is_state("running"))
                assert seen.frames[0] == {"type": "sync", "from_seq": max(after, -1), "through_seq": last}
                numbers = [frame["seq"] for frame in seen.frames if frame["type"] == "durable"]
                assert numbers == ([] if first is None else list(range(first, last + 1)))
                assert seen.frames[-1]["type"] == "transient"
        async with socket(server.url, "session", name) as seen:
            await seen.until_event(is_state("running"))
            assert seen.frames[0] == {"type": "sync", "through_seq": last}
            await work.agent_says("live")
            await seen.until_event(is_status("finished"))
            assert next(frame["seq"] for frame in seen.frames if frame["type"] == "durable") == last + 1


# OV12, OV22
async def test_a_streamed_text_is_followed_by_its_event_or_aborted() -> None:
    async with world() as (server, work, rest, seen):
        await rest.say("go")
        async with socket(server.url, "events", work.conversation_id) as bare:
            await bare.until_event(is_state("running"))
            said = await work.agent_says("I stream.", pieces=["I ", "stream."])
            await seen.until_event(lambda event: event.get("id") == said["id"])
            await bare.until_event(lambda event: event.get("id") == said["id"])
            pieces = [event["content"] for event in bare.events if event["kind"] == "StreamingDeltaEvent"]
            assert pieces == ["", "I ", "stream."]
        started, *deltas = [frame for frame in seen.frames if frame["type"] in {"item_started", "delta"}]
        assert started["item_id"] == said["id"]
        assert [(frame["order"], frame["content"]) for frame in deltas] == [(0, "I "), (1, "stream.")]
        assert not any(event["kind"] == "StreamingDeltaEvent" for event in work.events)
        await seen.until_event(is_state("finished"))
        await rest.say("again")
        await work.agent_streams(["never ", "stored"])
        await seen.until(lambda frame: frame["type"] == "delta" and frame["content"] == "stored")
        await rest.post("interrupt")
        aborted = await seen.until(lambda frame: frame["type"] == "item_aborted")
        assert (aborted["attempt"], aborted["reason"]) == (1, "cancelled")
        assert "agent says" not in kinds(work.events)[-3:]


# OV20
async def test_a_large_event_locks_out_the_session_socket_for_good() -> None:
    async with world(Manners(biggest_event=20_000)) as (server, work, rest, seen):
        await rest.say("go")
        await work.agent_runs("cat large", "x" * 25_000)
        assert await seen.until_closed() == (1013, "frame_too_large")
        large = next(n for n, event in enumerate(work.events) if event["kind"] == "ObservationEvent")
        name = work.conversation_id
        async with socket(server.url, "session", name, f"?after_seq={large - 1}") as again:
            assert await again.until_closed() == (1013, "frame_too_large")
        async with socket(server.url, "session", name, f"?after_seq={large}") as past:
            await past.until_event(is_state("running"))
        async with socket(server.url, "events", name, "?resend_mode=all") as bare:
            await bare.until_event(lambda event: event.get("id") == work.events[large]["id"])
        assert (await rest.page(page_id=work.events[large]["id"]))["items"][0] == work.events[large]


# OV20
async def test_a_frame_over_16_mib_closes_the_socket() -> None:
    async with world() as (_, _work, _rest, seen):
        await seen.send({"role": "user", "content": "x" * (16 * 1024**2)})
        assert (await seen.until_closed())[0] == 1009


# OV6
async def test_a_conversation_has_a_limit_of_sockets() -> None:
    async with AgentServer(manners=Manners(subscribers=1)) as server:
        name = server.add().conversation_id
        async with socket(server.url, "events", name) as first:
            await first.until_event(is_state("idle"))
            async with socket(server.url, "session", name) as second:
                assert await second.until_closed() == (1013, "Too many connections for this conversation")


# OV6
async def test_a_deleted_conversation_is_silent_on_its_open_sockets() -> None:
    async with world() as (server, work, rest, seen):
        await rest.say("go")
        action = await work.agent_starts("sleep 60")
        assert (await rest.http.delete(rest.path)).json() == {"success": True}
        assert (await rest.http.get(rest.path)).status_code == 404
        assert (await rest.say("hello?")).status_code == 404
        frames = len(seen.frames)
        work.agent_ends(action, "slept")
        await seen.send({"role": "user", "content": "hello?"})
        failed = await seen.until(lambda frame: frame["type"] == "error")
        assert failed["detail"] == "inactive_service"
        assert (len(seen.frames), seen.closed) == (frames + 1, None)
        async with socket(server.url, "session", work.conversation_id) as again:
            assert (await again.until_closed())[0] == 4004


async def test_a_server_that_shuts_down_says_so() -> None:
    async with world() as (server, _work, _rest, seen):
        server.retire()
        assert (await seen.until_closed())[0] == 1012


# OV65
async def test_behind_a_proxy_every_close_is_a_plain_1000() -> None:
    async with world(Manners(biggest_event=20_000, proxied=True)) as (server, work, _rest, seen):
        await work.agent_runs("cat large", "x" * 25_000)
        assert await seen.until_closed() == (1000, "")
        async with socket(server.url, "session", str(uuid4())) as unknown:
            assert (await unknown.until_closed())[0] == 1008
