"""Makes the files of a new adapter package for `dragoman init --adapter`."""

import re
from collections.abc import Mapping
from importlib.resources import files

from gateway.cli.choices import RuntimeChoice
from gateway.cli.starter import StartCommand, StarterFile, gitignore
from gateway.errors import OperatorError

_TEMPLATE = files("gateway.cli") / "templates/adapter"
_NAME = re.compile(r"[a-z][a-z0-9]*([.-][a-z0-9]+)*")
_LONGEST = 40
_SOURCES = {"README.md": "readme.txt"}
"""Template names that differ, so that a template is not taken for one of Dragoman's own pages."""
_PURPOSES = {
    "pyproject.toml": "the package and its entry point",
    "README.md": "how to install, test and try it",
    "pigeon_adapter/__init__.py": "the adapter: its name and its parts",
    "pigeon_adapter/capabilities.py": "the features of the protocol",
    "pigeon_adapter/codec.py": "messages to events, and back",
    "pigeon_adapter/connector.py": "the connections to one runtime",
    "pigeon_adapter/link.py": "one connection to one session",
    "pigeon_adapter/options.py": "the options in gateway.yaml",
    "tests/peer.py": "a small runtime for the tests",
    "tests/test_codec.py": "the conformance suite for codecs",
    "tests/test_link.py": "the conformance suite for links",
    "tests/vectors/vectors.json": "one example of each message",
}


def files_of_adapter(name: str) -> Mapping[str, StarterFile]:
    """Make the files of an adapter with this name, by path.

    Raises:
        OperatorError: an adapter cannot have this name.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise OperatorError(
            f"{name[:100]!r} is not a valid adapter name: use up to {_LONGEST} lower-case letters, digits, dots and"
            " dashes, beginning with a letter, e.g. acme-1"
        )
    if name in {choice.value for choice in RuntimeChoice}:
        raise OperatorError(f"{name!r} is one of Dragoman's own adapters; choose another name, e.g. acme-{name}")
    made = {
        _renamed(path, name): StarterFile(_renamed(_read(_SOURCES.get(path, path)), name), purpose)
        for path, purpose in _PURPOSES.items()
    }
    ignored = f"{gitignore().text}.hypothesis/\n.pytest_cache/\n"
    return {**made, ".gitignore": StarterFile(ignored, "keeps caches out of git")}


def commands_of_adapter() -> tuple[StartCommand, StartCommand]:
    """List the commands that install and test the package."""
    return (
        StartCommand("install it with its test libraries", ("pip install -e '.[test]'",)),
        StartCommand("run the conformance suites", ("pytest",)),
    )


def _read(path: str) -> str:
    return _TEMPLATE.joinpath(path).read_text(encoding="utf-8")


def _renamed(text: str, name: str) -> str:
    """Replace the template's name in each of its forms."""
    words = re.split(r"[.-]", name)
    for old, new in (
        ("pigeon_adapter", f"{'_'.join(words)}_adapter"),
        ("Pigeon", "".join(word.capitalize() for word in words)),
        ("pigeon", name),
    ):
        text = text.replace(old, new)
    return text
