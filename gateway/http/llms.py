"""The page `/llms.txt`: product, webhook contract and operations as Markdown, from the OpenAPI document. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.http.auth import ACCESS, SCOPES

_SIGNING = """Requests are POSTs with JSON, signed according to Standard Webhooks 1.0: `webhook-signature` is `v1,`
and the base64 of HMAC-SHA256 over `webhook-id.webhook-timestamp.body`. `webhook-id` is the idempotency key, the same on
every attempt."""


def write_llms(document: Mapping[str, Any]) -> str:
    """Write the page from the complete OpenAPI document."""
    info = document["info"]
    parts = [
        f"# {info['title']} {info['version']}",
        f"> {info['summary']}.",
        info["description"],
        "`/openapi.json` has every schema, with examples.",
        "## Webhooks",
        _SIGNING,
        *_webhooks(document),
        "## Operations",
        "\n".join(f"- Scope `{scope}`: {text}" for scope, text in SCOPES.items()),
    ]
    for tag in document["tags"]:
        if lines := list(_operations(document, tag["name"])):
            parts += [f"### {tag['description']}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _webhooks(document: Mapping[str, Any]) -> Iterator[str]:
    for kind, path in document["webhooks"].items():
        request = path["post"]
        answers = [f"- {status}: {answer['description']}" for status, answer in request["responses"].items()]
        yield "\n".join([f"### `{kind}`: {request['summary']}", "", request["description"], "", *answers])


def _operations(document: Mapping[str, Any], tag: str) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield f"- `{method.upper()} {path}`: {operation['summary']} ({_describe_access(operation)})"


def _describe_access(operation: Mapping[str, Any]) -> str:
    access = ACCESS[operation["operationId"]]
    if access.scope is None:
        return "open"
    others = {"callback token": access.token, "tool token": access.tools}
    return " or ".join([f"`{access.scope}`", *(name for name, will_do in others.items() if will_do)])
