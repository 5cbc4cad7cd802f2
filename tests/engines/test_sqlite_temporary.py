"""The store of `type: memory` is a file in a temporary folder, deleted when the engine closes."""

import tempfile
from pathlib import Path

import pytest

from gateway.errors import EngineUnusable
from gateway.store.sqlite import TemporaryEngine
from gateway.testing.conformance.engine_words import FakeClock, open_session, texts


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def test_the_folder_belongs_to_its_user_and_is_deleted_when_the_engine_closes(tmp_path: Path) -> None:
    async with TemporaryEngine(FakeClock()) as engine:
        [folder] = _entries(tmp_path)
        assert folder.stat().st_mode & 0o777 == 0o700
        await open_session(engine)
        assert await texts(engine) == []
        health = await engine.health()
        assert (health.writable, health.extra["synchronous"]) == (True, "off")
    assert _entries(tmp_path) == []


async def test_an_engine_that_cannot_create_its_folder_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    with pytest.raises(EngineUnusable, match="cannot create the folder '/proc/none/dragoman-"):
        await TemporaryEngine(FakeClock()).__aenter__()


def _entries(folder: Path) -> list[Path]:
    return [*folder.iterdir()]
