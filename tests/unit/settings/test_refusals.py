"""`check` refuses what `serve` could not start with: a configuration that loads makes every part."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import BaseModel

from gateway.errors import InvalidConfiguration
from gateway.plugins import installed_adapters
from gateway.runtime.system_clock import SystemClock
from gateway.serve import make_engine, make_executor, parts_for
from gateway.settings.load import load
from gateway.settings.model import DestinationSpec, PostgresStore, PythonSpec, SqliteStore, StaticSpec, WebhookSpec

SECRET = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"

URLS = (
    *("http://host:99999", "http://host:0", "http://host:-1", "http://ho st/x", "http://", "http:///x", "host/x"),
    *("http://user:pw@host/x", "http://user@host", "ftp://host/x", "http://[::1", "http://[::1]:8080/x"),
    *("http://169.254.169.254/", "http://0.0.0.0:1/", "http://bücher.example/", "http://host:80:80/", "//host"),
    *(
        "http://host/a b",
        "http://host/%zz",
        "http://host#x",
        "http://host?x=1",
        "http://xn--zz/",
        f"http://{'a' * 300}/",
    ),
    *("http://a..b/", "http://.", "http://host\t", "http://ho\x7fst/", "http://*/", "http://host:08080/"),
)
HEADERS = (
    *(
        "Authorization: Bearer x",
        "authorization: Basic eA==",
        "Host: other",
        "Connection: close",
        "Expect: 100-continue",
    ),
    *("Transfer-Encoding: chunked", "Content-Length: 5", "Keep-Alive: timeout=5", "TE: trailers", "Upgrade: h2c"),
    *("X-Tenant: acme", "X Tenant: a", "X-Tenant: ä", "webhook-id: x", "Accept: text/html", "Cookie: a=b", ": x"),
)
SECRETS = (SECRET, f"whsec_{SECRET}", "whsec_", "", "ä", "short", "A" * 200)
DSNS = (
    *("postgresql://h/d", "postgresql://h:99999/d", "postgresql://h/d?sslmode=on", "mysql://h/d", "h", ""),
    *("postgresql://h/d?pgbouncer=true", "postgresql://h/d?channel_binding=require", "postgresql://h/d?x"),
)
CALLS = ("tests.executors.python_tools:answer", "no.such:thing", "json:loads", "x", "os.path:join")


def documents() -> Iterator[str]:
    """Write one configuration for each hostile value at each place that takes such a value."""
    for url in URLS:
        quoted = json.dumps(url)
        yield f"executors: {{part: {{type: webhook, url: {quoted}, secret: {SECRET}}}}}"
        yield f"executors: {{part: {{type: webhook, url: {quoted}, headers: {{authorization: Bearer x}}}}}}"
        yield f"destinations: {{part: {{url: {quoted}, secret: {SECRET}}}}}"
        yield f"destinations: {{part: {{url: {quoted}, headers: {{Authorization: Bearer x}}}}}}"
        yield f"runtimes: {{part: {{adapter: huma-0.1, url: {quoted}, api_key: k, agent_id: a}}}}"
        yield f"runtimes: {{part: {{adapter: huma-0.2, url: 'http://h', rest_url: {quoted}, api_key: k, agent_id: a}}}}"
        yield f"runtimes: {{part: {{adapter: herm, url: {quoted}, api_key: k, session_id: a}}}}"
        yield f"runtimes: {{part: {{adapter: openhands, url: {quoted}, conversation_id: a}}}}"
        yield f"runtimes: {{part: {{adapter: openhands, url: 'http://h', mcp_url: {quoted}, conversation: {{}}}}}}"
    for header in HEADERS:
        name, _, value = header.partition(": ")
        given = f"{{'{name}': '{value}'}}"
        yield f"executors: {{part: {{type: webhook, url: 'http://user:pw@h', headers: {given}}}}}"
        yield f"executors: {{part: {{type: webhook, url: 'http://h', headers: {given}}}}}"
        yield f"destinations: {{part: {{url: 'http://user:pw@h', headers: {given}}}}}"
        yield f"runtimes: {{part: {{adapter: herm, url: 'http://h', api_key: k, session_id: a, headers: {given}}}}}"
    for secret in SECRETS:
        yield f"executors: {{part: {{type: webhook, url: 'http://h', secret: ['{SECRET}', '{secret}']}}}}"
        yield f"destinations: {{part: {{url: 'http://h', secret: '{secret}'}}}}"
        options = f"url: 'http://h', conversation_id: a, session_api_key: '{secret}'"
        yield f"runtimes: {{part: {{adapter: openhands, {options}}}}}"
    for dsn in DSNS:
        yield f"engine: {{type: postgres, dsn: '{dsn}'}}"
        yield f"engine: {{type: postgres, dsn: 'postgresql://h/d', direct_dsn: '{dsn}'}}"
    for call in CALLS:
        yield f"executors: {{part: {{type: python, call: '{call}'}}}}"
    for result in ("2026-11-20", "0x10", ".5", "[1, {a: null}]", "1e400", ".nan"):
        yield f"executors: {{part: {{type: static, result: {result}}}}}"


DOCUMENTS = tuple(dict.fromkeys(documents()))


@pytest.mark.parametrize("text", DOCUMENTS)
async def test_a_configuration_that_loads_makes_every_part(text: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text, encoding="utf-8")
    adapters = installed_adapters()
    try:
        settings = load(path, adapters=adapters, env=MappingProxyType({})).settings
    except InvalidConfiguration as exc:
        errors = [problem for problem in exc.problems if problem.severity == "error"]
        assert errors
        assert all(problem.line == 1 for problem in errors)
        assert any("part" in problem.path or "dsn" in problem.path for problem in errors), errors
        return
    clock = SystemClock()
    parts = parts_for(settings, reread=lambda: settings)
    for executor in settings.executors.values():
        async with make_executor(executor, clock):
            pass
    for destination in settings.destinations.values():
        async with parts.make_destination(destination):
            pass
    for runtime in settings.runtimes.values():
        async with adapters[runtime.adapter].connector(runtime):
            pass
    make_engine(settings.engine, clock)


def test_the_walk_covers_every_section_that_has_a_url_a_secret_or_a_path() -> None:
    walked = {WebhookSpec, StaticSpec, PythonSpec, DestinationSpec, PostgresStore, SqliteStore}
    module = sys.modules["gateway.settings.model"]
    sections = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    exposed = {
        section
        for section in sections
        if section.__module__ == module.__name__ and {"url", "secret", "dsn", "call"} & section.model_fields.keys()
    }
    # The address of an instance is checked by its own type, and no part is made of it.
    assert exposed - walked == {section for section in exposed if section.__name__ == "InstanceSpec"}
