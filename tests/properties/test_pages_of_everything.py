"""Every page of the UI opens after any history of agents, backends, clients and operators."""

import asyncio
import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import httpx
from hypothesis import given, settings, strategies as st

from gateway.events import (
    ApprovalAsked,
    Event,
    FaultReported,
    MessagePosted,
    Opaque,
    Outcome,
    QuestionAsked,
    SecretAsked,
    SessionMoved,
    Text,
    ThoughtShared,
    ToolCanceled,
    ToolRequested,
)
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, Replied, Uncertain
from gateway.store.rows import CallFilter, Page
from tests.http.conftest import in_process
from tests.http.environment import Environment, environment_of, until

IDS = st.sampled_from(["a", "b"])
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | WORDS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3))
NAMES = st.sampled_from(["redriven_as", "dismissed_by", "kind", "call_id", "event", "text"]) | WORDS
OBJECT = st.dictionaries(NAMES, JSON, max_size=3)
ANSWERS: dict[str, Answer] = {
    "succeed": Answered(Outcome(outcome="success", result={"cards": []})),
    "fail": Answered(Outcome(outcome="failure", error="no")),
    "doubt": Answered(Outcome(outcome="failure", error="cut off", unknown=True)),
    "accept": Accepted(),
    "refuse": NeverSent("refused"),
    "break": Uncertain("broken"),
    "say_nothing": Replied({}),
}
SAID: st.SearchStrategy[Event] = st.one_of(
    st.builds(ToolRequested, native_call_id=IDS, tool=st.sampled_from(list(ANSWERS)), arguments=OBJECT),
    st.builds(ToolRequested, native_call_id=IDS, tool=WORDS, arguments=OBJECT, problem=WORDS),
    st.builds(ToolRequested, native_call_id=WORDS, tool=WORDS, arguments=OBJECT, runs_in=st.just("runtime")),
    st.builds(ToolCanceled, native_call_id=IDS, reason=WORDS),
    st.builds(ApprovalAsked, id=IDS, tool=WORDS, arguments=OBJECT),
    st.builds(QuestionAsked, id=IDS, text=WORDS, choices=st.lists(WORDS, max_size=3).map(tuple)),
    st.builds(SecretAsked, id=IDS, purpose=st.just("secret"), name=WORDS),
    st.builds(SessionMoved, state=st.sampled_from(["running", "idle", "error", "awaiting_approval"])),
    st.builds(MessagePosted, content=st.tuples(st.builds(Text, text=WORDS))),
    st.builds(ThoughtShared, text=WORDS),
    st.builds(FaultReported, message=WORDS),
    st.builds(Opaque, channel=st.sampled_from(["odd", "erased", "unknown-kind"]), payload=JSON),
)
OUTCOMES = st.fixed_dictionaries({"outcome": st.just("success"), "result": JSON})
ASKED = st.one_of(
    st.tuples(st.just("calls/{call}/progress"), OBJECT),
    st.tuples(st.just("calls/{call}/outcome"), OUTCOMES),
    st.tuples(st.just("calls/{call}/cancel"), st.just({})),
    st.tuples(st.just("calls/{call}/redrive"), st.fixed_dictionaries({"deliver": st.booleans()})),
    st.tuples(st.just("dead-letters/{call}/dismiss"), st.none()),
    st.tuples(st.just("dead-letters/redrive"), st.just({})),
    st.tuples(st.just("interactions/{interaction}/answer"), st.just({"decision": "allow"})),
    st.tuples(st.just("interactions/{interaction}/answer"), st.just({"answer": "x"})),
    st.tuples(st.just("sessions/{session}/events"), WORDS.map(lambda text: {"kind": "turn.steered", "text": text})),
    st.tuples(st.just("sessions/{session}/events"), st.just({"kind": "action.ordered", "action": "run"})),
    st.tuples(st.just("sessions/{session}/events"), st.just({"kind": "turn.interrupted"})),
    st.tuples(st.just("sessions"), st.just({"runtime": "finn", "native_id": "agent-7"})),
)  # fmt: skip
Move = Event | tuple[str, Any]


@settings(max_examples=25)
@given(st.lists(SAID | ASKED, max_size=12))
def test_every_page_opens_after_any_history(moves: list[Move]) -> None:
    asyncio.run(_run(moves))


async def _run(moves: Sequence[Move]) -> None:
    async with environment_of({"api": {"keys": []}, "limits": {"drain": "1s"}}) as made:
        made.backend.answers.update(ANSWERS)
        session_id = await made.attach()
        async with in_process(made.gateway, {}) as client:
            for number, move in enumerate(moves):
                if not isinstance(move, tuple):
                    made.runtime.say(move, f"m-{number}")
                    continue
                calls, _ = await made.engine.calls(CallFilter(), Page(50))
                waiting, _ = await made.engine.interactions(Page(50))
                ids = {
                    "session": session_id,
                    "call": calls[number % len(calls)].call_id if calls else "none",
                    "interaction": waiting[0].interaction_id if waiting else "none",
                }
                answer = await client.post(f"/v1/{move[0].format(**ids)}", json=move[1])
                assert answer.status_code < 500, (move, answer.text)
            made.runtime.say(FaultReported(message="the end"), "end")
            await until(lambda: _holds(made, session_id, "the end"))
            await _open_all(client)


async def _holds(made: Environment, session_id: str, text: str) -> bool | None:
    return any(getattr(one.event, "message", "") == text for one in await made.journal(session_id)) or None


async def _open_all(client: httpx.AsyncClient) -> None:
    """Open every page that a link leads to."""
    opened, waiting = set[str](), ["/ui"]
    while waiting:
        path = waiting.pop()
        opened.add(path)
        page = await client.get(path)
        assert page.status_code == 200, (path, page.text)
        links = re.findall(r'(?:href|data-copy-story)="(/ui[^"#]*)', page.text)
        waiting += {unescape(link) for link in links} - opened - set(waiting)
    assert len(opened) > 8, opened
