"""How YAML text becomes values, and what is said when it cannot."""

from pathlib import Path

import pytest

from gateway.errors import InvalidConfiguration
from gateway.settings.source import MAX_BYTES, Source, read_source


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def _read(file: Path, text: str) -> Source:
    file.write_text(text, encoding="utf-8")
    return read_source(file)


def _fault(file: Path, content: str | bytes) -> tuple[int | None, str]:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidConfiguration) as caught:
        read_source(file)
    (problem,) = caught.value.problems
    return problem.line, problem.message


def test_scalars_are_read_as_json_like_values(file: Path) -> None:
    source = _read(
        file,
        "a: 1\nb: -7\nc: 0x1f\nd: 1.5e3\ne: true\nf: null\ng: ~\nh:\ni: 'true'\nj: \"1\"\nk: 017\nl: .5\n",
    )
    assert source.values == {
        "a": 1, "b": -7, "c": 31, "d": 1500.0, "e": True, "f": None, "g": None, "h": None, "i": "true", "j": "1",
        "k": 17, "l": 0.5,
    }  # fmt: skip
    assert not source.findings


def test_what_old_yaml_would_twist_stays_a_text(file: Path) -> None:
    source = _read(file, "a: no\nb: on\nc: 2026-11-20\nd: 12:30\ne: 1_000\n")
    assert source.values == {"a": "no", "b": "on", "c": "2026-11-20", "d": "12:30", "e": "1_000"}


def test_every_value_remembers_its_line(file: Path) -> None:
    source = _read(file, "# comment\na:\n  b:\n    - x\n    - c: 1\n")
    assert source.lines["a",] == 2
    assert source.lines["a", "b"] == 3
    assert source.lines["a", "b", 0] == 4
    assert source.lines["a", "b", 1, "c"] == 5


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_is_a_configuration_of_defaults(file: Path, text: str) -> None:
    assert _read(file, text).values == {}


def test_a_byte_order_mark_is_not_part_of_the_first_key(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_source(file).values == {"a": 1}


def test_anchors_and_merge_keys_are_written_out_and_own_keys_win(file: Path) -> None:
    source = _read(file, "a: &a {x: 1, y: 2}\nb: *a\nc:\n  <<: *a\n  y: 3\nd:\n  <<: [*a, {z: 4}]\n")
    assert source.values == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3},
                             "d": {"x": 1, "y": 2, "z": 4}}  # fmt: skip


def test_a_key_that_stands_twice_is_named_with_both_lines(file: Path) -> None:
    (finding,) = _read(file, "a:\n  b: 1\n  b: 2\n").findings
    assert finding.place == ("a", "b")
    assert finding.message == "duplicate key in a, first on line 2; keep one"


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("a: !!python/object:os.system x\n", ("a",), "the tag '!!python/object:os.system' is not supported"),
        ("a: !!binary aGk=\n", ("a",), "not supported"),
        ("a: !secret x\n", ("a",), "the tag '!secret' is not supported"),
        ("a: .nan\n", ("a",), "is not allowed in JSON"),
        ("a: -.inf\n", ("a",), "is not allowed in JSON"),
        ("a: 1e999\n", ("a",), "too large"),
        ("a: 9223372036854775808\n", ("a",), "does not fit into 64 bits"),
        (f"a: {'9' * 5000}\n", ("a",), "does not fit into 64 bits"),
        ("1: x\n", ("1",), "write it in quotes: '1'"),
        ("a: {<<: 3}\n", ("a", "<<"), "only a mapping"),
    ],
)
def test_what_json_cannot_say_is_a_finding_at_its_place(
    file: Path, text: str, place: tuple[str, ...], part: str
) -> None:
    (finding,) = _read(file, text).findings
    assert finding.place == place
    assert part in finding.message


def test_64_bit_limits_are_numbers(file: Path) -> None:
    assert _read(file, "a: [9223372036854775807, -9223372036854775808]\n").values == {"a": [2**63 - 1, -(2**63)]}


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a: [1\nb: 2\n", 2, "not YAML"),
        ("a: 1\n\tb: 2\n", 2, "indent with spaces, not tabs"),
        ("a: b: c\n", 1, "quote a text that contains ': '"),
        ("a: @x\n", 1, "quote a text that begins with @"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here"),
        ("a: *nowhere\n", 1, "found undefined alias 'nowhere'"),
        ("a: &a [*a]\n", 1, "found undefined alias 'a'"),
        ("? [a, b]\n: 1\n", 1, "a key must be a plain text"),
        ("a: 1\nb: \x07\n", 2, "control character"),
        ("a: " + "[" * 100 + "]" * 100, 1, "nested deeper than 64 levels"),
    ],
)
def test_what_cannot_be_read_at_all_is_one_clear_problem(file: Path, text: str, line: int, part: str) -> None:
    found_line, message = _fault(file, text)
    assert found_line == line
    assert part in message


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(file: Path) -> None:
    assert _fault(file, b"a: 1\nb: \xff\xfe\n") == (2, "byte 8 is not UTF-8; save the file as UTF-8")


def test_a_file_that_is_too_large_is_refused(file: Path) -> None:
    assert "larger than 1,048,576 bytes" in _fault(file, b"#" * (MAX_BYTES + 1))[1]


def test_a_bomb_of_aliases_is_refused(file: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "aliases written out" in _fault(file, "\n".join(levels))[1]


def test_a_bomb_of_merges_is_refused(file: Path) -> None:
    levels = ["a0: &a0 {}"]
    levels += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
    assert "aliases written out" in _fault(file, "\n".join(levels))[1]


def test_a_file_that_is_not_there_is_one_clear_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="there is no such file"):
        read_source(tmp_path / "nothing.yaml")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="this is a folder"):
        read_source(tmp_path)


def test_a_path_that_cannot_be_one_is_one_clear_problem(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        read_source(tmp_path / "a\0b")
