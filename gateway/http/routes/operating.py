"""What operators look after: destinations, reload, runtimes and their capabilities."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.http import examples, shapes
from gateway.http.operation import Answer, Operation
from gateway.http.reply import listing, reply
from gateway.http.views import capabilities_view, instance_view, runtime_view
from gateway.runtime.app import Gateway


class OperatingRoutes:
    """The operator's operations over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def enable(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        await self._gateway.enable_destination(name)
        return reply({"name": name, "enabled": True}).response()

    async def reload(self, request: Request) -> Response:
        del request
        return reply({"changed": list((await self._gateway.reload()).changed)}).response()

    async def instances(self, request: Request) -> Response:
        del request
        return listing([instance_view(one) for one in await self._gateway.instances()], None).response()

    async def runtimes(self, request: Request) -> Response:
        del request
        return listing([runtime_view(status) for status in self._gateway.runtimes()], None).response()

    async def capabilities(self, request: Request) -> Response:
        del request
        return listing([capabilities_view(status) for status in self._gateway.runtimes()], None).response()

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        return (
            Operation(
                name="enableDestination",
                method="POST",
                path="/v1/destinations/{name}/enable",
                run=self.enable,
                tag="operating",
                summary="Switch a destination on again",
                description="A destination that answered 410 gets no more copies until it is switched on again.",
                answers=(Answer(200, "It is on.", {"name": "chat-log", "enabled": True}, shapes.Enabled),),
                problems=("not-found",),
            ),
            Operation(
                name="reloadConfiguration",
                method="POST",
                path="/v1/reload",
                run=self.reload,
                tag="operating",
                summary="Read the configuration file again",
                description="As SIGHUP does. A file with errors changes nothing.",
                answers=(Answer(200, "What has changed.", {"changed": ["routes", "executors.cards"]}, shapes.Changed),),
                problems=("invalid-configuration",),
            ),
            Operation(
                name="listInstances",
                method="GET",
                path="/v1/instances",
                run=self.instances,
                tag="operating",
                summary="List the processes on this store",
                description="Those that live, and those that own sessions though they have died: the others take these "
                "over when the lease has run out.",
                answers=(
                    Answer(
                        200,
                        "All of them.",
                        {"data": [examples.INSTANCE], "next": None},
                        shapes.Listing[shapes.Instance],
                    ),
                ),
            ),
            Operation(
                name="listRuntimes",
                method="GET",
                path="/v1/runtimes",
                run=self.runtimes,
                tag="operating",
                summary="List runtimes and their links",
                description="The runtimes of the configuration, and the state of the connection of each session that "
                "this instance carries.",
                answers=(
                    Answer(
                        200, "All of them.", {"data": [examples.RUNTIME], "next": None}, shapes.Listing[shapes.Runtime]
                    ),
                ),
            ),
            Operation(
                name="listCapabilities",
                method="GET",
                path="/v1/capabilities",
                run=self.capabilities,
                tag="operating",
                summary="List what each runtime can do",
                description="Which kinds each runtime accepts and emits, and the limits of its protocol.",
                answers=(
                    Answer(
                        200,
                        "All of them.",
                        {"data": [examples.CAPABILITIES], "next": None},
                        shapes.Listing[shapes.RuntimeCapabilities],
                    ),
                ),
            ),
        )
