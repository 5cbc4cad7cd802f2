"""White space around a value is trimmed where no setting could mean it, and named everywhere else."""

import os
from pathlib import Path

import pytest
import typer

from dragoman.client import Client
from dragoman.webhook_secret import decode_secret
from gateway.cli.options import check_key, check_url
from gateway.plugins import installed_adapters
from gateway.settings.load import load
from tests.unit.settings.conftest import Complain, Load

SECRET = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
YAML = """\
public_url: "${PUBLIC}"
api: {keys: [{name: a, key: "${KEY}"}]}
engine: {type: postgres, dsn: "${DSN}"}
runtimes:
  finn: {adapter: huma-0.2, url: "${HUMA}", api_key: "${HUMA_KEY}", agent_id: "${AGENT}"}
  ada: {adapter: herm, url: "${HERM}", api_key: "${HERM_KEY}", session_id: "${AGENT}", headers: {x-tenant: "${TENANT}"}}
  coder: {adapter: openhands, url: "${OH}", session_api_key: "${OH_KEY}", conversation_id: "${AGENT}"}
executors:
  cards: {type: webhook, url: "${CARDS}", secret: "${SECRET}", headers: {authorization: "Bearer ${TENANT}"}}
"""
VALUES = {
    "PUBLIC": "https://gateway.example",
    "KEY": "0123456789abcdef",
    "DSN": "postgresql://gail:pass@db.example.com/shop",
    "HUMA": "https://huma.example",
    "HUMA_KEY": "ak_1",
    "AGENT": "agent-1",
    "HERM": "https://herm.example",
    "HERM_KEY": "hk_1",
    "TENANT": "acme",
    "OH": "http://openhands:3000",
    "OH_KEY": "ok_1",
    "CARDS": "http://cards/tools",
    "SECRET": SECRET,
}


@pytest.mark.parametrize("around", ["{}\n", "{}\r\n", " {} ", "\t{}\n\n"])
def test_white_space_around_a_variable_changes_nothing(tmp_path: Path, around: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(YAML, encoding="utf-8")
    spaced = {name: around.format(value) for name, value in VALUES.items()}
    plain = load(path, adapters=installed_adapters(), env=VALUES)
    assert load(path, adapters=installed_adapters(), env=spaced).settings == plain.settings
    assert plain.settings.executors["cards"].headers == {"authorization": "Bearer acme"}  # type: ignore[union-attr]


def test_white_space_around_the_text_of_a_file_changes_nothing(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" 0123456789abcdef\n\n")
    (key,) = load_text("api: {keys: [{name: a, key: 'file:./key'}]}\n").settings.api.keys
    assert key.key.get_secret_value() == "0123456789abcdef"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("url: 'http://lo ft', api_key: k", "must not contain a space, a line break or another control character"),
        ('url: "http://loft\\n", api_key: k', "must not contain a space, a line break or another control character"),
        ('url: "http://lo\\tft", api_key: k', "must not contain a space, a line break or another control character"),
    ],
)
def test_white_space_that_is_written_in_the_file_is_named(complaints: Complain, options: str, reason: str) -> None:
    found = complaints(f"runtimes: {{a: {{adapter: pigeon, loft: x, {options}}}}}\n")
    assert any(f"runtimes.a.url: {reason}" in line for line in found), found


@pytest.mark.parametrize("inner", ["https://hu ma.example", "https://huma.example\nx", "https://huma.example\x00"])
def test_white_space_inside_a_value_from_the_environment_is_named(tmp_path: Path, inner: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(YAML, encoding="utf-8")
    with pytest.raises(Exception, match=r"runtimes\.finn\.url: must not contain a space, a line break") as caught:
        load(path, adapters=installed_adapters(), env=VALUES | {"HUMA": inner})
    assert inner not in str(caught.value)


@pytest.mark.parametrize("key", ["HUMA_KEY", "HERM_KEY", "OH_KEY"])
def test_a_key_that_no_header_could_carry_is_refused_with_the_reason(tmp_path: Path, key: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(YAML, encoding="utf-8")
    with pytest.raises(Exception, match="printable ASCII without spaces") as caught:
        load(path, adapters=installed_adapters(), env=VALUES | {key: "two\nlines"})
    assert "cannot be used here" not in str(caught.value)


async def test_programs_and_the_command_line_trim_the_address_and_the_key() -> None:
    async with Client("http://127.0.0.1:8080\n", key=" 0123456789abcdef\n"):
        pass
    assert check_url("http://127.0.0.1:8080\n") == "http://127.0.0.1:8080"
    assert check_key("0123456789abcdef\n") == "0123456789abcdef"
    with pytest.raises(typer.BadParameter):
        check_url("http://127.0.0.1:99999")


def test_both_sides_read_a_secret_with_a_line_break_alike() -> None:
    assert decode_secret(f"{SECRET}{os.linesep}") == decode_secret(SECRET)
