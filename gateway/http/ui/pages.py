"""Renders the pages: the templates, their filters, and the pages of errors."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import DragomanError
from gateway.http.errors import PROBLEMS, Refused, problem_of
from gateway.http.route import ApiState
from gateway.http.ui import lanes
from gateway.http.ui.api import ApiProblem, UiApi
from gateway.http.ui.guard import UI_HEADERS, check_write
from gateway.http.ui.sign_in import Operator, operator_of
from gateway.http.ui.story import TONES, Tone
from gateway.http.ui.timeline import span_of
from gateway.http.ui.text import ago, compact, duration, json_markup, read_time, reveal, reveal_short
from gateway.runtime.app import Gateway

LARGEST_FORM = 256 * 1024
"""The maximum size of a form in bytes."""
_STATIC = ("ui.css", "ui.js")
_GLYPHS = {"ok": "●", "waiting": "◔", "failed": "✕", "unknown": "?", "plain": "○"}
_TYPES = {"css": "text/css", "js": "text/javascript"}


@dataclass(slots=True)
class Visit:
    """One request for a page."""

    request: Request
    gateway: Gateway
    operator: Operator
    api: UiApi
    now: datetime

    @property
    def query(self) -> dict[str, str]:
        """The given query parameters."""
        return {name: value for name, value in self.request.query_params.items() if value != ""}

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    async def form(self) -> dict[str, str]:
        """Read the fields of a form.

        Raises:
            Refused: the form is too large.
        """
        body = await self.request.body()
        if len(body) > LARGEST_FORM:
            raise Refused("too-large", f"a form may have {LARGEST_FORM} bytes")
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100))

    def may(self, scope: str) -> bool:
        """Return whether the operator's key has a scope."""
        return scope in self.operator.scopes


Page = Callable[[Visit], Awaitable[Response]]


def page(path: str, handle: Page, *, method: str = "GET") -> Route:
    """Make the route of a page, for signed-in operators only."""

    async def serve(request: Request) -> Response:
        state = cast(ApiState, request.app.state.api_state)
        gateway = state.gateway
        now = datetime.now(UTC)
        if not gateway.settings.ui.enabled:
            raise Refused("unknown-path", "the UI is disabled (`ui.enabled`)")
        operator = operator_of(request, gateway.settings, now=now)
        if operator is None:
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return _redirect(f"/ui/sign-in?{urlencode({'next': target if method == 'GET' else '/ui'})}")
        request.state.caller = operator
        visit = Visit(request, gateway, operator, UiApi(request, operator), now)
        try:
            if method == "POST":
                check_write(request, gateway.settings)
            return await handle(visit)
        except ApiProblem as exc:
            return _error_page(visit, exc.status, exc.problem)
        except (DragomanError, Refused) as exc:
            request.state.problem = kind = problem_of(exc)
            problem = {"type": kind.type, "title": kind.title, "detail": kind.detail or str(exc)}
            return _error_page(visit, kind.status, problem)

    return Route(path, serve, methods=[method])


def render(visit: Visit, template: str, status: int = 200, /, **values: Any) -> Response:
    """Render a page."""
    html = _environment().get_template(template).render(
        visit=visit, now=visit.now, version=visit.gateway.version, may=visit.may, **values
    )
    return Response(html.encode("utf-8", "replace"), status, {"content-type": "text/html; charset=utf-8", **UI_HEADERS})


def back_to(path: str) -> Response:
    """Redirect to a page after a write."""
    return _redirect(path)


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303, dict(UI_HEADERS))


def _error_page(visit: Visit, status: int, problem: Mapping[str, Any]) -> Response:
    kind = PROBLEMS.get(str(problem.get("type", "")).rpartition("/")[2])
    return render(visit, "error.html", status, problem=problem, status=status, kind=kind)


# Static files -------------------------------------------------------------------------------------------------


@cache
def static_file(name: str) -> bytes:
    """Read a static file of the UI."""
    return files("gateway.http.ui").joinpath("static", name).read_bytes()


@cache
def static_path(name: str) -> str:
    """Return the path of a static file; it changes with the content."""
    return f"/ui/static/{hashlib.sha256(static_file(name)).hexdigest()[:12]}/{name}"


async def serve_static(request: Request) -> Response:
    """Serve a static file, which needs no credentials."""
    name = str(request.path_params["name"])
    if name not in _STATIC:
        raise Refused("unknown-path", "the UI has no such file")
    headers = {"cache-control": "public, max-age=31536000, immutable", "content-type": _TYPES[name.rpartition(".")[2]]}
    return Response(static_file(name), headers=headers)


# Templates ----------------------------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("gateway.http.ui"), autoescape=True, auto_reload=False,
        trim_blocks=True, lstrip_blocks=True,
    )
    made.filters |= {
        "reveal": reveal, "short": reveal_short, "json": json_markup, "compact": compact, "duration": duration,
        "at": read_time, "state": _state,
    }
    made.globals |= {
        "static": static_path, "when": _when, "moment": _moment, "tone_of": lambda state: TONES.get(state, "plain"),
        "glyph": lambda tone: _GLYPHS[tone], "badge": _badge, "link": _link, "lanes": lanes, "span_of": span_of,
        "canonical": _canonical, "pc": "{:.2f}%".format, "event_losses": _event_losses,
    }
    return made


def _state(state: str, *, unknown: bool = False) -> Markup:
    return _badge("unknown", "unknown") if unknown else _badge(TONES.get(state, "plain"), state.replace("_", " "))


def _badge(tone: Tone, text: str) -> Markup:
    return Markup('<span class="state {}"><i aria-hidden="true">{}</i> {}</span>').format(
        tone, _GLYPHS[tone], reveal_short(text, 60)
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
    return Markup('<time datetime="{}" data-rel title="{} UTC">{}</time>').format(at.isoformat(), whole, ago(at, now))


def _moment(text: str | datetime, day: datetime | None = None) -> Markup:
    """Format a time of a timeline: absolute, with milliseconds, and the date if it is another day than `day`."""
    at = (read_time(text) if isinstance(text, str) else text).astimezone(UTC)
    clock = at.strftime("%H:%M:%S.%f")[:-3]
    shown = clock if day is not None and day.astimezone(UTC).date() == at.date() else f"{at:%Y-%m-%d} {clock}"
    return Markup('<time datetime="{}" data-abs title="{:%Y-%m-%d} {} UTC">{}</time>').format(
        at.isoformat(), at, clock, shown
    )


def _link(path: str, query: Mapping[str, Any], **changes: Any) -> str:
    """Return a path with changed query parameters; None removes one."""
    left = {name: value for name, value in {**query, **changes}.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(left, doseq=True)}" if left else path
