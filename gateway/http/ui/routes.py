"""The routes of the UI."""

from starlette.responses import Response
from starlette.routing import Route

from gateway.http.ui import actions, details, inbox, lists
from gateway.http.ui.link_pages import LINK_ROUTES
from gateway.http.ui.live import LiveStream
from gateway.http.ui.pages import Visit, back_to, page, render
from gateway.http.ui.rendering import serve_static
from gateway.http.ui.sign_in import SIGN_IN_ROUTES


async def _unknown(visit: Visit) -> Response:
    if (path := visit.request.url.path).endswith("/"):
        return back_to(path.rstrip("/"))
    problem = {"title": "Unknown page", "detail": f"the UI has no page {visit.request.url.path}"}
    return render(visit, "error.html", 404, problem=problem, status=404, kind=None)


UI_ROUTES: list[Route] = [
    Route("/ui/static/{digest}/{name}", serve_static),
    *SIGN_IN_ROUTES,
    *LINK_ROUTES,
    page("/ui", lists.overview),
    page("/ui/sessions", lists.sessions),
    page("/ui/sessions", actions.open_session, method="POST"),
    page("/ui/sessions/{session_id}", details.session),
    page("/ui/sessions/{session_id}/events/{sequence}", details.event),
    page("/ui/sessions/{session_id}/message", actions.post_message, method="POST"),
    page("/ui/sessions/{session_id}/interrupt", actions.interrupt, method="POST"),
    page("/ui/sessions/{session_id}/close", actions.close_session, method="POST"),
    page("/ui/calls", lists.calls),
    page("/ui/calls/many", actions.many_calls, method="POST"),
    page("/ui/calls/{call_id}", details.call),
    page("/ui/calls/{call_id}/story.json", details.story_json),
    page("/ui/calls/{call_id}/cancel", actions.cancel_call, method="POST"),
    page("/ui/calls/{call_id}/redrive", actions.redrive_call, method="POST"),
    page("/ui/inbox", inbox.waiting),
    page("/ui/inbox/{interaction_id}", inbox.interaction),
    page("/ui/inbox/{interaction_id}/answer", inbox.answer, method="POST"),
    page("/ui/dead-letters", lists.dead_letters),
    page("/ui/dead-letters/redrive", actions.redrive_letter, method="POST"),
    page("/ui/dead-letters/dismiss", actions.dismiss_letter, method="POST"),
    page("/ui/dead-letters/many", actions.many_letters, method="POST"),
    page("/ui/search", lists.search),
    Route("/ui/live", LiveStream(), methods=["GET"]),
    page("/ui/{rest:path}", _unknown),
]
