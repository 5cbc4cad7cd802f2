"""The pages of the repository: their text, their blocks of code, their headings and links."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (".github", "adapters", "config", "gateway", "tests")

_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@cache
def files() -> tuple[str, ...]:
    """Name every file of the repository that somebody has written."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    skipped = {"__pycache__", "node_modules"}
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found if not skipped & set(path.parts)))


def pages() -> tuple[str, ...]:
    """Name every page."""
    return tuple(name for name in files() if name.endswith(".md"))


@cache
def text_of(page: str) -> str:
    """Read a page."""
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def _prose(page: str) -> str:
    return _FENCE.sub("", text_of(page))


def block(page: str, language: str, holding: str) -> str:
    """Take the first block of code in a language that holds a text."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return next(code for code in found if holding in code)


def shell_lines(page: str) -> list[str]:
    """List the lines of a page's blocks of shell."""
    found = re.findall(r"^```sh\n(.*?)^```$", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return [line for code in found for line in code.splitlines()]


def fenced(page: str) -> list[str]:
    """List the lines of a page's blocks of code, in any language."""
    return [line for code in _FENCE.findall(text_of(page)) for line in code.splitlines()]


def code_spans(page: str) -> list[str]:
    """List what a page says in `code`, in a line of its prose."""
    return _SPAN.findall(_prose(page))


def links(page: str) -> list[str]:
    """List where a page's links lead."""
    return _LINK.findall(_prose(page))


@cache
def anchors(page: str) -> frozenset[str]:
    """Name the anchors of a page's headings as GitHub does."""
    seen: Counter[str] = Counter()
    names: set[str] = set()
    for heading in _HEADING.findall(_prose(page)):
        said = re.sub(r"\]\([^)]*\)", "]", heading)
        name = re.sub(r"[^\w\- ]", "", said.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(names)
