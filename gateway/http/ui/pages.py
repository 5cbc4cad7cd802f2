"""Renders the pages: the templates, their filters, and the pages of errors."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.addresses import read_origin
from gateway.errors import DragomanError, EngineUnavailable
from gateway.http.errors import PROBLEMS, Refused, problem_of
from gateway.http.prefix import prefix_of
from gateway.http.route import ApiState
from gateway.http.ui.api import ApiProblem, UiApi
from gateway.http.ui.guard import UI_HEADERS, check_enabled, check_write, key_of, read_form
from gateway.http.ui.rendering import fill
from gateway.http.ui.sign_in import Operator, signed_in
from gateway.http.web_pages import origin_of
from gateway.runtime.app import Gateway

_CONFLICT = 409
_ADVICE = {
    **dict.fromkeys(
        ("conflict", "gone", "idempotency-busy", "idempotency-conflict", "method-not-allowed"),
        "Go back and reload the page: it shows the current state.",
    ),
    **dict.fromkeys(
        ("request-timeout", "session-owner-unavailable", "starting", "draining", "overloaded", "busy"),
        "Try again in a few seconds.",
    ),
    **dict.fromkeys(
        ("invalid-request", "invalid-json", "invalid-event", "unsupported-media-type", "call-over"), "Go back."
    ),
    "unauthorized": "Sign in again.",
    "foreign-origin": "Open the page at the gateway's own address and send the form there.",
    "inexpressible": "`dragoman explain` lists what each runtime accepts.",
    "invalid-arguments": "Compare the arguments with the tool's `parameters` in the configuration.",
    "invalid-configuration": "Validate the file with `dragoman check FILE`.",
    "own-call": "Let somebody with another key answer.",
    "not-approver": "Let somebody answer whose key the rule names.",
    "use-interaction": "Answer it in the inbox.",
    "denied": "Change the arguments again, or deny the call.",
    "unavailable": "Try again later; the overview shows the cause, often a full disk.",
    "internal": "Report it with the lines of the gateway's log that name this request.",
}
"""The advice of error pages, by problem; the `mend` of these problems is for callers of the API."""
MOST_COUNTED = 50
"""The highest count in the navigation; more are shown as `50+`."""


@dataclass(slots=True)
class Visit:
    """One request for a page."""

    request: Request
    gateway: Gateway
    operator: Operator
    api: UiApi
    now: datetime
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fields of the form that was sent."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """What waits for a person, by the path of its page."""

    @property
    def base(self) -> str:
        """The URL of the gateway as the operator reaches it."""
        url, host = self.gateway.settings.public_url, self.request.headers.get("host", "")
        if url is not None and read_origin(f"{url.scheme}://{host}") == origin_of(url):
            return str(url).rstrip("/")
        return f"{self.request.url.scheme}://{host}{prefix_of(self.gateway.settings)}"

    @property
    def query(self) -> dict[str, str]:
        """The given query parameters."""
        return {name: value for name, value in self.request.query_params.items() if value != ""}

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def may(self, scope: str) -> bool:
        """Return whether the operator's key has a scope."""
        return scope in self.operator.scopes


class FormRefused(Exception):
    """A form did nothing, mostly since the state that it was rendered for has changed; `values` fill the page of it."""

    def __init__(self, template: str, status: int = _CONFLICT, /, **values: Any) -> None:
        super().__init__(template)
        self.template = template
        self.status = status
        self.values = values


Page = Callable[[Visit], Awaitable[Response]]


def page(path: str, handle: Page, *, method: str = "GET") -> Route:
    """Make the route of a page, for signed-in operators only; each rendering of a form is carried out once."""

    async def serve(request: Request) -> Response:
        state = cast(ApiState, request.app.state.api_state)
        gateway = state.gateway
        now = gateway.clock.now()
        check_enabled(gateway.settings)
        operator = await signed_in(request, gateway, now=now)
        if operator is None:
            target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return _redirect(f"/ui/sign-in?{urlencode({'next': target if method == 'GET' else '/ui'})}")
        request.state.caller = operator
        visit = Visit(request, gateway, operator, UiApi(request, operator), now)
        request.state.error_page = partial(_page_of, visit)
        try:
            if method == "GET":
                visit.counts = await _counts(visit)
                return await handle(visit)
            check_write(request, gateway.settings)
            visit.form = await read_form(request)
            visit.api.key = key_of(visit.form)
            return await state.once.run(request, visit.api.key, b"", partial(handle, visit))
        except FormRefused as exc:
            return render(visit, exc.template, exc.status, **exc.values)
        except ApiProblem as exc:
            return _error_page(visit, exc.status, exc.problem)
        except (DragomanError, Refused) as exc:
            request.state.problem = problem_of(exc)
            return _page_of(visit, exc)

    return Route(path, serve, methods=[method])


async def _counts(visit: Visit) -> Mapping[str, int]:
    if not visit.may("read"):
        return {}
    try:
        waiting, dead = await visit.gateway.status.count_waiting(MOST_COUNTED + 1)
    except EngineUnavailable:
        return {}
    return {"/ui/inbox": waiting, "/ui/dead-letters": dead}


def _written(counts: Mapping[str, int]) -> Mapping[str, str]:
    return {
        path: str(count) if count <= MOST_COUNTED else f"{MOST_COUNTED}+" for path, count in counts.items() if count
    }


def render(visit: Visit, template: str, status: int = 200, /, **values: Any) -> Response:
    """Render a page."""
    root = prefix_of(visit.gateway.settings)
    html = fill(
        template,
        root,
        visit=visit,
        now=visit.now,
        counted=_written(visit.counts),
        version=visit.gateway.version,
        may=visit.may,
        new_key=visit.gateway.ids.token,
        **values,
    )
    return Response(html, status, {"content-type": "text/html; charset=utf-8", **UI_HEADERS})


def back_to(path: str) -> Response:
    """Redirect to a page after a write."""
    return _redirect(path)


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303, dict(UI_HEADERS))


def _page_of(visit: Visit, exc: BaseException) -> Response:
    """Make the page of an exception; an unexpected one is told without its details, which the log has."""
    kind = problem_of(exc)
    is_expected = isinstance(exc, DragomanError | Refused)
    detail = kind.detail or (str(exc) if is_expected else kind.meaning)
    return _error_page(visit, kind.status, {"type": kind.type, "title": kind.title, "detail": detail})


def _error_page(visit: Visit, status: int, problem: Mapping[str, Any]) -> Response:
    return render(visit, "error.html", status, problem=problem, status=status, advice=advise(problem))


def advise(problem: Mapping[str, Any]) -> str | None:
    """Return the next step after a problem."""
    name = str(problem.get("type", "")).rpartition("/")[2]
    return _ADVICE.get(name) or (PROBLEMS[name].mend if name in PROBLEMS else None)
