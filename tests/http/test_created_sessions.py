"""Sessions that a client has created: what they are ordered with, and what of it the runtime could not be told."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.adapter.port import Order
from gateway.events import Loss
from tests.http.conftest import bearer, in_process
from tests.http.environment import Environment, Rooms, environment_of, until

TOOLS: dict[str, Any] = {
    name: {"description": "Play.", "parameters": {"type": "object"}} for name in ("ask", "pass", "deal")
}


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    """A gateway with three tools, at a runtime that is told one, loses one and says nothing of the third."""
    runtime = Rooms(tools=("ask",), losses=(Loss(how="dropped", path="/tools/pass", note="no room"),))
    async with environment_of({"tools": TOOLS}, runtime=runtime) as made:
        yield made


async def test_what_the_runtime_could_not_be_told_is_on_record_with_its_session(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    answer = await api.post("/v1/sessions", json={"runtime": "finn"})
    assert (answer.status_code, answer.json()["tools"]) == (201, ["ask"])
    page = await api.get(f"/v1/sessions/{answer.json()['session_id']}/events?limit=1")
    (opened,) = page.json()["data"]
    assert opened["event"]["kind"] == "session.opened"
    assert [(loss["how"], loss["path"]) for loss in opened["losses"]] == [
        ("dropped", "/tools/pass"),
        ("dropped", "/tools/deal"),
    ]
    assert opened["losses"][1]["note"] == "the adapter does not say whether the runtime was told"
    assert environment.runtime.order is not None
    assert [tool.name for tool in environment.runtime.order.tools] == ["ask", "pass", "deal"]
    assert 'dragoman_losses_total{adapter="plain",how="dropped"} 2.0' in (await api.get("/metrics")).text


async def test_a_session_that_is_attached_to_has_lost_nothing(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/sessions", json={"runtime": "finn", "native_id": "agent-7"})
    assert (answer.status_code, answer.json()["tools"]) == (201, [])
    page = await api.get(f"/v1/sessions/{answer.json()['session_id']}/events?limit=1")
    assert page.json()["data"][0]["losses"] == []


async def test_a_session_is_created_with_the_name_and_the_instructions_that_a_client_gives(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    wanted = {"runtime": "finn", "labels": {"table": "4"}, "name": "Table 4", "instructions": "Deal seven each."}
    assert (await api.post("/v1/sessions", json=wanted)).status_code == 201
    order = environment.runtime.order
    assert order is not None
    assert order == Order({"table": "4"}, order.tools, "Table 4", "Deal seven each.")
    assert order.key is not None


@pytest.mark.parametrize("member", ["name", "instructions"])
async def test_a_session_that_exists_is_given_neither(
    api: httpx.AsyncClient, environment: Environment, member: str
) -> None:
    answer = await api.post("/v1/sessions", json={"runtime": "finn", "native_id": "agent-7", member: "x"})
    assert answer.status_code == 400
    assert f"`{member}` is only for created sessions" in str(answer.json())
    assert environment.runtime.order is None


async def test_a_session_that_is_created_at_start_has_its_losses_on_record_too() -> None:
    runtime = Rooms(losses=(Loss(how="dropped", path="/tools"),))
    async with (
        environment_of({"tools": TOOLS}, runtime=runtime, autostart=True) as environment,
        in_process(environment.gateway, bearer("all-of-it")) as api,
    ):

        async def created() -> Any:
            return (await api.get("/v1/sessions")).json()["data"] or None

        (session,) = await until(created)
        page = await api.get(f"/v1/sessions/{session['session_id']}/events?limit=1")
        assert [loss["path"] for loss in page.json()["data"][0]["losses"]] == ["/tools"]
