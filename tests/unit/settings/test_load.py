"""Loading a whole file: every problem at once, with line, path and mend, and no secret in any of them."""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gateway.adapter.port import Adapter
from gateway.errors import InvalidConfiguration
from gateway.settings.load import load
from gateway.settings.model import Settings, StaticSpec, WebhookSpec
from gateway.settings.place import suggest
from tests.unit.settings.conftest import Complain, Load, PigeonAdapter, PigeonOptions

NEW, OLD = "bmV3" * 8, "b2xk" * 8
GOOD = """\
public_url: https://gateway.example.com
api:
  keys: [{name: backend, key: "${KEY}"}]
tools:
  fly: {description: Fly., parameters: {type: object, properties: {to: {type: string}}}}
runtimes:
  pip:
    adapter: pigeon
    url: http://loft
    api_key: corn
    loft: "7"
executors:
  coop:
    {type: webhook, url: "http://coop/x", secret: ["${NEW}", "${OLD}"],
     timeout: 500ms, deadline: 2m, idempotent: "${YES}"}
  still: {type: static, result: {a: 1}}
destinations:
  log: {url: "http://log/x", secret: "${NEW}"}
routes:
  - {match: {tool: "f*"}, to: coop}
  - {match: {event: message.posted}, copy_to: log}
  - {match: {event: approval.asked}, to: still}
"""
KEY = "0123456789abcdef"


def _one(found: list[str]) -> str:
    (line,) = [line for line in found if "warning:" not in line]
    return line


def test_a_good_file_becomes_settings_without_any_problem(load_text: Load) -> None:
    loaded = load_text(GOOD, KEY=KEY, YES="true", NEW=NEW, OLD=OLD)
    assert loaded.problems == ()
    assert loaded.source.name == "gateway.yaml"
    settings = loaded.settings
    assert settings.api.keys[0].key.get_secret_value() == KEY
    pip = settings.runtimes["pip"]
    assert isinstance(pip, PigeonOptions)
    assert (pip.native_id, pip.api_key.get_secret_value()) == ("7", "corn")
    coop = settings.executors["coop"]
    assert isinstance(coop, WebhookSpec)
    assert (coop.timeout, coop.deadline, coop.idempotent) == (timedelta(milliseconds=500), timedelta(minutes=2), True)
    assert [secret.get_secret_value() for secret in coop.secret] == [NEW, OLD]
    assert settings.executors["still"] == StaticSpec(type="static", result={"a": 1})
    assert settings.routes[1].copy_to == ("log",)


def test_all_problems_are_found_at_once_in_the_order_of_the_file(complaints: Complain) -> None:
    found = complaints(
        """\
public_urll: https://x
tools: {fly: {description: Fly.}}
runtimes:
  a: {adapter: pigeon, url: x}
  b: {adapter: dove, url: x}
executors:
  c: {type: webhook, url: "http://c", secret: "${NO}", timeout: 20 parsecs}
routes:
  - {match: {tol: fly}, to: c}
unrouted: maybe
"""
    )
    assert found == [
        "1: public_urll: unknown key; did you mean 'public_url'?",
        "4: runtimes.a.api_key: this key is required: The pigeon's key",
        "5: runtimes.b.adapter: no adapter is called 'dove'; known: pigeon",
        "7: executors.c.secret: the environment variable NO is not set; set it, or add it to .env",
        "7: executors.c.timeout: '20 parsecs' is not a duration; write 20s, 500ms, 2m or 7d",
        "9: routes[0].match.tol: unknown key; did you mean 'tool'?",
        "10: unrouted: 'maybe' is not a choice; write fail or ignore",
    ]


def test_a_secret_that_is_written_as_a_number_is_not_quoted(complaints: Complain) -> None:
    found = complaints("executors: {c: {type: webhook, url: 'http://c', secret: 12345678}}")
    assert [line.startswith("1: executors.c.secret: ") for line in found].count(True) == 1
    assert "12345678" not in "".join(found)


def test_a_wrong_setting_does_not_hide_a_wrong_route(complaints: Complain) -> None:
    found = complaints(
        """\
executors:
  cards: {type: webhook, url: "http://c", secret: c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0, timeout: soon}
routes:
  - {match: {tool: x}, to: card}
"""
    )
    assert "2: executors.cards.timeout: 'soon' is not a duration; write 20s, 500ms, 2m or 7d" in found
    assert "4: routes[0].to: there is no executor 'card'; did you mean 'cards'?" in found


def test_an_executor_that_cannot_be_read_is_not_also_called_missing(complaints: Complain) -> None:
    found = complaints("executors: {c: {type: webhok, url: x}}\nroutes: [{match: {tool: x}, to: c}]\n")
    assert found == [
        (
            "1: executors.c: 'webhok' is not a known 'type'; did you mean 'webhook'? "
            "write type: webhook, type: static or type: python"
        )
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, b\n", "1: : the file must be a mapping: lines of `key: value`, beginning with e.g. `runtimes:`"),
        ("- a\n", "1: : the file must be a mapping: lines of `key: value`, beginning with e.g. `runtimes:`"),
        ("runtimes:\n", ("1: runtimes: an empty value is not valid here; this must be a mapping"
         " (lines of `key: value`), or remove the key")),
        ("runtimes: [a]\n", "1: runtimes: a list is not valid here; this must be a mapping (lines of `key: value`)"),
        ("runtimes: {a: x}\n", "1: runtimes.a: a runtime must be a mapping with at least `adapter:` and `url:`"),
        ("runtimes: {a: {url: x}}\n", "1: runtimes.a: 'adapter' is missing; write one of: pigeon"),
        ("runtimes: {a: {adapter: pigoen}}\n",
         "1: runtimes.a.adapter: no adapter is called 'pigoen'; did you mean 'pigeon'?; known: pigeon"),
        ("runtimes: {a: {adapter: pigeon, url: 'http://x', api_key: k, loft: coop}}\n",
         "1: runtimes.a.loft: 'coop' is not a loft; write another"),
        ("runtimes: {a b: {adapter: pigeon, url: x, api_key: k}}\n",
         ("1: runtimes['a b']: 'a b' is not a valid name; use letters, digits, '.', '_' and '-', at most 64,"
         " beginning with a letter or digit")),
        ("engine: {type: redis}\n",
         "1: engine: 'redis' is not a known 'type'; write type: sqlite, type: postgres or type: memory"),
        ("engine: {type: postgres}\n",
         ("1: engine.dsn: this key is required: postgresql://user:password@host:5432/database; PgBouncer works"
          " too, also in transaction mode")),
        ("engine: {type: postgres, dsn: 'mysql://u:SECRET@h/d'}\n",
         "1: engine.dsn: must be a URL such as postgresql://user:password@host:5432/database"),
        ("executors: {c: {url: x}}\n",
         "1: executors.c: 'type' is missing; write type: webhook, type: static or type: python"),
        ("executors:\n  c:\n    type: webhook\n",
         "2: executors.c.url: this key is required: The URL to which calls are POSTed"),
        ("executors: {c: {type: webhook, url: nowhere}}\n",
         "1: executors.c.url: this value is not valid here; this must be a URL such as https://host/path"),
        ("executors: {c: {type: webhook, url: 'http://c', attempts: 0}}\n",
         "1: executors.c.attempts: 0 is not valid here; this must be at least 1"),
        ("executors: {c: {type: webhook, url: 'http://c', attempts: many}}\n",
         "1: executors.c.attempts: 'many' is not valid here; this must be a whole number"),
        ("executors: {c: {type: webhook, url: 'http://c', idempotent: perhaps}}\n",
         "1: executors.c.idempotent: 'perhaps' is not valid here; this must be true or false"),
        ("executors: {c: {type: webhook, url: 'http://c', timeout: 0s}}\n",
         "1: executors.c.timeout: must be longer than 0s"),
        ("executors: {c: {type: webhook, url: 'http://c', timeout: 99999999999999d}}\n",
         "1: executors.c.timeout: longer than 100 years; write a duration such as 20s, 500ms, 2m or 7d"),
        ("executors: {c: {type: webhook, url: 'http://c', secret: ''}}\n",
         ("1: executors.c.secret: a secret must not be empty; remove the key for unsigned requests, or "
             "generate one: echo whsec_$(openssl rand -base64 32)")),
        ("executors: {c: {type: webhook, url: 'http://c', headers: {Webhook-Id: x}}}\n",
         "1: executors.c.headers: the gateway sets the header 'Webhook-Id' itself; choose another name"),
        ("executors: {c: {type: webhook, url: 'http://c', headers: {'a b': x}}}\n",
         "1: executors.c.headers: 'a b' is not a header name; write letters, digits and dashes, e.g. X-Tenant"),
        ('api: {keys: [{name: a, key: "0123456789abcdef\\n"}]}\n',
         ("1: api.keys[0].key: an API key must not contain a line break or another control character;"
          " generate one with `openssl rand -hex 32`")),
        ("destinations: {d: {url: 'http://c', secret: [c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0, whsec_x]}}\n",
         ("1: destinations.d.secret: secret 2 of 2 is not base64; write whsec_ and 24 to 64 random bytes in base64"
          " (openssl rand -base64 32)")),
        ("destinations: {d: {url: 'http://c', secret: ['', a]}}\n",
         ("1: destinations.d.secret: a secret must not be empty; remove the key for unsigned requests, or "
             "generate one: echo whsec_$(openssl rand -base64 32)")),
        ("api: {keys: [{name: a, key: ''}]}\n",
         "1: api.keys[0].key: an API key must not be empty; generate one with `openssl rand -hex 32`"),
        ("api: {keys: [{name: a, key: 0123456789abcdef, scopes: [reed]}]}\n",
         ("1: api.keys[0].scopes[0]: 'reed' is not a choice; did you mean 'read'?"
         " write read, drive, operate, answer or approve")),
        ("retention: {max_bytes: plenty}\n",
         ("1: retention.max_bytes: 'plenty' is not valid here; this must be a size such as 512KiB, 4MiB or a number"
         " of bytes")),
        ("routes: [{match: {tool: 3}, copy_to: []}]\n",
         ("1: routes[0].match.tool: 3 is not valid here; this must be a text; numbers and true/false need quotes to"
         " be texts")),
        ("routes: {match: {}}\n",
         "1: routes: a mapping is not valid here; this must be a list ([a, b], or lines that begin with `- `)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_what_would_be_right(complaints: Complain, text: str, expected: str) -> None:
    assert _one(complaints(text)) == expected


def test_without_any_adapter_the_mend_is_the_doctor(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("runtimes: {a: {adapter: pigeon, url: x}}\n")
    with pytest.raises(InvalidConfiguration, match="no adapter is installed; `dragoman doctor`"):
        load(path, adapters={}, env={})


def test_the_error_shows_file_line_path_and_message(tmp_path: Path, adapters: Mapping[str, Adapter]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("executors:\n  cards:\n    type: webhook\n    url: http://cards\n    timeout: 20 parsecs\n")
    expected = f"{path}:5: executors.cards.timeout: '20 parsecs' is not a duration; write 20s, 500ms, 2m or 7d"
    with pytest.raises(InvalidConfiguration, match=re.escape(expected)):
        load(path, adapters=adapters, env={})


SECRET = "tops3cret"
EVERYWHERE = [
    "api: {keys: [{name: '${S}', key: '${S}', scopes: ['${S}']}]}",
    "public_url: '${S}'",
    "engine: {type: '${S}'}",
    "unrouted: '${S}'",
    "logging: {level: '${S}'}",
    "tools: {t: {description: '${S}', parameters: {type: '${S}'}}}",
    "runtimes: {r: {adapter: '${S}', url: '${S}'}}",
    "runtimes: {r: {adapter: pigeon, url: x, api_key: k, loft: '${S}', turn_quiet: '${S}', build: '${S}'}}",
    "executors: {c: {type: '${S}'}}",
    "executors: {c: {type: webhook, url: '${S}', timeout: '${S}', attempts: '${S}', idempotent: '${S}', rate: '${S}'}}",
    "executors: {c: {type: webhook, url: 'http://c', headers: {A: '${S}\t'}, max_response: '${S}', response: '${S}'}}",
    "executors: {c: {type: webhook, url: 'http://c', headers: '${S}', secret: {a: '${S}'}, backoff: '${S}'}}",
    "destinations: {d: {url: 'ftp://${S}', secret: ['${S}', 3]}}",
    "routes: ['${S}', {match: '${S}', to: 3}]",
    "routes: [{match: {tool: '${S}', runtime: '${S}', event: '${S}'}, to: '${S}', copy_to: '${S}'}]",
    "api: {keys: [{name: '${S}', key: 0123456789abcdef}, {name: '${S}', key: 0123456789abcdef}]}",
]


@pytest.mark.parametrize("text", EVERYWHERE)
def test_what_a_variable_holds_is_never_shown(complaints: Complain, text: str) -> None:
    found = complaints(text, S=SECRET)
    assert [line for line in found if "warning:" not in line]
    assert SECRET not in "\n".join(found)


def test_a_wrong_value_from_outside_is_explained_by_what_the_file_says(complaints: Complain) -> None:
    text = "executors: {c: {type: webhook, url: 'http://c', timeout: '${T}'}}\n"
    assert _one(complaints(text, T="12 parsecs")) == (
        "1: executors.c.timeout: '${T}' is not a duration; write 20s, 500ms, 2m or 7d"
        " (value hidden: it may contain secrets)"
    )


def test_a_secret_in_the_file_is_not_shown_either(complaints: Complain) -> None:
    text = "api: {keys: [{name: a, key: [X]}]}\nexecutors: {c: {type: webhook, url: x, secret: {a: X}}}\n"
    found = complaints(text.replace("X", SECRET))
    assert len(found) == 3
    assert SECRET not in "\n".join(found)


WORDS = (
    "api keys name key tools parameters type runtimes adapter url routes match to copy_to executors webhook secret"
    " timeout engine retention [key] 20s ${A}"
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS.split())


@given(
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=4),
        max_leaves=20,
    )
)
def test_whatever_the_file_says_the_answer_is_settings_or_problems(
    tmp_path_factory: pytest.TempPathFactory, values: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")
    try:
        problems = load(path, adapters={"pigeon": PigeonAdapter()}, env={"A": "a"}).problems
    except InvalidConfiguration as exc:
        problems = exc.problems
    assert all(problem.message and problem.line == 1 for problem in problems)


@pytest.mark.parametrize(
    ("text", "variables", "complaint"),
    [
        (
            'api: {keys: [{name: me, key: "${DRAGOMAN_KEY}"}]}',
            {"DRAGOMAN_KEY": ""},
            "1: api.keys[0].key: the environment variable DRAGOMAN_KEY is empty; set it (openssl rand -hex 32)",
        ),
        (
            'executors: {c: {type: webhook, url: "http://c/", secret: "${SECRET}"}}',
            {"SECRET": ""},
            (
                "1: executors.c.secret: the environment variable SECRET is empty; set it "
                "(echo whsec_$(openssl rand -base64 32))"
            ),
        ),
        (
            'executors: {c: {type: webhook, url: "${CARDS_URL}"}}',
            {"CARDS_URL": ""},
            "1: executors.c.url: the environment variable CARDS_URL is empty; set it",
        ),
        (
            'executors: {c: {type: webhook, url: "${SCHEME}${HOST:-}"}}',
            {"SCHEME": "", "HOST": ""},
            "1: executors.c.url: the environment variables SCHEME and HOST are empty; set them",
        ),
        (
            "limits: {drain: '${DRAIN}'}",
            {"DRAIN": ""},
            "1: limits.drain: the environment variable DRAIN is empty; set it",
        ),
    ],
)
def test_an_empty_variable_is_named_where_it_is_what_is_wrong(
    complaints: Complain, text: str, variables: dict[str, str], complaint: str
) -> None:
    assert [line for line in complaints(text, **variables) if "warning" not in line] == [complaint]


def test_an_empty_variable_that_harms_nothing_is_not_spoken_of(complaints: Complain) -> None:
    text = "executors: {c: {type: static, result: '${NOTHING:-}'}}"
    assert [line for line in complaints(text, NOTHING="") if "NOTHING" in line] == []


def test_a_misspelt_adapter_or_engine_is_named_with_what_was_meant(complaints: Complain) -> None:
    def wrong(text: str) -> list[str]:
        return [line for line in complaints(text) if "warning" not in line]

    assert wrong("engine: {type: mysql}")[0] == (
        "1: engine: 'mysql' is not a known 'type'; write type: sqlite, type: postgres or type: memory"
    )
    assert wrong("engine: {type: postgras}")[0] == (
        "1: engine: 'postgras' is not a known 'type'; did you mean 'postgres'? "
        "write type: sqlite, type: postgres or type: memory"
    )
    assert wrong("runtimes:\n  a:\n    adaptor: pigeon\n    url: http://loft\n    api_key: corn") == [
        "3: runtimes.a.adaptor: unknown key; did you mean 'adapter'?"
    ]


def test_top_level_keys_of_the_users_own_are_not_read_but_can_be_merged(load_text: Load) -> None:
    text = (
        'x-slow: &slow {timeout: 90s, deadline: 90s}\nx-note: "${NOT_SET} and anything"\n'
        "executors: {c: {type: webhook, url: 'http://c', <<: *slow}}"
    )
    (spec,) = load_text(text).settings.executors.values()
    assert isinstance(spec, WebhookSpec)
    assert spec.timeout == timedelta(seconds=90)


def test_a_key_that_only_begins_like_one_is_unknown(complaints: Complain) -> None:
    assert [line for line in complaints("xnote: 1") if "warning" not in line] == [
        f"1: xnote: unknown key; {suggest('xnote', Settings.model_fields)}"
    ]
