"""Finds mistakes in a valid configuration: unreachable routes, unknown names, weak security. Pure."""

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import SecretStr

from dragoman.postgres_dsn import find_dropped
from dragoman.webhook_secret import FIX, LONGEST, SHORTEST, decode_secret
from gateway.addresses import find_url_fault, why_refused
from gateway.settings.lint_clients import lint_clients
from gateway.settings.lint_models import lint_models
from gateway.settings.lint_routes import lint_routes
from gateway.settings.lint_tools import lint_tools
from gateway.settings.model import PostgresStore, PythonSpec, Settings, StaticSpec, WebhookSpec
from gateway.settings.place import Finding, Place

SHORT_KEY = 16
EXAMPLE_KEYS = frozenset({"change-me-to-something-long"})
"""Keys that are printed in our documentation, and therefore public."""
_LABEL_LENGTH = 128


def lint(settings: Settings) -> tuple[Finding, ...]:
    """List all findings, in the order of the checks."""
    return (
        *_access(settings),
        *_store(settings),
        *_limits(settings),
        *_runtimes(settings),
        *lint_clients(settings),
        *_executors(settings),
        *_targets(settings),
        *lint_tools(settings),
        *lint_models(settings),
        *lint_routes(settings),
    )


def _warn(place: Place, message: str) -> Finding:
    return Finding(place, message, "warning")


def _access(settings: Settings) -> Iterator[Finding]:
    keys = settings.api.keys
    if not keys:
        yield _warn(
            ("api", "keys"), "no API key is configured, so `serve` binds loopback addresses only; add one to go public"
        )
    names: dict[str, int] = {}
    values: dict[str, str] = {}
    for index, key in enumerate(keys):
        place = ("api", "keys", index)
        secret = key.key.get_secret_value()
        if key.name in names:
            yield Finding((*place, "name"), f"{key.name!r} is also the name of api.keys[{names[key.name]}]; rename one")
        names.setdefault(key.name, index)
        if secret in values:
            yield Finding((*place, "key"), f"this is also the key of {values[secret]!r}; give each name its own")
        values.setdefault(secret, key.name)
        if secret in EXAMPLE_KEYS:
            text = "this is the README's sample key; generate your own with `openssl rand -hex 32`"
            yield _warn((*place, "key"), text)
        if len(secret) < SHORT_KEY:
            fix = "generate one with `openssl rand -hex 32`"
            yield _warn((*place, "key"), f"the key has fewer than {SHORT_KEY} characters and can be guessed; {fix}")
    url = settings.public_url
    if url and url.scheme == "http" and not _is_loopback(url.host or ""):
        yield _warn(("public_url",), "callbacks would cross the network unencrypted; write an https:// URL")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _store(settings: Settings) -> Iterator[Finding]:
    if not isinstance(settings.engine, PostgresStore):
        return
    for name, dsn in (("dsn", settings.engine.dsn), ("direct_dsn", settings.engine.direct_dsn)):
        if dsn is not None:
            yield from (_warn(("engine", name), text) for text in find_dropped(dsn.get_secret_value()))


def _limits(settings: Settings) -> Iterator[Finding]:
    if settings.limits.frame > settings.limits.frame_memory:
        yield Finding(("limits", "frame"), "is larger than limits.frame_memory; raise that, or lower this")


def _runtimes(settings: Settings) -> Iterator[Finding]:
    if not settings.runtimes:
        yield _warn(("runtimes",), "no runtime is configured, so there is nothing to connect to")
    seen: dict[tuple[str, str, str], str] = {}
    for name, options in settings.runtimes.items():
        place = ("runtimes", name)
        if options.native_id is not None:
            identity = (options.adapter, options.url.rstrip("/").lower(), options.native_id)
            if identity in seen:
                other = seen[identity]
                yield Finding(
                    place, f"this is the same native session as runtimes.{other}: each call would run twice; remove one"
                )
            seen.setdefault(identity, name)
        elif options.autostart and not options.creates:
            yield Finding(
                (*place, "autostart"), "autostart needs options that say what to create; see the adapter's README"
            )
        elif not options.creates and options.mcp_clients is None:
            text = "has no native_id and creates no session; it stays idle until POST /v1/sessions passes a native_id"
            yield Finding(place, text, "note")
        for field in type(options).model_fields:
            if (field == "url" or field.endswith("_url")) and isinstance(url := getattr(options, field), str) and url:
                yield from lint_url((*place, field), url)
        for label, value in options.labels.items():
            yield from _label((*place, "labels", label), label, value)
        for number, client in enumerate(options.mcp_clients or ()):
            for label, value in client.labels.items():
                yield from _label((*place, "clients", number, "labels", label), label, value)
    for index, route in enumerate(settings.routes):
        for label, value in route.match.label.items():
            yield from _label(("routes", index, "match", "label", label), label, value)


def lint_url(place: Place, url: str, *, of: str = "") -> Iterator[Finding]:
    """Check that the gateway may connect to a URL; `of` names a source other than the place."""
    if (fault := find_url_fault(url)) is not None:
        yield Finding(place, f"{of}{fault}; write the base URL of your service")
    else:
        yield from _address(place, urlsplit(url).hostname or "", of=of)


def _address(place: Place, host: str, *, of: str = "") -> Iterator[Finding]:
    if (fault := why_refused(host)) is not None:
        text = f"{of}{host} is {fault}; the gateway never connects to it; write the address of your service"
        yield Finding(place, text)


def _label(place: Place, name: str, value: str) -> Iterator[Finding]:
    if not name or len(name) > _LABEL_LENGTH or not name.isprintable() or name != name.strip():
        yield Finding(place, f"a label's name must be 1 to {_LABEL_LENGTH} printable characters without outer spaces")
    if len(value) > _LABEL_LENGTH:
        yield Finding(place, f"a label's value must have at most {_LABEL_LENGTH} characters")


def _executors(settings: Settings) -> Iterator[Finding]:
    for name, spec in settings.executors.items():
        place = ("executors", name)
        match spec:
            case WebhookSpec():
                yield from _webhook(settings, place, spec)
            case StaticSpec():
                if spec.error is not None and "result" in spec.model_fields_set:
                    yield Finding(place, "has both `result` and `error`; keep one")
            case PythonSpec():
                if spec.timeout > spec.deadline:
                    yield _long_timeout(place)


def _webhook(settings: Settings, place: Place, spec: WebhookSpec) -> Iterator[Finding]:
    yield from _secrets(place, spec.secret)
    if not spec.secret:
        yield _warn(place, "requests are unsigned, so the backend cannot tell them from forged ones; add a `secret`")
    if settings.public_url is None and "accepted_deadline" in spec.model_fields_set:
        text = "outcomes after a 202 cannot arrive without a callback address; set public_url to the gateway's URL"
        yield _warn((*place, "accepted_deadline"), text)
    if spec.timeout > spec.deadline:
        yield _long_timeout(place)
    if spec.backoff.initial > spec.backoff.maximum:
        yield _warn((*place, "backoff"), "`initial` is longer than `maximum`, which is used for every wait")


def _secrets(place: Place, secrets: tuple[SecretStr, ...]) -> Iterator[Finding]:
    for secret in secrets:
        length = len(decode_secret(secret.get_secret_value()))
        if not SHORTEST <= length <= LONGEST:
            yield _warn((*place, "secret"), f"the key in it has {length} bytes; {FIX}")


def _long_timeout(place: Place) -> Finding:
    return _warn((*place, "timeout"), "one attempt may take longer than the whole call's `deadline`, which cuts it off")


def _targets(settings: Settings) -> Iterator[Finding]:
    urls = [
        *(
            (("executors", name), spec.url)
            for name, spec in settings.executors.items()
            if isinstance(spec, WebhookSpec)
        ),
        *((("destinations", name), spec.url) for name, spec in settings.destinations.items()),
    ]
    for place, url in urls:
        if url.username or url.password:
            yield _warn(
                (*place, "url"), "contains a user name or password, which may appear in logs; use `headers` instead"
            )
        yield from _address((*place, "url"), url.host or "")
    for place, url in (
        (("traces", "endpoint"), settings.traces and settings.traces.endpoint),
        (("instance", "url"), settings.instance.url),
    ):
        if url is not None:
            yield from _address(place, url.host or "")
    for name, spec in settings.destinations.items():
        yield from _secrets(("destinations", name), spec.secret)
        if not spec.secret:
            text = "copies are unsigned, so their receiver cannot tell them from forged ones; add a `secret`"
            yield _warn(("destinations", name), text)
