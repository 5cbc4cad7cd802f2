"""The container files are sound as far as that can be seen without Docker."""

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import yaml

from gateway.runtime.tuning import Tuning
from gateway.settings.model import Api
from gateway.testing.demo.environment import PARTS
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROXY = (ROOT / "config/nginx.conf").read_text(encoding="utf-8")
DEMO, TESTING = {"mcp", "standardwebhooks", "websockets"}, {"hypothesis", "pytest", "pytest-asyncio"}
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)


def _instructions(*, until: str = "") -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", DOCKERFILE.partition(until)[0] if until else DOCKERFILE)
    lines = [line.split(maxsplit=1) for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word.upper(), rest) for word, rest in lines]


def _copied() -> list[str]:
    own = [rest.split() for word, rest in _instructions() if word == "COPY" and "--from=" not in rest]
    return [source for words in own for source in words[:-1]]


def _ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out: the last pattern that fits it, or a folder around it, decides."""
    parts = path.split("/")
    around = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            glob = pattern.removeprefix("!").removeprefix("**/")
            names = around if not pattern.startswith("**/") else parts
            if any(fnmatchcase(name, glob) for name in names):
                ignored = not pattern.startswith("!")
    return ignored


def test_the_dockerfile_passes_hadolint() -> None:
    found = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--failure-threshold", "info", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_every_file_that_is_copied_exists_and_reaches_the_build() -> None:
    copied = _copied()
    assert "gateway" in copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if _ignored(source)] == []


def test_nothing_else_reaches_the_build() -> None:
    for name in (".git", ".env", ".venv", "tests", "dragoman.db", "config/gateway.yaml", "gateway/__pycache__"):
        assert _ignored(name), name


def test_the_image_runs_serve_as_a_user_with_no_rights_and_is_watched() -> None:
    last = dict(_instructions(until="AS demo"))
    assert last["USER"] == "10001:10001"
    assert last["ENTRYPOINT"] == '["dragoman"]'
    assert last["CMD"] == '["serve", "--config", "/etc/dragoman/gateway.yaml", "--host", "0.0.0.0"]'
    assert "/healthz" in last["HEALTHCHECK"]
    assert last["VOLUME"] == '["/data"]'
    assert "PYTHONDONTWRITEBYTECODE=1" in last["ENV"]


def test_the_last_stage_builds_nothing() -> None:
    runtime = DOCKERFILE[DOCKERFILE.index(" AS runtime") :]
    assert "pip install" not in runtime
    assert "pip uninstall" in runtime
    assert "apt-get" not in runtime


def test_there_are_two_targets_of_which_neither_has_anything_for_tests() -> None:
    stages = [(word, rest) for word, rest in _instructions() if word in {"FROM", "COPY"}]
    assert stages[-4:] == [
        ("FROM", "runtime AS demo"), ("COPY", "--from=build-demo /opt/dragoman /opt/dragoman"),
        ("FROM", "runtime AS dragoman"), ("COPY", "--from=build /opt/dragoman /opt/dragoman"),
    ]  # fmt: skip
    assert _names("config/requirements.txt").isdisjoint(DEMO - {"mcp"} | TESTING)
    assert _names("config/requirements.txt") >= {"asyncpg", "mcp"}
    assert _names("config/demo-requirements.txt") >= DEMO
    assert _names("config/demo-requirements.txt").isdisjoint(TESTING)


def test_what_is_installed_twice_is_pinned_alike() -> None:
    image, demo = _blocks("config/requirements.txt"), _blocks("config/demo-requirements.txt")
    tests = _blocks("tests/requirements.txt")
    for fewer, more in ((image, tests), (demo, tests), (image, image | demo)):
        assert {name: more.get(name) for name in fewer} == fewer


def _names(path: str) -> set[str]:
    return set(_blocks(path))


def _blocks(path: str) -> dict[str, str]:
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / path).read_text(encoding="utf-8"))
    return dict(re.findall(r"(?ms)^([a-z0-9-]+)==(.*?)(?=^[a-z0-9]|\Z)", text))


def test_every_library_of_the_image_is_pinned_by_hash() -> None:
    installs = re.findall(r"pip[^&\n]* install[^&\\]*", DOCKERFILE)
    assert len(installs) == 4
    assert all("--require-hashes" in one or "/wheels/*.whl" in one for one in installs)


def test_the_build_tools_are_pinned_as_for_the_tests_and_complete() -> None:
    build, tests = _blocks("config/build-requirements.txt"), _blocks("tests/requirements.txt")
    assert {name: tests.get(name) for name in build} == build
    wanted = {re.split(r"[ <>=;\[]", line)[0] for line in requires("hatchling") or () if "python_version <" not in line}
    assert wanted | {"hatchling"} <= build.keys()


def test_both_services_are_hardened() -> None:
    ours = {name: service for name, service in COMPOSE["services"].items() if "build" in service}
    assert ours.keys() == {"gateway", "demo", "gateway-one", "gateway-two"}
    for service in ours.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert [mount.split(":")[0] for mount in service["tmpfs"]] == ["/tmp"]  # noqa: S108 -- inside the container
        assert service["build"] == {"context": ".", "target": "demo" if service is ours["demo"] else "dragoman"}
    images = {name: service["image"] for name, service in ours.items()}
    assert images["demo"] not in {image for name, image in images.items() if name != "demo"}


def test_the_gateway_keeps_its_store_in_a_volume_and_takes_its_key_from_outside() -> None:
    gateway = COMPOSE["services"]["gateway"]
    assert "dragoman-data:/data" in gateway["volumes"]
    assert "dragoman-data" in COMPOSE["volumes"]
    assert gateway["environment"]["DRAGOMAN_KEY"] == "${DRAGOMAN_KEY:-}"
    assert gateway["ports"] == ["127.0.0.1:8080:8080"]


def test_the_demo_is_a_profile_of_its_own_that_publishes_each_of_its_ports_and_no_other_services() -> None:
    demo = COMPOSE["services"]["demo"]
    assert demo["profiles"] == ["demo"]
    assert demo["command"][:-1] == ["demo", "--keep", "--host", "0.0.0.0", "--port"]  # noqa: S104 -- in the container
    first = int(demo["command"][-1])
    last = first + len(PARTS) - 1
    assert demo["ports"] == [f"127.0.0.1:{first}-{last}:{first}-{last}"]
    others = [
        port for name, service in COMPOSE["services"].items() if name != "demo" for port in service.get("ports", ())
    ]
    taken = {int(port.split(":")[1]) for port in others}
    assert taken.isdisjoint(range(first, last + 1))
    assert f"127.0.0.1:{first}/healthz" in demo["healthcheck"]["test"][-1]


def test_the_profile_observed_shows_the_gateway_in_prometheus_grafana_and_jaeger() -> None:
    observed = {name: one for name, one in COMPOSE["services"].items() if one.get("profiles") == ["observed"]}
    assert observed.keys() == {"prometheus", "grafana", "jaeger"}
    for service in observed.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        mounts = [volume.split(":")[0] for volume in service.get("volumes", ())]
        assert all((ROOT / mount).exists() for mount in mounts if mount.startswith("."))
        [port] = service["ports"]
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)
        assert f"http://{port.rpartition(':')[0]}" in COMPOSE_TEXT.partition("services:")[0]
    scraped = yaml.safe_load((ROOT / "config/prometheus.yaml").read_text(encoding="utf-8"))
    assert scraped["scrape_configs"][0]["static_configs"] == [{"targets": ["gateway:8080"]}]
    opened = yaml.safe_load((ROOT / "config/examples/container.yaml").read_text(encoding="utf-8"))["api"]["open"]
    assert "metrics" in opened
    folder = ROOT / "config/grafana/provisioning"
    sources = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    for source in sources:
        name, port = source["url"].removeprefix("http://").split(":")
        assert observed[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    [provider] = yaml.safe_load((folder / "dashboards/dragoman.yaml").read_text(encoding="utf-8"))["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in observed["grafana"]["volumes"]}
    assert mounted[f"{provider['options']['path']}/dragoman.json"] == "./config/grafana/dragoman.json"
    traced = COMPOSE["services"]["gateway"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert traced == "${OTEL_EXPORTER_OTLP_ENDPOINT:-}"


def test_the_first_lines_that_compose_shows_answer_where_the_image_runs(tmp_path: Path) -> None:
    """Play what the default profile runs, in a folder laid out as the image, and the line that asks it first."""
    shown = re.findall(r"(?m)^#   (.*)$", COMPOSE_TEXT)
    [making] = [line for line in shown if line.startswith("echo") and "DRAGOMAN_KEY" in line]
    [asking] = [line for line in shown if line.startswith("curl")]
    subprocess.run(["bash", "-c", making], cwd=tmp_path, check=True, timeout=20)
    (tmp_path / "data").mkdir()
    config = tmp_path / "gateway.yaml"
    config.write_text((ROOT / "config/examples/container.yaml").read_text().replace("/data/", f"{tmp_path}/data/"))
    port = str(free_port())
    words = json.loads(dict(_instructions(until="AS demo"))["CMD"])
    words = [str(config) if word == "/etc/dragoman/gateway.yaml" else word for word in words]
    # Compose puts the variables of .env into the environment that it names.
    named = COMPOSE["services"]["gateway"]["environment"]
    given = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    environment = {name: given[name] for name in named if name in given}
    program = [sys.executable, "-m", "gateway", *words, "--port", port]
    gateway = subprocess.Popen(program, cwd=tmp_path / "data", env={**os.environ, **environment})
    try:
        retried = asking.replace("8080", port).replace(
            "curl -s", "curl -sf --retry 60 --retry-connrefused --retry-delay 1"
        )
        told = subprocess.run(["bash", "-c", retried], cwd=tmp_path, capture_output=True, check=True, timeout=90)
    finally:
        gateway.terminate()
        assert gateway.wait(30) == 0
    assert len(json.loads(told.stdout)["data"]) == 1
    assert (tmp_path / "data/dragoman.db").exists()


def test_two_gateways_share_one_database_behind_a_proxy_in_a_profile_of_their_own() -> None:
    services = COMPOSE["services"]
    others = services.keys() - {"gateway", "demo", "prometheus", "grafana", "jaeger"}
    assert {tuple(services[name]["profiles"]) for name in others} == {("scaled",)}
    assert services["gateway-one"] == services["gateway-two"]
    text = (ROOT / "config/examples/container-postgres.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{([A-Z_]+)", text)) <= services["gateway-one"]["environment"].keys()
    for name in others:
        for volume in services[name].get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"]
    assert set(re.findall(r"server (\S+):8080", PROXY)) == {"gateway-one", "gateway-two"}


def test_the_proxy_waits_longer_than_a_gateway_stays_silent_and_takes_bodies_as_large() -> None:
    api, slowest = Api(), Tuning().answer
    [patience] = re.findall(r"proxy_read_timeout (\d+)s;", PROXY)
    assert int(patience) > max(slowest, 2 * api.heartbeat.total_seconds())
    [most] = re.findall(r"client_max_body_size (\d+)m;", PROXY)
    assert int(most) * 1024**2 == api.max_body


def test_the_configuration_of_the_image_needs_only_what_compose_sets() -> None:
    text = (ROOT / "config/examples/container.yaml").read_text(encoding="utf-8")
    needed = set(re.findall(r"\$\{([A-Z_]+)", text))
    assert needed <= COMPOSE["services"]["gateway"]["environment"].keys()
    assert yaml.safe_load(text)["engine"] == {"type": "sqlite", "path": "/data/dragoman.db"}


def test_the_grace_of_stopping_is_longer_than_the_drain() -> None:
    assert int(COMPOSE["services"]["gateway"]["stop_grace_period"].removesuffix("s")) > 25


def test_ci_runs_the_script_that_everybody_can_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["test"]["steps"]
    assert {"run": ".ci/run"} in steps
    # The release before is made from history.
    assert steps[0]["with"]["fetch-depth"] == 0
    assert workflow["permissions"] == {"contents": "read"}
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
