"""`explain` says, from the YAML alone, which way a call or an event goes, and what is sent, lost or refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import app

YAML = """\
public_url: https://dragoman.example.com
tools:
  ask_for_cards:
    description: Ask for cards.
    parameters: {type: object, properties: {rank: {type: string}, player: {type: string}}, required: [rank]}
  deal: {description: Deal.}
runtimes:
  finn: {adapter: huma-0.2, url: "http://huma", api_key: key-canary-1, agent_id: agent-7, labels: {table: "12"}}
  old: {adapter: huma-0.1, url: "http://huma", api_key: key-canary-2, agent_id: agent-8}
  ada: {adapter: herm, url: "http://herm", api_key: key-canary-3, session_id: session_1}
  coder: {adapter: openhands, url: "http://oh", session_api_key: key-canary-4, conversation_id: c0ffee}
executors:
  cards:
    type: webhook
    url: "http://user:pass-canary@cards/tools?token=query-canary"
    secret: [whsec_NewcanaryAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA, whsec_OldcanaryAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA]
    headers: {X-Tenant: header-canary}
    idempotent: true
  house: {type: static, result: {house: wins}}
  closed: {type: static, error: The table is closed.}
  quick: {type: python, call: "asyncio:sleep"}
destinations:
  log: {url: "http://log/events?key=log-canary", secret: whsec_CopycanaryAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA}
routes:
  - {match: {tool: "ask_*", label: {table: "1*"}}, to: cards}
  - {match: {event: message.posted}, to: quick}
  - {match: {event: approval.asked}, to: cards}
  - {match: {tool: shut}, to: closed}
  - {match: {tool: win}, to: house}
  - {match: {tool: sleep}, to: quick}
  - {match: {event: "tool.*"}, copy_to: log}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DRAGOMAN_CONFIG", "DRAGOMAN_URL", "DRAGOMAN_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "gateway.yaml"
    path.write_text(YAML)
    return path


def explain(config: Path, *words: str, stdin: str = "") -> Result:
    done = CliRunner().invoke(app, ["explain", "--config", str(config), *words], input=stdin, prog_name="dragoman")
    assert "canary" not in done.output, "a secret is shown"
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def call(config: Path, tool: str, arguments: Any = None, *words: str) -> Result:
    given = [] if arguments is None else ["--arguments", json.dumps(arguments)]
    return explain(config, "--runtime", "finn", "--tool", tool, *given, *words)


def event(config: Path, said: dict[str, Any], *words: str, runtime: str = "finn") -> Result:
    return explain(config, "--runtime", runtime, "--event", json.dumps(said), *words)


def lines_of(done: Result, heading: str) -> list[str]:
    """Find the lines under a heading."""
    return [line[10:] for line in done.stdout.splitlines() if line.startswith(f"{heading:<10}")]


def block_of(done: Result) -> Any:
    """Read the first JSON block."""
    text = done.stdout
    start = text.index("\n          {") + 1
    end = text.index("\n          }", start) + len("\n          }")
    return json.loads(text[start:end])


def test_a_call_shows_its_route_with_its_line_its_executor_and_its_exact_request(config: Path) -> None:
    done = call(config, "ask_for_cards", {"rank": "7"})
    assert done.exit_code == 0
    assert lines_of(done, "runtime") == [f"finn speaks huma/0.2.0, table=12  ({config}:8)"]
    assert lines_of(done, "route") == [f"routes[0] → cards  ({config}:25)"]
    (executor,) = lines_of(done, "executor")
    assert executor.startswith("cards: webhook http://***@cards/tools?token=*** (signed, with X-Tenant); ")
    assert executor.endswith("; 20s per attempt, 120s in total, 3 attempts, idempotent")
    assert lines_of(done, "copy") == ["log: http://log/events?key=***"]
    assert lines_of(done, "arguments") == ["match the schema of the tool"]
    assert lines_of(done, "request") == ["POST http://***@cards/tools?token=***"]
    assert "webhook-signature: v1,<signature> v1,<signature>\n" in done.stdout
    assert "traceparent: 00-<trace of the call>-<span of the attempt>-01\n" in done.stdout
    assert "x-tenant: ***\n" in done.stdout
    body = block_of(done)
    assert body["type"] == "tool.requested"
    assert body["data"]["arguments"] == {"rank": "7"}
    assert body["data"]["native_session_id"] == "agent-7"
    assert body["data"]["labels"] == {"table": "12"}
    assert body["data"]["deadline"] == "<now + 120s>"
    assert body["data"]["callback_url"].startswith("https://dragoman.example.com/v1/calls/<call_id>/outcome?token=")


def test_a_null_for_an_optional_argument_is_shown_as_dropped(config: Path) -> None:
    done = call(config, "ask_for_cards", {"rank": "7", "player": None})
    assert done.exit_code == 0
    (dropped,) = lines_of(done, "dropped")
    assert dropped.startswith("/arguments/player: null for an optional argument")
    assert block_of(done)["data"]["arguments"] == {"rank": "7"}


def test_arguments_that_do_not_fit_show_what_the_agent_is_told(config: Path) -> None:
    done = call(config, "ask_for_cards", {"rank": 7})
    assert done.exit_code == 1
    assert lines_of(done, "refused") == ["no executor runs; the agent gets"]
    assert "Invalid arguments for 'ask_for_cards': at /rank: 7 is not allowed" in done.stdout
    assert block_of(done)["outcome"] == "failure"
    assert not lines_of(done, "request")


DESK = """\
  desk: {adapter: mcp, clients: [{name: ada, token: token-canary-0123456789, labels: {table: "12"}}]}
"""


def test_a_client_that_comes_to_us_is_told_what_no_agent_is(config: Path) -> None:
    config.write_text(YAML.replace("executors:\n", f"{DESK}executors:\n") + "unrouted: ignore\n")
    desk = ("--runtime", "desk", "--tool")
    fits = explain(config, *desk, "ask_for_cards", "--arguments", '{"rank": "7"}', "--label", "table=12")
    assert (fits.exit_code, lines_of(fits, "request")) == (0, ["POST http://***@cards/tools?token=***"])
    assert block_of(fits)["data"]["runtime"] == "desk"
    unfit = explain(config, *desk, "ask_for_cards", "--arguments", '{"rank": 7}', "--label", "table=12")
    assert (unfit.exit_code, lines_of(unfit, "refused")) == (1, ["no executor runs; the client gets"])
    assert "at /rank: 7 is not allowed" in unfit.stdout
    for unknown in ("ask_for_cards", "shut"):
        shown = explain(config, *desk, unknown)
        assert shown.exit_code == 1
        assert lines_of(shown, "refused") == ["this client is not shown the tool; it gets an error"]
    steered = explain(config, "--runtime", "desk", "--event", '{"kind": "turn.steered", "text": "Quick."}')
    assert steered.exit_code == 1
    assert lines_of(steered, "refused") == ["422: the runtime does not support 'turn.steered'"]


def test_a_call_that_no_route_takes_is_refused_or_left_to_others(config: Path) -> None:
    done = call(config, "deal")
    assert done.exit_code == 1
    assert lines_of(done, "route") == ["none matches deal"]
    assert "The tool 'deal' is not available here." in done.stdout
    assert "Unknown tool: juggle" in call(config, "juggle").stdout
    other = call(config, "ask_for_cards", {"rank": "7"}, "--label", "table=5")
    assert (other.exit_code, lines_of(other, "route")) == (1, ["none matches ask_for_cards"])
    config.write_text(YAML + "unrouted: ignore\n")
    left = call(config, "deal")
    assert left.exit_code == 0
    assert lines_of(left, "call") == ["ignored (`unrouted: ignore`): left to another client of the runtime"]


def test_executors_of_every_kind_are_described(config: Path) -> None:
    for tool, told, request in [
        ("win", 'house: static, always answers {"house": "wins"}', "none: the answer is in the configuration"),
        ("shut", "closed: static, always fails: The table is closed.", "none: the answer is in the configuration"),
        ("sleep", "quick: python asyncio:sleep; 20s per attempt, 120s in total, 3 attempts, not idempotent",
         "await asyncio.sleep(call) with call ="),
    ]:  # fmt: skip
        done = call(config, tool)
        assert done.exit_code == 0
        assert lines_of(done, "executor") == [told]
        assert lines_of(done, "request") == [request]
        assert lines_of(done, "tool") == ["not declared under `tools`, so its arguments are not checked"]


def test_an_event_shows_what_the_runtime_is_sent_and_what_is_lost(config: Path) -> None:
    steered = event(config, {"kind": "turn.steered", "text": "Be quick."})
    assert steered.exit_code == 0
    assert lines_of(steered, "sent") == ["turn.steered as context.updated: the runtime has no equivalent"]
    assert block_of(steered)["description"] == "Be quick."
    (lost,) = lines_of(steered, "lost")
    assert lost.startswith("narrowed: this runtime has no steer;")
    updated = event(config, {"kind": "context.updated", "name": "deal", "context": {"hand": ["7"]}})
    assert lines_of(updated, "sent") == ["context.updated"]
    assert lines_of(updated, "lost") == ["nothing"]
    assert block_of(updated)["context"] == {"hand": ["7"]}


def test_a_message_shows_both_ways_it_can_go(config: Path) -> None:
    done = event(config, {"kind": "message.posted", "content": "Hi"})
    assert lines_of(done, "sent") == ["message.posted as context.updated: the runtime has no equivalent"]
    assert lines_of(done, "received") == ["if the agent sends it, the runtime expects a confirmation:"]
    assert lines_of(done, "route") == [f"routes[1] → quick  ({config}:26)"]
    native = event(config, {"kind": "message.posted", "content": "Hi"}, runtime="old")
    assert lines_of(native, "sent") == ["message.posted"]


def test_what_a_runtime_cannot_be_told_is_refused_with_the_reason(config: Path) -> None:
    done = event(config, {"kind": "action.ordered", "action": "run"})
    assert done.exit_code == 1
    assert lines_of(done, "refused") == ["422: the runtime does not support 'action.ordered'"]


def test_a_question_of_the_runtime_shows_who_answers(config: Path) -> None:
    asked = event(config, {"kind": "approval.asked", "id": "a", "tool": "rm"})
    assert lines_of(asked, "route") == [f"routes[2] → cards  ({config}:27)"]
    body = block_of(asked)
    assert (body["type"], body["data"]["interaction_id"]) == ("approval.asked", "<interaction_id>")
    assert body["data"]["event"]["tool"] == "rm"
    question = event(config, {"kind": "question.asked", "id": "q", "text": "Which?"})
    assert lines_of(question, "answer") == ["a human answers within 300s (`dragoman answer`)"]
    secret = event(config, {"kind": "secret.asked", "id": "s", "purpose": "sudo"})
    assert lines_of(secret, "route") == ["requests for secrets are never routed: a human answers (`dragoman answer`)"]


def test_a_live_event_shows_the_destinations_that_receive_it(config: Path) -> None:
    # The other route has no `live: true`.
    config.write_text(YAML.replace('"tool.*"', '"*"') + "  - {match: {event: 'typing.*'}, copy_to: log, live: true}\n")
    typing = event(config, {"kind": "typing.changed", "typing": True})
    assert typing.exit_code == 0
    assert lines_of(typing, "copy") == ["log: http://log/events?key=***"]
    assert lines_of(typing, "live") == ["not recorded; only routes with `live: true` copy it, once and without retries"]
    assert not lines_of(event(config, {"kind": "message.streamed", "text": "Hel"}), "copy")


def test_a_secret_in_an_event_is_not_shown(config: Path) -> None:
    done = event(config, {"kind": "secret.supplied", "id": "s", "value": "typed-canary"}, runtime="ada")
    assert done.exit_code == 0
    assert "<secret>" in done.stdout


def test_each_runtime_has_its_own_way_to_be_told(config: Path) -> None:
    steer: dict[str, Any] = {"kind": "turn.steered", "text": "Be quick."}
    assert lines_of(event(config, steer, runtime="ada"), "sent") == ["turn.steered"]
    as_message = ["turn.steered as message.posted: the runtime has no equivalent"]
    assert lines_of(event(config, steer, runtime="coder"), "sent") == as_message
    update: dict[str, Any] = {"kind": "context.updated", "name": "deal", "context": {}}
    held = ["nothing yet: context.updated is recorded and sent with the next message"]
    assert lines_of(event(config, update, runtime="ada"), "sent") == held
    hint = ["context.updated as turn.steered: the runtime has no equivalent"]
    assert lines_of(event(config, update, "--running", runtime="ada"), "sent") == hint
    order: dict[str, Any] = {"kind": "action.ordered", "action": "write", "arguments": {}}
    assert event(config, order, runtime="coder").exit_code == 1


def test_tools_of_a_runtime_that_does_all_itself_are_never_routed(config: Path) -> None:
    done = explain(config, "--runtime", "coder", "--tool", "ask_for_cards")
    assert done.exit_code == 0
    assert lines_of(done, "call") == [
        "the runtime executes its tools itself; the call is recorded, and no executor runs"
    ]
    assert not lines_of(done, "route")


def test_a_declared_tool_of_a_runtime_that_takes_our_mcp_server_is_routed(config: Path) -> None:
    created = YAML.replace("conversation_id: c0ffee", "conversation: {}, mcp_url: 'http://gw'")
    config.write_text(created.replace('label: {table: "1*"}', "runtime: coder"))
    done = explain(config, "--runtime", "coder", "--tool", "ask_for_cards", "--arguments", '{"rank": "7"}')
    assert done.exit_code == 0, done.output
    assert lines_of(done, "call") == ["the agent calls the tool over MCP, as a client of the gateway"]
    assert lines_of(done, "route") == [f"routes[0] → cards  ({config}:25)"]
    unfit = explain(config, "--runtime", "coder", "--tool", "ask_for_cards", "--arguments", '{"rank": 7}')
    assert lines_of(unfit, "refused") == ["no executor runs; the client gets"]
    assert not lines_of(unfit, "frame")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"kind": "tool.finished"}, "clients may not post 'tool.finished'"),
        ({"kind": "turn.steerd"}, "did you mean 'turn.steered'?"),
        ({"kind": "turn.steered"}, "text"),
        ({"kind": "approval.asked"}, "/id: this member is required"),
    ],
)
def test_an_event_that_the_api_would_refuse_is_an_error(config: Path, said: dict[str, Any], told: str) -> None:
    done = event(config, said)
    assert done.exit_code == 1
    assert done.stderr.startswith("dragoman: error: ")
    assert told in done.stderr


def test_a_runtime_that_is_not_there_is_an_error_with_a_suggestion(config: Path) -> None:
    done = explain(config, "--runtime", "fin", "--tool", "x")
    assert done.exit_code == 1
    assert "there is no runtime 'fin'; did you mean 'finn'?" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--tool", "x", "--event", "{}"),
        ("--event", "{}", "--arguments", "{}"),
        ("--tool", "x", "--arguments", "[1]"),
        ("--tool", "x", "--arguments", "{"),
        ("--tool", "x", "--arguments", '{"a": NaN}'),
        ("--tool", "x", "--arguments", '{"a": [{"b": 1, "b": 2}]}'),
        ("--tool", "x", "--label", "table"),
        ("--event", "[]"),
    ],
)
def test_words_that_do_not_go_together_are_usage_errors(config: Path, words: tuple[str, ...]) -> None:
    done = explain(config, "--runtime", "finn", *words)
    assert done.exit_code == 2
    assert "Usage: dragoman explain" in done.stderr


def test_json_can_come_from_stdin(config: Path) -> None:
    done = explain(config, "--runtime", "finn", "--event", "-", stdin='{"kind": "turn.steered", "text": "über"}')
    assert block_of(done)["description"] == "über"


def test_nothing_in_an_event_can_steer_the_terminal(config: Path) -> None:
    done = call(config, "win\x1b[2J\n", {"a": "\x1b[31m\u202e\x9b"})
    assert not re.search(r"[\x1b\x9b\u202e]", done.stdout)


def test_an_explanation_is_told_to_programs_without_its_secrets(config: Path) -> None:
    done = call(config, "ask_for_cards", {"rank": "7"}, "--json")
    told = json.loads(done.stdout)
    assert (told["goes_through"], done.exit_code) == (done.exit_code == 0, done.exit_code)
    plain = call(config, "ask_for_cards", {"rank": "7"})
    assert [part["text"] for part in told["parts"] if part["about"] == "route"] == lines_of(plain, "route")
    assert any(part["block"] for part in told["parts"])


POLICY = """\
api:
  keys:
    - {name: lead, key: lead-canary-0123456789, scopes: [approve]}
    - {name: chief, key: chief-canary-0123456789, scopes: [approve, read]}
    - {name: app, key: app-canary-0123456789}
routes:
  - match: {tool: refund, arguments: {properties: {amount: {type: number, maximum: 100}}, required: [amount]}}
    to: house
  - {match: {tool: refund, label: {table: "12"}}, to: house, approve: {by: lead, timeout: 1h}}
  - {match: {tool: deal}, to: house, approve: true}
  - match: {tool: "re*", arguments: {properties: {amount: {type: number, exclusiveMaximum: 0}}, required: [amount]}}
    deny: Nothing is paid in.
  - match: {tool: win, arguments: {properties: {amount: {const: 1}}, required: [amount]}}
    to: house
"""


@pytest.fixture
def policy(config: Path) -> Path:
    tools = YAML.replace(
        "  deal: {description: Deal.}", "  deal: {description: Deal.}\n  refund: {description: Pay back.}"
    )
    config.write_text(tools[: tools.index("routes:")] + POLICY)
    return config


def test_the_route_that_the_arguments_lead_to_is_shown(policy: Path) -> None:
    done = call(policy, "refund", {"amount": 5})
    assert done.exit_code == 0
    assert lines_of(done, "denial") == [f"routes[3]  ({policy}:35) does not match the arguments"]
    assert lines_of(done, "route") == [f"routes[0] → house  ({policy}:31)"]
    assert not lines_of(done, "approval")


def test_a_call_that_waits_shows_how_long_and_which_keys_may_allow_it(policy: Path) -> None:
    done = call(policy, "refund", {"amount": 500})
    assert done.exit_code == 0
    assert lines_of(done, "route") == [f"routes[1] → house  ({policy}:33)"]
    assert lines_of(done, "approval") == ["the call waits until a human allows it, at most 3600s"]
    assert lines_of(done, "keys") == ["lead may allow it"]
    assert lines_of(call(policy, "deal"), "keys") == ["lead, chief may allow it"]
    assert lines_of(call(policy, "deal"), "approval") == ["the call waits until a human allows it, at most 900s"]


def test_a_denied_call_shows_the_denial_and_what_the_agent_gets(policy: Path) -> None:
    done = call(policy, "refund", {"amount": -5})
    assert done.exit_code == 1
    assert lines_of(done, "route") == [f"routes[3]  ({policy}:35) denies the call"]
    assert lines_of(done, "refused") == ["no executor runs; the agent gets"]
    assert "\n          Nothing is paid in.\n" in done.stdout
    assert not lines_of(done, "request")


def test_arguments_that_no_route_takes_are_refused_even_if_other_calls_are_ignored(policy: Path) -> None:
    policy.write_text(policy.read_text() + "unrouted: ignore\n")
    done = call(policy, "win", {"amount": 2})
    assert done.exit_code == 1
    assert lines_of(done, "refused") == ["no executor runs; the agent gets"]
    assert not lines_of(done, "call")


def test_without_keys_anybody_may_allow_a_call(policy: Path) -> None:
    text = policy.read_text()
    policy.write_text(
        text[: text.index("api:\n")] + text[text.index("routes:") :].replace(" {by: lead, timeout: 1h}", " true")
    )
    done = call(policy, "deal")
    assert lines_of(done, "keys") == ["none are configured, so everybody who reaches the loopback address may allow it"]
