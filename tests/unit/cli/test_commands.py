"""The command line says what it does, where it fails, and how to mend that."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import app
from gateway.cli.send import WORDED
from gateway.store.sqlite.lock import FileLock
from gateway.store.sqlite.schema import NEWEST, open_writer
from tests.pace import PATIENCE
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "config/examples/static.yaml"
ADAPTERS = ("herm", "huma", "mcp", "openhands")
NEEDLESS = ("codec", "connector", "capabilities", "v0_1", "v0_2", "wire")
"""Modules of an adapter that only a link needs."""
COMMANDS = (
    "serve", "demo", "check", "reload", "schema", "tools", "openapi", "doctor", "init", "version", "runtimes",
    "sessions", "calls", "inbox", "tail", "send", "answer", "explain", "migrate", "backup", "restore", "copy",
    "dead-letters", "completion",
)  # fmt: skip

LETTERS = ("list", "show", "redrive", "dismiss")
CALLS = ("show", "cancel", "redrive")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)


def _run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="dragoman")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples_of_itself(command: str) -> None:
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n +dragoman {command}", result.stdout)


_LOADED = """
import json, sys
from gateway.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["dragoman", *words]
    try:
        main()
    except SystemExit as exc:
        assert not exc.code, words
    print(json.dumps([words, list(sys.modules)]), file=sys.stderr)
"""
"""Runs commands one after the other; tells after each one what has been loaded until then."""


def test_no_command_loads_what_it_works_with_before_it_works() -> None:
    commands = [("--help",), ("version",), *((command, "--help") for command in COMMANDS)]
    look = [sys.executable, "-c", _LOADED, json.dumps(commands)]
    done = subprocess.run(look, capture_output=True, text=True, check=True, timeout=60)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [words for words, _ in told] == [list(words) for words in commands]
    heavy = {"fastapi", "starlette", "aiohttp", "httpx", "socketio", "asyncpg", "structlog", "gateway.serve"}
    assert {" ".join(words): loaded for words, all_of_it in told if (loaded := heavy & set(all_of_it))} == {}


@pytest.mark.parametrize(
    ("words", "needless"),
    [
        (("check", str(STATIC)), {"gateway.http", "prometheus_client", "structlog"}),
        (
            ("check", str(ROOT / "config/examples/huma-0.2-attach.yaml")),
            {
                f"adapters.{name}.{part}"
                for name in ADAPTERS
                for part in ("codec", "connector", "capabilities", "wire", "v0_1", "v0_2")
            },
        ),
        (("explain", "--config", str(STATIC), "--runtime", "none", "--tool", "none"), {"httpx"}),
    ],
)
def test_a_configuration_is_read_without_what_only_a_gateway_at_work_needs(
    words: tuple[str, ...], needless: set[str]
) -> None:
    look = (
        "import sys\nfrom gateway.cli import main\nsys.argv[0] = 'dragoman'\n"
        "try:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    run = [sys.executable, "-c", look, *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=60)
    loaded = set(done.stderr.split())
    assert "gateway.settings.load" in loaded
    assert ({"fastapi", "aiohttp", "socketio", "asyncpg", "gateway.serve"} | needless) & loaded == set()


@pytest.mark.parametrize(
    "words",
    [
        (),
        *((one,) for one in COMMANDS),
        *(("dead-letters", one) for one in LETTERS),
        *(("calls", one) for one in CALLS),
    ],
)
def test_help_fits_a_terminal_of_80_columns(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = _run(*words, "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.replace("[ARGS]...", "")


def test_the_help_lists_every_command_in_full_sentences() -> None:
    result = _run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} .*\.$", result.stdout, re.MULTILINE), command
    assert "..." not in result.stdout.replace("[ARGS]...", "")


def test_a_wrong_command_is_a_usage_error_with_a_suggestion() -> None:
    result = _run("chekc")
    assert result.exit_code == 2
    assert "Did you mean 'check'?" in result.stderr


@pytest.mark.parametrize(("behind", "part"), [(0, "gateway"), (1, "backend"), (5, "herm")])
def test_the_demo_does_not_begin_where_somebody_else_listens(behind: int, part: str) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        result = _run("demo", "--port", str(port - behind))
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"dragoman: error: port {port} of 127.0.0.1 is in use, and the demo's {part} needs it")
    assert "--port" in line


def test_the_demo_names_a_host_where_it_cannot_listen() -> None:
    result = _run("demo", "--host", "192.0.2.1")
    assert result.exit_code == 1
    assert result.stderr.startswith("dragoman: error: the demo cannot listen on 192.0.2.1 (")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["calls", "--state", "bogus"], "--state"),
        (["init", "--runtime", "bogus"], "--runtime"),
        (["check", "--format", "bogus"], "--format"),
    ],
)
def test_a_wrong_choice_is_told_without_a_word_of_the_library(words: list[str], option: str) -> None:
    result = _run(*words)
    assert result.exit_code == 2
    assert f"Error: Invalid value for '{option}': 'bogus' is not one of " in result.stderr


def test_a_wrong_kind_is_told_those_that_can_be_sent() -> None:
    result = _run("send", "finn/agent-7", "Hello", "--kind", "bogus")
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"is unknown; available: {', '.join(WORDED)}")


@pytest.mark.parametrize(
    "words", [["check", "mine.yaml"], ["serve", "-c", "mine.yaml"], ["copy", "mine.yaml", "mine.yaml"], ["serve"]]
)
def test_a_file_that_cannot_be_read_is_told_alike_however_it_was_found(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("mine.yaml" if "mine.yaml" in words else "gateway.yaml")
    file.write_text("{}")
    opens: Any = Path.open

    def refuse(self: Path, *how: Any, **more: Any) -> Any:
        if self == file:
            raise PermissionError(13, "Permission denied", str(self))
        return opens(self, *how, **more)

    def denied(*_: object) -> bool:
        return False

    # As it is for others than root.
    monkeypatch.setattr(os, "access", denied)
    monkeypatch.setattr(Path, "open", refuse)
    result = _run(*words)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{file}: the file cannot be read (Permission denied); check its permissions\n")


def test_a_wrong_port_is_a_usage_error() -> None:
    assert _run("serve", "--port", "70000").exit_code == 2


@pytest.mark.parametrize("words", [("version",), ("--version",)])
def test_the_version_is_shown(words: tuple[str, ...]) -> None:
    result = _run(*words)
    assert result.exit_code == 0
    assert re.fullmatch(r"dragoman \d+\.\d+\.\d+ on Python \d+\.\d+\.\d+\n", result.stdout)


def test_check_names_the_tools_that_keep_nulls(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(STATIC.read_text().replace("  place_order:\n", "  place_order:\n    nulls: keep\n"))
    result = _run("check", str(path))
    assert result.exit_code == 0
    assert result.stdout.endswith("; null arguments are kept for place_order (nulls: keep)\n")


def test_check_shows_warnings_and_succeeds() -> None:
    result = _run("check", str(STATIC))
    assert result.exit_code == 0
    assert result.stdout == f"{STATIC}: ok (2 warnings): 2 tools, 2 executors, 2 routes\n"
    first, *_ = result.stderr.splitlines()
    assert first.startswith(f"{STATIC}:3: warning: api.keys: no API key is configured")


def test_check_writes_json_for_programs() -> None:
    result = _run("check", str(STATIC), "--format", "json")
    report = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, report["file"], report["ok"]) == (0, "", str(STATIC), True)
    assert [(one["line"], one["path"], one["severity"]) for one in report["problems"]] == [
        (3, "api.keys", "warning"),
        (3, "runtimes", "warning"),
    ]


def test_what_else_is_said_is_said_as_json_too(tmp_path: Path) -> None:
    check = _run("check", str(STATIC), "--json")
    assert check.stdout == _run("check", str(STATIC), "--format", "json").stdout
    version = json.loads(_run("version", "--json").stdout)
    assert set(version) == {"dragoman", "python"}
    doctor = _run("doctor", "--config", str(STATIC), "--json")
    found = [json.loads(line) for line in doctor.stdout.splitlines()]
    assert {one["about"] for one in found} == {"Installation", "Adapters", "Configuration", "Store", "Network", "Links"}
    assert (doctor.exit_code != 0) == any(one.get("state") == "broken" for one in found)
    assert {"path": "api.keys", "severity": "warning"}.items() <= next(one for one in found if "path" in one).items()
    path = tmp_path / "wrong.yaml"
    path.write_text("api: {kees: 1}\n", encoding="utf-8")
    broken = _run("doctor", "--config", str(path), "--json")
    told = [json.loads(line) for line in broken.stdout.splitlines()]
    assert broken.exit_code == 1
    assert "broken" in [one.get("state") for one in told]
    assert "unknown key; did you mean 'keys'?" in [one.get("message") for one in told]


def test_check_writes_json_of_what_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("api:\n  kees: 1\n", encoding="utf-8")
    result = _run("check", str(path), "--format", "json")
    report = json.loads(result.stdout)
    assert (result.exit_code, result.stderr, report["ok"]) == (1, "", False)
    assert next(one for one in report["problems"] if one["severity"] == "error") == {
        "line": 2, "path": "api.kees", "severity": "error", "message": "unknown key; did you mean 'keys'?",
    }  # fmt: skip


def test_check_marks_lines_for_github(tmp_path: Path) -> None:
    path = tmp_path / "a,b.yaml"
    path.write_text("api:\n  kees: '50%'\n", encoding="utf-8")
    result = _run("check", str(path), "--format", "github")
    assert result.exit_code == 1
    first = next(line for line in result.stdout.splitlines() if line.startswith("::error"))
    name = str(path).replace(",", "%2C")
    assert first == f"::error file={name},line=2,title=api.kees::unknown key; did you mean 'keys'?"


def test_check_says_which_formats_there_are() -> None:
    assert _run("check", str(STATIC), "--format", "xml").exit_code == 2


def test_check_fails_on_warnings_when_strict() -> None:
    assert _run("check", str(STATIC), "--strict", "--format", "json").exit_code == 1
    assert _run("check", str(STATIC), "--strict").exit_code == 1


def test_check_shows_a_note_without_a_fix_and_passes_when_strict(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        "public_url: https://gateway.example\n"
        "api: {keys: [{name: me, key: 0123456789abcdef0123456789abcdef}]}\n"
        "tools: {look: {description: Look., parameters: {type: object}}}\n"
        "runtimes:\n"
        "  works: {adapter: openhands, url: 'http://127.0.0.1:3000', conversation: {}}\n"
        "executors: {eyes: {type: static, result: seen}}\n"
        "routes: [{match: {tool: '*'}, to: eyes}]\n"
    )
    result = _run("check", str(file), "--strict")
    assert result.exit_code == 0, result.stderr
    works, counted = result.stderr.splitlines()
    assert works.startswith(f"{file}:5: note: runtimes.works: its confirmation mode does not cover the tools declared")
    assert counted == f"{file}: 1 note"
    assert f"{file}: ok (1 note): " in result.stdout
    marked = _run("check", str(file), "--strict", "--format", "github")
    assert marked.exit_code == 0
    assert [line.partition(" ")[0] for line in marked.stdout.splitlines()] == ["::notice"]
    doctor = [json.loads(line) for line in _run("doctor", "--config", str(file), "--json").stdout.splitlines()]
    (usable,) = [one for one in doctor if one["about"] == "Configuration" and "state" in one]
    assert (usable["state"], usable["text"]) == ("ok", f"{file}: usable, 1 note")


def test_check_shows_every_error_with_file_line_path_and_mend(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("executors:\n  c:\n    type: webhook\n    url: http://c\n    timeout: 20 parsecs\n    tries: 3\n")
    result = _run("check", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert f"{file}:5: executors.c.timeout: '20 parsecs' is not a duration; write 20s, 500ms, 2m or 7d" in lines
    assert any(line.startswith(f"{file}:6: executors.c.tries: unknown key") for line in lines)
    assert re.fullmatch(rf"{re.escape(str(file))}: 2 errors, \d warnings", lines[-1])


def test_output_that_is_no_terminal_has_no_colours(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("x: 1\n")
    assert "\x1b" not in _run("check", str(file)).output


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colours_unless_it_wants_none(tmp_path: Path, no_color: str, coloured: bool) -> None:
    (tmp_path / "my.yaml").write_text("x: 1\n")
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color}
    words = [sys.executable, "-m", "gateway", "check", "my.yaml"]
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run(words, cwd=tmp_path, env=env, stderr=theirs, check=False, timeout=30)
        os.close(theirs)
        shown = screen.read(4096)
    assert b"unknown key" in shown
    assert (b"\x1b[31m" in shown) is coloured


def test_check_of_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    result = _run("check", "nothing.yaml")
    assert result.exit_code == 1
    assert result.stderr.startswith("nothing.yaml: there is no such file; check the path")


@pytest.mark.parametrize("command", ["serve", "check"])
def test_without_any_configuration_a_command_says_where_it_looked(command: str) -> None:
    result = _run(command)
    assert result.exit_code == 1
    assert "neither gateway.yaml nor config/gateway.yaml exists here; pass a file, or set DRAG" in result.stderr


def test_a_configuration_is_found_by_its_usual_name_and_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/gateway.yaml").write_text("# defaults\n")
    assert "config/gateway.yaml: ok" in _run("check").stdout
    (tmp_path / "gateway.yaml").write_text("# defaults\n")
    assert _run("check").stdout.startswith("gateway.yaml: ok")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(STATIC))
    assert _run("check").stdout.startswith(str(STATIC))


def test_serve_with_a_wrong_configuration_says_so_without_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("routes: [{to: nobody}]\n")
    result = _run("serve", "--config", str(file))
    assert result.exit_code == 1
    assert "routes[0].to: there is no executor 'nobody'; none is configured" in result.stderr
    assert "Traceback" not in result.output


def test_serve_beyond_loopback_without_keys_is_refused() -> None:
    result = _run("serve", "--config", str(STATIC), "--host", "0.0.0.0", "--port", "0")  # noqa: S104 -- refused
    assert result.exit_code == 1
    assert "is not a loopback address, which is required without API keys" in result.stderr
    assert "Traceback" not in result.output


def test_serve_answers_until_it_is_told_to_stop(tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-m", "gateway", "serve", "--config", str(STATIC), "--port", str(port)]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert _status(f"http://127.0.0.1:{port}/readyz") == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def _status(url: str) -> int:
    """Ask until somebody listens and has started, for half a minute at most."""
    end = monotonic() + 30
    while monotonic() < end:
        try:
            if (status := httpx.get(url, timeout=PATIENCE).status_code) != 503:
                return status
        except httpx.ConnectError:
            pass
        threading.Event().wait(0.05)
    pytest.fail("nobody listens")


def test_the_doctor_finds_a_sound_installation(tmp_path: Path) -> None:
    result = _run("doctor", "--config", str(STATIC))
    assert result.exit_code == 0
    for part in ("huma-0.1 speaks huma/0.1", "huma-0.2 speaks huma/0.2.0", "event loop: uvloop", "usable"):
        assert part in result.stdout


def test_the_doctor_looks_at_store_and_network_and_fails_on_what_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as closing:
        open_port, closed_port = listening.getsockname()[1], closing.getsockname()[1]
        closing.close()
        file.write_text(
            f"engine: {{type: sqlite, path: {tmp_path}/my.db}}\n"
            "executors:\n"
            f"  up: {{type: webhook, url: 'http://127.0.0.1:{open_port}/x', secret: c2VjcmV0}}\n"
            f"  down: {{type: webhook, url: 'http://127.0.0.1:{closed_port}/x', secret: c2VjcmV0}}\n"
        )
        result = _run("doctor", "--config", str(file))
    assert result.exit_code == 1
    assert f"executor up at 127.0.0.1:{open_port} accepts connections" in result.stdout
    assert f"executor down at 127.0.0.1:{closed_port}: connection refused" in result.stdout
    assert "check that it is running, and the port" in result.stdout
    assert "my.db: will be created on first start" in result.stdout
    assert "free in" in result.stdout


def test_the_doctor_asks_the_gateway_at_the_public_url_of_the_file(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "my.yaml"
    file.write_text(f"engine: {{type: sqlite, path: {tmp_path}/my.db}}\npublic_url: http://127.0.0.1:{port}/\n")
    assert f"no gateway responds at http://127.0.0.1:{port} (" in _run("doctor", "--config", str(file)).stdout


def test_the_doctor_has_nothing_to_reach_where_clients_come_to_us(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        f"engine: {{type: sqlite, path: {tmp_path}/my.db}}\n"
        "runtimes: {desk: {adapter: mcp, clients: [{name: ada, token: 0123456789abcdef}]}}\n"
    )
    result = _run("doctor", "--config", str(file))
    assert result.exit_code == 0
    assert "mcp speaks mcp/2026-07-28" in result.stdout
    assert "nothing to connect to" in result.stdout
    # The file has a warning: no route leads a tool to an executor.
    assert result.stdout.rstrip().endswith("No errors, but warnings: see the marked lines above.")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/nowhere-at-all/my.db", "does not exist"),
        ("{folder}", "is a folder"),
        ("{folder}/text.db", "is not a SQLite database"),
    ],
)
def test_the_doctor_says_what_is_wrong_with_the_store(tmp_path: Path, path: str, part: str) -> None:
    (tmp_path / "text.db").write_text("Dear diary, today I was no database.")
    file = tmp_path / "my.yaml"
    file.write_text(f"engine: {{path: {path.format(folder=tmp_path)}}}\n")
    result = _run("doctor", "--config", str(file))
    assert result.exit_code == 1
    assert part in result.stdout


@pytest.mark.parametrize(
    ("number", "state", "part"),
    [
        (NEWEST + 1, "broken", "run the newer release, or restore the backup from before the upgrade"),
        (1, "broken", "check out commit"),
        (NEWEST, "ok", f"schema is at {NEWEST}"),
        (NEWEST - 1, "note", f"schema is at {NEWEST - 1}, this release requires {NEWEST}"),
    ],
)
def test_the_doctor_compares_the_schema_of_a_sqlite_store_with_this_release(
    tmp_path: Path, number: int, state: str, part: str
) -> None:
    file, path = tmp_path / "my.yaml", tmp_path / "my.db"
    file.write_text(f"engine: {{path: {path}}}\n")
    connection = open_writer(path)
    connection.execute(f"PRAGMA user_version = {number}")
    connection.close()
    result = _run("doctor", "--config", str(file), "--json")
    checks = [json.loads(line) for line in result.stdout.splitlines()]
    (found,) = [one for one in checks if one["about"] == "Store" and part in f"{one['text']} {one['fix']}"]
    assert found["state"] == state
    assert result.exit_code == (state == "broken")


def test_the_doctor_shows_the_problems_of_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("unrouted: maybe\n")
    result = _run("doctor", "--config", str(file))
    assert result.exit_code == 1
    assert "1 error" in result.stdout
    assert f"{file}:1: unrouted: 'maybe' is not a choice" in result.stderr


def test_the_doctor_says_which_process_uses_the_store(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"engine: {{path: {tmp_path}/my.db}}\n")
    lock = FileLock(tmp_path / "my.db")
    lock.acquire()
    try:
        result = _run("doctor", "--config", str(file))
    finally:
        lock.release()
    assert result.exit_code == 0
    assert f"in use by process {os.getpid()}" in result.stdout
    assert "no other process uses it" in _run("doctor", "--config", str(file)).stdout


def test_the_doctor_finds_no_problem_where_nothing_is_marked(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        f"engine: {{path: {tmp_path}/my.db}}\n"
        f"api: {{keys: [{{name: backend, key: {'5e' * 32}}}]}}\n"
        "tools: {ask: {description: Asks.}}\n"
        "executors: {all: {type: static, result: 7}}\n"
        "routes: [{match: {tool: ask}, to: all}]\n"
        "runtimes: {desk: {adapter: mcp, clients: [{name: ada, token: 0123456789abcdef}]}}\n"
    )
    assert _run("doctor", "--config", str(file)).stdout.rstrip().endswith("No problems found.")
