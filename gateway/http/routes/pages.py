"""Pages for probes and people: health, readiness, metrics, version, this API, and what each problem means."""

from typing import Any

from fastapi import APIRouter, Response
from starlette.responses import PlainTextResponse

from gateway.errors import NotFound
from gateway.http.answers import Health, Listing, ProblemPage, Ready, Version
from gateway.http.errors import PROBLEMS
from gateway.http.openapi import problems
from gateway.http.reply import dump, listing, reply
from gateway.http.route import ApiRequest, NamePath, Route

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(route_class=Route, tags=["pages"])


@router.get("/healthz", response_model=Health, response_description="It is.")
@router.get("/livez", include_in_schema=False)
@router.get("/health", include_in_schema=False)
async def get_health() -> Response:
    """Is the process alive?

    Answers as long as the process does; also at `/livez` and `/health`.
    """
    return reply({"status": "ok"}).response()


@router.get(
    "/readyz",
    response_model=Ready,
    response_description="Ready.",
    responses={503: {"model": Ready, "description": "Not ready."}},
)
@router.get("/ready", include_in_schema=False)
async def get_readiness(request: ApiRequest) -> Response:
    """Should it get traffic?

    Whether the store takes writes, the configuration is loaded and, among several on one store, the lease runs; and
    how many sessions this instance carries. A runtime that is away does not make the gateway unready. Also at
    `/ready`.
    """
    readiness = await request.gateway.ready()
    body = {
        "ready": readiness.ready,
        "checks": dict(readiness.checks),
        "instance_id": readiness.instance_id,
        "sessions": readiness.sessions,
        "failing": list(readiness.failing),
    }
    return reply(body, 200 if readiness.ready else 503).response()


@router.get("/metrics", response_class=PlainTextResponse, response_description="The metrics.")
async def get_metrics(request: ApiRequest) -> Response:
    """Metrics for Prometheus.

    All metrics in the Prometheus text format.
    """
    return Response(request.gateway.render_metrics(), headers={"content-type": _METRICS_TYPE})


@router.get("/version", response_model=Version, response_description="The version.")
async def get_version(request: ApiRequest) -> Response:
    """Which release is this?

    Name and version of the running release.
    """
    return reply({"name": "dragoman", "version": request.gateway.version}).response()


@router.get("/openapi.json", response_model=dict[str, Any], response_description="The document.")
async def get_openapi(request: ApiRequest) -> Response:
    """This document.

    The description of the whole API in OpenAPI 3.1.
    """
    return Response(dump(request.app.openapi()), media_type="application/json")


@router.get("/problems", response_model=Listing[ProblemPage], response_description="All of them.")
async def list_problems() -> Response:
    """All problem types.

    Every `type` that an error answer can have, what it means and what mends it.
    """
    return listing([kind.page() for kind in PROBLEMS.values()], None).response()


@router.get(
    "/problems/{name}",
    response_model=ProblemPage,
    response_description="The explanation.",
    responses=problems("not-found"),
)
async def get_problem(name: NamePath) -> Response:
    """One problem type.

    What the `type` of an error answer means, and what mends it.
    """
    kind = PROBLEMS.get(name)
    if kind is None:
        raise NotFound("there is no problem of this name; GET /problems lists all")
    return reply(kind.page()).response()
