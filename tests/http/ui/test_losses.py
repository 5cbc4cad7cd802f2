"""Losses on pages: the form of an event is adapted; only content that its sender wrote is dropped in yellow."""

import pytest

from gateway.core.nulls import NULL_NOTE
from gateway.events import ActionOrdered, Loss, SessionId, TurnSteered
from gateway.http.ui.text import drops_content, json_markup
from tests.http.environment import Environment
from tests.http.ui.browser import browsing


@pytest.mark.parametrize(
    ("loss", "is_dropped"),
    [
        (Loss(how="dropped", path="/content/1", note="text only"), True),
        (Loss(how="dropped", path="/payload/arguments"), True),
        (Loss(how="dropped", path="/result"), True),
        (Loss(how="narrowed", path="/content/1"), False),
        (Loss(how="invented", path="/author/name", note="required"), False),
        (Loss(how="defaulted", path="/arguments"), False),
        (Loss(how="dropped", path="/message_id"), False),
        (Loss(how="dropped", path="/burst"), False),
        (Loss(how="dropped", path="/created_at"), False),
        (Loss(how="dropped", path="/arguments/rank", note=NULL_NOTE), False),
        (Loss(how="dropped", path=""), False),
    ],
)
def test_only_dropped_content_is_yellow(loss: Loss, is_dropped: bool) -> None:
    assert drops_content(loss.model_dump()) == is_dropped
    whole = json_markup({"content": [1, 2], "arguments": {}}, [Loss(how="dropped", path="/content/1").model_dump()])
    assert '<mark class="dropped" title="dropped /content/1">' in whole


async def test_a_timeline_says_adapted_with_the_list_and_warns_of_dropped_content_only(
    environment: Environment, url: str
) -> None:
    form = (Loss(how="dropped", path="/message_id"), Loss(how="narrowed", path="/text", note="asked in \u202e words"))
    environment.runtime.encoding_losses["turn.steered"] = form
    environment.runtime.encoding_losses["action.ordered"] = (Loss(how="dropped", path="/arguments", note="no place"),)
    session_id = await environment.attach()
    await environment.post(session_id, 2)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = (await browser.open(f"/ui/sessions/{session_id}")).text
        assert page.count(">adapted</a>") == 2
        assert 'title="dropped /message_id; narrowed /text: asked in \\u202e words"' in page
        assert "<mark" not in page
        assert page.count(", 2 adapted<") == 2
        assert "lost" not in page.partition("<main")[2].partition("<footer")[0]
        await environment.gateway.post(
            SessionId(session_id), [ActionOrdered(action="run"), TurnSteered(text="x")], by="-"
        )
        page = (await browser.open(f"/ui/sessions/{session_id}")).text
        assert page.count("content dropped</mark></a>") == 1
        assert page.count(">adapted</a>") == 3
