"""Commands, options, paths and metrics that pages name exist."""

import json
import re
import shlex
from typing import Any

import pytest
import typer

from gateway.cli.commands import app
from gateway.events import CLIENT_KINDS, KINDS
from gateway.http.errors import PROBLEMS
from gateway.http.routes import ROUTES
from gateway.runtime.metrics import Metrics
from tests.readme.pages import ROOT, block, code_spans, pages, shell_lines, text_of
from tests.readme.test_figures import SECTIONS

HISTORY = "CHANGELOG.md"
NOW = [page for page in pages() if page != HISTORY]
# Typer brings its own copy of click, so that its classes are not to be named here.
ROOT_COMMAND: Any = typer.main.get_command(app)


def _command_lines(page: str) -> list[str]:
    """List the calls of the command that a page shows."""
    said = [*shell_lines(page), *code_spans(page)]
    return [
        line.partition("dragoman ")[2]
        for line in said
        if re.match(r"(?:docker compose exec \w+ |timeout \d )?dragoman [a-z]", line)
    ]


def _unknown(line: str) -> str | None:
    """Say what of a call of the command does not exist."""
    words = shlex.split(line, comments=True)
    command = ROOT_COMMAND
    # A group may also be a command of its own.
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    strange = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"no option {strange[0]!r}" if strange else None


@pytest.mark.parametrize("page", NOW)
def test_each_command_that_a_page_shows_exists(page: str) -> None:
    assert [(line, wrong) for line in _command_lines(page) if (wrong := _unknown(line)) is not None] == []


def test_pages_show_commands() -> None:
    assert len(_command_lines("config/README.md")) >= 12


def test_each_metric_that_a_page_names_is_published() -> None:
    metrics = Metrics(version="0", runtimes=["r"], tools=["t"], executors=["e"], adapters=["a"])
    published = set(re.findall(r"^# HELP (\w+) ", metrics.render().decode(), re.MULTILINE))
    named = {(page, name) for page in NOW for name in re.findall(r"`(dragoman_\w+)", text_of(page))}
    assert len(named) >= 5
    assert {(page, name) for page, name in named if name not in published} == set()


def test_each_option_that_a_page_names_exists() -> None:
    named: set[tuple[str, str, str]] = set()
    for page in NOW:
        for span in code_spans(page):
            section, _, option = span.rpartition(".")
            if section in SECTIONS and re.fullmatch(r"[a-z_]+", option):
                named.add((page, section, option))
    assert len(named) >= 30
    assert {place for place in named if place[2] not in SECTIONS[place[1]].model_fields} == set()


def _section(page: str, heading: str) -> str:
    return text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_has_all_kinds_and_no_other() -> None:
    rows = re.findall(r"^\| (.+?) \|", _section("gateway/events/README.md", "Kinds"), re.MULTILINE)
    assert sorted(kind for row in rows for kind in re.findall(r"`([a-z_.]+)`", row)) == sorted(KINDS)


def test_the_page_has_all_kinds_that_clients_may_post_and_no_other() -> None:
    told = _section("gateway/http/README.md", "Posting").partition("Clients may post")[2].partition(";")[0]
    assert sorted(re.findall(r"`([a-z_.]+)`", told)) == sorted(CLIENT_KINDS)


def test_the_page_has_all_problems_and_no_other() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \|$", _section("gateway/http/README.md", "Problems"), re.MULTILINE)
    told = {
        (int(status), name)
        for statuses, names in rows
        for status, group in zip(statuses.split(", "), names.split(";") if ", " in statuses else [names], strict=True)
        for name in re.findall(r"`([a-z-]+)`", group)
    }
    assert told == {(problem.status, problem.name) for problem in PROBLEMS.values()}


def test_the_page_has_all_members_of_a_webhook_request_and_no_other() -> None:
    document = json.loads((ROOT / "config/openapi.json").read_text(encoding="utf-8"))

    def shape_of(schema: dict[str, Any]) -> dict[str, Any]:
        return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]

    asked = document["webhooks"]["tool.requested"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    table = _section("gateway/executors/README.md", "The request").partition("| member of `data`")[2]
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert told == set(shape_of(shape_of(asked)["data"]))
    shown = json.loads(block("gateway/executors/README.md", "json", "tool.requested"))
    assert set(shown) == set(shape_of(asked))
    assert set(shown["data"]) == told


def test_the_page_names_all_that_a_webhook_can_be() -> None:
    document = json.loads((ROOT / "config/openapi.json").read_text(encoding="utf-8"))
    page = text_of("gateway/executors/README.md")
    kinds = set(document["webhooks"]) - {"event.copied", "live_event.copied"}
    assert {kind for kind in kinds if f"`{kind}`" not in page and f'"{kind}"' not in page} == set()


def test_each_path_of_the_api_that_a_page_names_exists() -> None:
    # Some routes, such as `/livez`, are not in the OpenAPI document.
    known = {re.sub(r"\{\w+\}", "{}", route.path) for route in ROUTES}
    prefixes = "v1/|healthz|livez|health|readyz|ready|metrics|llms|version|problems|openapi"
    named = {
        (page, path.partition("?")[0])
        for page in NOW
        for span in code_spans(page)
        for path in re.findall(rf"^(?:GET |POST |DELETE )?(/(?:{prefixes})\S*)$", span)
    }
    assert len(named) >= 20
    assert {(page, path) for page, path in named if re.sub(r"\{\w+\}", "{}", path) not in known} == set()
