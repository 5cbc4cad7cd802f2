"""Pages for probes and people: health, readiness, metrics, version, and what each problem means."""

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import NotFound
from gateway.http import examples, shapes
from gateway.http.errors import PROBLEMS, ProblemKind
from gateway.http.operation import Answer, Operation
from gateway.http.reply import listing, reply
from gateway.runtime.app import Gateway

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PageRoutes:
    """The pages over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        del request
        return reply({"status": "ok"}).response()

    async def ready(self, request: Request) -> Response:
        del request
        readiness = await self._gateway.ready()
        body = {
            "ready": readiness.ready,
            "checks": dict(readiness.checks),
            "instance_id": readiness.instance_id,
            "sessions": readiness.sessions,
            "failing": list(readiness.failing),
        }
        return reply(body, 200 if readiness.ready else 503).response()

    async def metrics(self, request: Request) -> Response:
        del request
        return Response(self._gateway.render_metrics(), headers={"content-type": _METRICS_TYPE})

    async def version(self, request: Request) -> Response:
        del request
        return reply({"name": "dragoman", "version": self._gateway.version}).response()

    async def problems(self, request: Request) -> Response:
        del request
        return listing([_problem_view(kind) for kind in PROBLEMS.values()], None).response()

    async def problem(self, request: Request) -> Response:
        kind = PROBLEMS.get(request.path_params["name"])
        if kind is None:
            raise NotFound("there is no problem of this name; GET /problems lists all")
        return reply(_problem_view(kind)).response()

    def operations(self) -> tuple[Operation, ...]:
        """List them with their documentation."""
        carried = {"instance_id": examples.INSTANCE["instance_id"], "sessions": 12, "failing": list[str]()}
        return (
            Operation(
                name="getHealth",
                method="GET",
                path="/healthz",
                aliases=("/livez", "/health"),
                run=self.health,
                tag="pages",
                summary="Is the process alive?",
                description="Answers as long as the process does; also at `/livez` and `/health`.",
                answers=(Answer(200, "It is.", {"status": "ok"}, shapes.Health),),
            ),
            Operation(
                name="getReadiness",
                method="GET",
                path="/readyz",
                aliases=("/ready",),
                run=self.ready,
                tag="pages",
                summary="Should it get traffic?",
                description="Whether the store takes writes, the configuration is loaded and, among several on one "
                "store, the lease runs; and how many sessions this instance carries. A runtime that is away does not "
                "make the gateway unready. Also at `/ready`.",
                answers=(
                    Answer(200, "Ready.", {"ready": True, "checks": {"engine": "ok"}, **carried}, shapes.Ready),
                    Answer(
                        503, "Not ready.", {"ready": False, "checks": {"engine": "disk full"}, **carried}, shapes.Ready
                    ),
                ),
            ),
            Operation(
                name="getMetrics",
                method="GET",
                path="/metrics",
                run=self.metrics,
                tag="pages",
                summary="Metrics for Prometheus",
                description="All metrics in the Prometheus text format.",
                answers=(Answer(200, "The metrics.", examples.METRICS, str, media_type="text/plain"),),
            ),
            Operation(
                name="getVersion",
                method="GET",
                path="/version",
                run=self.version,
                tag="pages",
                summary="Which release is this?",
                description="Name and version of the running release.",
                answers=(Answer(200, "The version.", {"name": "dragoman", "version": "0.2.0"}, shapes.Version),),
            ),
            Operation(
                name="listProblems",
                method="GET",
                path="/problems",
                run=self.problems,
                tag="pages",
                summary="All problem types",
                description="Every `type` that an error answer can have, what it means and what mends it.",
                answers=(
                    Answer(
                        200,
                        "All of them.",
                        {"data": [_problem_view(PROBLEMS["not-found"])], "next": None},
                        shapes.Listing[shapes.ProblemPage],
                    ),
                ),
            ),
            Operation(
                name="getProblem",
                method="GET",
                path="/problems/{name}",
                run=self.problem,
                tag="pages",
                summary="One problem type",
                description="What the `type` of an error answer means, and what mends it.",
                answers=(Answer(200, "The explanation.", _problem_view(PROBLEMS["not-found"]), shapes.ProblemPage),),
                problems=("not-found",),
            ),
        )


def _problem_view(kind: ProblemKind) -> dict[str, object]:
    told = ("status", "title", "meaning", "mend")
    return {"type": kind.type, **{name: value for name, value in asdict(kind).items() if name in told}}
