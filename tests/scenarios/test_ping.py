"""`dragoman ping` says of a real backend whether its address, its secret and its clock are right, and runs nothing."""

import json
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI, Response

from dragoman.kit import Tools
from gateway.testing.serving import Served
from tests.kit.sender import serving
from tests.ports import free_port
from tests.scenarios.hooks import SECRET, Hooks
from tests.scenarios.terminal import dragoman

TOKEN = "ping-token-canary-7Kq2"
OTHER = "whsec_" + "b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXI="


def configured(folder: Path, url: str, **more: Any) -> Path:
    config = folder / "gateway.yaml"
    cards = {"type": "webhook", "url": url, "secret": SECRET, **more}
    config.write_text(yaml.safe_dump({"executors": {"cards": cards, "none": {"type": "static", "result": 1}}}))
    return config


async def pinged(config: Path) -> tuple[int, list[dict[str, str]]]:
    done = await dragoman(None, "ping", "cards", "--config", str(config), "--json")
    assert "Traceback" not in done.err
    return done.code, [json.loads(line) for line in done.out.splitlines()]


async def test_a_backend_with_the_kit_accepts_the_probe_refuses_a_false_one_and_runs_nothing(tmp_path: Path) -> None:
    app, tools = FastAPI(), Tools(secret=SECRET)
    app.include_router(tools.router)
    async with serving(app) as url:
        code, (status, signature, _) = await pinged(configured(tmp_path, f"{url}/tools"))
    assert (code, status["state"], signature["state"]) == (0, "ok", "ok")
    assert status["text"].startswith("answered 204 No Content in ")
    assert status["text"].endswith(" ms")
    assert signature["text"] == "signature accepted; a false one is refused"


async def test_a_probe_is_a_documented_request(tmp_path: Path) -> None:
    async with Hooks() as hooks:
        code, _ = await pinged(configured(tmp_path, hooks.url))
        [asked] = hooks.asked
    assert (code, asked.kind, asked.data["tool"], hooks.unsigned) == (0, "tool.canceled", "ping", 1)


async def test_a_wrong_secret_is_named_with_the_fix_and_never_shown(tmp_path: Path) -> None:
    async with Hooks() as hooks:
        config = configured(tmp_path, hooks.url, secret=OTHER)
        code, (status, _) = await pinged(config)
        shown = await dragoman(None, "ping", "cards", "--config", str(config))
    assert (code, status["state"]) == (1, "broken")
    assert status["text"].startswith("signature refused: answered 401 Unauthorized in ")
    assert status["fix"] == "compare `secret` on both sides, and the clocks"
    assert (shown.code, "signature refused" in shown.out, OTHER in shown.out + shown.err) == (1, True, False)


def answering(status: int, **headers: str) -> FastAPI:
    """Make a backend that answers everything alike, and verifies nothing."""
    app = FastAPI(openapi_url=None)

    async def take() -> Response:
        return Response(f"what it says: {SECRET} {TOKEN}", status_code=status, headers=headers)

    app.add_api_route("/{page:path}", take, methods=["POST"])
    return app


async def test_a_backend_that_verifies_nothing_is_a_warning(tmp_path: Path) -> None:
    async with Served(answering(200)) as served:
        code, (_, signature, _) = await pinged(configured(tmp_path, served.url))
    assert (code, signature["state"]) == (0, "warning")
    assert signature["text"] == "the backend does not verify signatures: it accepted a false one too"


async def test_what_a_failing_backend_says_is_shown_without_the_secret(tmp_path: Path) -> None:
    async with Served(answering(500)) as served:
        config = configured(tmp_path, served.url, headers={"Authorization": f"Bearer {TOKEN}"})
        code, (status, *_) = await pinged(config)
    assert (code, "what it says: " in status["text"]) == (1, True)
    assert SECRET not in status["text"]
    assert TOKEN not in status["text"]


async def test_an_unsigned_executor_is_a_warning(tmp_path: Path) -> None:
    async with Served(answering(204)) as served:
        code, rows = await pinged(configured(tmp_path, served.url, secret=[]))
    assert (code, [row["state"] for row in rows][:2]) == (0, ["ok", "warning"])
    assert rows[1]["text"] == "requests are not signed"


@pytest.mark.parametrize(
    ("date", "state", "words"),
    [
        ("Tue, 01 Jan 2030 00:00:00 GMT", "broken", " s ahead; a receiver allows 300 s"),
        ("Wed, 01 Jan 2020 00:00:00 GMT", "broken", " s behind; a receiver allows 300 s"),
        ("now", "ok", "clocks agree within "),
        ("soon", "note", "clock not compared: the response has no date"),
    ],
)
async def test_the_date_of_the_answer_is_compared_with_this_machines_clock(
    tmp_path: Path, date: str, state: str, words: str
) -> None:
    async with Served(answering(204, date=formatdate(usegmt=True) if date == "now" else date)) as served:
        code, rows = await pinged(configured(tmp_path, served.url))
    assert (rows[-1]["state"], words in rows[-1]["text"]) == (state, True)
    assert code == (1 if state == "broken" else 0)


async def test_a_wrong_path_and_a_backend_that_is_not_there_are_broken(tmp_path: Path) -> None:
    async with Served(answering(404)) as served:
        code, (status, *_) = await pinged(configured(tmp_path, served.url))
    assert (code, status["state"], "404 Not Found" in status["text"]) == (1, "broken", True)
    code, (status,) = await pinged(configured(tmp_path, f"http://127.0.0.1:{free_port()}/tools"))
    assert (code, status["state"]) == (1, "broken")
    assert "connect" in status["text"].lower()


@pytest.mark.parametrize("name", ["none", "crads"])
async def test_only_a_webhook_executor_of_the_configuration_can_be_pinged(tmp_path: Path, name: str) -> None:
    done = await dragoman(None, "ping", name, "--config", str(configured(tmp_path, "http://127.0.0.1:9/tools")))
    assert done.code == 1
    assert f"there is no webhook executor {name!r}" in done.err
    assert "cards" in done.err
