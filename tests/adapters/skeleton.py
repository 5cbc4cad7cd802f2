"""The skeleton of an adapter that `dragoman init --adapter` writes, loaded from its templates as it stands."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import gateway.cli

TEMPLATE = Path(gateway.cli.__file__).parent / "templates/adapter"


def _load(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


package: Any = _load("pigeon_adapter", TEMPLATE / "pigeon_adapter/__init__.py")
link: Any = import_module("pigeon_adapter.link")
peer: Any = _load("pigeon_peer", TEMPLATE / "tests/peer.py")
