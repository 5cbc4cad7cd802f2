"""The client against a gateway at work: what it asks is carried out once, and its key is shown nowhere."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from dragoman.client import Client, Envelope, Followed, Gap, GatewayUnreachable, Passed, RequestRefused
from dragoman.client.filters import CallFilters, EventFilters, LetterFilters, SessionFilters, to_query
from gateway.events import (
    Author,
    MessagePosted,
    Outcome,
    QuestionAsked,
    SecretAsked,
    SecretSupplied,
    Text,
    ToolFinished,
    ToolRequested,
)
from gateway.executors.port import Answered
from tests.clients.test_clients import PLAYED, asked_gateway, was_told_all
from tests.faults.proxy import Proxy
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of, until
from tests.ports import free_port

KEY = "all-of-it"
OPENAPI = json.loads((Path(__file__).parents[2] / "config/openapi.json").read_bytes())
ASK: dict[str, Any] = {"tools": {"ask_for_cards": {"description": "Ask.", "parameters": {
    "type": "object", "properties": {"rank": {"type": "string"}}, "required": ["rank"]}}}}  # fmt: skip


@asynccontextmanager
async def world(**over: Any) -> AsyncGenerator[tuple[Environment, Client]]:
    async with (
        environment_of({**ASK, **over}) as environment,
        serving(environment.gateway) as (_, url),
        Client(url, KEY) as dragoman,
    ):
        yield environment, dragoman


@pytest.fixture
async def here() -> AsyncIterator[tuple[Environment, Client]]:
    async with world() as made:
        yield made


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def test_it_plays_the_script_of_the_generated_clients() -> None:
    async with asked_gateway() as (environment, env):
        async with Client(env["API"], env["DRAGOMAN_KEY"]) as dragoman:
            session, said = env["SESSION"], list[str]()
            [call] = await all_of(dragoman.calls())
            said.append(call.state)
            said += [one.runtime for one in await dragoman.capabilities()]
            message = MessagePosted(author=Author(name="Alice"), content=(Text(text="Your turn, Finn!"),))
            said.append(f"202{len(await dragoman.post(session, message))}"[:3])
            first, again = [await dragoman.post(session, "Your turn, Finn!", key="order-4711") for _ in range(2)]
            said += ["202", "202 true" if first == again else "202 false"]
            async for item in dragoman.follow(session, after=0):
                if isinstance(item, Envelope) and item.event.kind == "message.posted":
                    said.append(item.event.kind)
                    break
            [waiting] = await all_of(dragoman.interactions())
            said.append((await dragoman.answer(waiting, decision="allow", scope="once")).state)
            await dragoman.report_progress(call, {"percent": 40})
            said.append("202")
            said.append((await dragoman.settle_call(call, "success", result={"cards": ["7H"]})).state)
            called = await dragoman.call(session, "ask_for_cards", {"rank": "7"}, key="order-4711", wait=30)
            said.append(f"200 {called.outcome.result if called.outcome else None}")
            assert said == PLAYED
        await was_told_all(environment)


async def test_lists_of_many_pages_have_everything_once_and_in_order(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    opened = [(await dragoman.open_session("finn", native_id=f"room-{n}")).session_id for n in range(101)]
    assert [one.session_id async for one in dragoman.sessions()] == opened
    assert [one.session_id async for one in dragoman.sessions(newest_first=True)] == opened[::-1]
    [named] = [one async for one in dragoman.sessions(runtime="finn", native_id="room-7")]
    assert named == await dragoman.session(opened[7])
    await dragoman.close_session(named)
    await dragoman.close_session(named)
    assert (await dragoman.session(named)).state == "closed"
    assert [one.session_id async for one in dragoman.sessions(open_only=True)] == opened[:7] + opened[8:]
    assert await dragoman.open_session("finn", native_id="room-8") == await dragoman.session(opened[8])
    await environment.post(opened[0], 250)
    read = await all_of(dragoman.events(opened[0]))
    assert [one.sequence for one in read] == list(range(1, len(read) + 1))
    assert Counter(one.event.kind for one in read)["turn.steered"] == 250
    assert await all_of(dragoman.events(opened[0], after=240)) == read[240:]


async def test_lists_take_the_filters_of_the_api(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    now = datetime.now(UTC)
    for number, team in enumerate(("blue", "red")):
        await dragoman.open_session("finn", native_id=f"agent-{number}", labels={"team": team})
    found = dragoman.sessions(labels={"team": "red"}, since=now - timedelta(hours=1), until=now + timedelta(hours=1))
    [session] = await all_of(found)
    assert session.native_id == "agent-1"
    assert await all_of(dragoman.sessions(state=["waiting"], open_only=True)) == []
    await environment.post(session.session_id, 3)
    steered = await all_of(dragoman.events(session, kind=["turn.*", "message.*"]))
    assert [one.event.kind for one in steered] == ["turn.steered"] * 3
    # A text is one glob, and not one for each of its letters.
    assert await all_of(dragoman.events(session, kind="turn.*")) == steered
    called = await dragoman.call(session, "ask_for_cards", {"rank": "7"}, wait=0)
    assert [one.call_id for one in await all_of(dragoman.calls(labels={"team": "red"}, executor="cards"))] == [
        called.call_id
    ]
    assert await all_of(dragoman.calls(session=session, outcome=["failure"], unknown=False)) == []
    assert [one.trace_id for one in await all_of(dragoman.calls(trace_id=called.trace_id))] == [called.trace_id]


@pytest.mark.parametrize(
    ("path", "filters"),
    [
        ("sessions", SessionFilters),
        ("calls", CallFilters),
        ("dead-letters", LetterFilters),
        ("events/stream", EventFilters),
    ],
)
def test_a_list_has_each_filter_of_the_api_in_the_client(path: str, filters: type[Any]) -> None:
    names = to_query(cast(SessionFilters, dict.fromkeys(set(filters.__annotations__) - {"labels"}))).keys()
    given = {one["name"] for one in OPENAPI["paths"][f"/v1/{path}"]["get"]["parameters"] if one["in"] == "query"}
    # Pages, their order and the form of their rows are no filters; `Client.session` reads a session by its id.
    other = {"limit", "after", "order", "arguments", "label.NAME", "session_id" if path == "sessions" else ""}
    assert given - other == names


async def test_the_last_context_of_a_session_is_returned(here: tuple[Environment, Client]) -> None:
    _, dragoman = here
    session = await dragoman.open_session("finn", native_id="agent-7")
    assert (await dragoman.context(session)).envelope is None
    [posted] = await dragoman.post(session, {"kind": "context.updated", "name": "game", "context": {"cards": 7}})
    assert (await dragoman.context(session.session_id)).envelope == posted
    with pytest.raises(RequestRefused, match="no session"):
        await dragoman.context("unknown")


async def test_history_that_retention_has_removed_is_a_gap(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()
    await environment.post(session, 150)
    first = await environment.forget(session, keep=40)
    for reading in (dragoman.events(session), dragoman.follow(session, after=0)):
        gap = await anext(reading)
        assert gap == Gap(first)
        kept = [await anext(reading) for _ in range(40)]
        assert [one.sequence for one in kept if isinstance(one, Envelope)] == list(range(first, first + 40))
        await reading.aclose()


async def test_a_place_behind_the_end_as_after_a_restore_is_a_gap(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()
    assert await all_of(dragoman.events(session, after=7)) == [Gap(3)]
    following = dragoman.follow(session, after=7)
    assert await anext(following) == Gap(3)
    await environment.post(session, 3)
    told = [await anext(following) for _ in range(3)]
    assert [one.sequence for one in told if isinstance(one, Envelope)] == [3, 4, 5]
    await following.aclose()


async def test_a_call_from_outside_is_waited_for_and_its_key_makes_it_one(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await dragoman.session(await environment.attach())
    waiting = asyncio.create_task(dragoman.call(session, "ask_for_cards", {"rank": "7"}, key="order-4711"))
    opened = await environment.call("caller:backend:order-4711", "accepted")
    later = await dragoman.call(session, "ask_for_cards", {"rank": "7"}, key="order-4711", wait=0)
    assert (later.call_id, later.outcome, waiting.done()) == (opened.call_id, None, False)
    await dragoman.settle_call(later, "success", result={"cards": ["7H"]})
    await dragoman.settle_call(later, "success", result={"cards": ["7H"]})
    done = await waiting
    assert done.outcome == Outcome(outcome="success", result={"cards": ["7H"]})
    assert len(environment.backend.asked) == 1
    history = await dragoman.call_history(done)
    assert history.outcome == done.outcome
    assert [one.event.kind for one in history.events] == ["tool.requested", "tool.finished"]
    environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="failure", error="nobody plays"))
    failed = await dragoman.call(session, "ask_for_cards", {"rank": "8"})
    again = await dragoman.call(session, "ask_for_cards", {"rank": "8"})
    assert failed.outcome == again.outcome == Outcome(outcome="failure", error="nobody plays")
    assert failed.call_id != again.call_id
    assert {one.call_id async for one in dragoman.calls(session=session, state=["failed"])} == {
        failed.call_id,
        again.call_id,
    }


async def test_a_call_that_nobody_ends_is_given_back_open_and_can_be_canceled(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()
    call = await dragoman.call(session, "ask_for_cards", {"rank": "7"}, wait=0.3)
    assert (call.outcome, call.finished_at) == (None, None)
    await dragoman.cancel_call(call, reason="nobody waits")
    assert environment.backend.canceled[0].data["reason"] == "nobody waits"
    await dragoman.settle_call(call, "canceled", error="as asked")
    ended = await dragoman.call_history(call, wait=20)
    assert (ended.state, ended.outcome and ended.outcome.outcome) == ("canceled", "canceled")


async def test_what_is_refused_says_type_place_scope_and_nothing_is_repeated(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()

    async def refused(asking: Any) -> RequestRefused:
        with pytest.raises(RequestRefused) as caught:
            await asking
        assert not caught.value.passing
        return caught.value

    one = await refused(dragoman.call(session, "fly", {}))
    assert (one.status, one.type) == (404, "unknown-tool")
    one = await refused(dragoman.call(session, "ask_for_cards", {}))
    assert (one.status, one.type) == (422, "invalid-arguments")
    await dragoman.call(session, "ask_for_cards", {"rank": "7"}, key="k", wait=0)
    one = await refused(dragoman.call(session, "ask_for_cards", {"rank": "8"}, key="k"))
    assert (one.status, one.type) == (409, "call-differs")
    one = await refused(dragoman.post(session, "hello", {"kind": "turn.steered", "text": 7}))
    assert (one.status, one.type, one.problem.pointer) == (400, "invalid-event", "/events/1/text")
    assert "/events/1/text" in str(one)
    one = await refused(dragoman.post(session, {"kind": "thread.sent", "thread_id": "t"}))
    assert (one.status, one.type) == (422, "inexpressible")
    await dragoman.post(session, "hello", key="k")
    one = await refused(dragoman.post(session, "other", key="k"))
    assert (one.status, one.type) == (422, "idempotency-conflict")
    one = await refused(dragoman.session("c23cc1bd-0000-5000-8000-000000000000"))
    assert (one.status, one.type) == (404, "not-found")
    one = await refused(dragoman.request("GET", "/v1/nowhere"))
    assert (one.status, one.type) == (404, "unknown-path")
    one = await refused(anext(dragoman.follow("c23cc1bd-0000-5000-8000-000000000000")))
    assert (one.status, one.type) == (404, "not-found")
    url = str(dragoman)[8:-2]
    async with Client(url, "look-only") as viewer:
        one = await refused(viewer.post(session, "hello"))
        assert (one.status, one.type, one.problem.scope) == (403, "forbidden", "drive")
    async with Client(url, "wrong") as nobody:
        for asking in (nobody.session(session), anext(nobody.follow(session)), anext(nobody.follow_interactions())):
            assert ((one := await refused(asking)).status, one.type) == (401, "unauthorized")
    recorded = [one.event.kind async for one in dragoman.events(session) if isinstance(one, Envelope)]
    assert recorded.count("message.posted") == 1


async def test_people_are_asked_and_answer_once_and_secrets_arrive_as_they_are(
    here: tuple[Environment, Client],
) -> None:
    environment, dragoman = here
    session = await environment.attach()
    follower = dragoman.follow_interactions()
    told = asyncio.ensure_future(anext(follower))
    await environment.ask_person()
    shown = await told
    [asked] = await all_of(dragoman.interactions(session=session, state="waiting"))
    assert shown == asked
    assert await dragoman.interaction(asked) == asked
    assert (await dragoman.answer(asked, decision="deny")).state == "answered"
    assert (await dragoman.interaction(asked.interaction_id)).answered_by == "backend"
    with pytest.raises(RequestRefused) as caught:
        await dragoman.answer(asked, decision="allow")
    assert caught.value.type == "conflict"
    answered = await anext(follower)
    assert (getattr(answered, "interaction_id", None), getattr(answered, "state", None)) == (
        asked.interaction_id,
        "answered",
    )
    environment.runtime.say(QuestionAsked(id="q-1", text="Which?"))
    question = await anext(follower)
    assert getattr(question, "event", None) == QuestionAsked(id="q-1", text="Which?")
    await dragoman.answer(getattr(question, "interaction_id", ""), answer="the blue one")
    assert (await environment.runtime.hears("question.answered"))["answer"] == "the blue one"
    environment.runtime.say(SecretAsked(id="s-1", purpose="sudo"))
    secret = await until(lambda: _waiting(dragoman))
    await dragoman.answer(secret, value=SecretStr("hunter2"))
    assert (await environment.runtime.hears("secret.supplied"))["value"] == "hunter2"
    await follower.aclose()


async def test_calls_are_counted_per_minute_from_the_start_of_the_instance(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here

    async def counted() -> tuple[int, int, int]:
        activity = await dragoman.activity()
        assert activity.minutes[0].at <= activity.instance_since
        places = [one.at for one in activity.minutes]
        assert places == [places[0] + timedelta(minutes=n) for n in range(len(places))]
        sums = [(one.calls, one.failed, one.unknown) for one in activity.minutes]
        calls, failed, unknown = (sum(column) for column in zip(*sums, strict=True))
        return calls, failed, unknown

    session = await environment.attach()
    assert await counted() == (0, 0, 0)
    environment.runtime.say(ToolRequested(native_call_id="own", tool="ls", runs_in="runtime"))
    environment.runtime.say(ToolFinished(native_call_id="own", outcome="failure", error="no such folder"))
    await dragoman.settle_call(await environment.ask("c-1", "free"), "success", result=7)
    await dragoman.settle_call(await environment.ask("c-2", "free"), "failure", error="no")
    lost = await environment.lose_call("c-3")
    # The session has counted a call before it takes up what follows.
    await environment.post(session)
    assert await counted() == (3, 2, 1)
    with environment.backend.held():
        await dragoman.redrive_call(lost)
        assert await counted() == (4, 2, 1)


async def test_a_secret_that_is_posted_arrives_as_it_is(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()
    environment.runtime.say(SecretAsked(id="s-1", purpose="sudo"))
    await environment.recorded(session, "secret.asked")
    [told] = await dragoman.post(session, SecretSupplied(id="s-1", purpose="sudo", value=SecretStr("hunter2")))
    assert (await environment.runtime.hears("secret.supplied"))["value"] == "hunter2"
    assert isinstance(told.event, SecretSupplied)
    assert told.event.value.get_secret_value() == "*" * 10


async def _waiting(dragoman: Client) -> Any:
    return next(iter(await all_of(dragoman.interactions(state="waiting"))), None)


@asynccontextmanager
async def behind_a_wire(**options: Any) -> AsyncGenerator[tuple[Environment, Proxy, Client]]:
    """A gateway whose connections can be cut between it and the client."""
    async with (
        environment_of(ASK) as environment,
        serving(environment.gateway) as (_, url),
        Proxy(("127.0.0.1", urlsplit(url).port or 0)) as wire,
        Client(wire.url, KEY, **options) as dragoman,
    ):
        yield environment, wire, dragoman


async def test_what_is_written_under_a_key_is_on_record_once_though_its_answer_is_lost() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        lost = wire.break_after(b"HTTP/1.1 202", side="server", pass_on=False, times=2)
        [told] = await dragoman.post(session, "hello")
        assert lost.done.is_set()
        lost = wire.break_after(b"HTTP/1.1 202", side="server", pass_on=False)
        call = await dragoman.call(session, "ask_for_cards", {"rank": "7"}, wait=0)
        assert lost.done.is_set()
        lost = wire.break_after(b"HTTP/1.1 201", side="server", pass_on=False)
        made = await dragoman.open_session("finn")
        assert lost.done.is_set()
        events = await environment.journal(session)
        assert [one.sequence for one in events if one.event.kind == "message.posted"] == [told.sequence]
        assert [one.call_id async for one in dragoman.calls()] == [call.call_id]
        assert (environment.runtime.orders, made.native_id) == (1, "made-1")


async def test_what_may_have_arrived_without_a_key_is_not_repeated() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        asked = await environment.ask_person()
        call = await environment.ask(tool="free")
        for asking in (
            lambda: dragoman.answer(asked, decision="allow"),
            lambda: dragoman.report_progress(call, {"percent": 40}),
            lambda: dragoman.cancel_call(call),
            lambda: dragoman.request("POST", "/v1/reload"),
        ):
            lost = wire.break_after(b"HTTP/1.1 20", side="server", pass_on=False)
            opened = wire.opened
            with pytest.raises(GatewayUnreachable) as caught:
                await asking()
            assert (caught.value.may_have_arrived, lost.done.is_set(), wire.opened - opened) == (True, True, 1)
        kinds = Counter(one.event.kind for one in await environment.journal(session))
        assert (kinds["approval.given"], kinds["call.progressed"]) == (1, 1)


async def test_where_nobody_listens_any_request_is_tried_again_until_somebody_does() -> None:
    async with environment_of(ASK) as environment, serving(environment.gateway) as (_, url):
        session = await environment.attach()
        async with Proxy(("127.0.0.1", urlsplit(url).port or 0)) as wire:
            port = wire.port
        back = Proxy(("127.0.0.1", urlsplit(url).port or 0))
        back.port = port
        async with Client(f"http://127.0.0.1:{port}", KEY) as dragoman:
            with pytest.raises(GatewayUnreachable, match="no gateway responds at") as caught:
                async with Client(f"http://127.0.0.1:{port}", KEY, retries=0) as once:
                    await once.post(session, "hello")
            assert not caught.value.may_have_arrived
            call = await environment.ask(tool="free")
            telling = asyncio.create_task(dragoman.report_progress(call, {"percent": 40}))
            # How long nobody listens is the fault.
            await asyncio.sleep(0.2)
            async with back:
                await telling
        kinds = Counter(one.event.kind for one in await environment.journal(session))
        assert kinds["call.progressed"] == 1


async def test_the_key_is_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = "canary-key-7QxZ"
    async with behind_a_wire() as (environment, wire, _):
        session = await environment.attach()
        for name in ("", "httpx", "httpcore", "httpcore.http11", "dragoman.client"):
            caplog.set_level(logging.DEBUG, logger=name)
        async with Client(wire.url, secret, retries=1) as dragoman:
            shown = [repr(dragoman), str(dragoman.__dict__), repr(vars(dragoman)["_transport"].__dict__)]
            for asking in (dragoman.session(session), anext(dragoman.follow(session))):
                with pytest.raises(RequestRefused) as caught:
                    await asking
                shown += [repr(caught.value), str(caught.value), str(caught.value.__dict__)]
            wire.refuse()
            with pytest.raises(GatewayUnreachable) as cut:
                await dragoman.session(session)
            shown += [repr(cut.value), str(cut.value.__dict__)]
    for bad in (f"{secret}\n{secret}", f"{secret}\x00", "", " "):
        with pytest.raises(ValueError, match="printable text") as wrong:
            Client("http://127.0.0.1:1", bad)
        shown.append(str(wrong.value))
    assert len(caplog.records) > 10
    assert secret not in "".join(shown) + caplog.text


async def test_a_key_of_any_printable_characters_is_sent_as_it_is() -> None:
    key = "Schlüssel & +%41=~ 漢字😀"
    async with (
        environment_of({"api": {"keys": [{"name": "odd", "key": key}]}}) as environment,
        serving(environment.gateway) as (_, url),
        Client(url, key) as dragoman,
    ):
        assert [one.name for one in await dragoman.runtimes()] == ["finn"]


@pytest.mark.parametrize(
    "url",
    [
        "", "localhost:8080", "ftp://a", "http://", "http://me:hunter2@a", "http://hunter2@a", "http://a\x00",
        "http://a\\@b", "http://a?b=c", "http://a#b", "http://a:x", "http://[::1",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(ValueError, match="the gateway's URL") as caught:
        Client(url)
    assert "hunter2" not in str(caught.value)


async def test_keys_and_ids_that_cannot_be_sent_are_refused_before_anything_is(
    here: tuple[Environment, Client],
) -> None:
    environment, dragoman = here
    session = await environment.attach()
    for key in ("", " k", "k\n", "schlüssel"):
        with pytest.raises(ValueError, match="printable ASCII"):
            await dragoman.post(session, "hello", key=key)
        with pytest.raises(ValueError, match="printable ASCII"):
            await dragoman.call(session, "ask_for_cards", {"rank": "7"}, key=key)
    for strange in ("", ".", ".."):
        with pytest.raises(ValueError, match="invalid id"):
            await dragoman.session(strange)
    for strange in ("", "v1/calls", "@elsewhere.invalid/", ".elsewhere.invalid/", ":80/"):
        with pytest.raises(ValueError, match="invalid path"):
            await dragoman.request("GET", strange)
    for body in (
        {"kind": "opaque", "channel": "x", "payload": float("nan")},
        {"kind": "turn.steered", "text": "\ud800"},
    ):
        with pytest.raises(ValueError, match=r"Out of range|surrogates"):
            await dragoman.post(session, body)
    with pytest.raises(RequestRefused) as caught:
        await dragoman.session("a/../b?c#d")
    assert caught.value.type == "unknown-path"
    with pytest.raises(ValueError, match="`timeout`"):
        Client("http://a", timeout=0)
    with pytest.raises(ValueError, match="`pause`"):
        Client("http://a", pause=0)
    assert len(await environment.journal(session)) == 2


async def test_a_client_of_ones_own_is_used_and_left_open(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    session = await environment.attach()
    url, asked = str(dragoman)[8:-2], list[httpx.Request]()

    async def note(request: httpx.Request) -> None:
        asked.append(request)

    async with httpx.AsyncClient(trust_env=False, event_hooks={"request": [note]}, follow_redirects=True) as http:
        async with Client(url, KEY, http_client=http) as one:
            assert (await one.session(session)).session_id == session
        assert not http.is_closed
    assert [request.url.path for request in asked] == [f"/v1/sessions/{session}"]


async def test_all_sessions_are_followed_and_resumed_with_their_filters(here: tuple[Environment, Client]) -> None:
    environment, dragoman = here
    sessions = [await environment.attach(f"agent-{number}") for number in range(2)]
    async with aclosing(dragoman.follow_all(kind=["turn.*"], silence=30)) as items:
        begin = await anext(items)
        assert isinstance(begin, Passed)
        for session in sessions:
            await environment.post(session, 2)
        seen = [one for one in [await anext(items) for _ in range(4)] if isinstance(one, Followed)]
    assert [(one.session.session_id, one.item.sequence) for one in seen if isinstance(one.item, Envelope)] == [
        (session, sequence) for session in sessions for sequence in (3, 4)
    ]
    assert seen[0].session.native_id == "agent-0"
    for place, rest in ((begin.id, seen), (seen[0].id, seen[1:])):
        async with aclosing(dragoman.follow_all(kind=["turn.*"], after=place)) as items:
            assert [await anext(items) for _ in rest] == rest
    with pytest.raises(RequestRefused, match="other filters"):
        await anext(dragoman.follow_all(session=sessions[0], after=begin.id))


async def test_a_gateway_that_is_not_there_is_told_with_the_cause() -> None:
    port = free_port()
    async with Client(f"http://127.0.0.1:{port}", KEY, retries=0) as dragoman:
        with pytest.raises(GatewayUnreachable) as caught:
            await dragoman.runtimes()
    assert str(caught.value) == f"no gateway responds at http://127.0.0.1:{port} (Connection refused)"
