"""A chat message inside a context: the message is the message, the rest of the context comes before it."""

from typing import Any

import pytest

from gateway.adapter.port import Adapter
from gateway.core.effects import Transmit
from gateway.events import Author, ContextUpdated, Data, Image, MessagePosted, Text, TurnSteered
from tests.unit.core.harness import HERM, HUMA_0_1, HUMA_0_2, OPENHANDS, Harness

IMAGE = "data:image/png;base64,AAAA"


def _update(*content: Any, wakes: bool = True, **more: Any) -> ContextUpdated:
    message = MessagePosted(author=Author(id="u1", name="Alice"), content=content or (Text(text="Hi!"),))
    given: dict[str, Any] = {"context": {"room": "den"}, "description": "Alice is in the den.", **more}
    return ContextUpdated(name="new-message", message=message, wakes_agent=wakes, **given)


def _posted(harness: Harness, sequence: int) -> list[tuple[str, str]]:
    """The losses on the envelope that the poster is shown."""
    shown = next(new for new, number in harness.journal if number == sequence)
    return [(loss.how, loss.path) for loss in shown.losses]


@pytest.mark.parametrize("wakes", [True, False])
def test_openhands_is_told_the_message_and_before_it_the_rest(wakes: bool):
    harness = Harness(OPENHANDS)
    sequence = harness.post(_update(Text(text="Look!"), Image(url=IMAGE), wakes=wakes))
    (payload,) = harness.sent
    assert payload["action"] == "message"
    assert payload["args"]["content"] == 'Alice is in the den.\n{"room":"den"}\nLook!'
    assert payload["args"]["image_urls"] == [IMAGE]
    assert ("narrowed", "") in _posted(harness, sequence)
    # The held contexts are sent.
    harness.post(MessagePosted(content=(Text(text="And?"),)))
    assert harness.sent[0]["args"]["content"] == "And?"


def test_herm_gets_held_contexts_and_the_rest_before_the_message():
    harness = Harness(HERM)
    harness.post(ContextUpdated(name="door", context={"door": "open"}, description="The door opens."))
    assert harness.sent == []
    sequence = harness.post(_update(Text(text="Look!"), Image(url=IMAGE), Data(data={"a": 1})))
    (payload,) = harness.sent
    assert payload["type"] == "user.message"
    texts = [block["text"] for block in payload["content"]]
    assert texts[0] == 'The door opens.\nAlice is in the den.\n{"room":"den"}'
    assert texts[1] == "Look!"
    # Each image that cannot be sent is a loss of its own in the response.
    assert [loss for loss in _posted(harness, sequence) if loss[1].startswith("/message/content/")]


def test_while_a_herm_turn_runs_the_message_waits_for_its_end_and_is_no_hint():
    harness = Harness(HERM)
    harness.post(MessagePosted(content=(Text(text="go"),)))
    harness.receive(
        {"id": "e1", "type": "session.status_running", "sessionId": "s", "sequence": 1,
         "payload": {"type": "session.status_running"}},
        channel="stream",
    )  # fmt: skip
    harness.post(_update(wakes=False))
    sends = [one for one in harness.effects if isinstance(one, Transmit)]
    assert [(one.kind, one.lane) for one in sends] == [("message.posted", "new_work")]


def test_huma_0_1_is_told_the_rest_quietly_and_then_the_message():
    harness = Harness(HUMA_0_1)
    sequence = harness.post(_update(Text(text="Look!"), Image(url=IMAGE)))
    context, message = harness.sent
    assert (context["type"], context["content"]["name"]) == ("huma-0.1-event", "new-message")
    assert context["content"]["context"]["room"] == "den"
    assert message["type"] == "new-message"
    assert "Look!" in str(message)
    assert IMAGE in str(message)
    assert harness.kinds[-3:] == ["context.updated", "context.updated", "message.posted"]
    assert ("dropped", "/message") not in _posted(harness, sequence)
    assert ("narrowed", "/message") in _posted(harness, sequence)


def test_huma_0_2_is_told_both_in_one():
    harness = Harness(HUMA_0_2)
    harness.post(_update())
    (payload,) = harness.sent
    assert payload["type"] == "context-update"
    assert "Hi!" in str(payload["context"]["message"])


def test_a_context_that_says_nothing_else_puts_nothing_before_its_message():
    harness = Harness(OPENHANDS)
    harness.post(_update(context={}, description=""))
    assert harness.sent[0]["args"]["content"] == "Hi!"


@pytest.mark.parametrize(
    ("adapter", "event"),
    [
        (OPENHANDS, TurnSteered(text="left")),
        (HUMA_0_1, TurnSteered(text="left")),
        (HUMA_0_2, TurnSteered(text="left")),
        (HUMA_0_2, MessagePosted(author=Author(name="Alice"), content=(Text(text="Hi"), Data(data={"a": 1})))),
        (OPENHANDS, ContextUpdated(name="x", context={"a": 1}, wakes_agent=True)),
        (HERM, ContextUpdated(name="x", context={"a": 1}, wakes_agent=True)),
    ],
)
def test_the_client_sees_the_losses_of_the_form_that_is_sent_instead(adapter: Adapter, event: Any):
    harness = Harness(adapter)
    sequence = harness.post(event)
    said, _ = harness.journal[-1]
    assert said.event.kind != event.kind
    assert said.losses
    assert set(_posted(harness, sequence)) >= {(loss.how, loss.path) for loss in said.losses}
