"""Checks the MCP clients of runtimes: unique names and tokens, and at least one tool for each. Pure."""

from collections.abc import Iterator, Mapping

from gateway.adapter.options import McpClient
from gateway.adapter.port import RuntimeOptions
from gateway.core.routing import Routes
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place
from gateway.settings.routing import routes_of


def lint_clients(settings: Settings) -> Iterator[Finding]:
    """Check each runtime with MCP clients."""
    keys = {key.key.get_secret_value(): key.name for key in settings.api.keys}
    routes = routes_of(settings)
    for name, options in settings.runtimes.items():
        if options.mcp_clients is not None:
            place = ("runtimes", name, "clients")
            yield from _identities(options.mcp_clients, place, keys)
            yield from _tools(settings, name, options, options.mcp_clients, routes)


def _identities(clients: tuple[McpClient, ...], place: Place, keys: Mapping[str, str]) -> Iterator[Finding]:
    names: dict[str, int] = {}
    tokens: dict[str, str] = {}
    for index, client in enumerate(clients):
        token = client.token.get_secret_value()
        if client.name in names:
            text = f"{client.name!r} is also the name of clients[{names[client.name]}]; rename one"
            yield Finding((*place, index, "name"), text)
        if token in tokens:
            text = f"this is also the token of {tokens[token]!r}; give each client its own"
            yield Finding((*place, index, "token"), text)
        if token in keys:
            text = f"this is also the API key {keys[token]!r}, which grants more than tools; use another token"
            yield Finding((*place, index, "token"), text)
        names.setdefault(client.name, index)
        tokens.setdefault(token, client.name)


def _tools(
    settings: Settings, runtime: str, options: RuntimeOptions, clients: tuple[McpClient, ...], routes: Routes
) -> Iterator[Finding]:
    place = ("runtimes", runtime)
    if not clients:
        text = 'no client may connect; add one with `clients: [{name: ada, token: "${ADA_MCP}"}]`'
        yield Finding((*place, "clients"), text, "warning")
        return
    shown = [_is_shown_any(settings, runtime, {**options.labels, **client.labels}, routes) for client in clients]
    fix = f"declare `tools`, and a route for runtime {runtime!r} `to` an executor"
    if not any(shown):
        yield Finding(place, f"no route leads a declared tool to an executor, so clients see none; {fix}", "warning")
        return
    for index, client in enumerate(clients):
        if not shown[index]:
            text = f"no route with the labels of {client.name!r} leads a declared tool to an executor; {fix}"
            yield Finding((*place, "clients", index), text, "warning")


def _is_shown_any(settings: Settings, runtime: str, labels: Mapping[str, str], routes: Routes) -> bool:
    return any(routes.rules_for(runtime=runtime, tool=tool, labels=labels) for tool in settings.tools)
