"""The page behind a link of a notice: shows a held call in a browser, and takes the answer."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import DragomanError
from gateway.http.auth import LINK, Caller
from gateway.http.errors import PROBLEMS, Refused, problem_of
from gateway.http.prefix import prefix_of
from gateway.http.route import ApiState
from gateway.http.ui.api import ApiProblem, UiApi, path_of
from gateway.http.ui.guard import UI_HEADERS, check_write, read_form
from gateway.http.ui.rendering import fill
from gateway.http.ui.sign_in import Operator
from gateway.http.views import show_interaction
from gateway.runtime.app import Gateway
from gateway.runtime.delivery.links import ApprovalLink

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        **UI_HEADERS,
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": _POLICY,
        "x-robots-tag": "noindex, nofollow",
    }
)


_TITLES = {"not-found": "Unknown link", "conflict": "Already answered", "gone": "This link has ended"}


async def show(request: Request) -> Response:
    """Show the held call; only a navigation of a browser gets the arguments, since previews open links too."""
    gateway = _gateway_of(request)
    request.state.error_page = partial(_refuse, request)
    try:
        link, row = await _open(request, gateway)
    except (DragomanError, Refused) as exc:
        return _refuse(request, exc)
    shown = row if _is_navigation(request) else None
    return _page(gateway, row=shown, link=link, now=gateway.clock.now())


async def answer(request: Request) -> Response:
    """Answer with the fields of the form, as the API does."""
    gateway = _gateway_of(request)
    request.state.error_page = partial(_refuse, request)
    try:
        check_write(request, gateway.settings)
        link, _ = await _open(request, gateway)
        form = await read_form(request)
        body = {name: form[name] for name in ("decision", "binding", "reason") if form.get(name)}
        if body.get("decision") == "allow" and not link.may_allow:
            raise Refused(
                "not-approver",
                "the arguments are too long for a link, which may only deny; allow the call in the inbox",
            )
        caller = request.state.caller
        api = UiApi(request, Operator(caller.name, caller.scopes, None), state={LINK: caller})
        await api.post(path_of("v1", "interactions", link.interaction_id, "answer"), body)
    except ApiProblem as exc:
        name = str(exc.problem.get("type", "")).rpartition("/")[2]
        return _refuse(request, Refused(name if name in PROBLEMS else "internal", str(exc)))
    except (DragomanError, Refused) as exc:
        return _refuse(request, exc)
    done = "You allowed the call." if body["decision"] == "allow" else "You denied the call."
    return _page(gateway, title="Answered", text=done)


async def _open(request: Request, gateway: Gateway) -> tuple[ApprovalLink, Mapping[str, Any]]:
    """Check the link of a request, and return it with the question.

    Raises:
        NotFound, Gone: as `Links.read` does, or the question has ended.
        Refused: somebody has answered already.
    """
    link = await gateway.links.read(str(request.path_params["token"]))
    approvals = gateway.settings.approvals
    if not approvals.links or all(notified.to != link.name for notified in approvals.notify):
        raise Refused("gone", "links are disabled (`approvals.links`)")
    request.state.caller = Caller(link.holder, frozenset({"approve"}))
    found = await gateway.interactions.find(link.interaction_id)
    if found.row.state != "waiting":
        text = await gateway.interactions.describe_end(found.row)
        raise Refused("conflict" if found.row.state == "answered" else "gone", text)
    return link, show_interaction(found.row, found.asked)


def _is_navigation(request: Request) -> bool:
    given = request.headers
    purpose = f"{given.get('sec-purpose', '')} {given.get('purpose', '')}".lower()
    return (
        given.get("sec-fetch-mode") == "navigate"
        and given.get("sec-fetch-dest") == "document"
        and "prefetch" not in purpose
    )


def _refuse(request: Request, exc: BaseException) -> Response:
    kind = problem_of(exc)
    request.state.problem = kind
    text = str(exc) if isinstance(exc, DragomanError | Refused) else kind.meaning
    return _page(_gateway_of(request), kind.status, title=_TITLES.get(kind.name, kind.title), text=text)


def _page(gateway: Gateway, status: int = 200, /, **values: Any) -> Response:
    html = fill("link.html", prefix_of(gateway.settings), has_ui=gateway.settings.ui.enabled, **values)
    return Response(html, status, dict(_HEADERS))


def _gateway_of(request: Request) -> Gateway:
    return cast(ApiState, request.app.state.api_state).gateway


LINK_ROUTES = [
    Route("/a/{token}", show, methods=["GET"]),
    Route("/a/{token}", answer, methods=["POST"]),
]
