"""The Grafana dashboard and the alerts on a real Prometheus that scrapes a gateway with traffic."""

import asyncio
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.runtime.metrics import Metrics
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, plain_http, until
from tests.scenarios.hooks import success

CONFIG = Path(__file__).parents[2] / "config"
BOARD: dict[str, Any] = json.loads((CONFIG / "grafana/dragoman.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ROWS = [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"]
WITHOUT_NUMBER = {
    # One gateway forwards nothing and has no lease.
    "Share of forwarded requests without an answer",
    "Seconds until the lease expires",
    # A counter of a part or level begins with its first occurrence.
    "Faults and dropped log lines per hour",
    # Nobody is asked about a call here.
    "Approvals per hour by result",
    "Seconds from holding a call to the answer",
}
"""Panels with a query that returns no number here."""
PAGES = {
    "/ui",
    "/ui/calls",
    "/ui/calls?state=unknown",
    "/ui/calls?state=failed",
    "/ui/dead-letters",
    "/ui/inbox",
    "/ui/sessions",
}
_MISSING = "there is no Prometheus: apt-get install prometheus"


def program(name: str) -> str:
    """Find a program of Prometheus, or skip the test."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    return found


def configuration(folder: Path, target: str) -> Path:
    """Give the scrape configuration another target, a key and shorter intervals, and let alerts fire at once."""
    folder.mkdir()
    written = yaml.safe_load((CONFIG / "prometheus.yaml").read_text(encoding="utf-8"))
    written["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms", "scrape_timeout": "500ms"}
    [job] = written["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    job["authorization"] = {"credentials": API_KEY}
    alerts = (CONFIG / "alerts.yaml").read_text(encoding="utf-8")
    (folder / "alerts.yaml").write_text(re.sub(r"(?m)^ +for: .*\n", "", alerts), encoding="utf-8")
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(written), encoding="utf-8")
    return path


@asynccontextmanager
async def prometheus(folder: Path, gateway: Running) -> AsyncGenerator[httpx.AsyncClient]:
    """Run a Prometheus that scrapes a gateway; yields a client of its API."""
    config, address = configuration(folder, gateway.url.removeprefix("http://")), f"127.0.0.1:{free_port()}"
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program("prometheus"), *options, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        async with plain_http() as http:
            http.base_url = f"http://{address}"

            async def is_ready() -> bool:
                assert process.returncode is None, (folder / "log").read_text()[-2000:]
                try:
                    return (await http.get("/-/ready")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(is_ready)
            yield http
    finally:
        process.kill()
        await process.wait()


async def query(http: httpx.AsyncClient, expression: str) -> list[float]:
    """Return the values of a query of the dashboard."""
    plain = expression.replace("$__rate_interval", "10s").replace("$instance", ".*")
    assert "$" not in plain
    answer = await http.post("/api/v1/query", data={"query": plain})
    assert answer.status_code == 200, (plain, answer.text)
    body = answer.json()
    assert (body["status"], body.get("warnings", [])) == ("success", []), plain
    values = [float(one["value"][1]) for one in body["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


@pytest.mark.slow
async def test_every_query_of_the_dashboard_returns_numbers_while_there_is_traffic(
    newer: Scene, tmp_path: Path
) -> None:
    newer.hooks.scripts["ask"] = success({"cards": ["7"]})
    async with newer.running() as gateway, prometheus(tmp_path / "prometheus", gateway) as http:

        async def has_no_numbers() -> set[str]:
            # A good call, and one whose arguments are refused.
            await ended(await newer.agent.call("ask", GOOD))
            await ended(await newer.agent.call("ask", {}))
            # A member that no document names is a loss.
            await newer.agent.emit("event", {"type": "status", "status": "idle", "later": 1})
            return {
                f"{panel['title']}: {target['expr']}"
                for panel in PANELS
                for target in panel["targets"]
                if not await query(http, target["expr"]) and panel["title"] not in WITHOUT_NUMBER
            }

        missing = await has_no_numbers()
        try:
            async with asyncio.timeout(PATIENCE):
                while missing:
                    missing = await has_no_numbers()
        except TimeoutError:
            pytest.fail("\n".join(sorted(missing)))
        [share] = [panel for panel in PANELS if panel["title"] == "Share of calls by outcome"]
        shares = await query(http, share["targets"][0]["expr"])
        assert len(shares) >= 2
        assert sum(shares) == pytest.approx(1)
        groups = (await http.get("/api/v1/rules")).json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert len(rules) == (CONFIG / "alerts.yaml").read_text(encoding="utf-8").count("- alert:")
        assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


def test_promtool_accepts_the_scrape_configuration_and_the_alerts() -> None:
    config = str(CONFIG / "prometheus.yaml")
    done = subprocess.run(
        [program("promtool"), "check", "config", config], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SUCCESS" in done.stdout


def test_each_row_has_panels_and_each_panel_links_to_a_page() -> None:
    assert ROWS == [
        "Calls and outcomes",
        "Executors",
        "Unknown and dead",
        "Links",
        "Commits and disk",
        "Leases",
        "Losses",
        "Approvals",
    ]
    links = [link["url"] for panel in PANELS for link in panel["links"]]
    assert len(links) == len(PANELS)
    links += [link["url"] for link in BOARD["links"]]
    assert {link.removeprefix("${ui}") for link in links} == PAGES
    assert all(link.startswith("${ui}/") for link in links)
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "instance", "ui"}
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_every_metric_of_the_gateway_that_counts_is_on_the_dashboard_or_in_an_alert() -> None:
    shown = json.dumps(BOARD) + (CONFIG / "alerts.yaml").read_text(encoding="utf-8")
    names = re.findall(r"(?m)^# TYPE (dragoman_\w+) ", Metrics(version="0").render().decode())
    absent = {name for name in names if name not in shown}
    # What these say is of use in an investigation only.
    rare = {
        "adoptions", "copies_lost", "events_held_back_seconds",
        "links_asleep", "live_copies_lost", "queue_bytes", "repeats", "secrets_in_results",
        "tasks",
    }  # fmt: skip
    assert {name.removeprefix("dragoman_").removesuffix("_total") for name in absent} <= rare
