"""Operations for operators: destinations, links, reload, instances, activity, runtimes, capabilities."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from dragoman.models import responses
from gateway.events import SessionId
from gateway.http.openapi import problems
from gateway.http.reply import Reply, listing
from gateway.http.requests import ReloadQuery, RuntimesQuery
from gateway.http.route import GatewayDep, NamePath, OperationRoute
from gateway.http.views import show, show_activity, show_capabilities, show_runtime, show_unconnected

router = APIRouter(route_class=OperationRoute, tags=["operating"])


@router.post(
    "/v1/destinations/{name}/enable",
    response_model=responses.Enabled,
    response_description="The destination is enabled.",
    responses=problems("not-found"),
)
async def enable_destination(gateway: GatewayDep, name: NamePath) -> Response:
    """Enable a destination.

    A destination that responded with 410 gets no copies until it is enabled again.
    """
    await gateway.enable_destination(name)
    return Reply({"name": name, "enabled": True})


@router.post("/v1/links/rotate", response_model=responses.LinksRotated, response_description="All links have ended.")
async def rotate_links(gateway: GatewayDep) -> Response:
    """End all links of notices.

    Calls keep waiting for a person, and the next notices contain new links.
    """
    await gateway.links.rotate()
    return Reply({"rotated": True})


@router.post(
    "/v1/reload",
    response_model=responses.Changed,
    response_description="The changes.",
    responses=problems("invalid-configuration", "conflict"),
)
async def reload_configuration(gateway: GatewayDep, query: Annotated[ReloadQuery, Query()]) -> Response:
    """Reload the configuration file.

    Same as SIGHUP. A file with errors changes nothing. A runtime restarts only if its configuration changed.
    """
    result = await gateway.reload(force=query.force, dry_run=query.dry_run)
    return Reply({"changed": result.changed, "restarted": result.restarted})


@router.get(
    "/v1/instances", response_model=responses.Listing[responses.Instance], response_description="The complete list."
)
async def list_instances(gateway: GatewayDep) -> Response:
    """List the instances on this store.

    Returns live instances, and dead ones that still own sessions; other instances take these over when the lease
    expires.
    """
    return listing([show(responses.Instance, one) for one in await gateway.instances()], None)


@router.get("/v1/activity", response_model=responses.Activity, response_description="The activity.")
async def get_activity(gateway: GatewayDep) -> Response:
    """Get the calls per minute and the executors of this instance.

    Returns the last 60 minutes, oldest first, but none before the start of the instance that responds. It counts calls
    of its own sessions, and keeps the counts in memory only. `executors` has the state of each executor as this
    instance sees it.
    """
    return Reply(show_activity(gateway.status.activity()))


@router.get(
    "/v1/runtimes", response_model=responses.Listing[responses.Runtime], response_description="The complete list."
)
async def list_runtimes(gateway: GatewayDep, query: Annotated[RuntimesQuery, Query()]) -> Response:
    """List runtimes and their links.

    Returns the configured runtimes, and the state of the connection of each session that this instance owns. Runtimes
    whose adapter fails come last, with a `reason`.
    """
    only = [SessionId(one) for one in dict.fromkeys(query.session_id)]
    lacking = await gateway.status.sessions_without_tools(only)
    connected = [show_runtime(status, lacking.get(status.name, {})) for status in gateway.status.runtimes(only)]
    return listing([*connected, *map(show_unconnected, gateway.status.unconnected())], None)


@router.get(
    "/v1/capabilities",
    response_model=responses.Listing[responses.RuntimeCapabilities],
    response_description="The complete list.",
)
async def list_capabilities(gateway: GatewayDep) -> Response:
    """List the capabilities of each runtime.

    Returns the kinds that each runtime accepts and emits, and the limits of its protocol.
    """
    return listing([show_capabilities(status) for status in gateway.status.runtimes()], None)
