"""Reads the URL of a PostgreSQL database as libpq does, and writes the one that asyncpg understands. Pure."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

FORM = "must be a URL such as postgresql://user:password@host:5432/database"

_TRANSLATED = frozenset(
    {
        *("application_name", "database", "dbname", "gsslib", "host", "krbsrvname", "options", "passfile", "password"),
        *("port", "service", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey"),
        *("sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs", "user"),
    }
)
"""Parameters that asyncpg reads, or that the server takes as settings."""
_DEADLINES = "the gateway has its own deadlines and pings"
_ENCODING = "the gateway always uses UTF-8"
_DROPPED = {
    "channel_binding": "asyncpg cannot bind the login to the TLS channel; use sslmode=verify-full",
    "client_encoding": _ENCODING,
    "connect_timeout": _DEADLINES,
    "fallback_application_name": "write application_name",
    "gssdelegation": "asyncpg does not delegate credentials",
    "gssencmode": "asyncpg encrypts with TLS only",
    "hostaddr": "write the address as the host",
    "keepalives": _DEADLINES,
    "keepalives_count": _DEADLINES,
    "keepalives_idle": _DEADLINES,
    "keepalives_interval": _DEADLINES,
    "load_balance_hosts": "hosts are tried in the order given",
    "max_protocol_version": "asyncpg chooses the protocol version",
    "min_protocol_version": "asyncpg chooses the protocol version",
    "require_auth": "asyncpg accepts each method that the server asks for; use sslmode=verify-full",
    "requirepeer": "asyncpg does not check the owner of a socket",
    "sslcertmode": "asyncpg sends the certificate of sslcert whenever it is given",
    "sslcompression": "TLS is never compressed",
    "sslcrldir": "write sslcrl with a file",
    "sslsni": "asyncpg always names the server",
    "tcp_user_timeout": _DEADLINES,
}
"""Parameters of libpq without an equivalent, and the reason or the alternative."""
_CHOICES = {
    "gsslib": ("gssapi", "sspi"),
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "sslnegotiation": ("postgres", "direct"),
    "target_session_attrs": ("any", "primary", "standby", "read-write", "read-only", "prefer-standby"),
}
_READ_ONLY = frozenset({"standby", "read-only", "prefer-standby"})
_TRUE = frozenset({"1", "on", "require", "true", "yes"})
_HOST = re.compile(r"(?P<name>\[[^\[\]]+\]|[^:\[\]]*)(?::(?P<port>[^:]*))?")


def why_refused(dsn: str) -> str | None:
    """Explain why a DSN cannot be used; None if it can. The text never quotes a value."""
    try:
        parts = urlsplit(dsn)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        return FORM
    if parts.scheme not in {"postgres", "postgresql"}:
        return FORM
    if parts.fragment:
        return f"{FORM}; write #, / and ? in a password as %23, %2F and %3F"
    if not dsn.isprintable() or " " in dsn:
        return "must not contain a space, a line break or another control character; write a space as %20"
    hosts = parts.netloc.rpartition("@")[2].split(",") if parts.netloc else []
    ports = [port for port in given.get("port", "").split(",") if port]
    if not all(map(_is_host, hosts)) or not all(map(_is_port, ports)):
        return "must have hosts such as db.example.com:5432, with ports from 1 to 65535"
    if given.get("pgbouncer", "").lower() in _TRUE:
        return (
            "pgbouncer=true is a setting of other clients; remove it (the gateway detects PgBouncer) and set"
            " `direct_dsn`, a direct URL of the server, for notifications"
        )
    if given.get("ssl", "").lower() in _TRUE:
        return "ssl is not a PostgreSQL parameter; write sslmode=require, or sslmode=verify-full&sslrootcert=system"
    for name, choices in _CHOICES.items():
        if name in given and given[name] not in choices:
            return f"{name} must be one of {', '.join(choices)}"
    if given.get("target_session_attrs") in _READ_ONLY:
        return "target_session_attrs must be read-write, primary or any: the gateway writes"
    return None


def find_dropped(dsn: str) -> Iterator[str]:
    """List the parameters of a usable DSN that have no effect, each with the reason. Values are not quoted."""
    for name, value in parse_qsl(urlsplit(dsn).query, keep_blank_values=True):
        if name in _TRANSLATED:
            continue
        if name == "channel_binding":
            if value == "require":
                yield f"channel_binding=require is ignored, so the connection is less safe: {_DROPPED[name]}"
        elif name in _DROPPED:
            yield f"{name} is ignored: {_DROPPED[name]}"
        else:
            shown = name if re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name) else "a parameter with an odd name"
            yield f"{shown} is ignored: libpq has no such parameter; a setting of the server is options=-c%20NAME=VALUE"


def is_of_libpq(name: str) -> bool:
    """Report whether psql and pg_dump accept a parameter in a DSN."""
    return name in _DROPPED or (name in _TRANSLATED and name != "database")


def needs_root_certificate(dsn: str) -> bool:
    """Report whether the server's certificate is verified against a file that the DSN does not name."""
    given = dict(parse_qsl(urlsplit(dsn).query))
    return given.get("sslmode") in {"verify-ca", "verify-full"} and "sslrootcert" not in given


def files_of(dsn: str) -> Iterator[tuple[str, str]]:
    """List the files that a DSN names, as (parameter, path); `sslrootcert=system` names none."""
    for name, path in parse_qsl(urlsplit(dsn).query):
        if name in {"passfile", "sslcert", "sslcrl", "sslkey"} or (name == "sslrootcert" and path != "system"):
            yield name, path


def asyncpg_dsn(dsn: str, *, system_certificates: str | None) -> str:
    """Write a usable DSN without the parameters that asyncpg would send to the server as settings.

    `system_certificates` is the file behind `sslrootcert=system`.
    """
    before, mark, query = dsn.partition("?")
    pairs: list[str] = []
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if unquote(name) not in _TRANSLATED:
            continue
        is_system = (name, value) == ("sslrootcert", "system") and system_certificates is not None
        pairs.append(f"{name}={system_certificates}" if is_system else pair)
    return f"{before}{mark}{'&'.join(pairs)}" if pairs else before


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(unquote(text) if "%2f" in text.lower() else text)
    return found is not None and (found["port"] is None or found["port"] == "" or _is_port(found["port"]))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535
