"""Every page leads where it says, names what exists, and cites nothing that is not in the repository."""

import re
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1, HUMA_0_2
from adapters.mcp import ADAPTER as MCP
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Adapter, RuntimeOptions
from tests.readme.pages import ROOT, anchors, code_spans, files, links, pages, text_of
from tests.requirements import REQUIREMENTS

ELSEWHERE = ("http://", "https://", "mailto:")
HISTORY = "CHANGELOG.md"
"""It names things as they were called then."""
WRITTEN = {".conf", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".sql", ".toml", ".ts", ".txt", ".yaml", ".yml", ""}


@pytest.mark.parametrize("page", pages())
def test_each_link_leads_to_a_file_and_a_heading_that_exist(page: str) -> None:
    astray: list[str] = []
    for link in links(page):
        if link.startswith(ELSEWHERE):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or not target.is_relative_to(ROOT):
            astray.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.relative_to(ROOT).as_posix()):
            astray.append(f"{link}: no such heading")
    assert astray == []


@pytest.mark.parametrize("page", pages())
def test_no_table_is_cut_and_each_row_has_all_cells(page: str) -> None:
    """A row after an empty line, or with too few cells, is shown as text or in the wrong column."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    faults: list[str] = []
    for block in re.split(r"\n(?!\|)", prose):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        cells = [len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in rows]
        if rows and (len(rows) < 3 or not re.fullmatch(r"[|: -]+", rows[1]) or len(set(cells)) > 1):
            faults.append(rows[0])
    assert faults == []


@pytest.mark.parametrize("page", [page for page in pages() if page != HISTORY])
def test_each_file_that_a_page_names_exists(page: str) -> None:
    named = [span for span in code_spans(page) if re.fullmatch(r"(?:adapters|gateway|config|tests)/[\w./-]+", span)]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_each_file_of_the_table_of_changes_exists() -> None:
    table = text_of(".github/CONTRIBUTING.md").partition("## Where a change goes")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w.-]+/[\w./-]*)`", table)
    assert len(named) > 30
    assert [name for name in named if not any((folder / name).exists() for folder in (ROOT, ROOT / "gateway"))] == []


def test_the_walk_of_one_call_names_functions_that_exist() -> None:
    walk = text_of("gateway/README.md").partition("## One call, step by step")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| \d+ \| `([\w/.]+\.py)` `(\w+)` \|", walk, re.MULTILINE)
    assert len(steps) >= 10
    astray = [(file, name) for file, name in steps if not re.search(rf"def {name}\(", text_of(f"gateway/{file}"))]
    assert astray == []


@pytest.mark.parametrize("page", [page for page in pages() if page != HISTORY])
def test_what_a_page_says_is_in_a_file_is_there(page: str) -> None:
    said = re.findall(r"`(\w+)`\s+in\s+`((?:adapters|gateway|tests)/[\w/.]+\.py)`", text_of(page))
    assert [f"{name} in {file}" for name, file in said if not re.search(rf"\b{name}\b", text_of(file))] == []


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached, waiting = {"README.md"}, ["README.md"]
    while waiting:
        page = waiting.pop()
        for link in links(page):
            path = unquote(link).partition("#")[0]
            if link.startswith(ELSEWHERE) or not path.endswith(".md"):
                continue
            found = ((ROOT / page).parent / path).resolve().relative_to(ROOT).as_posix()
            if found not in reached:
                reached.add(found)
                waiting.append(found)
    assert set(pages()) - reached == set()


def test_no_page_is_cited_that_is_not_in_the_repository() -> None:
    ours = {PurePosixPath(page).name for page in pages()}
    cited: list[str] = []
    for name in files():
        if PurePosixPath(name).suffix in WRITTEN:
            for number, line in enumerate(text_of(name).splitlines(), 1):
                cited += [f"{name}:{number}: {page}" for page in re.findall(r"\b[A-Z_]{2,}\.md\b", line)]
    assert [place for place in cited if place.rpartition(": ")[2] not in ours] == []


@pytest.mark.parametrize("folder", ["adapters", "config", "gateway", "tests"])
def test_what_code_cites_of_a_page_is_there(folder: str) -> None:
    astray: list[str] = []
    for name in files():
        if not name.startswith(f"{folder}/") or not name.endswith((".py", ".yaml", ".toml", ".sql", ".conf")):
            continue
        for page, anchor in re.findall(r"(?<![\w/.-])((?:\w+/)*README\.md)#([\w-]+)", text_of(name)):
            if page not in pages() or anchor not in anchors(page):
                astray.append(f"{name}: {page}#{anchor}")
    assert astray == []


@pytest.mark.parametrize("adapter", [HUMA_0_1, HUMA_0_2, OPENHANDS, HERM, MCP], ids=lambda adapter: adapter.name)
def test_the_page_of_an_adapter_names_all_of_its_options(adapter: Adapter) -> None:
    page = text_of("/".join([*type(adapter).__module__.split("."), "README.md"]))
    own = adapter.options.model_fields.keys() - RuntimeOptions.model_fields.keys()
    assert {name for name in own if not re.search(rf"\b{name}\b", page)} == set()


def test_each_rule_that_an_adapter_cites_is_one_of_the_requirements() -> None:
    unknown: list[str] = []
    for name in files():
        if not name.startswith("adapters/") or not name.endswith((".md", ".py")):
            continue
        for said in re.findall(r"\(((?:(?:H-[a-z]{1,2}|[A-Z]{1,2}\d+[a-z]?)(?:, |-)?)+)\)", text_of(name)):
            cited = re.findall(r"H-[a-z]{1,2}\b|[A-Z]{1,2}\d+[a-z]?", said)
            unknown += [f"{name}: {rule}" for rule in cited if rule not in REQUIREMENTS]
    assert unknown == []


def test_the_first_screen_says_who_needs_it_and_shows_one_call_in_two_dialects() -> None:
    screen = text_of("README.md").splitlines()[:36]
    assert max(len(line) for line in screen) <= 81
    assert "".join(screen[2:7]).count(" ") < 90
    for native in ('"tool-call"', '"agent.custom_tool_use"', '"tool-result"', '"user.custom_tool_result"'):
        assert native in "".join(screen)


def test_the_first_page_stays_short() -> None:
    assert len(text_of("README.md").encode()) <= 9_216
