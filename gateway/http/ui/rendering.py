"""The templates of the UI, their filters, and its static files."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.holding import asked_again
from gateway.http.errors import Refused
from gateway.http.ui import lanes
from gateway.http.ui.story import TONES, Tone
from gateway.http.ui.text import (
    ago,
    argument_markup,
    compact,
    describe_losses,
    drops_content,
    duration,
    editable,
    json_markup,
    plain,
    read_time,
    reveal,
    reveal_long,
    reveal_short,
)
from gateway.http.ui.timeline import answer_of, span_of, subject_of, summarize
from gateway.visible import LONGEST_DECISION, length_of

if TYPE_CHECKING:
    from jinja2 import Environment

_STATIC = ("ui.css", "ui.js")
_GLYPHS: Mapping[Tone, str] = {"ok": "●", "waiting": "◔", "failed": "✕", "unknown": "?", "plain": "○"}
_TYPES = {"css": "text/css", "js": "text/javascript"}


def fill(template: str, root: str, **values: Any) -> bytes:
    """Render a template as UTF-8; `root` is the path before that of each page."""
    return _environment(root).get_template(template).render(**values).encode("utf-8", "replace")


@cache
def static_file(name: str) -> bytes:
    """Read a static file of the UI."""
    return files("gateway.http.ui").joinpath("static", name).read_bytes()


@cache
def static_path(name: str) -> str:
    """Return the path of a static file below the root; it changes with the content."""
    return f"/ui/static/{hashlib.sha256(static_file(name)).hexdigest()[:12]}/{name}"


async def serve_static(request: Request) -> Response:
    """Serve a static file, which needs no credentials."""
    name = str(request.path_params["name"])
    if name not in _STATIC:
        raise Refused("unknown-path", "the UI has no such file")
    headers = {"cache-control": "public, max-age=31536000, immutable", "content-type": _TYPES[name.rpartition(".")[2]]}
    return Response(static_file(name), headers=headers)


# One for each `public_url` that a reload has brought.
@lru_cache(4)
def _environment(root: str) -> "Environment":
    from jinja2 import Environment, PackageLoader

    made = Environment(
        loader=PackageLoader("gateway.http.ui"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Any] = {
        "reveal": reveal,
        "short": reveal_short,
        "long": reveal_long,
        "plain": plain,
        "json": json_markup,
        "argument": argument_markup,
        "compact": compact,
        "editable": editable,
        "duration": duration,
        "at": read_time,
        "state": _state,
    }
    names: Mapping[str, Any] = {
        "root": root,
        "static": static_path,
        "when": _when,
        "moment": _moment,
        "tone_of": _tone_of,
        "glyph": _GLYPHS.__getitem__,
        "badge": _badge,
        "link": _link,
        "lanes": lanes,
        "span_of": span_of,
        "summarize": summarize,
        "answer_of": answer_of,
        "subject_of": subject_of,
        "asked_again": asked_again,
        "length_of": length_of,
        "LONGEST_DECISION": LONGEST_DECISION,
        "canonical": _canonical,
        "pc": "{:.2f}%".format,
        "event_losses": _event_losses,
        "drops_content": drops_content,
        "describe_losses": describe_losses,
    }
    made.filters.update(filters)
    made.globals.update(names)
    return made


def _tone_of(state: str) -> Tone:
    return TONES.get(state, "plain")


def _state(state: str, *, unknown: bool = False) -> Markup:
    return _badge("unknown", "unknown") if unknown else _badge(_tone_of(state), state.replace("_", " "))


def _badge(tone: Tone, text: str) -> Markup:
    # Only the text can come from outside; `Markup.format` would take ten times as long.
    return Markup(  # noqa: S704
        f'<span class="state {tone}"><i aria-hidden="true">{_GLYPHS[tone]}</i> {reveal_short(text, 60)}</span>'
    )


def _canonical(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an envelope without its native frame."""
    return {name: value for name, value in envelope.items() if name != "native"}


def _event_losses(envelope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the losses that point into the event: those of an outgoing one."""
    if envelope["direction"] == "from_runtime":
        return []
    return [{**loss, "path": f"/event{loss['path']}"} for loss in envelope["losses"]]


def _when(text: str | datetime | None, now: datetime) -> Markup:
    """Format a time of a list: relative, and absolute on demand."""
    if text is None:
        return Markup('<span class="none">–</span>')
    at = read_time(text) if isinstance(text, str) else text
    whole = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    # A time contains no markup.
    return Markup(f'<time datetime="{at.isoformat()}" data-rel title="{whole} UTC">{ago(at, now)}</time>')  # noqa: S704


def _moment(text: str | datetime, day: datetime | None = None, *, longest: int = 12) -> Markup:
    """Format an absolute time: with milliseconds or cut to `longest`, with the date if it is another day than `day`."""
    at = (read_time(text) if isinstance(text, str) else text).astimezone(UTC)
    clock = at.strftime("%H:%M:%S.%f")[:longest]
    shown = clock if day is not None and day.astimezone(UTC).date() == at.date() else f"{at:%Y-%m-%d} {clock}"
    # A time contains no markup.
    return Markup(f'<time datetime="{at.isoformat()}" data-abs title="{at:%Y-%m-%d} {clock} UTC">{shown}</time>')  # noqa: S704


def _link(path: str, query: Mapping[str, Any], **changes: Any) -> str:
    """Return a path with changed query parameters; None removes one."""
    left = {name: value for name, value in {**query, **changes}.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(left, doseq=True)}" if left else path
