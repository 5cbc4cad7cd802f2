"""`check --calls` runs a table of calls against the routes, as a test runner runs tests."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import app

YAML = """\
api: {keys: [{name: lead, key: 0123456789abcdef, scopes: [approve]}]}
tools:
  refund:
    description: Pay money back.
    parameters: {type: object, properties: {amount: {type: number}}, required: [amount]}
runtimes:
  finn: {adapter: huma-0.1, url: "http://huma", api_key: k, agent_id: a}
executors:
  billing: {type: static}
routes:
  - {match: {tool: "drop_*"}, deny: "Tables are never dropped here."}
  - match: {tool: refund, arguments: {properties: {amount: {type: number, maximum: 99.99}}, required: [amount]}}
    to: billing
  - {match: {tool: refund}, to: billing, approve: {by: lead, timeout: 1h}}
"""
TABLE = """\
- {tool: refund, arguments: {amount: 5}, expect: run}
- {tool: refund, arguments: {amount: 500}, expect: ask}
- {tool: drop_users, expect: deny}
- {tool: refund, expect: fail}
- {tool: fly, expect: fail}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(YAML)
    return path


def check(config: Path, table: str, *words: str, name: str = "calls.yaml") -> Result:
    path = config.with_name(name)
    path.write_text(table)
    done = CliRunner().invoke(app, ["check", str(config), "--calls", str(path), *words], prog_name="dragoman")
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def test_a_table_whose_calls_do_what_it_says_passes(config: Path) -> None:
    done = check(config, TABLE)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith("calls.yaml: 5 passed")
    assert 'calls.yaml:1: refund {"amount":5}: run' in done.stdout.replace(": 5", ":5")


def test_a_row_that_is_wrong_shows_the_deciding_route_and_fails(config: Path) -> None:
    done = check(config, TABLE.replace("{amount: 5}, expect: run", "{amount: 5}, expect: ask"))
    assert done.exit_code == 1
    assert f"expected ask, got run by routes[1] ({config}:12), for an agent of finn" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("4 passed, 1 failed")


def test_a_gate_that_no_row_exercises_is_named(config: Path) -> None:
    done = check(config, "- {tool: refund, arguments: {amount: 5}, expect: run}\n")
    assert done.exit_code == 0
    assert f"routes[0] ({config}:11) decides about none of these calls" in done.stdout
    assert f"routes[2] ({config}:14) decides about none of these calls" in done.stdout


def test_json_lines_are_a_table_too_and_programs_get_every_row(config: Path) -> None:
    rows = [
        {"tool": "refund", "arguments": {"amount": 5}, "expect": "deny", "runtime": "finn"},
        {"tool": "drop_x", "expect": "deny", "labels": {"tier": "gold"}},
    ]
    table = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    done = check(config, table, "--json", name="calls.jsonl")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["ok"]) == (1, False)
    assert [(row["line"], row["expect"], row["got"], row["ok"], row["route"]) for row in told["calls"]] == [
        (1, "deny", "run", False, 1),
        (2, "deny", "deny", True, 0),
    ]
    assert told["calls"][1]["text"] == "Tables are never dropped here."


def test_a_workflow_gets_an_annotation_at_the_row(config: Path) -> None:
    done = check(config, TABLE.replace("expect: deny", "expect: run"), "--format", "github")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert "calls.yaml,line=3,title=drop_users::expected run, got deny by routes[0]" in line


def test_a_row_without_a_runtime_holds_for_each(config: Path) -> None:
    other = '  ada: {adapter: herm, url: "http://herm", api_key: k, session_id: s}\nexecutors:'
    text = YAML.replace("executors:", other).replace("{tool: refund}, to", "{tool: refund, runtime: finn}, to")
    config.write_text(text)
    done = check(config, "- {tool: refund, arguments: {amount: 500}, expect: ask}\n")
    assert done.exit_code == 1
    assert "expected ask, got fail, for an agent of ada" in done.stdout
    assert check(config, "- {tool: refund, arguments: {amount: 500}, expect: ask, runtime: finn}\n").exit_code == 0


def test_a_client_over_mcp_is_not_offered_undeclared_tools(config: Path) -> None:
    desk = "  desk: {adapter: mcp, clients: [{name: ada, token: 0123456789abcdef0123}]}\nexecutors:"
    config.write_text(YAML.replace("executors:", desk).replace('deny: "Tables are never dropped here."', "to: billing"))
    assert check(config, "- {tool: drop_x, expect: fail, runtime: desk}\n").exit_code == 0


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ("{tool: refund}", "the table must be a list of calls"),
        ("[]", "the table has no call"),
        ("", "the table must be a list of calls"),
        ("- refund\n", "calls.yaml:1: [0]: a call must be a mapping"),
        ("- {tool: refund, expect: allow}\n", "calls.yaml:1: [0].expect: must be one of: run, ask, deny, fail"),
        ("- {tool: refund}\n", "calls.yaml:1: [0]: 'expect' is missing"),
        ("- {tol: refund, expect: run}\n", "[0].tol: unknown key; did you mean 'tool'?"),
        ("- {tool: 5, expect: run}\n", "[0].tool: must be a text"),
        ("- {tool: x, expect: run, arguments: [1]}\n", "[0].arguments: must be a mapping"),
        ("- {tool: x, expect: run, labels: {a: 1}}\n", "[0].labels: must be a mapping of texts"),
        ("- {tool: x, expect: run, runtime: fin}\n", "line 1: there is no runtime 'fin'; did you mean 'finn'?"),
        ("- {tool: x, expect: run\n", "not YAML"),
    ],
)
def test_a_faulty_table_is_named_with_its_place(config: Path, table: str, fault: str) -> None:
    done = check(config, table)
    assert done.exit_code == 1
    assert fault in done.stderr.replace("\n", " ")


def test_a_faulty_line_of_json_is_named(config: Path) -> None:
    done = check(config, '{"tool": "x", "expect": "run"}\n{"tool"\n', name="calls.jsonl")
    assert done.exit_code == 1
    assert "calls.jsonl:2: " in done.stderr
    assert "not JSON" in done.stderr


def test_the_example_has_a_table_that_passes() -> None:
    examples = Path(__file__).parents[3] / "config/examples"
    words = ["check", str(examples / "approvals.yaml"), "--calls", str(examples / "approvals-calls.jsonl")]
    names = ("DRAGOMAN_KEY", "LEAD_KEY", "HUMA_API_KEY", "HUMA_AGENT", "BILLING_SECRET")
    env = {name: f"whsec_{name.lower().replace('_', ''):A<32}" for name in names}
    done = CliRunner().invoke(app, words, prog_name="dragoman", env=env)
    assert done.exit_code == 0, done.output
    assert "decides about none" not in done.stdout


def test_a_missing_table_is_named(config: Path) -> None:
    for name in ("none.yaml", "none.jsonl"):
        words = ["check", str(config), "--calls", str(config.with_name(name))]
        done = CliRunner().invoke(app, words, prog_name="dragoman")
        assert done.exit_code == 1
        assert name in done.stderr
