"""The wire says of each event whether the gateway has made it: on pages, in streams and copies, and of older data."""

from typing import Any

import httpx
import pytest

from gateway.events import ApprovalAsked, EventId, Outcome, SessionId
from gateway.events.envelope import to_copy
from gateway.executors.port import Answered
from gateway.store.encoding import decode_envelope, encode_event, strip_about
from gateway.store.records import EventRecord
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, environment_of

ORIGIN = b'{"origin":{"adapter":"plain","protocol":"plain/1"}}'
TITLED = b'{"kind":"session.titled","title":"Cards"}'


async def test_pages_and_copies_say_what_the_gateway_has_made_itself() -> None:
    settings = {"limits": {"interaction_timeout": "10ms"}}
    async with environment_of(settings) as environment, in_process(environment.gateway, bearer("all-of-it")) as api:
        session_id = await environment.attach()
        environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=7))
        await environment.ask(state="succeeded")
        await environment.post(session_id)
        environment.runtime.say(ApprovalAsked(id="a-1", tool="rm"))
        await environment.recorded(session_id, "approval.given")
        page = (await api.get(f"/v1/sessions/{session_id}/events")).json()["data"]
        assert {one["event"]["kind"]: one["synthetic"] for one in page} == {
            "session.opened": True,
            "link.changed": True,
            "tool.requested": False,
            "tool.finished": False,
            "turn.steered": False,
            "approval.asked": False,
            "approval.given": True,
        }
        copies = [to_copy(one, "0" * 12)[1] for one in await environment.journal(session_id)]
        assert [one["synthetic"] for one in copies] == [one["synthetic"] for one in page]


async def test_what_is_shown_while_it_happens_is_what_is_read_later(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.post(session_id)
    followed: list[Any] = []
    async for item in environment.gateway.follow(SessionId(session_id), after=0):
        followed += getattr(item, "items", ())
        if len(followed) >= 3:
            break
    assert followed == list(await environment.journal(session_id))
    assert [one.synthetic for one in followed] == [True, True, False]


@pytest.mark.parametrize(
    ("kind", "direction", "about", "synthetic"),
    [
        ("session.titled", "from_runtime", ORIGIN, False),
        ("session.titled", "from_runtime", None, True),
        ("session.titled", "to_runtime", None, False),
        ("link.changed", "to_runtime", None, True),
        ("session.titled", "to_runtime", b'{"synthetic":true}', True),
        ("session.titled", "from_runtime", b'{"synthetic":false}', False),
        ("session.titled", "from_runtime", ORIGIN[:-1] + b',"synthetic":true}', True),
    ],
)
def test_of_what_0_2_0_wrote_only_what_has_no_other_maker_is_marked_and_all_is_kept(
    kind: str, direction: Any, about: bytes | None, *, synthetic: bool
) -> None:
    body = TITLED if kind == "session.titled" else b'{"kind":"link.changed","state":"up"}'
    record = EventRecord(SessionId("s"), 1, EventId("e"), kind, direction, None, 0, body, about)
    envelope = decode_envelope(record)
    assert envelope.synthetic is synthetic
    assert decode_envelope(encode_event(envelope)).synthetic is synthetic
    erased = record._replace(body=None, about=strip_about(about))
    assert decode_envelope(erased).synthetic is synthetic
