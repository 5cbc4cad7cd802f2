"""Questions to people where two gateways share a store: shown and answered at either, secrets on record at neither."""

from typing import Any

import pytest

from gateway.events import QuestionAsked, SecretAsked
from gateway.runtime.tuning import Tuning
from tests.engines.postgres_server import rows_of
from tests.scenarios.environment import Scene
from tests.scenarios.fleet import condition
from tests.scenarios.plain_runtime import PlainRuntime
from tests.scenarios.replicas import Faulty, cluster
from tests.scenarios.test_interactions import following, waiting

SECRET = "correct horse battery staple"
AGAIN = {("q0", "waiting"), ("q0", "answered")}
"""A look shows once more what changed since the last one, whatever notifications have shown meanwhile."""


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_question_is_shown_and_answered_at_the_other_instance(
    newer: Scene, capsys: pytest.CaptureFixture[str], deaf: bool
) -> None:
    if not deaf:
        # By notifications, since no look comes in time.
        newer.tuning = Tuning(interactions_look=60.0, interactions_look_idle=60.0)
    runtime = PlainRuntime()
    plain: dict[str, Any] = {"finn": {"adapter": "plain", "url": "http://plain.invalid", "session": "room-7"}}
    newer.settings["runtimes"] = plain
    store = cluster(newer)
    store.adapters = {"plain": runtime}

    def prepare(engine: Faulty) -> None:
        engine.deaf = deaf

    async with store.replica(lease=20, prepare=prepare) as a, store.replica(lease=20, prepare=prepare) as b:
        await a.wait_carries(await a.session())
        async with following(b) as questions:
            # Once something is shown, the first look at what waits is over; that look may show it a second time.
            runtime.say(QuestionAsked(id="q0", text="Ready?"))
            assert await questions.next() == ("q0", "waiting")
            [row] = await waiting(b, 1)
            await b.post(f"/v1/interactions/{row['interaction_id']}/answer", {"answer": "yes"}, status=200)
            runtime.say(QuestionAsked(id="q1", text="Which?"))
            while (shown := await questions.next()) != ("q1", "waiting"):
                assert shown in AGAIN
            [row] = await waiting(b, 1)
            path = f"/v1/interactions/{row['interaction_id']}/answer"
            await b.post(path, {"answer": "the blue one"}, status=200)
            while (shown := await questions.next()) != ("q1", "answered"):
                assert shown in {*AGAIN, ("q1", "waiting")}
            await condition(lambda: [one["answer"] for one in runtime.heard] == ["yes", "the blue one"])
            assert (await b.http.post(path, json={"answer": "x"})).status_code == 409

            runtime.say(SecretAsked(id="s1", purpose="sudo"))
            [row] = await waiting(b, 1)
            await b.post(f"/v1/interactions/{row['interaction_id']}/answer", {"value": SECRET}, status=200)
            assert (await runtime.hears("secret.supplied"))["value"] == SECRET
        kept = str(await rows_of(store.schema))
        assert "the blue one" in kept
        assert SECRET not in kept
    assert SECRET not in capsys.readouterr().err
