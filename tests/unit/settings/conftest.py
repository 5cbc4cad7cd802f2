"""A tiny adapter and ways to load YAML text, for the tests of the settings."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr, field_validator

from gateway.adapter.port import (
    PORTS_VERSION,
    Adapter,
    Capabilities,
    Codec,
    ConfirmationRule,
    Confirmer,
    Connector,
    RuntimeOptions,
)
from gateway.errors import InvalidConfiguration
from gateway.settings.load import Loaded, load


class PigeonOptions(RuntimeOptions):
    """Options of an adapter that exists in these tests only."""

    api_key: SecretStr = Field(description="The pigeon's key.")
    loft: str | None = Field(default=None, description="Attach to this loft.")
    build: bool = Field(default=False, description="Build a loft.")
    talks: bool = Field(default=False, description="Whether the pigeon waits for confirmations.")
    confirm: Confirmer | None = Field(default=None, description="What confirms its messages.")
    confirm_by: str | None = Field(default=None, description="The destination whose copy counts.")

    @property
    def native_id(self) -> str | None:
        return self.loft

    @property
    def creates(self) -> bool:
        return self.build

    @property
    def confirmation(self) -> ConfirmationRule | None:
        return ConfirmationRule(timedelta(seconds=30), self.confirm, self.confirm_by) if self.talks else None

    @field_validator("loft")
    @classmethod
    def _is_a_loft(cls, loft: str | None) -> str | None:
        if loft == "coop":
            raise ValueError(f"{loft!r} is not a loft; write another")
        return loft


_CAPABILITIES = Capabilities(accepts=frozenset(), emits=frozenset(), turns="inferred", delivery="silence")


@dataclass(frozen=True, slots=True)
class PigeonAdapter:
    """An adapter that validates options and never connects."""

    name: str = "pigeon"
    protocol: str = "pigeon/1"
    ports: int = PORTS_VERSION
    options: type[RuntimeOptions] = PigeonOptions
    capabilities: Capabilities = _CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        raise NotImplementedError

    def connector(self, options: Any) -> AbstractAsyncContextManager[Connector]:
        raise NotImplementedError


@pytest.fixture
def adapters() -> Mapping[str, Adapter]:
    return {"pigeon": PigeonAdapter()}


Load = Callable[..., Loaded]
Complain = Callable[..., list[str]]


@pytest.fixture
def load_text(tmp_path: Path, adapters: Mapping[str, Adapter]) -> Load:
    """Load YAML text; keyword arguments are environment variables."""

    def load_it(text: str, **env: str) -> Loaded:
        path = tmp_path / "gateway.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, adapters=adapters, env=env)

    return load_it


@pytest.fixture
def complaints(load_text: Load) -> Complain:
    """Load YAML text and list all findings as `line: path: message`, warnings and notes marked."""

    def listed(text: str, **env: str) -> list[str]:
        try:
            problems = load_text(text, **env).problems
        except InvalidConfiguration as exc:
            problems = exc.problems
        marks = {"error": "", "warning": "warning: ", "note": "note: "}
        return [f"{one.line}: {marks[one.severity]}{one.path}: {one.message}" for one in problems]

    return listed
