"""A scene in which a person is asked about each call of `free`, and `ops` is told."""

from typing import Any

from gateway.testing.runtimes.huma.calls import SimCall
from tests.scenarios.environment import API_KEY, Running, Scene
from tests.scenarios.hooks import SECRET, success

GIVEN = {"amount": 150}
ASKED, REMINDED, CLOSED = "interaction.asked", "interaction.reminded", "interaction.closed"


def notify(scene: Scene, **approvals: Any) -> Scene:
    """Configure a scene, which also has the destination `lead`."""
    to = {"secret": SECRET, "backoff": {"initial": "10ms", "maximum": "20ms"}}
    scene.configure(
        {
            "api": {"keys": [{"name": "lead", "key": API_KEY, "scopes": ["read", "drive", "operate", "approve"]}]},
            "routes": [
                {"match": {"tool": "free"}, "to": "cards", "approve": True},
                {"match": {"tool": "*"}, "to": "cards"},
            ],
            "runtimes": {"finn": {"labels": {"team": "blue"}}},
            "destinations": {name: {**to, "url": f"{scene.hooks.url}/{name}"} for name in ("ops", "lead")},
            "approvals": {"notify": ["ops"], **approvals},
        }
    )
    scene.hooks.scripts["free"] = success("refunded")
    return scene


async def held(scene: Scene, one: Running, given: dict[str, Any] = GIVEN) -> tuple[SimCall, dict[str, Any]]:
    """Let the agent call, and return its call and the question."""
    await scene.agent.wait_connected()
    call = await scene.agent.call("free", given)
    await one.wait_call(call.call_id, "held")
    (asked,) = (await one.get("/v1/interactions", state="waiting"))["data"]
    return call, asked


async def deny(one: Running, asked: dict[str, Any]) -> None:
    await one.post(f"/v1/interactions/{asked['interaction_id']}/answer", {"decision": "deny"}, status=200)
