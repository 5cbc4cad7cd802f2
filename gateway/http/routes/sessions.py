"""Opening, listing, reading and closing sessions."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.events import SessionId
from gateway.http import examples, shapes
from gateway.http.auth import require
from gateway.http.body import read_form, read_json, read_query
from gateway.http.forms import CloseQuery, OpenSession, SessionsQuery
from gateway.http.idempotency import IdempotentRequests
from gateway.http.operation import Answer, Operation
from gateway.http.reply import Reply, dump, listing, reply
from gateway.http.views import session_view
from gateway.runtime.app import Gateway
from gateway.store.rows import Page

KEY_HEADER = (
    "Idempotency-Key",
    "Makes a repeat of the same request safe for 24 hours: it is answered again, with `Idempotency-Replayed: true`.",
    "order-4711",
)


class SessionRoutes:
    """The session operations over one gateway."""

    def __init__(self, gateway: Gateway, once: IdempotentRequests) -> None:
        self._gateway = gateway
        self._once = once

    async def open(self, request: Request) -> Response:
        body = await read_json(request)
        form = read_form(OpenSession, body)

        async def act() -> Reply:
            row, is_new = await self._gateway.open_session(form.runtime, native_id=form.native_id, labels=form.labels)
            location = f"/v1/sessions/{row.session_id}"
            return reply(session_view(row), 201 if is_new else 200, location=location)

        return (await self._once.run(request, dump(body), act)).response()

    async def list(self, request: Request) -> Response:
        query = read_query(SessionsQuery, request)
        rows, after = await self._gateway.sessions(Page(query.limit, query.after), runtime=query.runtime)
        return listing([session_view(row) for row in rows], after).response()

    async def get(self, request: Request) -> Response:
        row = await self._gateway.session(SessionId(request.path_params["session_id"]))
        return reply(session_view(row)).response()

    async def close(self, request: Request) -> Response:
        query = read_query(CloseQuery, request)
        if query.erase:
            require(request, "eraseSession")
        await self._gateway.close_session(SessionId(request.path_params["session_id"]), erase=query.erase)
        return Response(status_code=204)

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="openSession",
                method="POST",
                path="/v1/sessions",
                run=self.open,
                tag="sessions",
                summary="Open a session",
                description="Attach to a native session by its `native_id`, or create one where the runtime's options "
                "say how. Opening the same native session again answers the session that exists.",
                answers=(
                    Answer(201, "The session is open.", examples.SESSION, shapes.Session),
                    Answer(200, "It was open already.", examples.SESSION, shapes.Session),
                ),
                problems=(
                    "not-found",
                    "conflict",
                    "idempotency-conflict",
                    "idempotency-busy",
                    "runtime-refused",
                    "runtime-unreachable",
                    "overloaded",
                ),
                body=OpenSession,
                body_examples={
                    "attach": {"runtime": "finn", "native_id": "agent-7", "labels": {"table": "12"}},
                    "create": {"runtime": "finn"},
                },
                headers=(KEY_HEADER,),
            ),
            Operation(
                name="listSessions",
                method="GET",
                path="/v1/sessions",
                run=self.list,
                tag="sessions",
                summary="List sessions",
                description="All sessions, oldest first, also closed ones that retention has kept.",
                answers=(
                    Answer(
                        200, "One page.", {"data": [examples.SESSION], "next": None}, shapes.Listing[shapes.Session]
                    ),
                ),
                query=SessionsQuery,
            ),
            Operation(
                name="getSession",
                method="GET",
                path="/v1/sessions/{session_id}",
                run=self.get,
                tag="sessions",
                summary="Read a session",
                description="The session and where it stands.",
                answers=(Answer(200, "The session.", examples.SESSION, shapes.Session),),
                problems=("not-found",),
            ),
            Operation(
                name="closeSession",
                method="DELETE",
                path="/v1/sessions/{session_id}",
                run=self.close,
                tag="sessions",
                summary="Close a session",
                description="End our part in the session; open calls are canceled. `erase=true` also erases the "
                "bodies of its events and needs the scope `operate`.",
                answers=(Answer(204, "It is closed."),),
                problems=("elsewhere", "not-found", "conflict"),
                query=CloseQuery,
            ),
        )
