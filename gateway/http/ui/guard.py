"""Guards the web UI: its response headers, its switch, and the checks of its forms."""

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from gateway.addresses import read_origin
from gateway.errors import TooLarge
from gateway.http.errors import Refused
from gateway.http.web_pages import origin_of, origins_of_host
from gateway.settings.model import Settings

MOST_FIELDS = 32
LARGEST_FORM = 1024 * 1024
"""The maximum size of a form in bytes; the arguments of a held call take up to nine for each character."""
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

UI_HEADERS: Mapping[str, str] = MappingProxyType(
    {"content-security-policy": _POLICY, "cache-control": "no-store", "referrer-policy": "same-origin"}
)
"""The headers of each page. Under `no-referrer`, browsers send `Origin: null` with a form."""


def check_enabled(settings: Settings) -> None:
    """Check that the UI is enabled.

    Raises:
        Refused: `unknown-path`.
    """
    if not settings.ui.enabled:
        raise Refused("unknown-path", "the web UI is disabled (`ui.enabled`)")


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        TooLarge, Refused: the form has more than `LARGEST_FORM` bytes or `MOST_FIELDS` fields, or repeats one.
    """
    body = await request.body()
    if len(body) > LARGEST_FORM:
        raise TooLarge(f"the form has {len(body)} bytes; at most {LARGEST_FORM} are allowed")
    try:
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as exc:
        raise Refused("invalid-request", f"the form has more than {MOST_FIELDS} fields") from exc
    form = dict(fields)
    if len(form) < len(fields):
        raise Refused("invalid-request", "the form repeats a field")
    return form


def key_of(form: Mapping[str, str]) -> str | None:
    """Return the `Idempotency-Key` of a form: that of its rendering, with a digest of the fields.

    A browser that returns to a page sends other fields with the same rendering. `seen` does not count: a live page
    updates it between two clicks.
    """
    if not form.get("once"):
        return None
    # Not even a digest of a secret is kept.
    fields = sorted((name, value) for name, value in form.items() if name not in {"once", "seen", "value"})
    return f"{form['once']}.{hashlib.sha256(urlencode(fields).encode()).hexdigest()}"


def is_https(request: Request, settings: Settings) -> bool:
    """Check whether browsers reach the UI over HTTPS: directly, or at a `public_url` with a proxy in front."""
    url = settings.public_url
    return request.url.scheme == "https" or (url is not None and url.scheme == "https")


def check_write(request: Request, settings: Settings) -> None:
    """Check that a page of this UI sent the request: by `Sec-Fetch-Site`, in browsers without it by `Origin`.

    Raises:
        Refused: another page has sent it, or the headers do not tell.
    """
    sites = request.headers.getlist("sec-fetch-site")
    if sites:
        if set(sites) != {"same-origin"}:
            raise Refused("foreign-origin", "another web page sent this form; open the page here and send it again")
        return
    origins = request.headers.getlist("origin")
    if not origins:
        raise Refused("foreign-origin", "only a browser may send this form; programs use the API at /v1")
    own = origins_of_host(request)
    if settings.public_url is not None:
        own.add(origin_of(settings.public_url))
    found = {read_origin(one) or "" for one in origins}
    if not found <= own:
        raise Refused(
            "foreign-origin",
            "the `Origin` of this form is neither its `Host` nor `public_url`; let the proxy in front keep `Host`",
        )
    if is_https(request, settings) and not all(one.startswith("https:") for one in found):
        raise Refused("foreign-origin", "this form was sent over plain HTTP; open the UI at its https:// address")
