"""How `${VAR}` and `file:` are filled in."""

from pathlib import Path
from typing import Any

import pytest

from gateway.settings.expand import MAX_SECRET_FILE, Expanded, expand


def _expand(values: Any, folder: Path = Path(), **env: str) -> Expanded:
    return expand(values, env=env, folder=folder)


def test_variables_are_filled_in_anywhere_in_a_string() -> None:
    assert _expand({"a": "http://${HOST}:${PORT}/x"}, HOST="h", PORT="1").values == {"a": "http://h:1/x"}


def test_a_default_is_taken_where_the_variable_is_unset_or_empty() -> None:
    values = ["${A:-x}", "${B:-x}", "${C:-x}", "${A:-}"]
    assert _expand(values, B="", C="c").values == ["x", "x", "c", ""]


def test_a_doubled_dollar_is_a_plain_one_and_is_not_looked_up() -> None:
    assert _expand(["$${A}", "$A", "5$", "$$"], A="no").values == ["${A}", "$A", "5$", "$$"]


def test_keys_and_other_values_stay_as_they_are() -> None:
    values: dict[str, Any] = {"${A}": 1, "b": [True, None, 2.5]}
    assert _expand(values, A="no").values == values


def test_an_expanded_value_is_neither_expanded_again_nor_read_as_yaml() -> None:
    assert _expand(["${A}", "${B}"], A="${B}", B="[1, 2]\nc: 3").values == ["${B}", "[1, 2]\nc: 3"]


def test_an_unset_variable_is_named_at_its_place() -> None:
    (finding,) = _expand({"a": ["x", "${NOT_SET}"]}).findings
    assert finding.place == ("a", 1)
    assert finding.message == "the environment variable NOT_SET is not set; set it, or add it to .env"


@pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A", "${A-b}"])
def test_a_broken_reference_is_a_finding_that_shows_the_escape(text: str) -> None:
    (finding,) = _expand([text], A="a").findings
    assert "$${ for a plain '${'" in finding.message


def test_a_file_is_read_without_its_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"s3cret\r\n")
    expanded = _expand({"a": f"file:{tmp_path}/key", "b": "file:./key", "c": "file:./${NAME}"}, tmp_path, NAME="key")
    assert expanded.values == {"a": "s3cret", "b": "s3cret", "c": "s3cret"}
    assert expanded.outside.keys() == {("a",), ("b",), ("c",)}


def test_only_a_whole_path_behind_file_is_read(tmp_path: Path) -> None:
    values = ["file: see below", "file:///etc/hosts", "a file:/etc/hosts", "file:name"]
    assert _expand(values, tmp_path).values == values


def test_a_variable_cannot_smuggle_a_file_in(tmp_path: Path) -> None:
    assert _expand(["${A}"], tmp_path, A="file:/etc/hostname").values == ["file:/etc/hostname"]


def test_words_about_files_in_tools_are_left_alone(tmp_path: Path) -> None:
    values = {"tools": {"read": {"description": "file:/etc/hostname"}}}
    assert _expand(values, tmp_path).values == values


@pytest.mark.parametrize(
    ("content", "part"),
    [(None, "no such file"), (b"\xff", "not UTF-8"), (b"x" * (MAX_SECRET_FILE + 1), "larger than 65,536 bytes")],
)
def test_a_file_that_cannot_be_used_is_a_finding(tmp_path: Path, content: bytes | None, part: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    (finding,) = _expand({"a": "file:./key"}, tmp_path).findings
    assert finding.place == ("a",)
    assert part in finding.message


def test_what_came_from_outside_is_marked() -> None:
    expanded = _expand({"a": "${A}", "b": "plain", "c": ["${C:-d}"]}, A="1")
    assert expanded.outside == {("a",): ("1", "${A}"), ("c", 0): ("d", "${C:-d}")}


def test_a_message_that_quotes_an_outside_value_shows_the_files_words_instead() -> None:
    expanded = _expand({"a": "${A}", "b": "${B}"}, A="tops3cret", B="no")
    assert expanded.hide("'tops3cret' or tops3cret, 'no' or none") == "'${A}' or ${A}, '${B}' or none"
