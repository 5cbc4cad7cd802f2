"""`/llms.txt` names every operation with its access and every webhook with its answers, as the document says."""

import re

import httpx

from gateway.http.auth import ACCESS
from tests.http.conftest import DOCUMENT
from tests.http.environment import VERSION


async def test_the_page_has_every_operation_and_every_webhook(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/llms.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    page = answer.text
    assert page.startswith(f"# Dragoman {VERSION}\n\n> {DOCUMENT['info']['summary']}.\n")
    named = dict(re.findall(r"(?m)^- `([A-Z]+ /\S+)`: .* \((.*)\)$", page))
    described = {
        f"{method.upper()} {path}": operation["operationId"]
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }
    assert named.keys() == described.keys()
    for operation, access in named.items():
        scope = ACCESS[described[operation]].scope
        assert access.split(" or ")[0] == ("open" if scope is None else f"`{scope}`")
    assert named["POST /v1/calls/{call_id}/outcome"] == "`answer` or callback token"
    for kind, webhook in DOCUMENT["webhooks"].items():
        assert f"### `{kind}`: " in page
        for status, response in webhook["post"]["responses"].items():
            assert f"- {status}: {response['description']}\n" in page
