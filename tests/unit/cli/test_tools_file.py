"""`dragoman tools --write` changes the backend's tools in the file, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, strategies as st

from gateway.cli.tools import update_section
from gateway.errors import OperatorError
from tests.kit.test_schema import run_tools

ASK: dict[str, Any] = {"description": "Ask.", "parameters": {"type": "object", "properties": {"rank": {"enum": ["7"]}}}}
DEAL: dict[str, Any] = {"description": "Deal: cards # to all", "parameters": {"type": "object"}}
DECLARED = {"ask": ASK, "deal": DEAL}
FORMS = {
    "no section": "# mine\nunrouted: fail  # yes\n",
    "an empty file": "",
    "only comments": "# mine\n",
    "an empty section": "# mine\ntools:\n\nunrouted: fail\n",
    "a null section": "tools: ~  # none yet\nunrouted: fail\n",
    "an empty flow": "tools: {}\nunrouted: fail\n",
    "a flow": "tools: {other: {description: O, parameters: {}}, ask: {nulls: keep}}\nunrouted: fail\n",
    "blocks": """# mine
tools:
  # about other
  other:
    description: O  # keep
    parameters: {}

  ask:
    # lost
    description: old
    parameters:
      type: object
      required: [a,
        b]
    nulls: keep

# about routes
unrouted: fail
""",
    "blocks at the end": "unrouted: fail\ntools:\n    ask:\n        description: >\n            old\n            text",
    "a null tool": "tools:\n  ask:\n  other: {description: O}\nunrouted: fail\n",
    "a flow in blocks": "tools:\n  ask: {description: old, read_only: true}\n  other: {description: O}\n",
    "a quoted name": 'tools:\n  "ask": {description: old}\n',
}


def merged(before: str, declared: dict[str, Any]) -> Any:
    values: dict[str, Any] = yaml.safe_load(before) or {}
    empty: dict[str, Any] = {}
    present: dict[str, Any] = values.get("tools") or empty
    ours = {name: {**(present.get(name) or empty), **tool} for name, tool in declared.items()}
    return {**values, "tools": {**present, **ours}}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gets_the_tools_and_keeps_the_rest(form: str) -> None:
    before = FORMS[form]
    after, changed = update_section(before, DECLARED)
    assert yaml.safe_load(after) == merged(before, DECLARED)
    assert changed == ["ask", "deal"]
    for line in before.splitlines():
        if "#" in line and "lost" not in line and "none yet" not in line:
            assert line in after.splitlines()
    assert update_section(after, DECLARED) == (after, [])


def test_an_unchanged_tool_keeps_its_comments() -> None:
    before = (
        "tools:\n  deal:\n    # about deal\n    description: 'Deal: cards # to all'\n    parameters: {type: object}\n"
    )
    after, changed = update_section(before, DECLARED)
    assert changed == ["ask"]
    assert after.startswith(before.rstrip())


@pytest.mark.parametrize("text", ["- a\n", "{tools: {}}\n", "tools: [a]\n", "tools: 7", "tools: {", "a: 1\n b: 2\n"])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(OperatorError):
        update_section(text, DECLARED)


NAMES = st.sampled_from(["ask", "deal", "other", "größe", "a b", "x: y", "#x", "'q'"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TOOLS = st.dictionaries(
    NAMES, st.dictionaries(st.sampled_from(["description", "parameters", "nulls"]), VALUES), max_size=4
)


@example(present={}, declared={"ask": {"description": "\x85"}}, flow=None, rest=False)
@example(present={}, declared={"ask": {"description": "a\u2028b"}}, flow=False, rest=True)
@given(present=TOOLS, declared=TOOLS.filter(bool), flow=st.sampled_from([None, False]), rest=st.booleans())
def test_any_tools_are_merged(present: dict[str, Any], declared: dict[str, Any], flow: bool | None, rest: bool) -> None:
    values = {"tools": present, **({"unrouted": "fail"} if rest else {})}
    before = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=flow)
    after, _ = update_section(before, declared)
    assert yaml.safe_load(after) == merged(before, declared)


def test_the_command_writes_the_file_with_its_mode(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(
        "import os\nfrom pydantic import BaseModel\nfrom dragoman.kit import Tools\n"
        "tools = Tools(secret='whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ==')\n"
        "class Wanted(BaseModel):\n    rank: str\n"
        "@tools.tool('ask')\nasync def ask(wanted: Wanted) -> str:\n    'Ask.'\n    return ''\n"
    )
    path = tmp_path / "gateway.yaml"
    path.write_text("# mine\nunrouted: fail\n")
    path.chmod(0o600)
    (tmp_path / "link.yaml").symlink_to(path)
    done = run_tools(tmp_path, "--from", "backend:tools", "--write", "--config", "link.yaml")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "link.yaml: updated ask" in done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("# mine\nunrouted: fail\n")
    assert (tmp_path / "link.yaml").is_symlink()
    assert list(yaml.safe_load(path.read_text())["tools"]) == ["ask"]
    assert "nothing to update" in run_tools(tmp_path, "--from", "backend:tools", "--write").stderr
    assert run_tools(tmp_path, "--from", "backend:tools", "--config", "gateway.yaml").returncode == 2
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".gateway")]
