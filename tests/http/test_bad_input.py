"""Bad requests get one clear problem each, and change nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.events import ApprovalAsked
from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.store.rows import Page
from tests.http.conftest import DOCUMENT
from tests.http.environment import Environment, until
from tests.pace import PATIENCE

JSON = {"content-type": "application/json"}
EVENTS = "/v1/sessions/SESSION/events"


def problem(answer: httpx.Response, status: int, name: str) -> dict[str, Any]:
    """Check that an answer is a problem of this name, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"/problems/{name}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body


def parameter_of(body: dict[str, Any]) -> str:
    """Read the name of the only parameter that a problem speaks of."""
    (error,) = body["errors"]
    assert "pointer" not in body
    return error["parameter"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"  ", "empty"),
        (b"{", "line 1"),
        (b"[1,]", "trailing comma"),
        (b'{"a": NaN}', "finite"),
        (b'{"a": Infinity}', "finite"),
        (b'{"a": -Infinity}', "finite"),
        (b'{"a": 1e400}', "finite"),
        (b'{"a": 18446744073709551616}', "64 bits"),
        (b'{"a": -9223372036854775809}', "64 bits"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "64 bits"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 65 + b"]" * 65, "64 levels"),
        (b"[" * 2_000 + b"]" * 2_000, "64 levels"),
        (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, "64 levels"),
    ],
)
async def test_unusable_json_is_refused_with_the_reason(
    api: httpx.AsyncClient, environment: Environment, session_id: str, raw: bytes, says: str
) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events", content=raw, headers=JSON)
    assert says in str(problem(answer, 400, "invalid-json")["detail"])
    assert len(await environment.journal(session_id)) == 2


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        (b'{"a": [0, 18446744073709551616]}', "/a/1"),
        (b'{"a/b": -9223372036854775809}', "/a~1b"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "/a"),
        (b'{"b": 1, "a": NaN}', "/a"),
        (b'{"a": "\\ud800"}', "/a"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "/a" * 64),
        (b"[[], " + b"[" * 64 + b"]" * 65, "/1" + "/0" * 63),
    ],
)
def test_json_that_cannot_be_handed_on_is_refused_with_its_place(raw: bytes, pointer: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_json(raw)
    assert caught.value.members == {"pointer": pointer}


def test_what_is_no_json_at_all_has_no_place() -> None:
    with pytest.raises(Refused, match="line 1") as caught:
        parse_json(b"{")
    assert caught.value.members == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 64 + b"]" * 64,
        b'{"a": 18446744073709551615}',
        b'{"a": -9223372036854775808}',
        b'{"a": "99999999999999999999999999"}',
        b'{"a": 1234567890123456789012.5}',
        b"[" + b",".join([b"[]"] * 100) + b"]",
        b'{"a": "\\ud83c\\udccf"}',
    ],
)
def test_unusual_but_sound_json_is_read(raw: bytes) -> None:
    parse_json(raw)


def test_a_wide_value_beside_a_deep_one_is_still_too_deep() -> None:
    with pytest.raises(Refused, match="64 levels"):
        parse_json(b"[" + b"[]," * 100 + b"[" * 64 + b"]" * 64 + b"]")


async def test_of_a_member_that_is_given_twice_the_last_one_counts_everywhere(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    raw = b'{"kind": "opaque", "channel": "c", "kind": "turn.steered", "text": "left", "text": "right"}'
    path, headers = f"/v1/sessions/{session_id}/events", {**JSON, "idempotency-key": "k"}
    refused = await api.post(path, content=raw, headers=headers)
    assert problem(refused, 400, "invalid-event")["pointer"] == "/channel"
    raw = raw.replace(b'"channel": "c", ', b"")
    assert (await api.post(path, content=raw, headers=headers)).status_code == 202
    # A repeat that gives only the last ones is the same request.
    again = await api.post(path, json={"kind": "turn.steered", "text": "right"}, headers=headers)
    assert again.headers["idempotency-replayed"] == "true"
    assert [one.event.kind for one in await environment.journal(session_id)][2:] == ["turn.steered"]


@pytest.mark.parametrize(
    ("kind", "charset"),
    [
        ("text/plain", ""),
        ("application/x-www-form-urlencoded", ""),
        ("application/json", "; charset=latin-1"),
        ("", ""),
    ],
)
async def test_other_content_types_are_refused(api: httpx.AsyncClient, kind: str, charset: str) -> None:
    answer = await api.post("/v1/sessions", content=b"{}", headers={"content-type": kind + charset})
    problem(answer, 415, "unsupported-media-type")


async def test_compressed_bodies_are_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/sessions", content=b"{}", headers={**JSON, "content-encoding": "gzip"})
    problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=UTF-8", "application/merge-patch+json", "APPLICATION/JSON"]
)
async def test_json_by_other_names_is_taken(api: httpx.AsyncClient, kind: str) -> None:
    answer = await api.post("/v1/sessions", content=b'{"runtime":"finn"}', headers={"content-type": kind})
    assert answer.status_code == 201


async def test_a_body_with_an_announced_length_over_the_limit_is_refused(wire: httpx.AsyncClient) -> None:
    answer = await wire.post("/v1/sessions", content=b" " * (5 * 1024**2), headers=JSON)
    assert "5242880" in str(problem(answer, 413, "too-large")["detail"])


async def test_a_chunked_body_over_the_limit_is_refused(wire: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(80):
            yield b" " * 65_536

    problem(await wire.post("/v1/sessions", content=chunks(), headers=JSON), 413, "too-large")
    assert (await wire.get("/v1/sessions")).status_code == 200


async def test_an_endless_chunked_body_is_refused_before_it_ends(url: str) -> None:
    port = int(url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE):
        for _ in range(65):
            writer.write(b"10000\r\n" + b" " * 65_536 + b"\r\n")
            await writer.drain()
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    ("body", "status", "name", "pointer"),
    [
        (5, 400, "invalid-request", ""),
        ([], 400, "invalid-request", ""),
        ({}, 400, "invalid-event", "/kind"),
        ({"kind": 5}, 400, "invalid-event", "/kind"),
        ({"kind": "message.psted"}, 400, "invalid-event", "/kind"),
        ({"kind": "tool.finished"}, 422, "inexpressible", "/kind"),
        ({"kind": "session.moved", "state": "idle"}, 422, "inexpressible", "/kind"),
        ({"kind": "message.posted"}, 400, "invalid-event", "/content"),
        ({"kind": "message.posted", "content": 5}, 400, "invalid-event", "/content"),
        ({"kind": "message.posted", "content": "x", "wakes_agent": "yes"}, 400, "invalid-event", "/wakes_agent"),
        ({"kind": "message.posted", "content": "x", "wakes_agent": 1}, 400, "invalid-event", "/wakes_agent"),
        ({"kind": "message.posted", "content": "x", "a/b~c": 1}, 400, "invalid-event", "/a~1b~0c"),
        ({"kind": "message.posted", "content": [{"type": "text"}]}, 400, "invalid-event", "/content/0/text"),
        ({"kind": "message.posted", "content": [{"type": "text", "text": 5}]}, 400, "invalid-event", "/content/0/text"),
        (
            {"kind": "message.posted", "content": [{"type": "text", "text": "x", "b": 1}]},
            400,
            "invalid-event",
            "/content/0/b",
        ),
        ({"kind": "message.posted", "content": [{"type": "video"}]}, 400, "invalid-event", "/content/0"),
        (
            {"kind": "message.confirmed", "native_call_id": "x", "index": "1"},
            400,
            "invalid-event",
            "/index",
        ),
        ({"kind": "context.updated", "name": "n", "context": []}, 400, "invalid-event", "/context"),
        ({"events": []}, 400, "invalid-request", "/events"),
        ({"events": {}}, 400, "invalid-request", "/events"),
        ({"events": [{"kind": "turn.interrupted"}] * 101}, 400, "invalid-request", "/events"),
        ({"events": [{"kind": "turn.interrupted"}], "more": 1}, 400, "invalid-request", "/more"),
        ({"events": [], "kind": "opaque"}, 400, "invalid-request", "/kind"),
        ({"events": [{"kind": "turn.interrupted"}, 5]}, 400, "invalid-event", "/events/1"),
        (
            {"events": [{"kind": "turn.interrupted"}, {"kind": "turn.steered"}]},
            400,
            "invalid-event",
            "/events/1/text",
        ),
    ],
)
async def test_a_bad_event_is_refused_with_its_place(
    api: httpx.AsyncClient,
    environment: Environment,
    session_id: str,
    body: object,
    status: int,
    name: str,
    pointer: str,
) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events", json=body)
    assert problem(answer, status, name)["pointer"] == pointer
    assert len(await environment.journal(session_id)) == 2


WORDED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/sessions", {"runtime": "finn", "nativeId": "x"}, "/nativeId: unknown member; did you mean 'native_id'?"),
    ("/v1/sessions", {}, "/runtime: this member is required: The runtime's name in the configuration"),
    ("/v1/sessions", {"runtime": 5}, "/runtime: must be a string"),
    ("/v1/sessions", {"runtime": ""}, "/runtime: must have at least 1 character"),
    ("/v1/sessions", {"runtime": "finn", "labels": []}, "/labels: must be an object"),
    (
        "/v1/sessions",
        {"runtime": "finn", "labels": {str(n): "" for n in range(33)}},
        "/labels: must have at most 32 members",
    ),
    (
        EVENTS,
        {"kind": "message.posted"},
        "/content: this member is required: The content; a string is one block of text",
    ),
    (EVENTS, {"kind": "message.posted", "content": 5}, "/content: must be a string or an array"),
    (
        EVENTS,
        {"kind": "message.posted", "content": "x", "wakes": 1},
        "/wakes: unknown member; did you mean 'wakes_agent'?",
    ),
    (
        EVENTS,
        {"kind": "message.posted", "content": "x", "author": {"nam": "A"}},
        "/author/nam: unknown member; did you mean 'name'?",
    ),
    (
        EVENTS,
        {"kind": "message.posted", "content": [{"type": "vidio"}]},
        "/content/0: not a known 'type'; write text, image or data",
    ),
    (
        EVENTS,
        {"kind": "message.posted", "content": [{}]},
        "/content/0: 'type' is missing; write text, image or data",
    ),
    (EVENTS, {"kind": "context.updated", "name": "n", "context": []}, "/context: must be an object"),
    (
        EVENTS,
        {"kind": "approval.given", "id": "a", "native_call_id": "c", "decision": "alow"},
        "/decision: not a choice; did you mean 'allow'? write allow or deny",
    ),
    ("/v1/interactions/INTERACTION/answer", {"decision": "maybe"}, "/decision: not a choice; write allow or deny"),
    ("/v1/interactions/INTERACTION/answer", {}, "the body: set exactly one of `decision`, `answer` and `value`"),
    (
        "/v1/sessions/SESSION/calls",
        {"tool": "ask_for_cards", "key": "k" * 201},
        "/key: must be 1 to 200 printable ASCII characters",
    ),
    ("/v1/sessions", {"runtime": "finn", "native_id": "a\0b"}, "/native_id: must not contain the character U+0000"),
    (
        "/v1/sessions",
        {"runtime": "finn", "native_id": "x", "name": "y"},
        "/name: `name` is only for created sessions; omit it with `native_id`",
    ),
    ("/v1/dead-letters/redrive", {"target": "x"}, "/target: must be `runtime`, `destination:NAME` or `notice:NAME`"),
    (
        "/v1/dead-letters/redrive",
        {"executor": "e", "kind": "delivery"},
        "/executor: `executor` filters calls, which have no `target`",
    ),
    (
        "/v1/dead-letters/redrive",
        {"target": "runtime", "kind": "call"},
        "/target: `target` filters deliveries, so `kind` cannot be `call`",
    ),
    (
        "/v1/interactions/INTERACTION/answer",
        {"answer": "x", "scope": "once"},
        "/scope: `scope` requires `decision`",
    ),
    ("/v1/reload", {"x/y": 1}, "/x~1y: unknown member; this operation accepts none"),
    ("/v1/sessions/SESSION/mcp/rotate", {"x": 1}, "/x: unknown member; this operation accepts none"),
    (f"{EVENTS}/1/redeliver", {"target": "x"}, "/target: must be `runtime`, `destination:NAME` or `notice:NAME`"),
    (
        "/v1/dead-letters/redrive",
        {"since": "yesterday"},
        "/since: must be a time with its zone, such as 2026-11-20T12:00:00Z",
    ),
    ("/v1/dead-letters/redrive", {"limit": 0}, "/limit: must be at least 1"),
    ("/v1/dead-letters/redrive", {"limit": "10"}, "/limit: must be a whole number"),
    ("/v1/dead-letters/redrive", {"dry_run": "true"}, "/dry_run: must be true or false"),
    ("/v1/sessions", {"runtime": 5, "native_id": 7}, "/runtime: must be a string"),
]


@pytest.mark.parametrize(("path", "body", "detail"), WORDED)
async def test_what_is_wrong_is_worded_for_people(
    api: httpx.AsyncClient, environment: Environment, session_id: str, path: str, body: object, detail: str
) -> None:
    interaction = await environment.ask_person() if "INTERACTION" in path else ""
    path = path.replace("SESSION", session_id).replace("INTERACTION", interaction)
    assert (await api.post(path, json=body)).json()["detail"] == detail


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("/v1/sessions?limt=5", "query parameter 'limt': unknown parameter; did you mean 'limit'?"),
        ("/v1/sessions?limit=x", "query parameter 'limit': must be a whole number"),
        ("/v1/sessions?limit=501", "query parameter 'limit': must be at most 500"),
        (
            "/v1/sessions?label.=12",
            "query parameter 'label.': a label has a name of 1 to 64 and a value of at most 256 characters",
        ),
        ("/v1/sessions?label.a=1&label.a=2", "the query parameter 'label.a' is repeated"),
        ("/v1/sessions?labels=1", "query parameter 'labels': unknown parameter; did you mean 'label.NAME'?"),
        ("/v1/sessions/SESSION/events?kind=tol.*", "query parameter 'kind': no event kind matches 'tol.*'"),
        (
            "/v1/calls?state=failed&outcome=failure",
            "query parameter 'outcome': `outcome` and `state` exclude each other",
        ),
        ("/v1/calls?unknown=perhaps", "query parameter 'unknown': must be true or false"),
        (
            "/v1/calls?state=queued,succeded",
            (
                "query parameter 'state': not a choice; did you mean 'succeeded'? "
                "write held, queued, dispatched, accepted, succeeded, failed, canceled or expired"
            ),
        ),
        (
            "/v1/interactions?state=waitin",
            "query parameter 'state': not a choice; did you mean 'waiting'? write waiting, answered, expired or moot",
        ),
    ],
)
async def test_a_wrong_query_is_worded_for_people(
    api: httpx.AsyncClient, session_id: str, query: str, detail: str
) -> None:
    assert (await api.get(query.replace("SESSION", session_id))).json()["detail"] == detail


async def test_an_unknown_kind_gets_a_suggestion(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events", json={"kind": "message.psted"})
    assert "did you mean 'message.posted'" in answer.json()["detail"]


async def test_an_outcome_posted_as_event_is_told_where_it_belongs(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events", json={"kind": "tool.finished"})
    assert "/v1/calls/{call_id}/outcome" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions/nope"),
        ("DELETE", "/v1/sessions/nope"),
        ("GET", "/v1/sessions/nope/context"),
        ("GET", "/v1/sessions/nope/events"),
        ("GET", "/v1/sessions/nope/events?kind=tool.*"),
        ("GET", "/v1/sessions/nope/events/stream"),
        ("GET", "/v1/calls/nope"),
        ("POST", "/v1/calls/nope/cancel"),
        ("POST", "/v1/calls/nope/redrive"),
        ("POST", "/v1/destinations/nope/enable"),
        ("GET", "/problems/nope"),
    ],
)
async def test_what_does_not_exist_is_not_found(api: httpx.AsyncClient, method: str, path: str) -> None:
    problem(await api.request(method, path), 404, "not-found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions/nope/events", {"kind": "turn.interrupted"}),
        ("/v1/sessions/nope/events/1/redeliver", {"target": "runtime"}),
        ("/v1/calls/nope/outcome", {"outcome": "success"}),
        ("/v1/interactions/nope/answer", {"answer": "x"}),
        ("/v1/sessions", {"runtime": "nope"}),
    ],
)
async def test_writing_to_what_does_not_exist_is_not_found(
    api: httpx.AsyncClient, path: str, body: dict[str, str]
) -> None:
    problem(await api.post(path, json=body), 404, "not-found")


@pytest.mark.parametrize("path", ["/", "/v2/sessions", "/v1/sessions/", "/v1", "/docs", "/%00", "/v1/calls/a/b/c"])
async def test_an_unknown_path_is_a_problem_of_its_own(api: httpx.AsyncClient, path: str) -> None:
    problem(await api.get(path), 404, "unknown-path")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/sessions", "GET, HEAD, POST"),
        ("PATCH", "/v1/sessions/x", "DELETE, GET, HEAD"),
        ("GET", "/v1/reload", "POST"),
        ("OPTIONS", "/v1/calls", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(
    api: httpx.AsyncClient, method: str, path: str, allow: str
) -> None:
    answer = await api.request(method, path)
    assert problem(answer, 405, "method-not-allowed")["detail"] == f"this path allows {allow}"
    assert answer.headers["allow"] == allow


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/v1/sessions?limit=0", "limit"),
        ("/v1/sessions?limit=501", "limit"),
        ("/v1/sessions?limit=x", "limit"),
        ("/v1/sessions?limt=5", "limt"),
        ("/v1/calls?state=dead", "state"),
        ("/v1/calls?unknown=perhaps", "unknown"),
        ("/v1/interactions?state=open", "state"),
        ("/v1/dead-letters?after=", "after"),
        ("/v1/sessions?label.=x", "label."),
        ("/v1/sessions?runtime=finn&native_id=a%00b", "native_id"),
        ("/v1/sessions?limit=5&limit=6", "limit"),
    ],
)
async def test_a_bad_query_parameter_is_named(api: httpx.AsyncClient, path: str, parameter: str) -> None:
    body = problem(await api.get(path), 400, "invalid-request")
    assert parameter in str(body["detail"])
    assert parameter_of(body) == parameter


async def test_a_cursor_of_another_list_is_refused(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.attach("agent-8")
    for number in range(2):
        await environment.ask(f"c-{number}")
        await environment.lose_call(f"lost-{number}")
    for number in range(2):
        environment.runtime.say(ApprovalAsked(id=f"a-{number}", tool="rm"))

    async def both_ask() -> bool | None:
        return len((await environment.engine.interactions(Page()))[0]) == 2 or None

    await until(both_ask)
    lists = ("/v1/sessions", "/v1/calls", "/v1/interactions", "/v1/dead-letters")
    cursors = {path: (await api.get(f"{path}?limit=1")).json()["next"] for path in lists}
    for path in lists:
        for given_by, cursor in cursors.items():
            answer = await api.get(path, params={"limit": 1, "after": cursor})
            if given_by == path:
                assert len(answer.json()["data"]) == 1
            else:
                assert parameter_of(problem(answer, 400, "invalid-request")) == "after"


CLOSED_OPERATIONS = [
    (method.upper(), path)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if method != "get" and not any(one["in"] == "query" for one in operation.get("parameters", ()))
]
"""Operations that do something, and take nothing in their query."""


@pytest.mark.parametrize(("method", "path"), CLOSED_OPERATIONS)
async def test_an_operation_that_takes_no_query_refuses_one_and_names_it(
    api: httpx.AsyncClient, method: str, path: str
) -> None:
    body = problem(await api.request(method, f"{path}?nope=1&nope=2", json={}), 400, "invalid-request")
    assert parameter_of(body) == "nope"
    assert "query parameter 'nope': unknown parameter; this operation accepts none" in body["detail"]


async def test_what_belongs_into_the_body_does_nothing_in_the_query(
    api: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await environment.lose_call()
    for verb in ("redrive", "dismiss"):
        answer = await api.post(f"/v1/dead-letters/{verb}?executor=nosuch&dry_run=true")
        body = problem(answer, 400, "invalid-request")
        assert [error["parameter"] for error in body["errors"]] == ["executor", "dry_run"]
        assert body["detail"].endswith("accepts none; send it as a member of the body")
    assert [row["id"] for row in (await api.get("/v1/dead-letters")).json()["data"]] == [call_id]


async def test_a_reload_with_an_unknown_query_reads_nothing(api: httpx.AsyncClient, environment: Environment) -> None:
    before = environment.gateway.settings
    problem(await api.post("/v1/reload?dryrun=true"), 400, "invalid-request")
    assert environment.gateway.settings is before


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/livez", "/readyz", "/metrics", "/version", "/openapi.json", "/problems", "/problems/gone",
     "/v1/instances", "/v1/activity", "/v1/capabilities"],
)  # fmt: skip
async def test_what_is_only_read_is_shown_whatever_its_query_says(api: httpx.AsyncClient, path: str) -> None:
    assert (await api.get(f"{path}?probe=lb-7&probe=1&limit=500")).status_code == 200


async def test_a_callback_address_may_have_gained_parameters_on_its_way(
    stranger: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    call_id = await environment.ask()
    query = f"token={environment.token(call_id)}&utm_source=proxy"
    assert (await stranger.post(f"/v1/calls/{call_id}/progress?{query}", json={"at": 1})).status_code == 202
    answer = await stranger.post(f"/v1/calls/{call_id}/outcome?{query}", json={"outcome": "success"})
    assert answer.status_code == 200


@pytest.mark.parametrize("query", ["after=-1", "after=x", "after=9223372036854775808", "limit=1001", "after=1&after=2"])
async def test_bad_places_in_the_history_are_refused(api: httpx.AsyncClient, session_id: str, query: str) -> None:
    problem(await api.get(f"/v1/sessions/{session_id}/events?{query}"), 400, "invalid-request")


async def test_a_place_behind_the_end_of_the_history_is_gone(api: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events"
    assert (await api.get(f"{path}?after=2")).json() == {"data": [], "next": None}
    for after in (3, 1_000_000):
        body = problem(await api.get(f"{path}?after={after}"), 410, "gone")
        assert body["first_sequence"] == 3
        assert "ends at 2" in str(body["detail"])
    problem(await api.get("/v1/sessions/nope/events?after=3"), 404, "not-found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"runtime": 5},
        {"runtime": "finn", "nativeId": "x"},
        {"runtime": "finn", "native_id": ""},
        {"runtime": "finn", "native_id": "x" * 513},
        {"runtime": "finn", "labels": {"a": 5}},
        {"runtime": "finn", "labels": {"": "x"}},
        {"runtime": "finn", "labels": {str(n): "x" for n in range(33)}},
    ],
)
async def test_a_bad_session_form_is_refused_with_its_place(api: httpx.AsyncClient, body: dict[str, object]) -> None:
    assert str(problem(await api.post("/v1/sessions", json=body), 400, "invalid-request")["pointer"]).startswith("/")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/outcome"),
        ({"outcome": "done"}, "/outcome"),
        ({"outcome": "success", "wakes_agent": "yes"}, "/wakes_agent"),
        ({"outcome": "success", "updates": [{"name": "n"}]}, "/updates/0/context"),
        ({"outcome": "success", "reslt": 1}, "/reslt"),
        ([], ""),
        ("success", ""),
    ],
)
async def test_a_bad_outcome_is_refused_and_settles_nothing(
    api: httpx.AsyncClient, environment: Environment, session_id: str, body: object, pointer: str
) -> None:
    answer = await api.post(f"/v1/calls/{await environment.ask()}/outcome", json=body)
    assert problem(answer, 400, "invalid-request")["pointer"] == pointer
    assert (await environment.call("c-1")).state == "accepted"


@pytest.mark.parametrize("body", [[], "x", 5, True])
async def test_progress_must_be_an_object(
    api: httpx.AsyncClient, environment: Environment, session_id: str, body: object
) -> None:
    problem(await api.post(f"/v1/calls/{await environment.ask()}/progress", json=body), 400, "invalid-request")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "maybe"},
        {"decision": "allow", "answer": "x"},
        {"answer": 5},
        {"answer": "x", "scope": "once"},
        {"value": 12345},
        {"valeu": "hunter2"},
        [],
    ],
)
async def test_a_bad_answer_to_a_person_s_question_is_refused_without_quoting_it(
    api: httpx.AsyncClient, environment: Environment, session_id: str, body: object
) -> None:
    interaction = await environment.ask_person()
    answer = await api.post(f"/v1/interactions/{interaction}/answer", json=body)
    problem(answer, 400, "invalid-request")
    assert "hunter2" not in answer.text
    assert "12345" not in answer.text
    row = await environment.engine.interaction(interaction)
    assert row is not None
    assert row.state == "waiting"


@pytest.mark.parametrize("target", ["", "elsewhere", "destination:", "destination:a b", 5])
async def test_a_bad_redelivery_target_is_refused(api: httpx.AsyncClient, session_id: str, target: object) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events/1/redeliver", json={"target": target})
    assert problem(answer, 400, "invalid-request")["pointer"] == "/target"


async def test_a_sequence_in_the_path_must_be_a_number(api: httpx.AsyncClient, session_id: str) -> None:
    answer = await api.post(f"/v1/sessions/{session_id}/events/one/redeliver", json={"target": "runtime"})
    assert parameter_of(problem(answer, 400, "invalid-request")) == "sequence"


async def test_an_operation_without_a_body_takes_none_and_an_empty_object(
    api: httpx.AsyncClient, environment: Environment
) -> None:
    path = "/v1/destinations/log/enable"
    for raw in (b"", b"{}"):
        assert (await api.post(path, content=raw, headers=JSON)).status_code == 200
    problem(await api.post(path, content=b"{", headers=JSON), 400, "invalid-json")
    problem(await api.post(path, json=[1]), 400, "invalid-request")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"runtime": "finn"}),
        (EVENTS, {"kind": "turn.steered", "text": "left"}),
        ("/v1/sessions/SESSION/calls", {"tool": "ask_for_cards"}),
    ],
)
@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a", ""], ["x" * 256]])
async def test_an_unusable_idempotency_key_is_refused_by_its_name(
    api: httpx.AsyncClient, session_id: str, path: str, body: dict[str, str], keys: list[str]
) -> None:
    headers = [("idempotency-key", key) for key in keys]
    answer = await api.post(path.replace("SESSION", session_id), json=body, headers=headers)
    assert parameter_of(problem(answer, 400, "invalid-request")) == "Idempotency-Key"
