"""What operators look after: destinations, reload, runtimes and their capabilities."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from gateway.http.openapi import problems
from gateway.http.reply import Reply, listing
from gateway.http.requests import ReloadQuery
from gateway.http.route import GatewayDep, NamePath, OperationRoute
from gateway.http.views import show, show_capabilities, show_runtime, show_unconnected
from gateway.models import responses

router = APIRouter(route_class=OperationRoute, tags=["operating"])


@router.post(
    "/v1/destinations/{name}/enable",
    response_model=responses.Enabled,
    response_description="It is on.",
    responses=problems("not-found"),
)
async def enable_destination(gateway: GatewayDep, name: NamePath) -> Response:
    """Switch a destination on again.

    A destination that answered 410 gets no more copies until it is switched on again.
    """
    await gateway.enable_destination(name)
    return Reply({"name": name, "enabled": True})


@router.post(
    "/v1/reload",
    response_model=responses.Changed,
    response_description="What has changed.",
    responses=problems("invalid-configuration", "conflict"),
)
async def reload_configuration(gateway: GatewayDep, query: Annotated[ReloadQuery, Query()]) -> Response:
    """Read the configuration file again and apply it.

    As SIGHUP does. A file with errors changes nothing. A runtime restarts only if its block changed.
    """
    result = await gateway.reload(force=query.force, dry_run=query.dry_run)
    return Reply({"changed": result.changed, "restarted": result.restarted})


@router.get("/v1/instances", response_model=responses.Listing[responses.Instance], response_description="All of them.")
async def list_instances(gateway: GatewayDep) -> Response:
    """List the processes on this store.

    Those that live, and those that own sessions though they have died: the others take these over when the lease has
    run out.
    """
    return listing([show(responses.Instance, one) for one in await gateway.instances()], None)


@router.get("/v1/runtimes", response_model=responses.Listing[responses.Runtime], response_description="All of them.")
async def list_runtimes(gateway: GatewayDep) -> Response:
    """List runtimes and their links.

    The runtimes of the configuration, and the state of the connection of each session that this instance carries. One
    whose adapter fails comes last, and has a `reason`.
    """
    lacking = await gateway.status.sessions_without_tools()
    connected = [show_runtime(status, lacking.get(status.name, {})) for status in gateway.status.runtimes()]
    return listing([*connected, *map(show_unconnected, gateway.status.unconnected())], None)


@router.get(
    "/v1/capabilities",
    response_model=responses.Listing[responses.RuntimeCapabilities],
    response_description="All of them.",
)
async def list_capabilities(gateway: GatewayDep) -> Response:
    """List what each runtime can do.

    Which kinds each runtime accepts and emits, and the limits of its protocol.
    """
    return listing([show_capabilities(status) for status in gateway.status.runtimes()], None)
