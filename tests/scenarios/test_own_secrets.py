"""What a configuration keeps secret is hidden in every line of the process that has read it."""

import io
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from dragoman.hidden import Hidden
from gateway.runtime import log, masking
from gateway.serve import read_configuration

CONFIG = """
api: {keys: [{name: me, key: horse-battery-one}]}
engine: {type: postgres, dsn: "postgresql://dragoman:horse-battery-two@db/dragoman"}
runtimes:
  finn: {adapter: huma-0.2, url: "http://127.0.0.1:9", api_key: horse-battery-three, agent_id: finn}
executors:
  cards: {type: webhook, url: "http://127.0.0.1:9", secret: whsec_aG9yc2UtYmF0dGVyeS1mb3VyLWhvcnNlLWJhdHRlcnk=}
destinations:
  chat:
    url: "http://127.0.0.1:9"
    secret: whsec_aG9yc2UtYmF0dGVyeS1maXZlLWhvcnNlLWJhdHRlcnk=
    headers: {X-Realm: "realm ${REALM}", X-Word: "file:./word"}
routes:
  - {match: {tool: "*"}, to: cards}
"""
SECRETS = (
    *(f"horse-battery-{number}" for number in ("one", "two", "three", "six", "seven")),
    "whsec_aG9yc2UtYmF0dGVyeS1mb3VyLWhvcnNlLWJhdHRlcnk=",
    "whsec_aG9yc2UtYmF0dGVyeS1maXZlLWhvcnNlLWJhdHRlcnk=",
)


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget, for one test, the secrets that other tests of this process have registered."""
    with monkeypatch.context() as patched:
        # There is no way to unregister a secret, and no process wants one.
        patched.setattr(masking, "_registered", [Hidden()])
        yield


def test_whoever_logs_a_secret_of_the_configuration_logs_asterisks(
    nothing_known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REALM", "horse-battery-six")
    (tmp_path / "word").write_text("horse-battery-seven\n", encoding="utf-8")
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    read_configuration(path)
    with redirect_stderr(io.StringIO()) as said:
        log.configure(level="debug", format="json")
        for number, secret in enumerate(SECRETS):
            # No name and no form gives them away.
            logging.getLogger("somebody").warning("line %d: it was %s, or so", number, secret)
    lines = said.getvalue().splitlines()
    assert len([line for line in lines if "or so" in line]) == len(SECRETS), lines
    for secret in SECRETS:
        assert secret not in said.getvalue()
