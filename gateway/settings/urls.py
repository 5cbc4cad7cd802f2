"""The types of URLs in the configuration. Pure."""

import re
from typing import Annotated

from pydantic import AfterValidator, AnyHttpUrl, StringConstraints, TypeAdapter, ValidationError

from gateway.adapter.options import refusal
from gateway.addresses import find_url_fault, read_origin


def _connectable(url: AnyHttpUrl) -> AnyHttpUrl:
    if (fault := find_url_fault(str(url))) is not None:
        raise refusal(fault)
    return url


def _plain_origin(url: AnyHttpUrl) -> AnyHttpUrl:
    if url.username or url.password or url.query or url.fragment or (url.path or "/") != "/":
        raise ValueError("must be scheme, host and port only, e.g. http://10.0.0.7:8080")
    return url


def _plain_base(url: AnyHttpUrl) -> AnyHttpUrl:
    if url.username or url.password or url.query or url.fragment:
        raise ValueError("must have no credentials, query or fragment; set `headers` for credentials")
    return url


def _web_origin(text: str) -> str:
    origin = read_origin(text.removesuffix("/"))
    if origin is None:
        raise ValueError("must be the origin of a web page: scheme, host and port only, e.g. https://app.example.com")
    return origin


_TRACE_PAGE = re.compile(r"https?://[^/?#@{}\s]+/[^{}\s]*\{id\}[^{}\s]*")
_URL = TypeAdapter(AnyHttpUrl)


def _page_of_trace(text: str) -> str:
    try:
        _URL.validate_python(text.replace("{id}", "0" * 32))
    except ValidationError:
        text = ""
    if _TRACE_PAGE.fullmatch(text) is None:
        raise ValueError(
            "must be a URL with {id} once in its path or query, e.g. https://traces.example.com/trace/{id}"
        )
    return text


WebUrl = Annotated[AnyHttpUrl, AfterValidator(_connectable)]
"""A URL that the gateway may connect to."""
PlainOrigin = Annotated[WebUrl, AfterValidator(_plain_origin)]
PlainBase = Annotated[WebUrl, AfterValidator(_plain_base)]
WebOrigin = Annotated[str, AfterValidator(_web_origin)]
"""The origin of a web page."""
TracePage = Annotated[str, StringConstraints(max_length=2_000), AfterValidator(_page_of_trace)]
"""The URL of a page about a trace, with `{id}` in place of its id."""
