"""An option that nobody reads does nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from gateway.settings import model, routes
from gateway.settings.model import Settings

_GATEWAY = Path(model.__file__).parents[1]
_SECTIONS = [
    found
    for module in (model, routes)
    for found in vars(module).values()
    if isinstance(found, type)
    and issubclass(found, BaseModel)
    and found.__module__ == module.__name__
    and found.model_fields
]
_TOLD_APART_BY = {"type"}
"""What says which section it is, for pydantic."""


def _names_read() -> Iterator[str]:
    """Name every attribute that the gateway looks at, but for where options are only checked."""
    for path in _GATEWAY.rglob("*.py"):
        if path.is_relative_to(_GATEWAY / "settings") or path.is_relative_to(_GATEWAY / "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.MatchClass):
                yield from node.kwd_attrs


@pytest.fixture(scope="module")
def read() -> set[str]:
    return set(_names_read())


def test_the_sections_are_found() -> None:
    assert Settings in _SECTIONS
    assert len(_SECTIONS) > 10


@pytest.mark.parametrize("section", _SECTIONS, ids=lambda section: section.__name__)
def test_every_option_is_read_by_the_gateway(section: type[BaseModel], read: set[str]) -> None:
    assert set(section.model_fields) - _TOLD_APART_BY <= read
