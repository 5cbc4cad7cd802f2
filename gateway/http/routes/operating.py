"""What operators look after: destinations, reload, runtimes and their capabilities."""

from fastapi import APIRouter, Response

from gateway.http.answers import Changed, Enabled, Instance, Listing, Runtime, RuntimeCapabilities
from gateway.http.openapi import problems
from gateway.http.reply import listing, reply
from gateway.http.route import ApiRequest, NamePath, Route
from gateway.http.views import capabilities_view, instance_view, runtime_view

router = APIRouter(route_class=Route, tags=["operating"])


@router.post(
    "/v1/destinations/{name}/enable",
    response_model=Enabled,
    response_description="It is on.",
    responses=problems("not-found"),
)
async def enable_destination(request: ApiRequest, name: NamePath) -> Response:
    """Switch a destination on again.

    A destination that answered 410 gets no more copies until it is switched on again.
    """
    await request.gateway.enable_destination(name)
    return reply({"name": name, "enabled": True}).response()


@router.post(
    "/v1/reload",
    response_model=Changed,
    response_description="What has changed.",
    responses=problems("invalid-configuration"),
)
async def reload_configuration(request: ApiRequest) -> Response:
    """Read the configuration file again.

    As SIGHUP does. A file with errors changes nothing.
    """
    return reply({"changed": list((await request.gateway.reload()).changed)}).response()


@router.get("/v1/instances", response_model=Listing[Instance], response_description="All of them.")
async def list_instances(request: ApiRequest) -> Response:
    """List the processes on this store.

    Those that live, and those that own sessions though they have died: the others take these over when the lease has
    run out.
    """
    return listing([instance_view(one) for one in await request.gateway.instances()], None).response()


@router.get("/v1/runtimes", response_model=Listing[Runtime], response_description="All of them.")
async def list_runtimes(request: ApiRequest) -> Response:
    """List runtimes and their links.

    The runtimes of the configuration, and the state of the connection of each session that this instance carries.
    """
    return listing([runtime_view(status) for status in request.gateway.runtimes()], None).response()


@router.get("/v1/capabilities", response_model=Listing[RuntimeCapabilities], response_description="All of them.")
async def list_capabilities(request: ApiRequest) -> Response:
    """List what each runtime can do.

    Which kinds each runtime accepts and emits, and the limits of its protocol.
    """
    return listing([capabilities_view(status) for status in request.gateway.runtimes()], None).response()
