"""Health, readiness, metrics, version, the OpenAPI document, `/llms.txt` and the problem types."""

from typing import Any

from fastapi import APIRouter, Response
from starlette.responses import PlainTextResponse

from dragoman.models import responses
from gateway.errors import NotFound
from gateway.guard import in_thread
from gateway.http.errors import PROBLEMS
from gateway.http.llms import write_llms
from gateway.http.openapi import problems
from gateway.http.reply import Reply, dump, listing
from gateway.http.route import ApiRequest, GatewayDep, NamePath, OperationRoute
from gateway.http.views import show

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WRITING = 60.0
"""Seconds that writing the OpenAPI document may take."""

router = APIRouter(route_class=OperationRoute, tags=["pages"])


@router.get("/healthz", response_model=responses.Health, response_description="The process is alive.")
@router.get("/livez", include_in_schema=False)
@router.get("/health", include_in_schema=False)
async def get_health() -> Response:
    """Check liveness.

    Responds while the process is alive; also at `/livez` and `/health`.
    """
    return Reply({"status": "ok"})


@router.get(
    "/readyz",
    response_model=responses.Ready,
    response_description="Ready.",
    responses={503: {"model": responses.Ready, "description": "Not ready."}},
)
@router.get("/ready", include_in_schema=False)
async def get_readiness(gateway: GatewayDep) -> Response:
    """Check readiness.

    Ready means: the store accepts writes, the configuration is loaded and, in a cluster, the lease is valid. Also
    returns the number of sessions that this instance owns. An unreachable runtime does not make the gateway unready.
    Also at `/ready`.
    """
    readiness = await gateway.status.ready()
    return Reply(show(responses.Ready, readiness), 200 if readiness.ready else 503)


@router.get("/metrics", response_class=PlainTextResponse, response_description="The metrics.")
async def get_metrics(gateway: GatewayDep) -> Response:
    """Get metrics.

    Returns all metrics in the Prometheus text format.
    """
    return Response(gateway.render_metrics(), headers={"content-type": _METRICS_TYPE})


@router.get("/version", response_model=responses.Version, response_description="The version.")
async def get_version(gateway: GatewayDep) -> Response:
    """Get the version.

    Returns the name and version of the running release.
    """
    return Reply({"name": "dragoman", "version": gateway.version})


@router.get("/openapi.json", response_model=dict[str, Any], response_description="The document.")
async def get_openapi(request: ApiRequest) -> Response:
    """Get the OpenAPI document.

    Returns the OpenAPI 3.1 document of the API.
    """
    return Response(dump(await _document(request)), media_type="application/json")


@router.get("/llms.txt", include_in_schema=False)
async def get_llms(request: ApiRequest) -> Response:
    """Get the description for language models.

    Returns the product, the webhook contract and the operations as Markdown.
    """
    return Response(write_llms(await _document(request)), media_type="text/plain")


async def _document(request: ApiRequest) -> dict[str, Any]:
    # The first request writes it, in a thread: that takes a second, in which the lease must be renewed.
    return await in_thread("openapi", request.app.openapi, within=_WRITING, what="the OpenAPI document")


@router.get(
    "/problems", response_model=responses.Listing[responses.ProblemPage], response_description="The complete list."
)
async def list_problems() -> Response:
    """List problem types.

    Returns the meaning and the fix of every `type` of an error response.
    """
    return listing([show(responses.ProblemPage, kind) for kind in PROBLEMS.values()], None)


@router.get(
    "/problems/{name}",
    response_model=responses.ProblemPage,
    response_description="The explanation.",
    responses=problems("not-found"),
)
async def get_problem(name: NamePath) -> Response:
    """Get a problem type.

    Returns the meaning and the fix of a `type` of an error response.
    """
    kind = PROBLEMS.get(name)
    if kind is None:
        raise NotFound("unknown problem; GET /problems lists all")
    return Reply(show(responses.ProblemPage, kind))
