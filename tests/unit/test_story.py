"""The story of a call shows each attempt with its own state."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.http.ui import lanes
from gateway.http.ui.story import tell

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW = START + timedelta(minutes=1)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def call(**over: Any) -> dict[str, Any]:
    """Return a call that its executor accepted after a second."""
    attempt = {"n": 1, "started_at": at(0), "ended_at": at(1), "status": 202, "reason": None, "unsure": False}
    return {
        "tool": "deal", "state": "accepted", "unknown": False, "dead": False, "unheard_since": None, "error": None,
        "executor": "cards",
        "created_at": at(0), "deadline_at": at(600), "finished_at": None, "canceling_until": None, "due_at": None,
        "attempt": 1, "idempotency_key": "k", "answer_to": "runtime", "outcome_sequence": None, "events": [],
        "request_sequence": 1, "redrive_of": None,
        "deliveries": [], "attempts": [attempt | {"sent": True, "due_at": None}],
    } | over  # fmt: skip


def test_an_accepted_attempt_waits_for_its_outcome() -> None:
    story = tell(call(), NOW)
    assert [(step.title, step.tone, step.is_wait, step.is_open) for step in story.steps] == [
        ("Attempt 1", "waiting", False, False),
        ("Waiting for the outcome", "waiting", True, True),
    ]
    assert story.longest is story.steps[1]
    # Its request, the 202, and nothing at the open end.
    assert len(lanes.draw(story.steps).arrows) == 2


def test_the_wait_for_a_reported_outcome_ends_with_it() -> None:
    finished = {"kind": "tool.finished", "outcome": "success", "result": 7, "unknown": False}
    envelope: dict[str, Any] = {"sequence": 4, "recorded_at": at(30), "losses": [], "event": finished}
    # The row of a call is written after its events.
    ended = call(state="succeeded", finished_at=at(32), outcome_sequence=4, events=[envelope])
    story = tell(ended, NOW)
    wait = story.steps[1]
    assert story.outcome == "deal succeeded after 30 s"
    assert (wait.title, wait.is_open, wait.end) == ("Waited for the outcome", False, START + timedelta(seconds=30))


def test_an_unknown_outcome_says_once_that_the_tool_may_have_run() -> None:
    over = {"state": "failed", "unknown": True, "finished_at": at(2)}
    assert tell(call(error="outcome unknown: the tool may have run", **over), NOW).ran == ""
    assert tell(call(error="outcome unknown: cut off", **over), NOW).ran == "the tool may have run"


def test_a_call_that_its_executor_refused_names_the_executor_and_the_fix() -> None:
    refused = call()["attempts"][0] | {"status": 401, "reason": "executor answered 401 Unauthorized: bad signature"}
    told = tell(call(state="failed", error=refused["reason"], finished_at=at(1), attempts=[refused]), NOW)
    assert told.steps[0].body == ""
    assert told.next == "Compare `url` and `secret` of executor cards with the backend's, then redrive the call."


def test_the_step_of_an_attempt_has_the_response_of_its_executor() -> None:
    failed = call()["attempts"][0] | {"status": 500, "reason": "no", "content_type": "text/plain", "body": "disk full"}
    told = tell(call(state="failed", finished_at=at(1), attempts=[failed]), NOW)
    assert told.steps[0].detail.startswith("HTTP 500 text/plain; no")
    assert told.steps[0].body == "disk full"
