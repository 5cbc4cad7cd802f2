"""A policy that promises more than its routes do: errors where nothing can work, warnings where calls pass."""

from pathlib import Path

import pytest

from gateway.plugins import installed_adapters
from gateway.settings.load import load
from gateway.settings.model import Settings
from gateway.settings.routing import addresses_of, routes_of
from tests.unit.settings.conftest import Complain, Load

KEYS = "api: {keys: [{name: lead, key: 0123456789abcdef, scopes: [approve]}, {name: app, key: fedcba9876543210}]}"
BASE = (
    KEYS
    + """
tools:
  refund:
    description: Pay money back.
    parameters:
      type: object
      properties: {amount: {type: number}, order: {type: string}, notes: {}}
      required: [order]
runtimes:
  pip: {adapter: pigeon, url: "http://loft", api_key: corn, loft: "7"}
executors:
  billing: {type: webhook, url: "http://billing/x", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}
destinations:
  log: {url: "http://log/x", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}
"""
)
REST = "{match: {tool: refund}, to: billing, approve: true}"
SMALL = "{properties: {amount: {type: number, minimum: 0, maximum: 99.99}}, required: [amount]}"


def routes(*given: str) -> str:
    return BASE + "routes:\n" + "".join(f"  - {route}\n" for route in (*given, "{copy_to: log}"))


def with_fragment(fragment: str) -> str:
    return routes(f"{{match: {{tool: refund, arguments: {fragment}}}, to: billing}}", REST)


def test_the_policy_of_the_page_is_not_doubted(complaints: Complain) -> None:
    text = routes(
        '{match: {tool: "drop_*"}, deny: "Tables are never dropped here."}',
        f"{{match: {{tool: refund, arguments: {SMALL}}}, to: billing}}",
        "{match: {tool: refund}, to: billing, approve: {by: lead, timeout: 1h}}",
    )
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("{match: {tool: refund}, to: billing, deny: No.}",
         "routes[0].deny: a denied call reaches no executor; remove `to`, or remove `deny`"),
        ("{match: {tool: refund}, approve: true}",
         "routes[0].approve: an allowed call needs an executor; add `to: EXECUTOR`"),
        ("{match: {tool: refund}, deny: No., approve: true}",
         "routes[0].approve: a denied call asks nobody; remove `approve`, or remove `deny`"),
        (f"{{match: {{tool: refund, arguments: {SMALL}}}, copy_to: log}}",
         "routes[0].match.arguments: only `to` and `deny` look at arguments; add one, or remove this"),
        (f"{{match: {{tool: refund, arguments: {SMALL}}}, to: billing, copy_to: log}}",
         "routes[0].copy_to: copies do not look at arguments; move `copy_to` to a route of its own"),
        ('{match: {event: "*"}, to: billing, approve: true}',
         "routes[0].match.event: `approve` is about calls only; remove `event`"),
        ("{match: {event: approval.asked}, deny: No.}",
         "routes[0].match.event: `deny` is about calls only; remove `event`"),
        ("{match: {tool: refund}, to: billing, approve: {by: []}}",
         "routes[0].approve.by: names nobody; list the names of API keys, or remove this"),
        ("{match: {tool: refund}, to: billing, approve: {by: [led]}}",
         "routes[0].approve.by: no API key is called 'led'; did you mean 'lead'?"),
        ("{match: {tool: refund}, to: billing, approve: {by: [app]}}",
         "routes[0].approve.by: the key 'app' lacks the scope `approve`; add it, or name another key"),
        ("{match: {tool: refund}, to: billing, approve: {by: executor billing}}",
         "routes[0].approve.by: no route with `held: true` leads to 'executor billing'; add one for approval.asked"),
        ("{match: {event: approval.asked}, copy_to: log, held: true}",
         "routes[0].held: only about approvals; add `match.event: approval.asked` and `to`, or remove this"),
        ('{match: {event: "approval.*"}, to: billing, held: true}',
         "routes[0].held: only about approvals; add `match.event: approval.asked` and `to`, or remove this"),
        ("{match: {tool: refund}, to: billing, approve: 5}",
         "routes[0].approve: 5 is not valid here; this must be a mapping (lines of `key: value`)"),
        ('{match: {tool: refund}, deny: ""}',
         "routes[0].deny: '' is not valid here; this must have at least 1 character"),
        ("{match: {tool: refund}, deny: true}",
         "routes[0].deny: true is not valid here; this must be a text; numbers and true/false need quotes to be texts"),
    ],
)  # fmt: skip
def test_a_route_that_contradicts_itself_is_an_error(complaints: Complain, route: str, expected: str) -> None:
    found = [line for line in complaints(routes(route)) if "warning" not in line]
    assert found == [f"16: {expected}"]


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("{amount: {maximum: 5}}",
         (".amount: 'amount' is no keyword of JSON Schema, so it restricts nothing; put the names of arguments under"
          " `properties`")),
        ("{properties: {amount: {maximun: 5}}}",
         (".properties.amount.maximun: 'maximun' is no keyword of JSON Schema, so it restricts nothing; did you mean"
          " 'maximum'?")),
        ("{anyOf: [{properties: {a: {items: {typ: string}}}}]}",
         (".anyOf[0].properties.a.items.typ: 'typ' is no keyword of JSON Schema, so it restricts nothing; did you mean"
          " 'type'?")),
        ("{}", ": restricts nothing, so any arguments match; put them under `properties`, or remove this"),
        ("{description: Small ones.}",
         ": restricts nothing, so any arguments match; put them under `properties`, or remove this"),
        ("{type: string}", ".type: no arguments can match: arguments are always an object"),
        ("{properties: {amount: {type: number, minimum: 9, maximum: 1}}, required: [amount]}",
         ".properties.amount: no arguments can match: it would have to be at least 9 and at most 1"),
        ("{properties: {amount: {type: number, exclusiveMinimum: 1, maximum: 1}}, required: [amount]}",
         ".properties.amount: no arguments can match: it would have to be exactly 1, which is excluded"),
        ("{properties: {order: {type: string, enum: [1, 2]}}, required: [order]}",
         ".properties.order.enum: no arguments can match: the other conditions exclude each of these values"),
        ("{properties: {order: false}, required: [order]}",
         ".properties.order: no arguments can match: the schema is `false`"),
        ("{properties: {a: {}}, additionalProperties: false, required: [b]}",
         ".required: no arguments can match: 'b' is required and not allowed"),
        ("{allOf: [{properties: {a: {type: string}}}, {properties: {a: {type: number}}}], required: [a]}",
         ".properties.a.type: no arguments can match: the types exclude each other"),
        ("{anyOf: [{type: string}, {not: {}}]}",
         ".anyOf: no arguments can match: each branch contradicts the other conditions"),
        ("{not: true}", ".not: no arguments can match: it excludes everything"),
        ("{properties: {order: {type: number}}, required: [order]}",
         (".properties.order.type: no arguments that the schema of 'refund' accepts can match: the types exclude each"
          " other")),
        ("{properties: {order: {type: text}}}",
         (": not a valid JSON Schema: at /properties/order/type: 'text' is not a type; types are string, number,"
          " integer, boolean, object, array, null")),
        ('{$ref: "https://example.com/x.json"}',
         (": not a valid JSON Schema: at the top: Resource 'https://example.com/x.json' is not present in a registry"
          " and retrieving it failed: ValueError: a $ref may only point inside the same schema, not to"
          " 'https://example.com/x.json'")),
    ],
)  # fmt: skip
def test_a_fragment_that_restricts_nothing_or_never_matches_is_an_error(
    complaints: Complain, fragment: str, expected: str
) -> None:
    assert complaints(with_fragment(fragment)) == [f"16: routes[0].match.arguments{expected}"]


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("{properties: {amount: {type: number, maximum: 5}}}",
         [".amount: arguments without 'amount' match, too; add `required: [amount]` if they should not"]),
        ("{properties: {order: {const: A1}}}", []),
        ("{properties: {notes: {maxLength: 5}}, required: [notes]}",
         [".notes.maxLength: values of any other type than string match, too; add `type: string`"]),
        ("{properties: {amount: {maximum: 5}}, required: [amount]}", []),
        ("{properties: {notes: {type: string, format: email}}, required: [notes]}",
         [".notes.format: is not checked; write a `pattern`"]),
        ("{properties: {amonut: {type: number}}, required: [amonut]}",
         [".amonut: no tool of this route declares an argument 'amonut'; did you mean 'amount'?"]),
        ("{properties: {notes: {type: object, properties: {a: {const: 1}}}}, required: [notes]}",
         [".notes.properties.a: arguments without 'a' match, too; add `required: [a]` if they should not"]),
        ("{anyOf: [{required: [amount]}, {required: [notes]}], properties: {amount: {const: 1}, notes: {const: x}}}",
         []),
    ],
)  # fmt: skip
def test_a_fragment_that_lets_more_calls_through_than_it_seems_to_is_doubted(
    complaints: Complain, fragment: str, expected: list[str]
) -> None:
    found = complaints(with_fragment(fragment))
    assert found == [f"16: warning: routes[0].match.arguments.properties{line}" for line in expected]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["{match: {tool: refund}, to: billing}", REST],
         "17: routes[1].approve: never holds a call: routes[0] takes everything this one matches; move this one up"),
        (['{match: {tool: "*"}, to: billing, undeclared: true}', '{match: {tool: "r*"}, to: billing, approve: true}'],
         "17: routes[1].approve: never holds a call: routes[0] takes everything this one matches; move this one up"),
        (['{match: {tool: "*"}, to: billing}', '{match: {tool: "*"}, to: billing, approve: true}'],
         ("17: warning: routes[1].approve: only holds calls of undeclared tools: routes[0] takes the declared ones;"
          " move this one up")),
        ([f"{{match: {{tool: refund, arguments: {SMALL}}}, to: billing, approve: true}}",
          "{match: {tool: refund}, to: billing}"],
         ("17: warning: routes[1].to: runs calls without an approval that routes[0] above does not hold; put the calls"
          " that need none above it, and let the last route of the tool ask")),
        (["{match: {tool: refund, label: {a: b}}, to: billing, approve: true}", "{match: {tool: refund}, to: billing}"],
         ("17: warning: routes[1].to: runs calls without an approval that routes[0] above does not hold; put the calls"
          " that need none above it, and let the last route of the tool ask")),
        ([REST, '{match: {tool: "*"}, to: billing}'], None),
        ([f"{{match: {{tool: refund, arguments: {SMALL}}}, to: billing}}", REST], None),
        (["{match: {tool: refund}, to: billing}", '{match: {tool: "re*"}, deny: No.}'],
         ("16: warning: routes[0].to: never reached: routes[1] denies everything this one matches;"
          " narrow that, or remove this")),
        ([REST, '{match: {tool: "re*"}, deny: No.}', "{match: {tool: refund}, deny: Never.}"],
         ("18: warning: routes[2].deny: never reached: routes[1] denies everything this one matches;"
          " narrow that, or remove this")),
        ([f"{{match: {{tool: refund, arguments: {SMALL}}}, deny: No.}}", REST], None),
    ],
)  # fmt: skip
def test_routes_that_hide_each_other_or_let_calls_pass_are_named(
    complaints: Complain, given: list[str], expected: str | None
) -> None:
    found = complaints(routes(*given))
    assert (expected in found) if expected is not None else found == []


def test_a_misspelt_tool_of_a_denial_is_doubted(complaints: Complain) -> None:
    assert complaints(routes("{match: {tool: refnud}, deny: No.}", REST)) == [
        "16: warning: routes[0].match.tool: no declared tool matches 'refnud'; did you mean 'refund'?"
    ]


def test_an_approval_without_keys_is_doubted(complaints: Complain) -> None:
    text = routes(REST).replace(KEYS, "api: {}")
    assert (
        "16: warning: routes[0].approve: without `api.keys`, everybody who reaches the loopback address may allow"
        " calls; add keys"
    ) in complaints(text)


def test_an_approval_that_no_key_can_give_is_doubted(complaints: Complain) -> None:
    text = routes(REST).replace(", scopes: [approve]", "")
    warning = "no API key has the scope `approve`, so nobody can allow a call; add it to a key"
    assert complaints(text) == [f"16: warning: routes[0].approve: {warning}"]


@pytest.mark.parametrize(
    ("notify", "expected"),
    [
        ("log", []),
        ("[log, {to: log, arguments: true}]", ["approvals.notify[1]: 'log' is named twice; remove one"]),
        ("[lok]", ["approvals.notify[0]: there is no destination 'lok'; did you mean 'log'?"]),
        ("{to: log}", []),
        ("[{to: log, argument: true}]", ["approvals.notify[0].argument: unknown key; did you mean 'arguments'?"]),
        (
            "7",
            ["approvals.notify: 7 is not valid here; this must be a mapping (lines of `key: value`)"],
        ),
    ],
)
def test_notices_to_nobody_are_errors(complaints: Complain, notify: str, expected: list[str]) -> None:
    found = complaints(routes(REST) + f"approvals: {{notify: {notify}}}\n")
    assert [line.partition(": ")[2] for line in found] == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://gateway.example", []),
        ("http://127.0.0.1:8080", []),
        (
            "http://gateway.example",
            [
                "warning: public_url: callbacks would cross the network unencrypted; write an https:// URL",
                "approvals.links: links would cross the network unencrypted; write an https:// URL as `public_url`",
            ],
        ),
        (
            None,
            [
                (
                    "warning: approvals.links: without `public_url`, links only lead to the loopback address; set it "
                    "to the gateway's URL"
                )
            ],
        ),
    ],
)
def test_links_over_plain_http_are_an_error(complaints: Complain, url: str | None, expected: list[str]) -> None:
    text = routes("{match: {tool: refund}, to: billing, approve: {by: [link log]}}").replace(
        "http://log", "https://log"
    )
    text += "approvals: {notify: log, links: true}\n" + (f"public_url: {url}\n" if url else "")
    assert sorted(line.partition(": ")[2] for line in complaints(text)) == sorted(expected)


@pytest.mark.parametrize(
    ("approvals", "by", "expected"),
    [
        ("{notify: log}", "link log", "no link; set `approvals.links`, and name the destination in `approvals.notify`"),
        ("{links: true}", "link log", "no link; set `approvals.links`, and name the destination in `approvals.notify`"),
        ("{links: true}", "lead", "approvals.links: no notice is sent, so nobody gets a link; name destinations in"),
        (
            "{links: true, notify: log}",
            "lead",
            "notify[0]: notices to 'log' carry links unencrypted; write an https://",
        ),
    ],
)
def test_links_that_nobody_gets_or_everybody_reads_are_reported(
    complaints: Complain, approvals: str, by: str, expected: str
) -> None:
    text = routes(f"{{match: {{tool: refund}}, to: billing, approve: {{by: [{by}]}}}}")
    found = complaints(f"{text}approvals: {approvals}\npublic_url: https://gateway.example\n")
    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    ("approvals", "expected"),
    [
        ("{notify: log, remind: 5m}", []),
        (
            "{notify: log, remind: [5m, 20m]}",
            ["remind[1]: no call waits that long; shorten it, or raise `approvals.timeout`"],
        ),
        ("{notify: log, remind: [0s]}", ["remind[0]: must be longer than 0s"]),
        (
            "{notify: log, remind: [1s, 2s, 3s, 4s, 5s, 6s, 7s, 8s, 9s, 10s, 11s]}",
            ["remind: a list is not valid here; this must have at most 10 members"],
        ),
        ("{remind: [5m]}", ["remind: nobody is reminded; name destinations in `approvals.notify`"]),
    ],
)
def test_reminders_that_nobody_gets_are_reported(complaints: Complain, approvals: str, expected: list[str]) -> None:
    text = routes(REST) + f"approvals: {approvals}\n"
    found = [line.partition("approvals.")[2] for line in complaints(text) if "approvals." in line]
    assert found == expected


def test_notices_without_a_held_call_are_doubted(complaints: Complain) -> None:
    text = routes("{match: {tool: refund}, to: billing}") + "approvals: {notify: log}\n"
    warning = "no route has `approve`, so nobody is notified; add it to one"
    assert complaints(text) == [f"18: warning: approvals.notify: {warning}"]


def test_a_declared_tool_that_routes_only_deny_is_doubted(complaints: Complain) -> None:
    found = complaints(routes("{match: {tool: refund}, deny: No.}"))
    assert any("tools.refund: routes only deny this tool, so no agent is offered it" in line for line in found)


def test_a_rule_about_a_tool_that_a_runtime_runs_itself_is_doubted(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "runtimes: {coder: {adapter: openhands, url: 'http://oh', session_api_key: k, conversation_id: c}}\n"
        "routes: [{match: {tool: execute_bash}, deny: No.}]\n"
    )
    problems = load(path, adapters=installed_adapters(), env={}).problems
    assert "agents of 'coder' run their own 'execute_bash' without the gateway, so no route can hold or deny it" in [
        one.message for one in problems
    ]


def test_the_rule_of_a_route_changes_with_what_a_person_agrees_to_and_with_nothing_else(load_text: Load) -> None:
    def rule(text: str) -> str:
        return routes_of(load_text(text).settings).routes[0].rule

    first = rule(routes(REST))
    assert len(first) == 64
    assert (
        rule(routes(REST).replace("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}\ndest", "b3RoZXJzb3RoZXJzb3RoZXJzb3RoZXJz}\ndest"))
        == first
    )
    assert rule(routes(REST).replace("//billing", "//user:pass@billing")) == first
    assert rule(routes(REST, "{match: {tool: x}, deny: No.}")) == first
    others = [
        rule(routes("{match: {tool: refund}, to: billing, approve: {timeout: 1h}}")),
        rule(routes("{match: {tool: refund}, to: billing, approve: {by: lead}}")),
        rule(routes("{match: {tool: refund}, to: billing}")),
        rule(routes("{match: {tool: refund, runtime: pip}, to: billing, approve: true}")),
        rule(routes(f"{{match: {{tool: refund, arguments: {SMALL}}}, to: billing, approve: true}}")),
        rule(routes(REST).replace("//billing/x", "//billing/y")),
    ]
    assert len({first, *others}) == len(others) + 1


def test_executors_with_one_address_are_one_program_whatever_their_login() -> None:
    executors = {
        "billing": {"type": "webhook", "url": "http://billing/x"},
        "alias": {"type": "webhook", "url": "http://user:word@billing:80/x"},
        "other": {"type": "webhook", "url": "http://billing/y"},
        "fixed": {"type": "static", "result": "done"},
    }
    found = addresses_of(Settings.model_validate({"executors": executors}))
    assert found["billing"] == found["alias"] != found["other"]
    assert "fixed" not in found


HELD = "{match: {event: approval.asked}, to: policy, held: true}"


def with_policy(path: str, *given: str) -> str:
    policy = f'  policy: {{type: webhook, url: "http://billing/{path}", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}}\n'
    return routes(*given).replace("executors:\n", f"executors:\n{policy}")


def test_an_executor_that_answers_needs_no_key(complaints: Complain) -> None:
    gate = "{match: {tool: refund}, to: billing, approve: {by: executor policy}}"
    other = "{match: {event: approval.asked}, to: billing}"
    text = with_policy("policy", gate, other, HELD).replace("scopes: [approve]", "scopes: [read]")
    assert complaints(text) == []


def test_an_executor_does_not_answer_for_calls_that_it_runs(complaints: Complain) -> None:
    warned = "routes[1].to: this executor runs the calls that routes[0] holds, so it is not asked about them"
    assert [line.partition("warning: ")[2] for line in complaints(with_policy("x", REST, HELD))] == [warned]
    assert complaints(with_policy("policy", REST, HELD)) == []
