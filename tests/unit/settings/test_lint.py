"""What a valid file says but cannot mean."""

from pathlib import Path

import pytest

from gateway.errors import InvalidConfiguration
from gateway.plugins import installed_adapters
from gateway.settings.load import load
from tests.unit.settings.conftest import Complain, Load

BASE = """\
api: {keys: [{name: a, key: 0123456789abcdef}]}
tools:
  ask_for_cards: {description: Ask.}
  ask_again: {description: Ask.}
runtimes:
  pip: {adapter: pigeon, url: "http://loft", api_key: corn, loft: "7"}
executors:
  cards: {type: webhook, url: "http://cards/x", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}
  other: {type: static}
destinations:
  log: {url: "http://log/x", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}
"""


@pytest.fixture
def complaints(complaints: Complain) -> Complain:
    """List what is found, but for what no route uses: most files here are about one thing, and leave the rest lie."""

    def listed(text: str, **env: str) -> list[str]:
        return [line for line in complaints(text, **env) if ": no route " not in line or "takes this tool" in line]

    return listed


def _routes(*routes: str) -> str:
    return BASE + "routes:\n" + "".join(f"  - {route}\n" for route in routes)


def test_a_route_below_a_wider_one_is_never_reached(complaints: Complain) -> None:
    found = complaints(_routes('{match: {tool: "ask_*"}, to: cards}', "{match: {tool: ask_again}, to: other}"))
    assert found == [
        "14: warning: routes[1].to: never reached: routes[0] takes everything this one matches; move it up"
    ]


@pytest.mark.parametrize(
    "routes",
    [
        ("{match: {tool: ask_again}, to: other}", '{match: {tool: "ask_*"}, to: cards}'),
        ('{match: {tool: "ask_*", runtime: pip}, to: other}', '{match: {tool: "ask_*"}, to: cards}'),
        ('{match: {tool: "ask_*", label: {a: b}}, to: other}', '{match: {tool: "ask_*"}, to: cards}'),
        ('{match: {tool: "ask_*"}, to: other}', "{match: {event: message.posted}, to: cards}"),
        ('{match: {tool: "ask_?*"}, to: other}', '{match: {tool: "ask_*"}, to: cards}'),
        ("{match: {event: message.posted}, to: other}", '{match: {tool: "*"}, to: cards}'),
        ('{match: {tool: "*"}, copy_to: log}', '{match: {tool: "ask_*"}, to: cards}'),
    ],
)
def test_a_route_that_something_can_still_reach_is_not_called_dead(
    complaints: Complain, routes: tuple[str, ...]
) -> None:
    assert complaints(_routes(*routes)) == []


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("{to: cards}", "{match: {tool: ask_again}, to: other}"),
        ('{match: {tool: "*"}, to: cards}', '{match: {tool: "ask_*", runtime: pip}, to: other}'),
        ('{match: {label: {a: "x*"}, tool: "a*"}, to: cards}', "{match: {label: {a: xy, b: c}, tool: ab}, to: other}"),
        ("{match: {event: message.posted}, to: cards}", "{match: {event: message.posted, runtime: pip}, to: other}"),
    ],
)  # fmt: skip
def test_dead_routes_are_found_over_every_condition(complaints: Complain, above: str, below: str) -> None:
    assert any("routes[1].to: never reached" in line for line in complaints(_routes(above, below)))


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("{match: {tool: ask_again}, to: card}",
         "13: routes[0].to: there is no executor 'card'; did you mean 'cards'?"),
        ("{match: {tool: ask_again}, to: log}",
         "13: routes[0].to: there is no executor 'log' (it is a destination: use copy_to); known: cards, other"),
        ("{copy_to: lgo}", "13: routes[0].copy_to: there is no destination 'lgo'; did you mean 'log'?"),
        ("{copy_to: cards}",
         "13: routes[0].copy_to: there is no destination 'cards' (it is an executor: use to); known: log"),
        ("{match: {tool: x}}",
         "13: routes[0]: does nothing; add `to: EXECUTOR`, `copy_to: [DESTINATION]` or `deny: TEXT`"),
        ("{match: {tool: ask_again}, to: cards, live: true}",
         "13: routes[0].live: only applies to copies; add `copy_to: [DESTINATION]`, or remove this"),
        ("{match: {event: message.post}, copy_to: log}",
         "13: routes[0].match.event: no event kind matches 'message.post'; did you mean 'message.posted'?"),
        ("{match: {event: turn.interrupted}, to: cards}",
         ("13: routes[0].match.event: 'turn.interrupted' cannot go `to` an executor, only approval.asked,"
         " message.posted, question.asked, tool.requested can; use copy_to")),
    ],
)  # fmt: skip
def test_a_route_that_cannot_work_is_an_error(complaints: Complain, route: str, expected: str) -> None:
    assert [line for line in complaints(_routes(route)) if "warning" not in line] == [expected]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("{match: {tool: ask_fr_cards}, to: cards}",
         "routes[0].match.tool: no declared tool matches 'ask_fr_cards'; did you mean 'ask_for_cards'?"),
        ("{match: {tool: ask_again, runtime: pipp}, to: cards}",
         "routes[0].match.runtime: no runtime matches 'pipp'; did you mean 'pip'?"),
    ],
)  # fmt: skip
def test_a_route_about_nothing_that_exists_is_doubtful(complaints: Complain, route: str, expected: str) -> None:
    assert f"13: warning: {expected}" in complaints(_routes(route))


@pytest.mark.parametrize("event", ["typing.changed", "message.str*", "typing.*"])
def test_copies_of_events_that_are_never_recorded_need_a_live_route(complaints: Complain, event: str) -> None:
    route = f"{{match: {{event: {event!r}}}, copy_to: log"
    tools = '{match: {tool: "*"}, to: cards}'
    assert complaints(_routes(tools, f"{route}}}")) == [
        f"14: warning: routes[1].match.event: {event!r} is not recorded, so nothing is copied; add `live: true`"
    ]
    assert complaints(_routes(tools, f"{route}, live: true}}")) == []


_TALKER = BASE.replace('loft: "7"', 'loft: "7", talks: true, labels: {room: lobby}OPTIONS')


@pytest.mark.parametrize(
    ("options", "route", "expected"),
    [
        ("", "", "warning: runtimes.pip: each agent message is confirmed before anybody delivered it"),
        ("", '{match: {event: "message.*"}, copy_to: log}', "warning: runtimes.pip: each agent message is confirmed"),
        ("", "{match: {event: message.posted, label: {room: bar}}, copy_to: log}", "warning: runtimes.pip: each"),
        ("", "{match: {event: message.posted}, copy_to: log}", None),
        ("", "{match: {event: message.posted, label: {room: lobby}}, copy_to: log}", None),
        ("", "{match: {event: message.posted}, to: cards}", None),
        (", confirm: recorded", "", None),
        (", confirm: client", "", None),
        (
            ", confirm: client",
            "{match: {event: message.posted}, to: cards}",
            "warning: runtimes.pip.confirm: with `confirm: client` no executor gets message.posted",
        ),
        (
            ", confirm: executor",
            "",
            "error: runtimes.pip.confirm: no route takes message.posted `to` an executor; add one",
        ),
        (", confirm: copied", "", "error: runtimes.pip.confirm: not exactly one destination is named by a route"),
        (
            ", confirm: copied, confirm_by: log",
            "",
            "error: runtimes.pip.confirm_by: no route copies message.posted to 'log'",
        ),
        (", confirm: copied, confirm_by: log", '{match: {event: "*"}, copy_to: log}', None),
    ],
)
def test_what_confirms_messages_gets_them(load_text: Load, options: str, route: str, expected: str | None) -> None:
    text = _TALKER.replace("OPTIONS", options) + "routes:\n  - {match: {tool: '*'}, to: cards}\n"
    try:
        problems = load_text(f"{text}  - {route}\n" if route else text).problems
    except InvalidConfiguration as exc:
        problems = exc.problems
    found = [f"{one.severity}: {one.path}: {one.message}" for one in problems if "pip" in one.path]
    assert len(found) == (expected is not None)
    assert all(expected in line for line in found if expected is not None)


def test_a_declared_tool_that_no_route_takes_is_doubtful(complaints: Complain) -> None:
    text = _routes("{match: {tool: ask_again}, to: cards}", '{match: {tool: "*"}, copy_to: log}')
    warning = "3: warning: tools.ask_for_cards: no route takes this tool, so each call of it fails"
    assert complaints(text) == [f"{warning}; add a route `to` an executor"]
    assert complaints(text + "unrouted: ignore\n") == []


def _with(text: str) -> str:
    return _routes('{match: {tool: "*"}, to: cards}').replace("  ask_again: {description: Ask.}\n", text)


@pytest.mark.parametrize(
    ("parameters", "path", "part"),
    [
        ("{type: object, properties: {a: {type: objct}}}", ".properties.a.type", "'objct' is not a type"),
        ("{type: object, properties: {a: {pattern: '('}}}", ".properties.a.pattern", "not a usable pattern"),
        ("{type: object, properties: {a: {$ref: 'http://x/y'}}}", "", "$ref may only point inside the same schema"),
        ("{type: object, properties: {a: {$ref: 'file:///etc/hosts'}}}", "", "$ref may only point inside"),
        ("{type: array}", "", "write `type: object`"),
        ("{}", "", "write `type: object`"),
        ("{type: object, additionalProperties: false, required: [b]}", ".required", "requires 'b'"),
    ],
)
def test_parameters_that_are_no_usable_schema_are_an_error(
    complaints: Complain, parameters: str, path: str, part: str
) -> None:
    (found,) = complaints(_with(f"  t: {{description: x, parameters: {parameters}}}\n"))
    assert found.startswith(f"4: tools.t.parameters{path}: ")
    assert part in found


def test_a_tool_without_a_description_is_doubtful(complaints: Complain) -> None:
    (found,) = complaints(_with("  t: {}\n"))
    assert found.startswith("4: warning: tools.t: has no description")


def test_the_tool_by_which_mcp_clients_wait_cannot_be_declared(complaints: Complain) -> None:
    (found,) = complaints(_with("  get_result: {description: x}\n"))
    assert found.startswith("4: tools.get_result: the gateway offers")


SECRET = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
NEVER = "; the gateway never connects to it; write the address of your service"
GOOD_ROUTES = 'routes: [{match: {tool: "*"}, to: cards}]\n'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("api: {keys: [{name: a, key: 0123456789abcdef}]}", "{}",
         "warning: api.keys: no API key is configured, so `serve` binds loopback addresses only; add one to go public"),
        ("key: 0123456789abcdef}", "key: short}",
         ("warning: api.keys[0].key: the key has fewer than 16 characters and can be guessed; generate one with"
         " `openssl rand -hex 32`")),
        ("key: 0123456789abcdef}", "key: 0123456789abcdef}, {name: b, key: 0123456789abcdef}",
         "api.keys[1].key: this is also the key of 'a'; give each name its own"),
        ("key: 0123456789abcdef}", "key: 0123456789abcdef}, {name: a, key: 0123456789abcdeg}",
         "api.keys[1].name: 'a' is also the name of api.keys[0]; rename one"),
        ('loft: "7"}', 'loft: "7"}\n  pop: {adapter: pigeon, url: "http://LOFT/", api_key: x, loft: "7"}',
         "runtimes.pop: this is the same native session as runtimes.pip: each call would run twice; remove one"),
        ('loft: "7"}', "}",
         ("note: runtimes.pip: has no native_id and creates no session; it stays idle until POST /v1/sessions"
         " passes a native_id")),
        ('loft: "7"}', "autostart: true}",
         "runtimes.pip.autostart: autostart needs options that say what to create; see the adapter's README"),
        ('loft: "7"}', 'loft: "7", labels: {" ": x}}',
         "runtimes.pip.labels[' ']: a label's name must be 1 to 128 printable characters without outer spaces"),
        (', secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0}\n  other', "}\n  other",
         ("warning: executors.cards: requests are unsigned, so the backend cannot tell them from forged ones; add a"
         " `secret`")),
        ('"http://log/x", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0', '"http://log/x"',
         ("warning: destinations.log: copies are unsigned, so their receiver cannot tell them from forged ones; add a"
         " `secret`")),
        ("type: webhook, url", "type: webhook, accepted_deadline: 5m, url",
         ("warning: executors.cards.accepted_deadline: outcomes after a 202 cannot arrive without a callback address;"
         " set public_url to the gateway's URL")),
        ("type: webhook, url", "type: webhook, timeout: 3m, url",
         ("warning: executors.cards.timeout: one attempt may take longer than the whole call's `deadline`, which cuts"
         " it off")),
        ("http://cards/x", "http://169.254.169.254/x",
         f"executors.cards.url: 169.254.169.254 is a link-local address{NEVER}"),
        ("http://cards/x", "http://[64:ff9b:1::a9fe:a9fe]/x",
         f"executors.cards.url: [64:ff9b:1::a9fe:a9fe] is a link-local address{NEVER}"),
        ("http://cards/x", "http://100.100.100.200/x",
         f"executors.cards.url: 100.100.100.200 is a cloud metadata address{NEVER}"),
        ("http://loft", "http://0xa9fea9fe", f"runtimes.pip.url: 0xa9fea9fe is a link-local address{NEVER}"),
        ("http://log/x", "http://[fe80::1]/x",
         f"destinations.log.url: [fe80::1] is a link-local address{NEVER}"),
        ("secret: SECRET}\n  other".replace("SECRET", SECRET), "secret: abcd}\n  other",
         ("warning: executors.cards.secret: the key in it has 3 bytes; write whsec_ and 24 to 64 random bytes in base64"
          " (openssl rand -base64 32)")),
        ("key: 0123456789abcdef}", "key: change-me-to-something-long}",
         "warning: api.keys[0].key: this is the README's sample key; generate your own with `openssl rand -hex 32`"),
        ("http://cards/x", "http://u:p@cards/x",
         ("warning: executors.cards.url: contains a user name or password, which may appear in logs; use `headers`"
         " instead")),
        ("{type: static}", "{type: static, result: 1, error: x}",
         "executors.other: has both `result` and `error`; keep one"),
        ("api: ", "public_url: http://gateway.example.com\napi: ",
         "warning: public_url: callbacks would cross the network unencrypted; write an https:// URL"),
    ],
)  # fmt: skip
def test_what_is_doubtful_or_impossible_is_said(complaints: Complain, old: str, new: str, expected: str) -> None:
    text = BASE.replace(old, new, 1) if new != "{}" else BASE.replace(old + "\n", "", 1)
    assert text != BASE
    assert [line.split(": ", 1)[1] for line in complaints(text + GOOD_ROUTES)] == [expected]


_FORBIDDEN = (
    "169.254.169.254 is a link-local address; the gateway never connects to it; write the address of your service"
)
_PORT = "must have a port from 1 to 65535"
_TRACE = "must be a URL with {id} once in its path or query"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine: {path: \"a\\0b\"}", "engine.path: must be a path without a NUL character"),
        ("traces: {endpoint: 'http://c:0'}", f"traces.endpoint: {_PORT}"),
        ("public_url: 'https://x:0'", f"public_url: {_PORT}"),
        ("instance: {url: 'http://x:0'}", f"instance.url: {_PORT}"),
        ("destinations: {d: {url: 'http://x:0/y'}}", f"destinations.d.url: {_PORT}"),
        ("executors: {e: {type: webhook, url: 'http://x:0'}}", f"executors.e.url: {_PORT}"),
        ("traces: {endpoint: 'http://169.254.169.254'}", f"traces.endpoint: {_FORBIDDEN}"),
        ("traces: {ui: 'https://t/trace'}", f"traces.ui: {_TRACE}"),
        ("traces: {ui: 'https://t/{id}/{id}'}", f"traces.ui: {_TRACE}"),
        ("traces: {ui: 'https://{id}/x'}", f"traces.ui: {_TRACE}"),
        ("traces: {ui: 'https://u:p@t/{id}'}", f"traces.ui: {_TRACE}"),
        ("traces: {ui: 'https://[t/{id}'}", f"traces.ui: {_TRACE}"),
        ("traces: {ui: 'javascript://t/{id}'}", f"traces.ui: {_TRACE}"),
        ("instance: {url: 'http://169.254.169.254'}", f"instance.url: {_FORBIDDEN}"),
    ],
)  # fmt: skip
def test_an_address_or_path_that_nothing_can_open_is_an_error(complaints: Complain, text: str, expected: str) -> None:
    found = complaints(f"{text}\n")
    assert any(f": {expected}" in line for line in found), found


@pytest.mark.parametrize("url", ["http://localhost:8080", "http://127.0.0.1", "http://[::1]:1", "https://x.example"])
def test_a_safe_public_url_is_not_doubted(complaints: Complain, url: str) -> None:
    assert complaints(f"public_url: '{url}'\n" + BASE + GOOD_ROUTES) == []


def test_a_function_that_cannot_be_imported_is_an_error_at_its_line(complaints: Complain) -> None:
    text = BASE.replace("  other: {type: static}", "  other:\n    type: python\n    call: no_such_tools:ask")
    mend = "install the package in the gateway's environment, or add its folder to PYTHONPATH"
    assert complaints(text + "routes:\n  - {match: {tool: '*'}, to: other}\n  - {copy_to: log}\n") == [
        f"11: executors.other.call: there is no module 'no_such_tools'; {mend}"
    ]


def test_what_is_no_path_of_a_function_is_an_error_with_the_right_form(complaints: Complain) -> None:
    found = complaints("executors: {f: {type: python, call: my_tools.ask}}\n")
    assert "1: executors.f.call: must be the path of an async function: package.module:function" in found


def test_a_function_whose_attempt_outlasts_its_deadline_is_warned_about(complaints: Complain) -> None:
    text = BASE.replace("{type: static}", "{type: python, call: 'asyncio:sleep', timeout: 20s, deadline: 10s}")
    found = complaints(text + "routes:\n  - {match: {tool: '*'}, to: other}\n  - {copy_to: log}\n")
    assert [one.partition(": ")[2][:36] for one in found] == ["warning: executors.other.timeout: on"]


def test_what_no_route_uses_is_doubted(load_text: Load) -> None:
    problems = load_text(_routes('{match: {tool: "*"}, to: cards}')).problems
    assert [(one.path, one.message, one.severity) for one in problems] == [
        ("executors.other", "no route leads here; add `to: other` to one, or remove this", "warning"),
        ("destinations.log", "no route copies here; add `copy_to: [log]` to one, or remove this", "warning"),
    ]


def test_what_a_route_uses_is_not_doubted(load_text: Load) -> None:
    routes = ("{match: {tool: ask_again}, to: other}", '{match: {tool: "*"}, to: cards}', "{copy_to: [log]}")
    assert load_text(_routes(*routes)).problems == ()


def test_a_frame_that_its_budget_could_never_hold_is_refused(complaints: Complain) -> None:
    found = complaints("limits: {frame: 8MiB, frame_memory: 4MiB}\n")
    assert "1: limits.frame: is larger than limits.frame_memory; raise that, or lower this" in found


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://169.254.169.254/", "169.254.169.254 is "),
        ("http://[fd00:ec2::254]:4318", "fd00:ec2::254 is "),
        ("http://h:99999", ""),
    ],
)
def test_the_collector_of_the_environment_is_checked_as_the_endpoint_is(
    complaints: Complain, name: str, url: str, fault: str
) -> None:
    (found,) = [one for one in complaints("unrouted: ignore", **{name: url}) if name in one]
    assert f": traces: {name}: {fault}" in found
    assert not [one for one in complaints("unrouted: ignore", **{name: "http://127.0.0.1:4318"}) if name in one]
    # It is not used.
    assert not [one for one in complaints("traces: {endpoint: 'http://h:4318'}", **{name: url}) if name in one]


V1 = """\
api: {keys: [{name: a, key: 0123456789abcdef}]}
public_url: https://gateway.example.com
tools:
  free: {description: Takes anything.}
  none: {description: Takes nothing., parameters: {type: object, additionalProperties: false}}
  some: {description: Takes one., parameters: {type: object, properties: {rank: {type: string}}}}
runtimes:
  work: {adapter: openhands-v1, url: "http://oh", conversation: {agent: AGENT}}
executors:
  cards: {type: static}
routes:
  - {match: {tool: "*"}, to: cards}
"""


@pytest.mark.requirement("OV50")
def test_a_tool_without_declared_arguments_gets_none_from_an_agent_that_passes_only_those(tmp_path: Path) -> None:
    def complaints(agent: str) -> list[str]:
        path = tmp_path / "gateway.yaml"
        path.write_text(V1.replace("AGENT", agent), encoding="utf-8")
        problems = load(path, adapters=installed_adapters(), env={}).problems
        return [f"{problem.line}: {problem.severity}: {problem.path}: {problem.message}" for problem in problems]

    own = complaints("{kind: openhands, llm: {model: m}}")
    assert own == [
        "4: warning: tools.free: declares no properties, so an agent of 'work' can pass no argument; declare each one"
    ]
    [acp] = complaints("{kind: acp, server: claude-code}")
    assert "its confirmation mode does not cover the tools declared here" in acp
